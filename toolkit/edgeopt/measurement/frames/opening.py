"""The times that opening a model takes, part by part, where its engine tells them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from edgeopt.measurement.opening.subject import Subject

_TIMES = 5


@dataclass(frozen=True, slots=True)
class OpeningParts:
    """The parts of opening a model several times."""

    parts_ms: Mapping[str, tuple[float, ...]]
    """Milliseconds of each part, one value an opening."""

    def __str__(self) -> str:
        parts = (
            f"{name} {median(values):.3g} ms [{min(values):.3g}, {max(values):.3g}]"
            for name, values in self.parts_ms.items()
        )
        count = len(next(iter(self.parts_ms.values())))
        return f"{', '.join(parts)}; medians, least and most of {count}"


def measure_opening(subject: Subject) -> OpeningParts | None:
    """Open the model of a subject some times more; None where its engine tells no parts.

    Args:
        subject: Its session is open already: the first opening.
    """
    first = subject.session.opening_ms
    if not first:
        return None
    openings = [first]
    while len(openings) < _TIMES:
        with closing(subject.opening.open(subject.source)) as session:
            openings.append(session.opening_ms)
    return OpeningParts({name: tuple(parts[name] for parts in openings) for name in first})
