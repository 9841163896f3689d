"""The questions of one run: samples whose answer some candidate changed, in a random order drawn beforehand."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEITHER = "neither"
"""The answer where no option is right."""
_SEED = 4


@dataclass(frozen=True, slots=True)
class Question:
    """One sample and the answers that models gave to it, without saying which model gave which."""

    sample: str
    """Name of the sample."""
    options: tuple[str, ...]
    """The distinct answers, in random order."""


def drawn_order(samples: int, left_out: Sequence[int]) -> NDArray[np.int64]:
    """Return the positions of samples in a random order, always the same; without those that steered the search.

    Args:
        samples: How many there are.
        left_out: Positions that calibrated, or on which the search judged agreement.
    """
    order = np.random.default_rng(_SEED).permutation(samples)
    return order[~np.isin(order, np.asarray(left_out, np.int64))].astype(np.int64)


def make_questions(
    names: Sequence[str], order: Sequence[int], original: Sequence[str], candidates: Sequence[Sequence[str]]
) -> tuple[Question, ...]:
    """Return one question for each sample to which a candidate answers otherwise than the original.

    Args:
        names: Of all samples.
        order: From `drawn_order`.
        original: Its answer to each sample.
        candidates: Answers of each candidate.
    """
    rng, questions = np.random.default_rng(_SEED), list[Question]()
    for i in order:
        distinct = [*dict.fromkeys((original[i], *(each[i] for each in candidates)))]
        if len(distinct) > 1:
            questions.append(Question(names[i], tuple(distinct[k] for k in rng.permutation(len(distinct)))))
    return tuple(questions)


def questions_json(questions: Sequence[Question]) -> str:
    """Return the questions as a file; the order of options says nothing of who answered."""
    return json.dumps({"questions": [asdict(question) for question in questions]}, indent=1)


@dataclass(frozen=True, slots=True)
class Counted:
    """Answered questions about one candidate, counted."""

    samples: int
    """Samples of the random order up to the first changed one without an answer: of these all is known."""
    worse: int
    better: int
    changed: int
    """Changed answers among these samples."""


def count_pairs(
    names: Sequence[str],
    order: Sequence[int],
    original: Sequence[str],
    candidate: Sequence[str],
    truth: Mapping[str, str],
) -> Counted:
    """Return how a candidate's answers differ from the original's in what is right.

    Args:
        names: Of all samples.
        order: From `drawn_order`.
        original: Its answer to each sample.
        candidate: The candidate's.
        truth: The right answer by the name of the sample, or `NEITHER`.
    """
    worse = better = changed = samples = 0
    for i in order:
        if original[i] != candidate[i]:
            if (right := truth.get(names[i])) is None:
                break
            changed += 1
            worse += right == original[i]
            better += right == candidate[i]
        samples += 1
    return Counted(samples, worse, better, changed)


def as_texts(choices: Sequence[Hashable | None], class_name: Any) -> list[str] | None:
    """Return the choices of answers as texts that a person can judge; None where one is no single thing.

    Args:
        choices: Of `Task.choice`.
        class_name: Returns the name of a class by its index.
    """
    result = list[str]()
    for choice in choices:
        if isinstance(choice, frozenset):
            if len(choice) > 1:
                return None
            result.append(str(class_name(next(iter(choice)))) if choice else "nothing")
        elif isinstance(choice, str):
            result.append(choice or "nothing")
        else:
            return None
    return result
