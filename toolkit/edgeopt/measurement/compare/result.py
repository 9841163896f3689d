"""The result of a comparison: one row for each model or bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgeopt.errors import EXIT_PASS, Note
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import StageTime
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.system.machine.environment import Environment

SCHEMA = 2


@dataclass(frozen=True)
class Compared:
    """One of them."""

    label: str
    given: str
    size_bytes: int | None
    """None: not known, it is an earlier result."""
    times: Mapping[str, StageTime]
    """`execute`, `frame` and the stages worth judging."""
    ratios: Mapping[str, Ratio]
    """To the first, by part; empty for the first itself."""
    scored: Scored | None
    drop: Drop | None
    """Against the first."""
    on_front: bool


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison; the first is what the others are compared with."""

    rows: tuple[Compared, ...]
    parts: tuple[str, ...]
    margin: float
    null: Mapping[str, Ratio]
    """The first against itself, by part; empty for earlier results."""
    seconds: float
    source: str
    trust: Trust | None
    notes: tuple[Note, ...]
    environments: Mapping[str, Environment]
    samples: Mapping[str, Samples]

    @property
    def exit_code(self) -> int:
        """0: a comparison informs; `edgeopt check` is the gate."""
        return EXIT_PASS

    @property
    def front_axes(self) -> str:
        """The axes of the front, in words."""
        if self.rows[0].scored:
            return "frame time and accuracy"
        return "frame time and size" if self.rows[0].size_bytes is not None else "frame time"

    def more_seconds(self, ratio: Ratio) -> float | None:
        """Return how much longer would decide; 0: decided; None: no run would, or the runs are over."""
        if not ratio.pairs_needed:
            return None if ratio.pairs_needed is None else 0.0
        return self.seconds * ratio.pairs_needed / ratio.pairs if self.null else None

    def as_json(self) -> dict[str, Any]:
        """Return plain values; raw samples are in the .npz files beside them."""
        rows = [
            {
                "label": row.label,
                "given": row.given,
                "size_bytes": row.size_bytes,
                "times": {part: dataclasses.asdict(time) for part, time in row.times.items()},
                "ratios": {
                    part: dataclasses.asdict(ratio) | {"more_seconds": self.more_seconds(ratio)}
                    for part, ratio in row.ratios.items()
                },
                "accuracy": row.scored.to_json() if row.scored else None,
                "drop": dataclasses.asdict(row.drop) if row.drop else None,
                "on_front": row.on_front,
            }
            for row in self.rows
        ]
        return {
            "schema": SCHEMA,
            "margin": self.margin,
            "seconds": self.seconds,
            "source": self.source,
            "in_turns": bool(self.null),
            "parts": list(self.parts),
            "rows": rows,
            "null": {part: dataclasses.asdict(ratio) for part, ratio in self.null.items()},
            "front_axes": self.front_axes,
            "trust": dataclasses.asdict(self.trust) if self.trust else None,
            "notes": [dataclasses.asdict(note) for note in self.notes],
            "environments": {label: environment.to_json() for label, environment in self.environments.items()},
        }
