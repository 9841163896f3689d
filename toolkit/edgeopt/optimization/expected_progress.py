"""How long the parts of a run take, as far as its plan and the model's own pace tell: one bar is then of the whole.

Only what has a known end is counted closely: seconds of a measurement, samples to answer. A search ends when it finds
nothing more, so its usual length stands for it, and more where a frame is slow. What is expected decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edgeopt.optimization.candidates.measure import CONFIRM_SECONDS, FRAMES_FOR_P99, MOST_SECONDS
from edgeopt.optimization.plan import Plan
from edgeopt.steps._context import AGREEMENT_PICTURES, CHECKED_PICTURES, Listener
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES

FORMS, MEASURE, CONFIRM, JUDGE, BUNDLE = "other forms", "measure in turns", "confirm", "judge", "write the bundle"
"""Parts behind the steps of the plan, in this order."""
_OPENING_S = 1.0
"""Seconds of a candidate beside its frames: to make, open and write it."""
_SEARCH_S, _SEARCH_FRAMES = 30.0, 1500
"""Seconds and frames of a search for INT8 or pruned forms: seconds beside frames, and frames that it runs."""
_MOST_SEARCH_S = 180.0
_STEP_S = 3.0
"""Seconds of a step that rewrites: seconds beside the frames of its candidate."""
_JUDGED, _BUNDLE_S = 3, 8.0
"""Candidates that are judged beside the original; seconds of bundle, embedding and report beside frames."""


@dataclass
class Course:
    """The rest of a run: a listener hears where each part begins."""

    listener: Listener
    parts_s: dict[str, float] = field(default_factory=dict)
    """About how many seconds each part to come takes, in their order."""
    frame_s: float = 0.0
    """Seconds that a frame of the original takes."""

    def look_ahead(self, parts_s: Mapping[str, float], frame_s: float) -> None:
        """Take what is expected of all parts."""
        self.parts_s, self.frame_s = dict(parts_s), frame_s

    def begin(self, part: str) -> None:
        """Tell that a part begins; those before it are over. One that is not expected tells nothing."""
        if part not in self.parts_s:
            return
        while (first := next(iter(self.parts_s))) != part:
            del self.parts_s[first]
        part_s = self.parts_s.pop(part)
        self.listener.ahead(part, part_s, sum(self.parts_s.values()))

    def expect(self, part: str, seconds: float) -> None:
        """Take back what was expected of a part to come; one that is over stays so."""
        if part in self.parts_s:
            self.parts_s[part] = seconds


@dataclass(frozen=True, slots=True)
class PartListener:
    """A listener of one part of a larger work: what follows that part is added to what is told ahead."""

    listener: Listener
    later_s: Callable[[float], float]
    """Returns about how many seconds the work takes that follows this part, from the seconds that are left of the
    part."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Tell how far a piece of work is."""
        self.listener.progress(what, done, of)

    def say(self, text: str) -> None:
        """Tell one line."""
        self.listener.say(text)

    def ahead(self, part: str, part_s: float, rest_s: float) -> None:
        """Tell what is ahead of the larger work."""
        self.listener.ahead(part, part_s, rest_s + self.later_s(part_s + rest_s))


def expected_parts(plan: Plan, frame_s: float, samples: int, engines: int, *, is_timed: bool) -> dict[str, float]:
    """Return about how many seconds each part takes behind the scoring of the original, in their order.

    Args:
        plan: What will be done.
        frame_s: What a frame of the original takes, seen in its own scoring.
        samples: That judge accuracy in the end.
        engines: Beside the target's own, each of which is searched for.
        is_timed: Whether candidates are measured here.
    """
    candidate_s = _OPENING_S + (AGREEMENT_PICTURES + CHECKED_PICTURES) * frame_s
    search_s = min(_SEARCH_S + (_SEARCH_FRAMES + CALIBRATION_PICTURES) * frame_s, _MOST_SEARCH_S)
    searching = {"prune": search_s, "quantize": search_s, "finetune": plan.training_s}
    steps = {name: step for name, step in plan.steps.items() if step.in_line}
    result = {name: searching.get(name, _STEP_S) + candidate_s for name in steps}
    result[FORMS] = engines * (search_s if "quantize" in steps else candidate_s) + candidate_s
    if is_timed:
        result |= {MEASURE: measuring_s(2 + len(steps), frame_s), CONFIRM: CONFIRM_SECONDS}
    result[JUDGE] = (1 + _JUDGED) * samples * frame_s
    result[BUNDLE] = _BUNDLE_S + samples * frame_s
    return result


def measuring_s(models: int, frame_s: float) -> float:
    """Return about how long models take turns, of which the original is two: until a p99 is known, and no longer."""
    frames = models * FRAMES_FOR_P99
    return min(frames * frame_s, MOST_SECONDS)
