"""Questions as numbers: words of the training questions, or the word pieces of a BERT."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from tailorvit.errors import TailorError
from tailorvit.tensors import read_safetensors, require_dense, require_finite
from tailorvit.texts import read_table

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

PAD, UNKNOWN, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
LONGEST = 62  # words of a question; what follows is cut off
MOST_WORDS = 30_000  # of a vocabulary made here: the most frequent ones
_WORD = re.compile(r"\w+(?:['’]\w+)*")
# What a BERT's config.json must say for its network to be built; everything else has defaults.
_SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_KEPT = (
    *_SHAPE,
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "initializer_range",
    "pad_token_id",
)


class Words(Protocol):
    """From questions to rows of numbers: [CLS], the words, [SEP], and padding up to one length."""

    vocabulary: tuple[str, ...]
    pad: int
    length: int

    def encode(self, questions: Sequence[str]) -> NDArray[np.int64]:
        """(questions, length)."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which :func:`words_of` reads."""


class WordList:
    """Whole words in lower case, without punctuation; others than those of the list are one unknown word."""

    pad = 0

    def __init__(self, vocabulary: Sequence[str], length: int) -> None:
        self.vocabulary, self.length = tuple(vocabulary), length
        self._number = {word: i for i, word in enumerate(self.vocabulary)}

    @classmethod
    def of(cls, questions: Iterable[str]) -> WordList:
        """The words of these questions, the most frequent first; the longest question sets the length."""
        counts, longest = Counter[str](), 0
        for question in questions:
            found = split_words(question)
            counts.update(found)
            longest = max(longest, len(found))
        ordered = sorted(counts, key=lambda w: (-counts[w], w))[:MOST_WORDS]
        return cls((PAD, UNKNOWN, CLS, SEP, *ordered), min(longest, LONGEST) + 2)

    def encode(self, questions: Sequence[str]) -> NDArray[np.int64]:
        """Rows of word numbers."""
        number = self._number
        return _rows(
            [[number.get(w, number[UNKNOWN]) for w in split_words(q)] for q in questions],
            (number[CLS], number[SEP], self.pad),
            self.length,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": "words", "vocabulary": list(self.vocabulary), "length": self.length}


class WordPieces:
    """The pieces of a BERT's vocabulary, cut as BERT does."""

    def __init__(self, vocabulary: Sequence[str], lower: bool, length: int) -> None:
        from tokenizers import BertWordPieceTokenizer

        self.vocabulary, self.lower, self.length = tuple(vocabulary), lower, length
        number = {piece: i for i, piece in enumerate(self.vocabulary)}
        for special in (PAD, UNKNOWN, CLS, SEP):
            if special not in number:
                raise TailorError(f"The text vocabulary has no '{special}', so it is not that of a BERT.")
        self.pad, self._ends = number[PAD], (number[CLS], number[SEP], number[PAD])
        self._tokenizer: Any = BertWordPieceTokenizer(vocab=number, lowercase=lower)

    def encode(self, questions: Sequence[str]) -> NDArray[np.int64]:
        """Rows of piece numbers."""
        found = self._tokenizer.encode_batch(list(questions), add_special_tokens=False)
        return _rows([f.ids for f in found], self._ends, self.length)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        kept: dict[str, Any] = {"kind": "pieces", "lower": self.lower}
        return {**kept, "vocabulary": list(self.vocabulary), "length": self.length}


def words_of(data: Mapping[str, Any]) -> Words:
    """From :meth:`Words.to_dict`."""
    if data["kind"] == "pieces":
        return WordPieces(data["vocabulary"], bool(data["lower"]), int(data["length"]))
    return WordList(data["vocabulary"], int(data["length"]))


def split_words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return _WORD.findall(text.lower())


def _rows(found: Sequence[Sequence[int]], ends: tuple[int, int, int], length: int) -> NDArray[np.int64]:
    first, last, pad = ends
    rows = np.full((len(found), length), pad, np.int64)
    for row, numbers in zip(rows, found, strict=True):
        line = [first, *numbers[: length - 2], last]
        row[: len(line)] = line
    return rows


# -- a BERT in a folder -----------------------------------------------------------------------------------------------


class TextFolder:
    """A BERT as libraries save it: config.json, model.safetensors and vocab.txt."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).expanduser()
        for name in ("config.json", "model.safetensors", "vocab.txt"):
            if not (self.folder / name).is_file():
                raise TailorError(
                    f"answer.text = '{folder}' is not a folder with a BERT: it has no {name} "
                    "(config.json, model.safetensors and vocab.txt are read; nothing is downloaded)."
                )
        self.config = self._config()

    def _table(self, name: str) -> dict[str, Any]:
        try:
            return read_table(self.folder / name)
        except (OSError, ValueError) as error:
            raise TailorError(f"Cannot read '{self.folder / name}': {error}.") from None

    def _config(self) -> dict[str, Any]:
        found = self._table("config.json")
        if found.get("model_type", "bert") != "bert":
            raise TailorError(f"'{self.folder}' holds a '{found['model_type']}'; answer.text takes a 'bert'.")
        for name in _SHAPE:
            value = found.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise TailorError(f"'{self.folder / 'config.json'}' must hold {name} above zero, not {value}.")
        if found.get("position_embedding_type", "absolute") != "absolute":
            raise TailorError(f"'{self.folder}' has relative positions of words, which are not read.")
        if found.get("type_vocab_size", 2) < 2:
            raise TailorError(f"'{self.folder}' knows one kind of token only; words and image need two.")
        return {name: found[name] for name in _KEPT if name in found}

    def words(self, questions: Iterable[str]) -> WordPieces:
        """The folder's word pieces; the longest of the questions sets the length."""
        try:
            lines = (self.folder / "vocab.txt").read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TailorError(f"Cannot read '{self.folder / 'vocab.txt'}': {error}.") from None
        if len(lines) > self.config["vocab_size"]:
            raise TailorError(
                f"'{self.folder}' has {len(lines):,} word pieces and weights for {self.config['vocab_size']:,}."
            )
        settings = self.folder / "tokenizer_config.json"
        lower = self._table(settings.name).get("do_lower_case", True) if settings.is_file() else True
        most = min(LONGEST + 2, int(self.config.get("max_position_embeddings", 512)))
        rows = WordPieces(lines, bool(lower), most).encode(list(dict.fromkeys(questions)))
        pad = lines.index(PAD)
        return WordPieces(lines, bool(lower), int((rows != pad).sum(1).max(initial=3)))

    def weights(self) -> dict[str, Tensor]:
        """The weights of embeddings and layers, by the names of transformers' ``BertModel``, as float32."""
        file = self.folder / "model.safetensors"
        try:
            found = read_safetensors(file)
        except (OSError, ValueError) as error:
            raise TailorError(f"'{file}' is not a readable safetensors file: {error}.") from None
        renamed = {}
        for name, tensor in found.items():
            own = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
            own = own.replace("LayerNorm.beta", "LayerNorm.bias")
            if own.startswith(("embeddings.", "encoder.")) and tensor.is_floating_point():
                renamed[own] = tensor.to(torch.float32)
        require_dense(renamed, f"'{file}'")
        require_finite(renamed, f"'{file}'")
        return renamed

    def load_into(self, model: torch.nn.Module) -> None:
        """Copy the weights into a ``BertModel`` of the folder's config; every tensor must be there."""
        found, own = self.weights(), model.state_dict()
        for name, tensor in own.items():
            if name not in found:
                raise TailorError(f"'{self.folder / 'model.safetensors'}' has no '{name}', which a BERT has.")
            if found[name].shape != tensor.shape:
                raise TailorError(
                    f"'{name}' of '{self.folder / 'model.safetensors'}' has the shape {tuple(found[name].shape)}, "
                    f"and config.json asks for {tuple(tensor.shape)}."
                )
        model.load_state_dict({name: found[name] for name in own})
