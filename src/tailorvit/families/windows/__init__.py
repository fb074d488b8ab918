"""Windowed networks: Swin as S4 searches it (swin.py) and the four-stage space of S3 (windowed.py) share everything else."""
