"""Guards of `check` for models that answer frames: accuracy, memory, cold start, placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from edgeopt.errors import Note
from edgeopt.measurement.accuracy.bootstrap import Scored
from edgeopt.measurement.accuracy.evaluate import LabelledFrames
from edgeopt.measurement.check.accuracy import check_accuracy, note_on_baseline, score_baseline
from edgeopt.measurement.check.result import CheckResult, CheckVerdict, judge_placement, judge_time
from edgeopt.measurement.fresh_process.start import FreshStart, measure_peaks, time_first_answers
from edgeopt.measurement.sides import Baselined, Tell
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds, ratio_of_series
from edgeopt.measurement.turns.side_by_side import Side
from edgeopt.recipes.default_limits import MAX_DROP, Check
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.input_shapes import fixed_shapes

_LEAST_PEAKS = 3


@dataclass(frozen=True, slots=True)
class AccuracyGuard:
    """Guards the answers: against labels, else against the baseline's own answers."""

    sides: tuple[Side, ...]
    labelled: LabelledFrames | None
    frames: Frames

    def hold(self, tell: Tell | None) -> Any:
        """Return the accuracy on the labels; None without labels.

        Raises:
            InvalidFileError: If it is no better than chance: nothing could be checked against it.
        """
        scored = score_baseline(self.sides[-1], self.labelled, tell)
        return scored.to_json() if scored else None

    def read(self, held: Any) -> Scored:
        """Return the accuracy."""
        return Scored.from_json(held)

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge the drop against the baseline, or the agreement with its answers."""
        allowed = MAX_DROP if limits.accuracy_drop is None else limits.accuracy_drop
        result = check_accuracy(
            self.sides[-1],
            self.sides[0] if then.is_open else None,
            then.held,
            self.labelled,
            self.frames,
            allowed,
            why_gone=then.why_gone,
            tell=tell,
        )
        return [result]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return what a baseline without labels cannot guard."""
        return note_on_baseline(self.frames)


@dataclass(frozen=True, slots=True)
class MemoryGuard:
    """Guards the peak memory of fresh processes."""

    sides: tuple[Side, ...]
    starts: int
    """Fresh processes for the cold start; half as many run here."""

    def hold(self, tell: Tell | None) -> list[int] | None:
        """Return peak bytes of fresh processes; None: this system keeps no peak."""
        (peaks,) = self._measured(tell)
        return peaks or None

    def read(self, held: Any) -> list[int]:
        """Return the peak bytes."""
        return [int(peak) for peak in held]

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge the ratio of the peaks."""
        allowed, measured = limits.memory_ratio, self._measured(tell)
        now = measured[-1]
        if not now:
            verdict = CheckVerdict.INCONCLUSIVE if then.held else CheckVerdict.SKIPPED
            return [CheckResult("memory", verdict, None, allowed, "this system keeps no peak")]
        ratio = _ratio_of_starts(now, measured[0], then)
        why_none = then.why_not_comparable or "the baseline has no peak memory"
        judged = judge_time("memory", ratio, allowed, "", why_none, "--starts")
        peak = f"peak {np.median(now) / 2**20:.1f} MiB in a fresh process"
        return [replace(judged, detail=f"{peak}; {judged.detail}")]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return nothing: who leaves it out knows it."""
        return ()

    def _measured(self, tell: Tell | None) -> list[list[int]]:
        say = partial(tell, "memory") if tell else None
        peaks = measure_peaks(starts_of(self.sides), max(_LEAST_PEAKS, self.starts // 2), say)
        return [peaks[side.label] for side in self.sides]


@dataclass(frozen=True, slots=True)
class ColdStartGuard:
    """Guards the time from starting a process to its first answer."""

    sides: tuple[Side, ...]
    starts: int
    """Fresh processes."""

    def hold(self, tell: Tell | None) -> list[int] | None:
        """Return the first answers of fresh processes, in ns; None: none could be timed."""
        (first_answers,) = self._measured(tell)
        return first_answers or None

    def read(self, held: Any) -> list[int]:
        """Return the first answers, in ns."""
        return [int(first) for first in held]

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge the ratio of the first answers."""
        measured = self._measured(tell)
        now = measured[-1]
        ratio = _ratio_of_starts(now, measured[0], then)
        why_none = then.why_not_comparable or "the baseline has no cold starts"
        judged = judge_time("cold start", ratio, limits.cold_start_ratio, then.blocked, why_none, "--starts")
        first = f"first answer after {np.median(now) / 1e6:.0f} ms"
        return [replace(judged, detail=f"{first}; {judged.detail}")]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return nothing: who leaves it out knows it."""
        return ()

    def _measured(self, tell: Tell | None) -> list[list[int]]:
        say = partial(tell, "cold start") if tell else None
        first_answers = time_first_answers(starts_of(self.sides), self.starts, say)
        return [first_answers[side.label] for side in self.sides]


@dataclass(frozen=True, slots=True)
class PlacedNodes:
    """Where nodes run."""

    nodes: Mapping[str, int]
    """Number of nodes by provider; empty where the engine does not say."""
    off_device: int
    """Nodes elsewhere than on the first provider."""


@dataclass(frozen=True, slots=True)
class PlacementGuard:
    """Guards where nodes run."""

    side: Side

    def hold(self, tell: Tell | None) -> dict[str, Any]:
        """Return the nodes by provider, and how many are elsewhere than on the first one."""
        del tell
        return asdict(self._placed())

    def read(self, held: Any) -> PlacedNodes:
        """Return where nodes ran."""
        nodes = {str(provider): int(count) for provider, count in held["nodes"].items()}
        return PlacedNodes(nodes, int(held["off_device"]))

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge how many nodes moved off the device."""
        del tell
        now, before, allowed = self._placed(), then.held or PlacedNodes({}, 0), limits.max_nodes_off_device
        return [judge_placement(now.nodes, now.off_device, before.nodes, before.off_device, allowed)]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return nothing: who leaves it out knows it."""
        return ()

    def _placed(self) -> PlacedNodes:
        nodes = Counter(node.provider for node in self.side.subject.session.placement())
        first = next(iter(self.side.subject.options.providers), "")
        return PlacedNodes(dict(nodes), sum(count for provider, count in nodes.items() if provider != first))


def _ratio_of_starts(now: Sequence[int], beside: Sequence[int], then: Baselined) -> Ratio | None:
    """Return the ratio of fresh processes to those of the baseline; None: they cannot be compared.

    Args:
        now: Of what is checked.
        beside: Of the baseline's model, where it is open; its processes took turns with these.
        then: What else is known of the baseline.
    """
    if then.is_open:
        mine, theirs = (np.array(values, np.float64) for values in (now, beside))
        if len(mine) == len(theirs) and len(mine) > 1:
            return ratio_of_rounds(np.log(theirs / mine), pairs=len(mine), margin=0.0)
    elif then.why_not_comparable or not then.held:
        return None
    else:
        mine, theirs = (np.array(values, np.float64) for values in (now, then.held))
    return ratio_of_series(mine, theirs, margin=0.0, drifts=False) if len(theirs) else None


def starts_of(sides: Sequence[Side]) -> dict[str, FreshStart]:
    """Return how each side is opened in a fresh process, in the shapes in which it is fed.

    What a model leaves free must not become 1.
    """
    starts = dict[str, FreshStart]()
    for side in sides:
        shapes = fixed_shapes(side.subject.recipe, side.subject.inputs)
        starts[side.label] = FreshStart(side.subject.path, side.subject.opening, shapes)
    return starts
