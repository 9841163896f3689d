"""Several models or bundles measured together: opened at once, whole frames in turns, on the same pictures.

The first is opened twice: its second copy runs along and shows what this machine makes of no difference at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt import plugins, tasks
from edgeopt.benchmarking.anchor import measure_anchor
from edgeopt.benchmarking.blocks import MIN_ROUNDS
from edgeopt.benchmarking.comparison import Ratio
from edgeopt.benchmarking.interleaving import run_interleaved
from edgeopt.benchmarking.paired import judge_rounds, parts_worth_judging, round_logs
from edgeopt.benchmarking.readings import take_reading
from edgeopt.benchmarking.samples import Samples, join_samples
from edgeopt.benchmarking.subject_facts import subject_facts
from edgeopt.benchmarking.trust import Trust, judge_trust
from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.evaluate import LabelledFrames, Progress, answers, fed
from edgeopt.fingerprint import Fingerprint, read_fingerprint
from edgeopt.frames import Frames
from edgeopt.model import load_model
from edgeopt.recipe import Recipe
from edgeopt.recognise import TENSORS, Shapes
from edgeopt.scored import Scored, score
from edgeopt.subject import Subject, open_subject
from edgeopt.tensors import Sample

AGAIN = " again"
"""After the first one's label: its second copy."""
_BLOCK_SECONDS = 0.04
"""Short against a neighbour's bursts, long against a cache refill."""
_PICTURES = 32
_MOST_LEGS = 4
_OPENINGS = 4.0
"""A leg lasts at least so many times as long as opening its sessions, and five rounds."""


@dataclass(frozen=True)
class Side:
    """One of what is compared, open and ready."""

    label: str
    given: str
    subject: Subject
    size_bytes: int
    """With its external data."""
    sha256: str
    """Of the serialized model."""


@dataclass(frozen=True)
class Turns:
    """Raw samples of one interleaved run, and what the machine did meanwhile."""

    samples: Mapping[str, Samples]
    """By label; the second copy of the first has its label and `AGAIN`."""
    trust: Trust
    seconds: float

    @property
    def baseline(self) -> str:
        """The label of the first one."""
        return next(iter(self.samples))

    @property
    def parts(self) -> tuple[str, ...]:
        """What can be judged, `execute` and `frame` first."""
        return parts_worth_judging(dict(self.samples))

    def ratio(self, label: str, part: str, *, against: str = "", margin: float = 0.02) -> Ratio:
        """Return the ratio of one to another (the first), judged beside the first one's ratio to itself."""
        logs = self._logs(label, against or self.baseline, part)
        return judge_rounds(logs, pairs=self._pairs, margin=margin, null=self.null(part, margin))

    def null(self, part: str, margin: float = 0.02) -> Ratio:
        """Return the ratio of the first one's second copy to the first one."""
        logs = round_logs(self.samples[self.baseline + AGAIN], self.samples[self.baseline], part)
        return judge_rounds(logs, pairs=self._pairs, margin=margin)

    @property
    def _pairs(self) -> int:
        rounds = self.samples[self.baseline].steady().round_id
        assert rounds is not None
        return 2 * (int(rounds.max()) + 1)

    def _logs(self, label: str, against: str, part: str) -> NDArray[np.float64]:
        """Return the rounds; both copies of the first one count, which takes a quarter of the variance away."""
        if label == self.baseline:
            return -self._logs(against, label, part)
        logs = round_logs(self.samples[label], self.samples[against], part)
        if against != self.baseline:
            return logs
        mean: NDArray[np.float64] = (logs + round_logs(self.samples[label], self.samples[against + AGAIN], part)) / 2
        return mean


def open_sides(
    given: Sequence[str], *, target: str, recipe: str | None, threads: int, shapes: Shapes | None = None
) -> tuple[Side, ...]:
    """Open models, bundles or shipped models.

    Args:
        given: Paths or shipped names; the same one may come twice.
        target: For models; a bundle brings its own.
        recipe: For models; a bundle brings its own.
        threads: 0: the target's, or one per physical core.
        shapes: Of the tensors that they will be fed; None: pictures.

    Raises:
        EdgeoptError: If one cannot be opened.
    """
    subjects = [open_subject(one, target=target, recipe=recipe, threads=threads, shapes=shapes) for one in given]
    labels = distinct_labels([subject.name for subject in subjects], given)
    return tuple(_side(*one) for one in zip(labels, given, subjects, strict=True))


def require_fed(sides: Sequence[Side], frames: Frames) -> None:
    """Raise unless all sides take the tensors that the first one is fed; pictures fit all.

    Raises:
        UnsupportedError: If one has other inputs.
    """
    if frames.tensors is None:
        return
    wanted = {one.name: one.dtype for one in sides[0].subject.inputs}
    for side in sides:
        found = {one.name: one.dtype for one in side.subject.inputs}
        if found != wanted or side.subject.recipe.task != TENSORS:
            told = ", ".join(map(str, side.subject.inputs))
            raise UnsupportedError(
                f"{side.label} takes {told} by recipe {side.subject.recipe.name!r}, not what {sides[0].label} is fed",
                remedy="compare models of the same inputs, with --recipe tensors for all",
            )
        fed(frames, side.subject.recipe, side.subject.inputs)


def distinct_labels(names: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return a label for each: its name, what was typed where names are the same, a number where that is too."""
    doubled = {name for name, count in Counter(names).items() if count > 1}
    told = [path if name in doubled else name for name, path in zip(names, given, strict=True)]
    seen: Counter[str] = Counter()
    labels = []
    for label in told:
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return tuple(labels)


def _side(label: str, given: str, subject: Subject) -> Side:
    model = load_model(subject.path)
    return Side(label, given, subject, model.size_bytes, model.fingerprint)


def run_in_turns(sides: Sequence[Side], frames: Frames, *, seconds: float, seed: int = 0) -> Turns:
    """Run whole frames of all sides in turns, and of a second copy of the first.

    The time is cut into legs. Each opens everything anew, in another order: two sessions of one model may differ by
    some percent for as long as they live, because their weights and buffers lie elsewhere in memory.

    Args:
        sides: One or more.
        frames: Where the pictures come from; reading one is the stage `load`.
        seconds: How long to run frames; five rounds run whatever it says.
        seed: Of the order.
    """
    subjects = {side.label: side.subject for side in sides}
    subjects[sides[0].label + AGAIN] = sides[0].subject
    chosen = frames.spread(_PICTURES)
    readers: list[Callable[[], Sample]] = [partial(chosen.read, i) for i in range(len(chosen))]
    frame_s = max(_seconds_a_frame(sides[0].subject, readers[0]), 1e-6)
    block = max(1, min(25, round(_BLOCK_SECONDS / frame_s)))
    least_s = 2 * MIN_ROUNDS * block * frame_s * len(subjects)
    rng, readings, anchors = np.random.default_rng(seed), [take_reading()], [measure_anchor()]
    legs: list[Mapping[str, Samples]] = []
    spent_s, count = 0.0, _MOST_LEGS
    while len(legs) < count:
        began = perf_counter()
        opened = {name: subjects[name].open_again() for name in rng.permutation(list(subjects)).tolist()}
        open_s, began = perf_counter() - began, perf_counter()
        count = count if legs else max(1, min(count, int(seconds / max(least_s, _OPENINGS * open_s))))
        variants = {name: opened[name] for name in subjects}
        legs.append(run_interleaved(readers, variants, seconds=seconds / count, block=block, seed=seed + len(legs)))
        spent_s += perf_counter() - began
        for _, session in opened.values():
            session.close()
        readings.append(take_reading())
        anchors.append(measure_anchor())
    samples = {name: join_legs([leg[name] for leg in legs]) for name in subjects}
    trust = judge_trust(samples[sides[0].label], readings, anchors, workers=sides[0].subject.threads)
    return Turns(samples, trust, spent_s)


def join_legs(legs: Sequence[Samples]) -> Samples:
    """Return the rows of all legs with rounds numbered through."""
    rounds, offset = [], 0
    for leg in legs:
        assert leg.round_id is not None
        rounds.append(leg.round_id + offset)
        offset += int(leg.round_id.max()) + 1
    return replace(join_samples(legs), round_id=np.concatenate(rounds))


def _seconds_a_frame(subject: Subject, read: Callable[[], Sample]) -> float:
    def once() -> float:
        started = perf_counter()
        inputs, geometry = subject.task.preprocess(read())
        subject.task.postprocess(subject.session.run(inputs), geometry)
        return perf_counter() - started

    return min(once() for _ in range(3))


def score_side(side: Side, labelled: LabelledFrames, tell: Progress | None = None) -> Scored:
    """Return the accuracy of one side on labelled pictures, with the metric's own thresholds."""
    subject = side.subject
    task = plugins.load(tasks, subject.recipe.task).TASK(subject.recipe, subject.inputs, subject.outputs, True)
    found = answers(subject.session, task, labelled.frames, tell, f"evaluate {side.label}")
    return score(task, found, labelled.labels)


def labels_of(recipe: Recipe) -> Path | None:
    """Return the labels that a recipe ships, or None."""
    shipped = recipe.path_of(recipe.evaluation.labels)
    return shipped if shipped is not None and recipe.folder.name else None


def fingerprint_of(side: Side, info: Mapping[str, Any] | None = None) -> Fingerprint:
    """Return everything that this side's figures depend on."""
    subject = side.subject
    facts = subject_facts(
        subject.source, subject.options, subject.session, executor=subject.executor, opset=subject.opset
    )
    return read_fingerprint(facts | {"recipe": subject.recipe.name}, info)


def notes_on(sides: Sequence[Side]) -> tuple[Note, ...]:
    """Return what differs between the sides beyond the model, and each side's own notes."""
    notes = [note for side in sides for note in side.subject.notes]
    for what, values in (
        ("threads", [str(side.subject.threads) for side in sides]),
        ("targets", [side.subject.target.name for side in sides]),
        ("recipes", [side.subject.recipe.name for side in sides]),
    ):
        if len(set(values)) > 1:
            notes.append(Note(NoteKind.WARNING, f"{what} differ: {', '.join(values)}", "the ratio includes that"))
    return tuple(dict.fromkeys(notes))


def label_notes(labelled: LabelledFrames | None, scored: Mapping[str, Scored]) -> tuple[Note, ...]:
    """Return what is to be said of the labels, the models too that are no better than chance on them."""
    told = [
        Note(NoteKind.WARNING, f"{label} {why}", "check the labels and the recipe")
        for label, one in scored.items()
        if (why := one.why_not_telling)
    ]
    return (*(labelled.notes if labelled else ()), *told)


def close(sides: Sequence[Side]) -> None:
    """Free all sessions."""
    for side in sides:
        side.subject.session.close()
