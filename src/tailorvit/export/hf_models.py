"""Our networks as Hugging Face models, with an image processor that prepares pictures exactly as we do.

Bundled into the standalone file of an exported folder, so it may import from tailorvit only what a bundle can hold.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.image_processing_base import BatchFeature, ImageProcessingMixin
from transformers.modeling_outputs import ImageClassifierOutput

from tailorvit.families import plain_class
from tailorvit.portable import stored_size, to_pixels


class TailorVitConfig(PretrainedConfig):  # type: ignore[misc]
    """The family and the settings of a plain network; class names are in id2label."""

    model_type = "tailorvit"

    def __init__(self, family: str = "vit", settings: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.family, self.settings = family, dict(settings or {})
        super().__init__(**kwargs)


class TailorVitForImageClassification(PreTrainedModel):  # type: ignore[misc]
    """A plain network that takes ``pixel_values`` and answers with logits, and with a loss where labels are given."""

    config_class = TailorVitConfig
    main_input_name = "pixel_values"
    base_model_prefix = "network"

    def __init__(self, config: TailorVitConfig) -> None:
        super().__init__(config)
        self.network = self._fresh()
        if self.network.num_classes != config.num_labels:
            self.network.reset_classifier(config.num_labels)
        self.post_init()

    def _fresh(self) -> Any:
        return plain_class(self.config.family).from_settings(self.config.settings)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):  # only a new head: all else is in the file
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As usual; then the fixed tables are made anew, because transformers 5 empties what no file holds."""
        found = super().from_pretrained(*args, **kwargs)
        model = found[0] if isinstance(found, tuple) else found
        with torch.device("cpu"), torch.no_grad():
            tables, filed = dict(model._fresh().named_buffers()), model.network.state_dict()
            for name, buffer in model.network.named_buffers():
                if name not in filed:  # what batch norms have seen is in the file
                    buffer.copy_(tables[name])
        return found

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> Any:
        """Logits (B, classes)."""
        logits = self.network(pixel_values)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return ImageClassifierOutput(loss=loss, logits=logits)


def _own(image: Image.Image) -> Image.Image:
    """A picture to work on. An undecoded JPEG is read anew: only then it shrinks while decoding, as in training."""
    if image.format not in ("JPEG", "MPO") or not getattr(image, "tile", None) or image.tell():
        return image.copy()
    file: Any = image.fp  # type: ignore[attr-defined]
    at = file.tell()
    file.seek(0)
    again = Image.open(io.BytesIO(file.read()))
    file.seek(at)
    return again


class NoWishes(TypedDict):
    """What a call may change about the preprocessing: nothing, or the network would see what it never learnt."""


class TailorVitImageProcessor(ImageProcessingMixin):  # type: ignore[misc]
    """Upright, transparent parts white, resized to cover the size times the margin, middle cropped, normalised."""

    model_input_names = ["pixel_values"]  # noqa: RUF012 - a list is what transformers compares it with
    valid_kwargs = NoWishes  # asked for by transformers 5 when a pipeline opens the folder

    def __init__(
        self,
        image_size: tuple[int, int] = (224, 224),
        channels: int = 3,
        mean: tuple[float, ...] = (0.5, 0.5, 0.5),
        std: tuple[float, ...] = (0.5, 0.5, 0.5),
        margin: float = 1.0,
        interpolation: str = "bicubic",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if interpolation != "bicubic":
            raise ValueError(f"These networks were trained on bicubic resizing, not {interpolation}.")
        self.image_size, self.channels, self.margin = tuple(image_size), channels, margin
        self.mean, self.std, self.interpolation = tuple(mean), tuple(std), interpolation

    def _one(self, image: Any) -> Any:
        if not isinstance(image, Image.Image):
            image = Image.fromarray(np.asarray(image))
        high, wide = self.image_size
        pixels = to_pixels(_own(image), self.channels, stored_size((high, wide), self.margin))
        top, left = (pixels.shape[1] - high) // 2, (pixels.shape[2] - wide) // 2
        x = pixels[:, top : top + high, left : left + wide].astype(np.float32)
        scale = 1 / (255 * np.asarray(self.std, np.float32))
        bias = -np.asarray(self.mean, np.float32) * 255 * scale
        return x * scale[:, None, None] + bias[:, None, None]

    def preprocess(self, images: Any, return_tensors: str | None = None, **kwargs: Any) -> BatchFeature:
        """One picture or a list of them (Pillow images, or uint8 arrays (H, W) and (H, W, C)) as pixel_values."""
        several = images if isinstance(images, list | tuple) else [images]
        return BatchFeature({"pixel_values": [self._one(i) for i in several]}, tensor_type=return_tensors)

    def __call__(self, images: Any, **kwargs: Any) -> BatchFeature:
        """See :meth:`preprocess`."""
        return self.preprocess(images, **kwargs)
