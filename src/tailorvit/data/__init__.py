"""Datasets, splits and augmentation: images in, reproducible batches out."""

from __future__ import annotations

from tailorvit.data.augment import PRESETS, Augment, augment_preset
from tailorvit.data.batches import Batch, Batches
from tailorvit.data.dataset import Data, open_data
from tailorvit.data.images import preprocess

__all__ = ["PRESETS", "Augment", "Batch", "Batches", "Data", "augment_preset", "open_data", "preprocess"]
