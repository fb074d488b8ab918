"""Ladder: a searched decoder beside a frozen trunk; S4's decoder for CLIP."""
