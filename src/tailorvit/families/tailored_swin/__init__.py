"""Swins as timm has them, with heads, hidden units, channels and blocks that can be cut."""
