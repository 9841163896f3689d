"""Token classification: spans of a text, such as names of persons and places. A tag a word, spans of tags, their F1."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.sample_drawing import Mark, draw_spans_of_text
from edgeopt.recipes.inputs.text_input import Encoded, TextInput
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.tagged import TaggedLabels
from edgeopt.recipes.outputs.learned import Columns, LearnedHead, Scale
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.entities import OUTSIDE, SpanCounts, span_f1, spans_of
from edgeopt.system.text import short
from edgeopt.tasks import Accuracy, FrameTask, accuracy_of, resampled_accuracy
from edgeopt.tasks._json_numbers import score_as_json
from edgeopt.tasks._losses import divergence
from edgeopt.tasks.text_classification import require_tokenizer

_DECODERS = ("logits", "probabilities")
_WORDS = re.compile(r"[^ ]+")
"""As a file of tagged words has them."""
_LOOSE_WORDS = re.compile(r"\w+(?:[^\w\s]+\w+)*\.?(?<=\.\w\.)|\w+(?:[^\w\s]+\w+)*|[^\w\s]")
"""Words of a text as people write it: marks around a word are none of it, those inside and the last of U.S. are."""
_MOST_LISTED = 8
"""Spans of a line."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text with its kind."""

    text: str
    """Text of the span."""
    kind: str
    """Name of the entity, such as `PER`."""
    start: int
    """Place of its first character, counted from the beginning of the text."""
    end: int
    """Place behind its last character."""
    score: float
    """The least probability among its words, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans of one text, in its order."""

    spans: tuple[Span, ...]
    """The spans, in the order of the text."""
    words: int
    """Number of words in the text."""


class TokenClassification(FrameTask):
    """One model that tags the words of a text: its tokens, its spans, their score."""

    draws: ClassVar[Sequence[str]] = ("text",)

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If the output is not 1 x tokens x tags, or tags have no names.
            MissingDependencyError: If the package `tokenizers` is not installed.
        """
        require_tokenizer(recipe)
        if recipe.postprocess.decoder not in _DECODERS:
            raise NotFoundError("decoder of task token_classification", recipe.postprocess.decoder, _DECODERS)
        self._output, tags = outputs[0].name, outputs[0].shape[-1] if outputs[0].shape else 0
        count = len(recipe.class_names)
        if len(outputs[0].shape) != 3 or "float" not in outputs[0].dtype or (isinstance(tags, int) and tags != count):
            raise UnsupportedError(
                f"recipe {recipe.name!r} does not fit this model: it has {count} names of tags and reads 1 x tokens x "
                f"tags; the model has {outputs[0]}",
                remedy='write labels = "labels.txt", a file with one tag a line such as O and B-PER',
            )
        self._recipe, self._input = recipe, TextInput(recipe, inputs)
        self._is_probability = recipe.postprocess.decoder == "probabilities"
        self._words = _WORDS if evaluating else _LOOSE_WORDS

    @property
    def heads(self) -> Sequence[LearnedHead]:
        """The tags of each token, which exclude one another."""
        return (LearnedHead(Columns(self._output), Scale.SHARES if self._is_probability else Scale.SOFTMAX),)

    def preprocess(self, frame: Sample) -> tuple[Tensors, Encoded | None]:
        """Return the tokens of a text and where they lie in it; arrays stay unchanged, and have no text to be in."""
        return (frame, None) if isinstance(frame, Mapping) else self._input(frame)

    def postprocess(self, outputs: Tensors, geometry: Encoded | None) -> Spans:
        """Return the spans; a word has the tag of its first token, one that was cut off has none.

        Raises:
            UnsupportedError: If arrays were fed, which have no text.
        """
        if geometry is None:
            raise UnsupportedError("tokens that are fed as arrays have no text to find spans in", remedy="feed texts")
        array = self._probabilities(outputs)
        words = [(one.start(), one.end()) for one in self._words.finditer(geometry.text)]
        if not np.isfinite(array).all():
            return Spans((), len(words))
        best, sure = array.argmax(axis=1), array.max(axis=1)
        tokens = _first_tokens(words, geometry.offsets)
        tags = [OUTSIDE if at < 0 else self._recipe.class_name(int(best[at])) for at in tokens]
        spans = []
        for kind, first, behind in spans_of(tags):
            start, end = words[first][0], words[behind - 1][1]
            score = min(float(sure[at]) for at in tokens[first:behind])
            spans.append(Span(geometry.text[start:end], kind, start, end, score))
        return Spans(tuple(spans), len(words))

    def _probabilities(self, outputs: Tensors) -> NDArray[np.float64]:
        """Return (tokens, tags)."""
        rows = np.asarray(outputs[self._output], np.float64)
        rows = rows.reshape(-1, rows.shape[-1])
        if self._is_probability:
            return rows
        powers = np.exp(np.clip(rows - rows.max(axis=1, keepdims=True), -80, 0))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def count(self, answer: Spans) -> int:
        """Return the number of spans."""
        return len(answer.spans)

    def best_score(self, answer: Spans) -> float:
        """Return the best score of a span; 0 where none is."""
        return max((span.score for span in answer.spans), default=0.0)

    def as_text(self, answer: Spans) -> str:
        """Return the spans with their kinds."""
        parts = [f"{short(span.text)} {span.kind} {span.score:.2f}" for span in answer.spans[:_MOST_LISTED]]
        return "; ".join([*parts, *(["..."] if len(answer.spans) > _MOST_LISTED else [])]) or "nothing"

    def as_json(self, answer: Spans) -> dict[str, Any]:
        """Return `spans`, each with `text`, `kind`, `start`, `end` and `score`."""
        return {
            "spans": [
                {
                    "text": span.text,
                    "kind": span.kind,
                    "start": span.start,
                    "end": span.end,
                    "score": score_as_json(span.score),
                }
                for span in answer.spans
            ]
        }

    def draw(self, frame: Any, answer: Spans, height: int = HEIGHT) -> Frame:
        """Return a picture of the text with its spans coloured, their kinds above them."""
        return draw_spans_of_text(str(frame), [Mark(span.start, span.end, span.kind) for span in answer.spans], height)

    def score(self, answers: Sequence[Spans], labels: Labels) -> Accuracy:
        """Return the recipe's metric.

        Raises:
            InvalidFileError: If the labels are no tagged words, or none of their kinds is the model's.
        """
        return accuracy_of(self._counted(answers, labels), self._recipe, len(answers))

    def score_resamples(
        self, answers: Sequence[Spans], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th text counts `counts[:, i]` times."""
        return resampled_accuracy(self._counted(answers, labels), self._recipe, counts)

    def _counted(self, answers: Sequence[Spans], labels: Labels) -> SpanCounts:
        if not isinstance(labels, TaggedLabels):
            raise InvalidFileError(
                f"{labels.source} holds no tagged words", remedy="pass a .conll: word and tag a line"
            )
        true = [_true_spans(words, tags) for words, tags in zip(labels.words, labels.tags, strict=True)]
        kinds = {kind for one in true for kind, _, _ in one}
        known = {kind for name in self._recipe.class_names for kind, _, _ in spans_of([name])}
        if not kinds & known:
            raise InvalidFileError(
                f"{labels.source}: none of its kinds ({', '.join(sorted(kinds)) or 'none'}) is the model's "
                f"({', '.join(sorted(known)) or 'none'})",
                remedy="pass labels of this model, or correct the recipe's names",
            )
        return _compared(answers, true)

    def agreement(self, answers: Sequence[Spans], reference: Sequence[Spans]) -> float:
        """Return the F1 of spans as if the reference's were true; 1 where neither finds any."""
        counted = _compared(answers, [_keys(spans) for spans in reference])
        if not (counted.found.any() or counted.true.any()):
            return 1.0
        return float(span_f1(counted, np.ones((1, len(reference)), np.int64))[0])

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the mean divergence of the tags' probabilities over all tokens, in nats."""
        if not reference:
            return 0.0
        mine, theirs = (
            np.concatenate([self._probabilities(arrays) for arrays in many]) for many in (outputs, reference)
        )
        return divergence(mine, theirs)

    def sureness(self, answers: Sequence[Spans]) -> NDArray[np.float64]:
        """Return (answers,) the mean score of the spans; 0 where none is."""
        return np.array([np.mean([span.score for span in each.spans] or [0.0]) for each in answers], np.float64)

    def rightness(self, answers: Sequence[Spans], labels: Labels) -> None:
        """Return None: spans of all texts are counted together."""


def _first_tokens(words: Sequence[tuple[int, int]], offsets: NDArray[np.int64]) -> list[int]:
    """Return for each word the first token that has a part of it; -1 where it was cut off."""
    tokens = [(int(start), int(end), i) for i, (start, end) in enumerate(offsets) if end > start]
    first_tokens, at = list[int](), 0
    for start, end in words:
        while at < len(tokens) and tokens[at][1] <= start:
            at += 1
        first_tokens.append(tokens[at][2] if at < len(tokens) and tokens[at][0] < end else -1)
    return first_tokens


Key = tuple[str, int, int]
"""Kind, first character and the one behind the last."""


def _keys(answer: Spans) -> set[Key]:
    return {(span.kind, span.start, span.end) for span in answer.spans}


def _true_spans(words: Sequence[str], tags: Sequence[str]) -> set[Key]:
    """Return the spans of tagged words in characters of the words with one space between."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    places = [(start, following - 1) for start, following in pairwise(starts)]
    return {(kind, places[first][0], places[behind - 1][1]) for kind, first, behind in spans_of(tags)}


def _compared(answers: Sequence[Spans], true: Sequence[set[Key]]) -> SpanCounts:
    pairs = [(_keys(answer), those) for answer, those in zip(answers, true, strict=True)]
    right, array, there = (
        np.array(one, np.int64)
        for one in (
            [len(mine & theirs) for mine, theirs in pairs],
            [len(mine) for mine, _ in pairs],
            [len(theirs) for _, theirs in pairs],
        )
    )
    return SpanCounts(right, array, there)


TASK = TokenClassification
