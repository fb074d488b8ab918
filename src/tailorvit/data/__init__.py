"""Datasets, splits and augmentation: images in, reproducible batches out."""

from __future__ import annotations

from tailorvit.data.augment import PRESETS, Augment, augment_preset
from tailorvit.data.batches import Batch, TrainBatches
from tailorvit.data.dataset import Data, DataSettings, open_data
from tailorvit.data.images import ImageSet, preprocess
from tailorvit.data.sources import SOURCES, DataSource, from_arrays, from_items

__all__ = [
    "PRESETS",
    "SOURCES",
    "Augment",
    "Batch",
    "Data",
    "DataSettings",
    "DataSource",
    "ImageSet",
    "TrainBatches",
    "augment_preset",
    "from_arrays",
    "from_items",
    "open_data",
    "preprocess",
]
