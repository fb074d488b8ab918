"""``import tailorvit.for_transformers`` registers our networks with the Auto classes of Hugging Face transformers.

``AutoModelForImageClassification.from_pretrained(FOLDER)`` then loads a folder that ``tailorvit export --to hf`` wrote,
and ``AutoImageProcessor.from_pretrained(FOLDER)`` the processor that prepares images exactly as in training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature
from transformers.modeling_outputs import ImageClassifierOutput

from tailorvit.families import plain_class
from tailorvit.portable import MARGIN, Preprocessing, checked_size, image_list, prepare


class TailorVitConfig(PretrainedConfig):  # type: ignore[misc]
    """The family and the settings of a plain network; class names are in id2label."""

    model_type = "tailorvit"

    def __init__(self, family: str = "vit", settings: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self.family, self.settings = family, dict(settings or {})
        super().__init__(**kwargs)


class TailorVitForImageClassification(PreTrainedModel):  # type: ignore[misc]
    """A plain network that takes ``pixel_values`` and returns logits, and a loss where labels are given."""

    config_class = TailorVitConfig
    main_input_name = "pixel_values"
    base_model_prefix = "network"

    def __init__(self, config: TailorVitConfig) -> None:
        super().__init__(config)
        self.network = self._build()
        if self.network.num_classes != config.num_labels:
            self.network.reset_classifier(config.num_labels)
        self.post_init()

    def _build(self) -> Any:
        return plain_class(self.config.family).from_settings(self.config.settings)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):  # only a new head: everything else is in the file
            nn.init.trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As usual; then the fixed tables are computed again, because transformers 5 empties what no file holds."""
        found = super().from_pretrained(*args, **kwargs)
        model = found[0] if isinstance(found, tuple) else found
        with torch.device("cpu"), torch.no_grad():
            tables, stored = dict(model._build().named_buffers()), model.network.state_dict()
            for name, buffer in model.network.named_buffers():
                if name not in stored:  # the statistics of batch norms are in the file
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


class NoOptions(TypedDict):
    """What a call may change about the preprocessing: nothing, since the network was trained with this one."""


class TailorVitImageProcessor(BaseImageProcessor):  # type: ignore[misc]
    """The preprocessing of :class:`tailorvit.portable.Preprocessing`, for Pillow images and arrays."""

    model_input_names = ["pixel_values"]  # noqa: RUF012 - transformers compares it with a list
    valid_kwargs = NoOptions  # transformers 5 reads it when a pipeline loads the folder

    def __init__(
        self,
        image_size: tuple[int, int] = (224, 224),
        channels: int = 3,
        mean: tuple[float, ...] = (0.5, 0.5, 0.5),
        std: tuple[float, ...] = (0.5, 0.5, 0.5),
        margin: float = MARGIN,
        interpolation: str = "bicubic",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.image_size, self.channels, self.margin = checked_size(image_size), channels, margin
        self.mean, self.std, self.interpolation = tuple(mean), tuple(std), interpolation
        self._how()  # bad values are found here

    def _how(self) -> Preprocessing:
        return Preprocessing(self.image_size, self.channels, self.mean, self.std, self.margin, self.interpolation)

    def preprocess(self, images: Any, return_tensors: str | None = None, **kwargs: Any) -> BatchFeature:
        """One image or a list of them (Pillow images, or arrays (H, W) and (H, W, C)) as pixel_values."""
        pixels = [prepare(image, self._how()) for image in image_list(images)[0]]
        return BatchFeature({"pixel_values": pixels}, tensor_type=return_tensors)


AutoConfig.register("tailorvit", TailorVitConfig, exist_ok=True)
AutoModelForImageClassification.register(TailorVitConfig, TailorVitForImageClassification, exist_ok=True)
AutoImageProcessor.register(TailorVitConfig, slow_image_processor_class=TailorVitImageProcessor, exist_ok=True)
