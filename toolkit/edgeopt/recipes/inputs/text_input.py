"""Text to tensors: tokens, a mask of those that are there, and which half of a pair each belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import Sample, Tensors, TensorSpec
from edgeopt.recipes.inputs.text_files import PAIR
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.texts.tokenizer import Fill, Tokenizer
from edgeopt.recipes.texts.tokenizer_file import Encoding, TokenizerFile
from edgeopt.system.disk.files import require_there
from edgeopt.system.text import short

_PADS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")
"""Tokens that fill, as they are usually called."""
_REMEDY = "put tokenizer.json beside the recipe, as save_pretrained of Hugging Face's tokenizers writes it"
_TYPES = ("int64", "int32")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text and where its tokens lie in it."""

    text: str
    mask: NDArray[np.int64]
    """(tokens,) 1 where a token is, 0 where it is filled."""
    offsets: NDArray[np.int64]
    """(tokens, 2) characters from and to; the same where a token stands for none."""


@dataclass(frozen=True, slots=True)
class _Opened:
    file: TokenizerFile
    pad_id: int
    size: int
    """The largest number of a token, and one."""


@dataclass(frozen=True, slots=True)
class TextLength:
    """The length of a text as a model reads it."""

    tokens: int
    """Number of its tokens, with those that begin and end it."""
    is_cut: bool
    """Whether the text has more than the model takes."""


class TokenText(str):
    """A text that came as its tokens, marks included; it reads as their numbers where it is shown."""

    __slots__ = ("tokens",)

    tokens: tuple[int, ...]

    def __new__(cls, tokens: Sequence[int]) -> TokenText:
        """Take tokens of the model's own tokenizer."""
        text = super().__new__(cls, " ".join(map(str, tokens)))
        text.tokens = tuple(tokens)
        return text


class TextInput:
    """Turns texts into a model's inputs."""

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec]) -> None:
        """Open the tokenizer of a recipe that is bound to a model.

        Raises:
            MissingDependencyError: If the package `tokenizers` is not installed.
            InvalidFileError: If the file is absent, or no tokenizer.
        """
        table, by_name = recipe.tokenizer, {spec.name: spec for spec in inputs}
        self._length, self._pairs, self._recipe = _length_of(recipe, inputs), table.pairs, recipe.name
        self._dtypes = {name: by_name[name].dtype for name in _names(table) if name in by_name}
        self._ids, self._mask = table.ids, table.mask
        self._is_filled = fill_of(table, inputs) is Fill.LENGTH
        self._opened = _open(recipe, self._length)

    def __call__(self, sample: Sample) -> tuple[Tensors, Encoded]:
        """Return a model's inputs, each (1, length), and where the tokens lie in the text.

        The length is that of the text itself where the recipe says so, and the model takes any.

        Raises:
            UnsupportedError: If it is no text, or no pair where the recipe takes pairs.
        """
        encoding = self._encode(sample)
        return self._filled(str(sample), encoding, self._length if self._is_filled else max(len(encoding.ids), 1))

    def filled_to(self, sample: Sample, length: int) -> Tensors:
        """Return the inputs of one text, filled to so many tokens: as many as it has, or more."""
        return self._filled(str(sample), self._encode(sample), length)[0]

    def together(self, samples: Sequence[str]) -> tuple[Tensors, list[Encoded]]:
        """Return the inputs of several texts, each (texts, tokens of the longest), and where the tokens of each lie.

        Raises:
            UnsupportedError: If one is no pair where the recipe takes pairs.
        """
        encodings = [self._encode(sample) for sample in samples]
        longest = max(1, *(len(encoding.ids) for encoding in encodings))
        rows = [self._filled(*pair, longest) for pair in zip(samples, encodings, strict=True)]
        tensors = {name: np.concatenate([row[name] for row, _ in rows]) for name in self._dtypes}
        return tensors, [encoded for _, encoded in rows]

    def _filled(self, text: str, encoding: Encoding, length: int) -> tuple[Tensors, Encoded]:
        """Return the inputs of one text, filled to so many tokens."""
        count = len(encoding.ids)
        ids = np.full(length, self._opened.pad_id, np.int64)
        mask, types = np.zeros(length, np.int64), np.zeros(length, np.int64)
        offsets = np.zeros((length, 2), np.int64)
        if count:
            ids[:count], mask[:count], types[:count] = encoding.ids, 1, encoding.type_ids
            offsets[:count] = encoding.offsets
        values = dict(zip((self._ids, self._mask), (ids, mask), strict=True))
        tensors = {name: values.get(name, types).astype(dtype)[None] for name, dtype in self._dtypes.items()}
        return tensors, Encoded(text, mask, offsets)

    def is_cut(self, sample: Sample) -> bool:
        """Return whether a text has more tokens than the model takes."""
        return self._encode(sample).is_cut

    def length_of(self, sample: Sample) -> TextLength:
        """Return how much of a text the model reads."""
        encoding = self._encode(sample)
        return TextLength(len(encoding.ids), encoding.is_cut)

    def _encode(self, sample: Sample) -> Encoding:
        if isinstance(sample, TokenText):
            return self._encoded(sample.tokens)
        if not isinstance(sample, str):
            text = "tensors" if isinstance(sample, Mapping) else "a picture"
            raise UnsupportedError(f"recipe {self._recipe!r} takes texts, and is fed {text}", remedy="pass texts")
        if not self._pairs:
            return self._opened.file.encode(sample)
        first, tab, second = sample.partition(PAIR)
        if not tab:
            raise UnsupportedError(
                f"recipe {self._recipe!r} takes pairs, and {short(sample)} has no tab between two texts",
                remedy="write both on a line with a tab between them, or as columns text and text_pair",
            )
        return self._opened.file.encode(first, second)

    def _encoded(self, tokens: Sequence[int]) -> Encoding:
        """Return tokens as they came, cut to what the model takes.

        Raises:
            UnsupportedError: If the tokenizer has not all of them.
        """
        if unknown := [token for token in tokens if not 0 <= token < self._opened.size]:
            raise UnsupportedError(
                f"the tokenizer of {self._recipe!r} has no token {unknown[0]}, only 0 to {self._opened.size - 1}",
                remedy="send tokens of this model's own tokenizer, or the text",
            )
        kept = tokens[: self._length]
        count = len(kept)
        return Encoding(kept, [0] * count, [(0, 0)] * count, is_cut=len(tokens) > count)


def bind_texts(recipe: Recipe, inputs: Sequence[TensorSpec]) -> Recipe:
    """Return a recipe of texts with the shape of each input.

    Raises:
        UnsupportedError: If an input gets nothing, or the number of tokens is not told.
    """
    known, wanted = {spec.name: spec for spec in inputs}, _names(recipe.tokenizer)
    unfed = [
        str(spec) for spec in inputs if spec.name not in wanted or spec.dtype not in _TYPES or len(spec.shape) != 2
    ]
    if recipe.tokenizer.ids not in known or unfed:
        text = f"nothing feeds {unfed[0]}" if unfed else f"the model has no input {recipe.tokenizer.ids}"
        raise UnsupportedError(
            f"recipe {recipe.name!r} cannot feed texts to this model: {text}; it has {', '.join(map(str, inputs))}",
            remedy="name its inputs (1 x tokens, whole numbers) under [tokenizer]: ids, mask and types",
        )
    length = _length_of(recipe, inputs)
    shapes = dict.fromkeys(known, (1, length))
    table = replace(recipe.tokenizer, fill=fill_of(_decided(recipe.tokenizer, inputs), inputs))
    own = replace(recipe.input, size=(), shapes={**recipe.input.shapes, **shapes})
    return replace(recipe, input=own, tokenizer=table)


def has_free_sizes(inputs: Sequence[TensorSpec]) -> bool:
    """Return whether a model takes any number of texts of any length."""
    return all(len(spec.shape) == 2 and not any(isinstance(size, int) for size in spec.shape) for spec in inputs)


def fill_of(table: Tokenizer, inputs: Sequence[TensorSpec]) -> Fill:
    """Return what texts are filled to of a form of a model: one of fixed length is fed that, whatever a recipe says.

    Args:
        table: Of a recipe that is bound to the model.
        inputs: Of the form.
    """
    has_own_length = any(len(spec.shape) != 2 or isinstance(spec.shape[1], int) for spec in inputs)
    return Fill.LENGTH if has_own_length or table.fill is Fill.USUAL else table.fill


def _decided(table: Tokenizer, inputs: Sequence[TensorSpec]) -> Tokenizer:
    """Return the table with what the usual filling is: where no mask tells what is filled, a text stays as it was."""
    has_mask = any(spec.name == table.mask for spec in inputs)
    if table.fill is Fill.TOGETHER and not (has_mask and has_free_sizes(inputs)):
        return replace(table, fill=Fill.ALONE)
    if table.fill is not Fill.USUAL or not has_mask:
        return table
    return replace(table, fill=Fill.TOGETHER if has_free_sizes(inputs) else Fill.ALONE)


def vocabulary_size(recipe: Recipe) -> int:
    """Return how many rows an embedding needs for all tokens of a recipe's tokenizer."""
    return _open(recipe, 0).size


def _names(table: Tokenizer) -> tuple[str, ...]:
    return table.ids, table.mask, table.types


def _length_of(recipe: Recipe, inputs: Sequence[TensorSpec]) -> int:
    """Return how many tokens the model takes.

    Raises:
        UnsupportedError: If model and recipe leave it open, or say different numbers.
    """
    spec = next((input_ for input_ in inputs if input_.name == recipe.tokenizer.ids), inputs[0])
    own = spec.shape[1] if len(spec.shape) == 2 else None
    length = recipe.tokenizer.length or recipe.input.shapes.get(spec.name, (1, 0))[-1]
    if isinstance(own, int) and length in (0, own):
        return own
    if isinstance(own, int) or not length:
        has = f"takes {own} tokens, the recipe says {length}" if isinstance(own, int) else "takes any number of tokens"
        raise UnsupportedError(
            f"input {spec} {has}", remedy="write length = 128 or another number under [tokenizer] of the recipe"
        )
    return length


def _open(recipe: Recipe, length: int) -> _Opened:
    path = recipe.folder / recipe.tokenizer.file
    facts = require_there(path, remedy=_REMEDY)
    return _opened(path, facts.st_mtime_ns, facts.st_size, length, recipe.tokenizer.pad)


@lru_cache(maxsize=8)
def _opened(path: Path, changed_ns: int, size_bytes: int, length: int, pad: str) -> _Opened:
    """Return an open tokenizer; it is read again where the file has changed."""
    del changed_ns, size_bytes
    file = TokenizerFile(path, purpose="a recipe that takes texts")
    tokenizer = file.package
    names = [pad] if pad else [*filter(None, [file.pad]), *_PADS]
    pad_id = next((token for name in names if (token := tokenizer.token_to_id(name)) is not None), None)
    if pad_id is None:
        raise InvalidFileError(
            f"{path} has no token {' or '.join(names)} to fill short texts with",
            remedy='write the token that fills under [tokenizer]: pad = "..."',
        )
    if length:
        _cut(file, length, path)
    return _Opened(file, int(pad_id), max(tokenizer.get_vocab().values(), default=-1) + 1)


def _cut(file: TokenizerFile, length: int, path: Path) -> None:
    """Have it cut texts to so many tokens, its own marks among them."""
    marks = file.package.num_special_tokens_to_add(True)
    if length <= marks:
        raise UnsupportedError(
            f"{path} adds {marks} tokens of its own, the model takes {length} in all",
            remedy="write a larger length under [tokenizer]",
        )
    file.cut_to(length)
