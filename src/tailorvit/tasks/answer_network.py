"""A backbone's last map and a question's words in one transformer, which answers (SOHO without its dictionary)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tailorvit.errors import TailorError
from tailorvit.tasks.base import Backbone, TaskNetwork
from tailorvit.tasks.words import Words, words_of
from tailorvit.train.optim import soft_cross_entropy

HEAD_WIDTH = 32  # of the attention of an encoder made here
BERT_WIDTH = 768
LONGEST_WAVE = 10_000.0  # of the positions, in units of the shortest


def sine_positions(rows: int, columns: int, width: int, device: torch.device) -> Tensor:
    """(rows * columns, width): half of the channels tell the row, half the column, as shares of the whole map.

    Shares and not cells, so that a map of another size has the same places.
    """
    half = width // 2

    def waves(count: int, channels: int) -> Tensor:
        place = (torch.arange(count, device=device, dtype=torch.float32) + 0.5) / count * 2 * math.pi
        number = torch.arange(channels, device=device)
        rate = LONGEST_WAVE ** (2 * (number // 2).float() / max(channels, 1))
        angle = place[:, None] / rate
        return torch.where(number % 2 == 0, angle.sin(), angle.cos())

    down = waves(rows, half)[:, None].expand(-1, columns, -1)
    across = waves(columns, width - half)[None].expand(rows, -1, -1)
    return torch.cat([down, across], -1).flatten(0, 1)


def bert_config(width: int, depth: int, words: int, length: int, dropout: float) -> dict[str, Any]:
    """The config of an encoder that is trained from scratch."""
    return {
        "vocab_size": words,
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": max(width // HEAD_WIDTH, 1),
        "intermediate_size": 4 * width,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "max_position_embeddings": length,
        "pad_token_id": 0,
        # BERT's 0.02 suits its width; with it a narrow encoder starts with almost no attention.
        "initializer_range": 0.02 * math.sqrt(BERT_WIDTH / width),
    }


class AnswerNetwork(TaskNetwork):
    """[CLS], words and image tokens through a BERT; what it makes of [CLS] is classified.

    ``facts`` are plain data: the encoder's config, the words, the answers, and whether the network is blind. A blind
    one sees a learned constant in place of the image: what questions alone tell.
    """

    def __init__(self, backbone: Backbone, facts: Mapping[str, Any]) -> None:
        super().__init__()
        bert = import_module("transformers.models.bert.modeling_bert")
        config = bert.BertConfig(**facts["bert"])
        if config.hidden_size % config.num_attention_heads:
            raise TailorError(
                f"answer.width must be a multiple of {HEAD_WIDTH}, or below it, not {config.hidden_size}."
            )
        self.facts = dict(facts)
        self.answers: Sequence[str] = tuple(facts["answers"])
        self.words: Words = words_of(facts["words"])
        self.blind, self.soft = bool(facts["blind"]), bool(facts["soft"])
        self.backbone = backbone
        self.text: Any = bert.BertModel(config, add_pooling_layer=False)
        # Of a ViT's pyramid its own map, as coarser ones are pooled from it; else the last stage's.
        self.place: int = getattr(backbone, "deepest", -1)
        width, channels = config.hidden_size, backbone.channels[self.place]
        self.map_norm, self.project = nn.LayerNorm(channels), nn.Linear(channels, width)
        self.image_norm, self.dropout = nn.LayerNorm(width), nn.Dropout(config.hidden_dropout_prob)
        self.nothing = nn.Parameter(torch.zeros(width)) if self.blind else None
        if self.blind:
            for part in (self.backbone, self.map_norm, self.project):
                part.requires_grad_(False)  # they are not used
        self.head = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.LayerNorm(2 * width), nn.Linear(2 * width, len(self.answers))
        )

    @property
    def settings(self) -> dict[str, Any]:
        """All of the network but its weights and its backbone."""
        return dict(self.facts)

    def image_tokens(self, x: Tensor) -> Tensor:
        """The cells of the last map with their places, or one learned token of a blind network: (B, tokens, width)."""
        kind = self.text.embeddings.token_type_embeddings.weight[1]
        if self.nothing is not None:
            tokens = self.nothing.expand(len(x), 1, -1)
        else:
            found = self.backbone(x)[self.place]
            rows, columns = found.shape[-2:]
            tokens = self.project(self.map_norm(found.flatten(2).transpose(1, 2)))
            tokens = tokens + sine_positions(rows, columns, tokens.shape[-1], tokens.device)
        return self.dropout(self.image_norm(tokens + kind))  # type: ignore[no-any-return]

    def encode(self, words: Tensor, tokens: Tensor | None) -> Tensor:
        """What the transformer makes of words and image tokens, (B, words + tokens, width); padding is not attended."""
        hidden, there = self.text.embeddings(input_ids=words), words != self.words.pad
        if tokens is not None:
            hidden = torch.cat([hidden, tokens.to(hidden.dtype)], 1)
            there = torch.cat([there, torch.ones_like(tokens[..., 0], dtype=torch.bool)], 1)
        mask = there[:, None, None, :].expand(-1, 1, there.shape[1], -1)
        return self.text.encoder(hidden, attention_mask=mask).last_hidden_state  # type: ignore[no-any-return]

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """Logits (B, answers)."""
        return self.head(self.encode(words, self.image_tokens(x))[:, 0])  # type: ignore[no-any-return]

    def loss(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        """Cross entropy; where several answers may be partly right, that of each answer by itself."""
        logits = self(x, y).float()
        if not self.soft:
            return soft_cross_entropy(logits, target)
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1).mean()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of each answer: they sum to one where one answer is right."""
        return logits.float().sigmoid() if self.soft else logits.float().softmax(-1)
