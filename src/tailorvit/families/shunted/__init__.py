"""Shunted Transformer: four stages whose heads see keys of different sizes; S4's third family."""
