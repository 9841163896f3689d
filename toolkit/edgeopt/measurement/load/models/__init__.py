"""How frames arrive, one load model a file; the file name is what `--load` begins with.

Each ends in `LOAD`, a kind of `Load`. A part that another package offers comes under `edgeopt.measurement.load.models`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.load import models
from edgeopt.system.declared import registry


class Load(ABC):
    """One load; as a text it is what `--load` takes."""

    example: ClassVar[str]
    """An example of its text, such as `fps:30`."""
    takes_phases: ClassVar[bool] = False
    """Whether streams may begin at different parts of a period."""
    takes_jitter: ClassVar[bool] = False
    """Whether frames of a stream come one period apart, so that some may be early or late."""

    @classmethod
    @abstractmethod
    def parse(cls, value: str | None) -> Self | None:
        """Return the load for what follows the colon, None where there is no colon; None if it is wrong."""

    @classmethod
    def file_in(cls, value: str) -> str:
        """Return the file that what follows the colon names; empty: it names none."""
        return ""

    @abstractmethod
    def at_rate(self, rate_per_s: float) -> OpenLoad:
        """Return the same load at another rate of each stream."""


@dataclass(frozen=True, slots=True)
class OpenLoad(Load):
    """Frames that arrive at a mean rate on each stream, whether or not the last one is done."""

    rate_per_s: float

    @property
    def period_ns(self) -> float:
        """Mean time between two frames of a stream."""
        return 1e9 / self.rate_per_s

    @classmethod
    def parse(cls, value: str | None) -> Self | None:
        """Return the load at the rate that is written."""
        is_number = value is not None and re.fullmatch(r"[0-9]+(\.[0-9]+)?", value)
        return cls(float(value)) if value and is_number and float(value) > 0 else None

    def at_rate(self, rate_per_s: float) -> Self:
        """Return the same load at another rate of each stream."""
        return replace(self, rate_per_s=rate_per_s)

    def tokens_of(self, number: int) -> tuple[int, int] | None:
        """Return the tokens of the prompt and the answer of a request; None: the load does not say."""
        return None

    def spare(self, frames: float) -> float:
        """Return how many more frames to plan for, so that at least `frames` arrive."""
        return 1.0

    @abstractmethod
    def instants_ns(self, seconds: float, phase: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return (n,) when the frames of one stream arrive, in rising order, nanoseconds since the start.

        Args:
            seconds: Length of the timetable. A longer one begins like a shorter one.
            phase: When the stream begins, in periods; 0 for a load that takes no phases.
            rng: Of this stream.
        """


def parse_load(text: str) -> Load:
    """Return the load for a text such as `closed:4` or `fps:30`; a rate is per stream.

    Raises:
        EdgeoptError: If no load model has this name, or it does not take the number.
    """
    name, colon, value = text.strip().partition(":")
    load = _kind(name).parse(value if colon else None) if name in registry.names(models) else None
    if load is None:
        raise EdgeoptError(f"{text!r} is not a load", remedy=f"write {examples()}")
    return load


def file_of_load(text: str) -> str:
    """Return the file that a load names, such as `FILE` of `trace:FILE@2x`; empty: it names none, or is no load."""
    name, _, value = text.strip().partition(":")
    return _kind(name).file_in(value) if name in registry.names(models) else ""


def examples(suits: Callable[[type[Load]], bool] = lambda _: True) -> str:
    """Return what to write for each load model that suits, as `a, b or c`."""
    kinds = (_kind(name) for name in registry.names(models))
    *others, last = [kind.example for kind in kinds if suits(kind)]
    return f"{', '.join(others)} or {last}" if others else last


def _kind(name: str) -> type[Load]:
    load: type[Load] = registry.load(models, name).LOAD
    return load
