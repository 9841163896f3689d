"""Several models or bundles measured together: opened at once, whole frames in turns, on the same pictures.

The first is opened twice: its second copy runs along and shows what this machine makes of no difference at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from edgeopt import plugins, tasks
from edgeopt.bench_run import Subject, open_subject
from edgeopt.benchmarking.anchor import measure_anchor
from edgeopt.benchmarking.comparison import Ratio
from edgeopt.benchmarking.interleaving import run_interleaved
from edgeopt.benchmarking.paired import judge_rounds, parts_worth_judging, round_logs
from edgeopt.benchmarking.readings import take_reading
from edgeopt.benchmarking.samples import Samples
from edgeopt.benchmarking.subject_facts import subject_facts
from edgeopt.benchmarking.trust import Trust, judge_trust
from edgeopt.bundle import is_bundle, read_bundle
from edgeopt.errors import Note, NoteKind
from edgeopt.evaluate import LabelledFrames, Progress, answers
from edgeopt.executors import SessionOptions
from edgeopt.fingerprint import Fingerprint, read_fingerprint
from edgeopt.frames import Frames
from edgeopt.model import find_model, load_model
from edgeopt.recipe import Recipe
from edgeopt.scored import Scored, score
from edgeopt.tensors import Frame

AGAIN = " again"
"""After the first one's label: its second copy."""
_BLOCK_SECONDS = 0.04
"""Short against a neighbour's bursts, long against a cache refill."""
_PICTURES = 32


@dataclass(frozen=True)
class Side:
    """One of what is compared, open and ready."""

    label: str
    given: str
    subject: Subject
    file: Path
    """The ONNX file that was opened."""
    size_bytes: int
    """With its external data."""
    sha256: str

    @property
    def options(self) -> SessionOptions:
        """How its session was opened."""
        target = self.subject.target
        return SessionOptions(target.providers, self.subject.threads, target.options)


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
        null = None if label == self.baseline + AGAIN else self.null(part, margin)
        return self._judge(label, part, against or self.baseline, margin, null)

    def null(self, part: str, margin: float = 0.02) -> Ratio:
        """Return the ratio of the first one to itself."""
        return self._judge(self.baseline + AGAIN, part, self.baseline, margin, None)

    def _judge(self, label: str, part: str, against: str, margin: float, null: Ratio | None) -> Ratio:
        logs = round_logs(self.samples[label], self.samples[against], part)
        steady = self.samples[label].steady()
        assert steady.round_id is not None
        pairs = 2 * (int(steady.round_id.max()) + 1)
        return judge_rounds(logs, pairs=pairs, margin=margin, null=null)


def open_sides(given: Sequence[str], *, target: str, recipe: str | None, threads: int) -> tuple[Side, ...]:
    """Open models, bundles or shipped models.

    Args:
        given: Paths or shipped names; the same one may come twice.
        target: For models; a bundle brings its own.
        recipe: For models; a bundle brings its own.
        threads: 0: the target's, or one per physical core.

    Raises:
        EdgeoptError: If one cannot be opened.
    """
    subjects = [open_subject(one, target=target, recipe=recipe, threads=threads) for one in given]
    labels = distinct_labels([subject.name for subject in subjects], given)
    return tuple(_side(*one) for one in zip(labels, given, subjects, strict=True))


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
    file = _opened_file(given, subject)
    model = load_model(file)
    return Side(label, given, subject, file, model.size_bytes, model.fingerprint)


def _opened_file(given: str, subject: Subject) -> Path:
    """Return the model file; of a bundle the first one that its runtime did not pass over with a note."""
    if not is_bundle(Path(given)):
        return find_model(given)
    bundle = read_bundle(Path(given))
    passed = [one for one in bundle.artefacts if any(note.detail.startswith(one.file) for note in subject.notes)]
    return bundle.folder / next(one.file for one in bundle.artefacts if one not in passed)


def run_in_turns(
    sides: Sequence[Side],
    frames: Frames,
    *,
    seconds: float,
    seed: int = 0,
    recipe: str | None = None,
) -> Turns:
    """Run whole frames of all sides in turns, and of a second copy of the first.

    Args:
        sides: One or more.
        frames: Where the pictures come from; reading one is the stage `load`.
        seconds: How long; five rounds run whatever it says.
        seed: Of the order.
        recipe: As asked for, to open the second copy.
    """
    first = sides[0]
    copy = open_subject(
        first.given, target=first.subject.target.name, recipe=recipe, threads=first.subject.threads
    )
    variants = {side.label: (side.subject.task, side.subject.session) for side in sides}
    variants[first.label + AGAIN] = (copy.task, copy.session)
    chosen = frames.spread(_PICTURES)
    readers: list[Callable[[], Frame]] = [partial(chosen.read, i) for i in range(len(chosen))]
    block = max(1, min(25, round(_BLOCK_SECONDS / max(_seconds_a_frame(first.subject, readers[0]), 1e-6))))
    readings, anchors, began = [take_reading()], [measure_anchor()], perf_counter()
    samples = run_interleaved(readers, variants, seconds=seconds, block=block, seed=seed)
    took = perf_counter() - began
    readings.append(take_reading())
    anchors.append(measure_anchor())
    copy.session.close()
    trust = judge_trust(samples[first.label], readings, anchors, workers=first.subject.threads)
    return Turns(samples, trust, took)


def _seconds_a_frame(subject: Subject, read: Callable[[], Frame]) -> float:
    def once() -> float:
        started = perf_counter()
        inputs, geometry = subject.task.preprocess(read())
        subject.task.postprocess(subject.session.run(inputs), geometry)
        return perf_counter() - started

    return min(once() for _ in range(3))


def score_side(side: Side, labelled: LabelledFrames, tell: Progress | None = None) -> Scored:
    """Return the accuracy of one side on labelled pictures, with the metric's own thresholds."""
    subject = side.subject
    task = plugins.load(tasks, subject.recipe.task).TASK(
        subject.recipe, subject.session.inputs, subject.session.outputs, True
    )
    found = answers(subject.session, task, labelled.frames, tell, f"evaluate {side.label}")
    return score(task, found, labelled.labels)


def labels_of(recipe: Recipe) -> Path | None:
    """Return the labels that a recipe ships, or None."""
    shipped = recipe.path_of(recipe.evaluation.labels)
    return shipped if shipped is not None and recipe.folder.name else None


def fingerprint_of(side: Side, info: Mapping[str, Any] | None = None) -> Fingerprint:
    """Return everything that this side's figures depend on."""
    subject = side.subject
    facts = subject_facts(side.file, side.options, subject.session, executor=subject.target.executor)
    return read_fingerprint(facts | {"model.sha256": side.sha256, "recipe": subject.recipe.name}, info)


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


def close(sides: Sequence[Side]) -> None:
    """Free all sessions."""
    for side in sides:
        side.subject.session.close()
