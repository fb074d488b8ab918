"""Windowed networks: Swin as S4 searches it (swin.py), the four-stage space of S3 (windowed.py), all else shared."""
