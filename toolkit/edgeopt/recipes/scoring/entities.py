"""Spans that tags of words make, and how many of them are right.

Source: the evaluation of CoNLL-2000 and CoNLL-2003 (Tjong Kim Sang and De Meulder 2003), as seqeval computes it: a span
is right where both ends and its kind are; all spans of all texts are counted together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.recipes.metrics import Counts

OUTSIDE = "O"


@dataclass(frozen=True, slots=True)
class SpanCounts:
    """Spans of each text."""

    right: NDArray[np.int64]
    """(texts,) found and true."""
    found: NDArray[np.int64]
    """(texts,)"""
    true: NDArray[np.int64]
    """(texts,)"""


def spans_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return kind, first word and the word behind the last of each span.

    `B-` begins one, `I-` goes on where the kind is the same and begins one elsewhere; `E-` and `L-` end one, `S-` and
    `U-` are one. A tag without such a beginning is a span of one word, but for `O`.
    """
    result, begun, kind = list[tuple[str, int, int]](), 0, ""
    for i, tag in enumerate(tags):
        mark, dash, rest = tag.partition("-")
        is_part = bool(dash) and mark in ("B", "I", "E", "L", "S", "U", "M")
        goes_on = is_part and mark in ("I", "E", "L", "M") and kind == rest
        if kind and not goes_on:
            result.append((kind, begun, i))
            kind = ""
        if not is_part:
            result += [(tag, i, i + 1)] if tag != OUTSIDE else []
            continue
        if not goes_on:
            begun, kind = i, rest
        if mark in ("E", "L", "S", "U"):
            result.append((kind, begun, i + 1))
            kind = ""
    return [*result, (kind, begun, len(tags))] if kind else result


def span_f1(counted: SpanCounts, counts: Counts) -> NDArray[np.float64]:
    """Return (resamples,) the F1 of all spans; 0 where there is none."""
    right, both = counts @ counted.right, counts @ (counted.found + counted.true)
    return np.asarray(np.divide(2.0 * right, both, out=np.zeros(len(counts)), where=both > 0), np.float64)
