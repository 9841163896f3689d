"""Several models or bundles side by side: opened at once, measured in turns, scored on the same pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.executors import Placement, Session, Staged
from edgeopt.graph.files.outside import sha256_of
from edgeopt.graph.model import load_model
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.measurement.accuracy.bootstrap import Scored, score
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress, answers
from edgeopt.measurement.opening.subject import Subject, open_subject
from edgeopt.measurement.turns.interleaved import Pace, Turns, take_turns
from edgeopt.measurement.turns.one_open import take_turns_one_open
from edgeopt.recipes.binding import ARRAYS_RECIPE
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.inputs.feeding import fed
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.input_shapes import Shapes
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.average_precision import FOUND
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.tasks import make_task


@dataclass(frozen=True)
class Side:
    """One of what is compared, open and ready."""

    label: str
    given: str
    subject: Subject
    size_bytes: int
    """Bytes of the model with its external data."""
    sha256: str
    """SHA-256 of the serialized model."""


def open_sides(
    given: Sequence[str],
    *,
    target: str,
    recipe: str | None,
    threads: int,
    shapes: Shapes | None = None,
    sizes: Shapes | None = None,
) -> tuple[Side, ...]:
    """Open models, bundles or shipped models.

    Args:
        given: Paths or shipped names; the same one may come twice.
        target: For models; a bundle brings its own.
        recipe: For models; a bundle brings its own.
        threads: 0: the target's, or one per fast physical core.
        shapes: Of the tensors that they will be fed; None: pictures.
        sizes: Whole shapes of inputs by name, for what models leave free; a bundle has its own.

    Raises:
        EdgeoptError: If one cannot be opened.
    """
    opened = partial(open_subject, target=target, recipe=recipe, threads=threads, shapes=shapes, sizes=sizes)
    subjects = [_at_rest(opened(name)) for name in given]
    labels = distinct_labels([subject.name for subject in subjects], given)
    return tuple(side_of(*entry) for entry in zip(labels, given, subjects, strict=True))


def _at_rest(subject: Subject) -> Subject:
    """Return a subject whose session is open only while it runs, where its weights lie in a file of their own."""
    if not subject.is_large:
        return subject
    again = partial(subject.opening.open, subject.source)
    return replace(subject, session=Resting(subject.session, again))


def rest(sides: Sequence[Side]) -> None:
    """Free the weights of large models until they run again: one is in memory at a time."""
    for side in sides:
        if isinstance(side.subject.session, Resting):
            side.subject.session.rest()


def require_fed(sides: Sequence[Side], frames: Frames) -> None:
    """Raise unless all sides take the tensors that the first one is fed; pictures fit all.

    Raises:
        UnsupportedError: If one has other inputs.
    """
    if frames.tensors is None:
        return
    wanted = {spec.name: spec.dtype for spec in sides[0].subject.inputs}
    for side in sides:
        found = {spec.name: spec.dtype for spec in side.subject.inputs}
        if found != wanted or not side.subject.recipe.takes_arrays:
            text = ", ".join(map(str, side.subject.inputs))
            raise UnsupportedError(
                f"{side.label} takes {text} by recipe {side.subject.recipe.name!r}, not what {sides[0].label} is fed",
                remedy=f"compare models of the same inputs, with --recipe {ARRAYS_RECIPE} for all",
            )
        fed(frames, side.subject.recipe, side.subject.inputs)


def distinct_labels(names: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return a label for each: its name, what was typed where names are the same, a number where that is too."""
    doubled = {name for name, count in Counter(names).items() if count > 1}
    parts = [path if name in doubled else name for name, path in zip(names, given, strict=True)]
    seen: Counter[str] = Counter()
    labels = []
    for label in parts:
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return tuple(labels)


def side_of(label: str, given: str, subject: Subject) -> Side:
    """Return a subject as one side, with the size and the hash of its model."""
    if subject.path.suffix == load_executor(subject.opening.executor).own_suffix:
        return Side(label, given, subject, subject.path.stat().st_size, sha256_of(subject.path))
    model = load_model(subject.path)
    return Side(label, given, subject, model.size_bytes, model.fingerprint)


def run_in_turns(
    sides: Sequence[Side], frames: Frames, *, seconds: float, seed: int = 0, tell: Progress | None = None
) -> Turns:
    """Run whole frames of all sides in turns, and of a second copy of the first.

    Args:
        sides: One or more.
        frames: Where the pictures come from; reading one is the stage `load`.
        seconds: How long to run frames; five rounds run whatever it says. With a large model one side is open at a
            time, and six rounds run.
        seed: Of the order.
        tell: Hears progress.
    """
    openers = {side.label: partial(side.subject.open_again, side.subject.opening.sharing) for side in sides}
    workers = sides[0].subject.threads
    result = partial(tell, "measure in turns") if tell else None
    rest(sides)
    turns = take_turns_one_open if any(side.subject.is_large for side in sides) else take_turns
    return turns(openers, frames, Pace(seconds), workers=workers, seed=seed, tell=result)


def score_side(side: Side, labelled: LabelledFrames, tell: Progress | None = None) -> Scored:
    """Return the accuracy of one side on labelled pictures, with the metric's own thresholds."""
    subject = side.subject
    task = make_task(subject.recipe, subject.inputs, subject.outputs, evaluating=True)
    result = answers(subject.session, task, labelled.frames, tell, f"evaluate {side.label}")
    rest([side])
    return score(task, result, labelled.labels)


def labels_of(recipe: Recipe) -> Path | None:
    """Return the labels that a recipe ships, or None."""
    shipped = recipe.path_of(recipe.evaluation.labels)
    return shipped if shipped is not None and recipe.folder.name else None


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
    inside = {side.label: side.subject.recipe for side in sides if _drops_boxes(side.subject.recipe)}
    for label, recipe in inside.items():
        text = f"the model in {label} drops boxes below {recipe.postprocess.score_threshold:g}, which lowers AP"
        notes.append(Note(NoteKind.WARNING, text, "compare AP with models that drop them too"))
    return tuple(dict.fromkeys(notes))


def _drops_boxes(recipe: Recipe) -> bool:
    """Whether boxes that AP counts stay inside the model: its threshold is an application's."""
    is_inside = recipe.task in FOUND and Embedded.POSTPROCESS in recipe.embedded
    return is_inside and recipe.postprocess.score_threshold > recipe.evaluation.score_threshold


def label_notes(labelled: LabelledFrames | None, scored: Mapping[str, Scored]) -> tuple[Note, ...]:
    """Return what is to be said of the labels, the models too that are no better than chance on them."""
    notes = [
        Note(NoteKind.WARNING, f"{label} {why}", "check the labels and the recipe")
        for label, other in scored.items()
        if (why := other.why_not_telling)
    ]
    return (*(labelled.notes if labelled else ()), *notes)


def close(sides: Sequence[Side]) -> None:
    """Free all sessions."""
    for side in sides:
        side.subject.session.close()


# A session that memory does not hold beside another: closed while it rests, and opened anew when it runs.


class Resting(Staged):
    """A session without its weights; a run opens it, and it stays open until it rests again."""

    def __init__(self, opened: Session, reopen: Callable[[], Session]) -> None:
        """Keep what a session tells of itself, and close it.

        Args:
            opened: It is closed here.
            reopen: Opens the same again.
        """
        self._reopen = reopen
        self._awake: Session | None = opened
        self._clock = opened.clock
        self._inputs, self._outputs, self._placement = opened.inputs, opened.outputs, opened.placement()
        self.rest()

    def rest(self) -> None:
        """Free the weights until the next run."""
        if self._awake is not None:
            self._awake.close()
        self._awake = None

    def _session(self) -> Session:
        if self._awake is None:
            self._awake = self._reopen()
        return self._awake

    def upload(self, inputs: Tensors) -> Any:
        """Open the session where it rests, and bring the inputs to the device."""
        return self._session().upload(inputs)

    def execute(self, uploaded: Any) -> Any:
        """Run, wait until done."""
        return self._session().execute(uploaded)

    def download(self, results: Any) -> Tensors:
        """Bring the results to the host, by output name."""
        return self._session().download(results)

    @property
    def clock(self) -> Callable[[], int]:
        """The clock of the session."""
        return self._clock

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of a run."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of a run."""
        return self._outputs

    def placement(self) -> tuple[Placement, ...]:
        """Return where each node runs."""
        return self._placement

    @property
    def simulated(self) -> bool:
        """Never: a simulator's time is no latency, and no such session comes here."""
        return False

    def close(self) -> None:
        """Free the weights."""
        self.rest()
