"""The result of a comparison: one row for each workload."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from edgeopt.errors import EXIT_PASS, Note
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Quality, SideFacts
from edgeopt.measurement.statistics.quantile import StageTime
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.report.result import Result
from edgeopt.system.machine.environment import Environment


@dataclass(frozen=True)
class Compared:
    """One of them."""

    facts: SideFacts
    times: Mapping[str, StageTime]
    """Times by part of a frame, with the whole frame."""
    ratios: Mapping[str, Ratio]
    """Ratios to the first, by part; empty for the first itself."""
    quality: Quality | None = None
    """None: nothing judges it."""
    on_front: bool = False

    @property
    def label(self) -> str:
        """Its name in this comparison."""
        return self.facts.label

    @property
    def size_bytes(self) -> int | None:
        """Size of its models; None: not known, it is an earlier result."""
        return self.facts.size_bytes


@dataclass(frozen=True)
class Comparison(Result):
    """The rows of a comparison; the first is what the others are compared with."""

    command: ClassVar[str] = "compare"

    rows: tuple[Compared, ...]
    parts: tuple[str, ...]
    whole: str
    """The part that is judged: `frame`, `answer`."""
    margin: float
    null: Mapping[str, Ratio]
    """The first against itself, by part; empty for earlier results."""
    seconds: float
    source: str
    trust: Trust | None
    notes: tuple[Note, ...]
    samples: Mapping[str, Samples]
    kind: str = ""
    """Name of the kind of workload."""

    @property
    def environment(self) -> Environment:
        """The machine on which the first ran; all others ran on one like it."""
        return self.rows[0].facts.environment

    @property
    def fastest(self) -> Compared:
        """The fastest of the others, which the verdict is about."""

        def speedup(row: Compared) -> float:
            ratio = row.ratios.get(self.whole)
            return ratio.speedup if ratio else 0.0

        return max(self.rows[1:], key=speedup)

    @property
    def verdict(self) -> Change:
        """The proof of the fastest of the others; INCONCLUSIVE too where there are too few samples to say."""
        ratio = self.fastest.ratios.get(self.whole)
        return ratio.verdict if ratio else Change.INCONCLUSIVE

    @property
    def verdict_word(self) -> str:
        """The same, as the head tells it."""
        return self.verdict.upper()

    @property
    def exit_code(self) -> int:
        """0: a comparison informs; `edgeopt check` is the gate."""
        return EXIT_PASS

    @property
    def front_axes(self) -> str:
        """The axes of the front, in words."""
        if self.rows[0].quality:
            return f"{self.whole} time and accuracy"
        return f"{self.whole} time and size" if self.rows[0].size_bytes is not None else f"{self.whole} time"

    def more_seconds(self, ratio: Ratio) -> float | None:
        """Return how much longer would decide; 0: decided; None: no run would, or the runs are over."""
        if not ratio.pairs_needed:
            return None if ratio.pairs_needed is None else 0.0
        return self.seconds * ratio.pairs_needed / ratio.pairs if self.null else None

    def own_figures(self) -> dict[str, Any]:
        """Return plain values; raw samples are in the .npz files beside them."""
        return {
            "margin": self.margin,
            "seconds": self.seconds,
            "source": self.source,
            "in_turns": bool(self.null),
            "parts": list(self.parts),
            "whole": self.whole,
            "rows": [self._row_as_json(row) for row in self.rows],
            "null": {part: dataclasses.asdict(ratio) for part, ratio in self.null.items()},
            "front_axes": self.front_axes,
            "trust": dataclasses.asdict(self.trust) if self.trust else None,
            "notes": [dataclasses.asdict(note) for note in self.notes],
            "environments": {row.label: row.facts.environment.to_json() for row in self.rows},
        }

    def _row_as_json(self, row: Compared) -> dict[str, Any]:
        facts = {
            field.name: getattr(row.facts, field.name)
            for field in dataclasses.fields(row.facts)
            if field.name not in ("environment", "more", "figures", "settings")
        }
        return {
            **facts,
            "more": dict(row.facts.more),
            "figures": {name: dataclasses.asdict(figure) for name, figure in row.facts.figures.items()},
            "settings": dict(row.facts.settings),
            "times": {part: dataclasses.asdict(time) for part, time in row.times.items()},
            "ratios": {
                part: dataclasses.asdict(ratio) | {"more_seconds": self.more_seconds(ratio)}
                for part, ratio in row.ratios.items()
            },
            "quality": _quality_as_json(row.quality) if row.quality else None,
            "on_front": row.on_front,
        }


def _quality_as_json(quality: Quality) -> dict[str, Any]:
    loss = quality.loss
    return {
        "metric": quality.metric,
        "value": quality.value,
        "more_is_better": quality.more_is_better,
        "loss": {"name": quality.loss_name, "value": loss.value, "low": loss.low, "high": loss.high} if loss else None,
        "agreement": quality.agreement,
    }
