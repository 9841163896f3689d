"""Models that answer frames side by side, for `compare` and `check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from edgeopt.errors import Note
from edgeopt.executors import TRANSFERS
from edgeopt.measurement.accuracy.bootstrap import Scored, drop_between
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, open_labelled, require_metric
from edgeopt.measurement.check.run import thresholds_of
from edgeopt.measurement.load.closed_loop import Pictures, run_frames
from edgeopt.measurement.load.workers import Pipeline
from edgeopt.measurement.opening.subject import Subject, choose_frames, shapes_of
from edgeopt.measurement.resources.anchor import measure_anchor
from edgeopt.measurement.resources.readings import CounterReading, take_reading
from edgeopt.measurement.resources.trust import Trust, judge_trust
from edgeopt.measurement.samples import FRAME, Samples
from edgeopt.measurement.sides import CheckGuard, Quality, SideFacts, Tell
from edgeopt.measurement.turns.interleaved import PICTURES, Turns
from edgeopt.measurement.turns.side_by_side import (
    Side,
    close,
    label_notes,
    labels_of,
    notes_on,
    require_fed,
    rest,
    run_in_turns,
    score_side,
)
from edgeopt.measurement.turns.side_by_side import (
    open_sides as open_frame_sides,
)
from edgeopt.recipes.default_limits import Check
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.system.machine.place import current_place
from edgeopt.system.toml import Within
from edgeopt.workloads.frames.guards import AccuracyGuard, ColdStartGuard, MemoryGuard, PlacementGuard
from edgeopt.workloads.frames.options import FrameCheck, FrameCompare

_LEAST_FRAMES = 400
_BASELINE = "baseline"


@dataclass(frozen=True)
class FrameSides:
    """Models that answer frames, open side by side."""

    sides: tuple[Side, ...]
    frames: Frames
    labelled: LabelledFrames | None
    """Pictures and labels that judge; None: nothing does."""
    notes_of_frames: tuple[Note, ...]
    seed: int
    starts: int = 0
    """Fresh processes of `check`."""
    recipe: str | None = None
    """Recipe as the user named it."""
    scored: dict[str, Scored] = field(default_factory=dict)
    """Accuracies by label, once they are known."""

    @cached_property
    def facts(self) -> tuple[SideFacts, ...]:
        """One for each, in order."""
        return tuple(
            SideFacts(
                label=side.label,
                given=side.given,
                size_bytes=side.size_bytes,
                sha256=side.sha256,
                threads=side.subject.threads,
                environment=side.subject.environment(),
            )
            for side in self.sides
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """Differences between them beyond the models, and notes of each."""
        place: SidesPlace | None = current_place()
        of_place = place.notes if place is not None else ()
        return (*notes_on(self.sides), *self.notes_of_frames, *label_notes(self.labelled, self.scored), *of_place)

    @property
    def source(self) -> str:
        """Where the frames come from."""
        return str(self.frames.source)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The recipe as the user named it; None: it is read from the model."""
        return {"recipe": self.recipe}

    @property
    def judged_parts(self) -> tuple[str, ...]:
        """The stages in which the model computes, and the frame."""
        stages = self.sides[-1].subject.session.stages
        return (*(name for name, _ in stages if name not in TRANSFERS), FRAME)

    @cached_property
    def guards(self) -> Mapping[str, CheckGuard]:
        """Guards of `check` besides those of every kind."""
        return {
            "accuracy": AccuracyGuard(self.sides, self.labelled, self.frames),
            "memory": MemoryGuard(self.sides, self.starts),
            "cold_start": ColdStartGuard(self.sides, self.starts),
            "placement": PlacementGuard(self.sides[-1]),
        }

    def limits(self, wishes: Mapping[str, float]) -> Check:
        """Return what `check` allows."""
        recipe = self.sides[-1].subject.recipe
        return thresholds_of(recipe.check, wishes, recipe.evaluation.max_drop)

    def score(self, tell: Tell | None) -> Mapping[str, Quality]:
        """Return the accuracy of each on the labels."""
        if self.labelled is None:
            return {}
        for side in self.sides:
            self.scored[side.label] = score_side(side, self.labelled, tell)
        first = self.scored[self.sides[0].label]
        qualities = dict[str, Quality]()
        for label, scored in self.scored.items():
            drop = drop_between(first, scored) if scored is not first else None
            qualities[label] = Quality(scored.accuracy.metric, scored.accuracy.value, drop)
        return qualities

    def run_in_turns(self, seconds: float, tell: Tell | None) -> Turns:
        """Run whole frames of all in turns, and of a second copy of the first."""
        return run_in_turns(self.sides, self.frames, seconds=seconds, seed=self.seed, tell=tell)

    def run_alone(self, seconds: float, tell: Tell | None) -> tuple[Samples, Trust]:
        """Run whole frames of the last one alone."""
        del tell
        side, place = self.sides[-1], current_place()
        if place is not None:
            return _alone_there(place, side, self.frames, seconds)
        readings, anchors = [take_reading()], [measure_anchor()]
        samples = run_frames(
            readers_of(self.frames),
            *side.subject.pipeline,
            seconds=seconds,
            min_frames=_LEAST_FRAMES,
            variant=side.label,
        )
        rest([side])
        readings.append(take_reading())
        anchors.append(measure_anchor())
        return samples, judge_trust(samples, readings, anchors, workers=side.subject.threads)

    def without_first(self) -> FrameSides:
        """Close the first, and return the others."""
        close(self.sides[:1])
        return replace(self, sides=self.sides[1:])

    def close(self) -> None:
        """Free all sessions."""
        close(self.sides)


class SidesPlace(Protocol):
    """Another machine that computes for this process: what models side by side need of it besides turns."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on its state, and on what was measured there."""
        ...

    def run_alone(
        self, opened: Pipeline, frames: Pictures, *, seconds: float, min_frames: int, variant: str
    ) -> tuple[Samples, Sequence[CounterReading]]:
        """Run one model's frames one after the other there."""
        ...

    def notes_on(self, subjects: Sequence[Subject], frames: Frames) -> tuple[Note, ...]:
        """Return what is to be told of models there; raise where one computes something else than here."""
        ...


def _alone_there(place: SidesPlace, side: Side, frames: Frames, seconds: float) -> tuple[Samples, Trust]:
    """Run whole frames of one alone on another machine."""
    samples, readings = place.run_alone(
        side.subject.pipeline,
        readers_of(frames.spread(PICTURES)),
        seconds=seconds,
        min_frames=_LEAST_FRAMES,
        variant=side.label,
    )
    return samples, judge_trust(samples, readings, workers=side.subject.threads)


def _notes_there(sides: Sequence[Side], frames: Frames) -> tuple[Note, ...]:
    """Return what is to be told of models on another machine; none where this one computes."""
    place: SidesPlace | None = current_place()
    return () if place is None else place.notes_on([side.subject for side in sides], frames)


def open_sides(sources: Sequence[str], options: FrameCompare) -> FrameSides:
    """Open models and bundles.

    Raises:
        EdgeoptError: If one cannot be opened.
    """
    sides = open_frame_sides(
        sources,
        target=options.target,
        recipe=options.recipe,
        threads=options.threads,
        shapes=shapes_of(options.source),
        sizes=options.shapes,
    )
    labels = Path(options.eval) if options.eval else None
    for side in sides:
        require_metric(side.subject.recipe, labels)
    first = sides[0].subject
    labelled = open_labelled(labels, first.recipe, first.inputs) if labels else None
    frames, notes = choose_frames(first.recipe, options.source, first.inputs)
    require_fed(sides, frames)
    notes = (*notes, *_notes_there(sides, frames))
    return FrameSides(sides, frames, labelled, notes, options.seed)


def open_checked(sources: Sequence[str], options: FrameCheck, settings: Mapping[str, Any]) -> FrameSides:
    """Open what is checked, and before it the baseline's model.

    Raises:
        EdgeoptError: If one cannot be opened.
    """
    Within(3, 1000).require("starts", options.starts)
    *before, now = sources
    shapes = shapes_of(options.source)

    def opened(source: str, recipe: str | None) -> Side:
        (side,) = open_frame_sides(
            [source],
            target=options.target,
            recipe=recipe,
            threads=options.threads,
            shapes=shapes,
            sizes=options.shapes,
        )
        return side

    then = [opened(source, options.recipe or settings.get("recipe")) for source in before]
    last = opened(now, options.recipe)
    label = _BASELINE if last.label != _BASELINE else f"the {_BASELINE}"
    sides = (*(replace(side, label=label) for side in then), last)
    chosen = last.subject
    labels = Path(options.eval) if options.eval else None
    if labels is None:
        labels = next(filter(None, (labels_of(side.subject.recipe) for side in sides[::-1])), None)
    frames, notes = choose_frames(chosen.recipe, options.source, chosen.inputs)
    require_fed(sides, frames)
    require_metric(chosen.recipe, labels)
    is_judged = labels and "accuracy" not in options.skip
    labelled = open_labelled(labels, chosen.recipe, chosen.inputs) if labels and is_judged else None
    notes = (*notes, *_notes_there(sides, frames))
    return FrameSides(sides, frames, labelled, notes, options.seed, options.starts, options.recipe)
