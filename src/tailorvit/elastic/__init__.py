"""Layers whose size is chosen at call time."""
