"""One call of `optimize` on its way: its state, and what an earlier one left on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgeopt.errors import Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress
from edgeopt.pipeline.candidate import Candidate
from edgeopt.pipeline.plan import Plan
from edgeopt.pipeline.replay import Replay
from edgeopt.pipeline.selection import Wish
from edgeopt.pipeline.workspace import Workspace
from edgeopt.recipes.feeding import synthetic
from edgeopt.recipes.frames import Frames
from edgeopt.steps._context import Context, Engine, Listener, numbered
from edgeopt.system.text import plural


class Silence:
    """A listener that keeps quiet."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        """Ignore it."""


@dataclass(frozen=True, slots=True)
class Ears:
    """A listener of two functions, each of which may be missing."""

    line: Callable[[str], None] | None
    parts: Progress | None

    def say(self, text: str) -> None:
        """Tell one line."""
        if self.line:
            self.line(text)

    def progress(self, what: str, done: int, of: int) -> None:
        """Tell how far a piece of work is."""
        if self.parts:
            self.parts(what, done, of)


@dataclass
class Run:
    """One call of `optimize` on its way: what its steps share, and the candidates so far."""

    context: Context
    plan: Plan
    workspace: Workspace
    labelled: LabelledFrames | None
    resume: bool
    listener: Listener
    replay: Replay | None = None
    """Whose choice holds in place of this run's; None: nobody's."""
    by_rule: bool = False
    """Whether nothing compiles for the target here, so that its rules say where nodes would run."""
    openers: dict[str, Callable[[], Session]] = field(default_factory=dict)
    """How the candidates of a compiler are opened on the device, by name; a candidate from disk has none."""
    untimed: str = ""
    """Why nothing is measured here; empty: all candidates are."""
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def timed(self) -> Frames:
        """What is timed: frames as the device gets them, random colour where only their tensors are here."""
        if self.labelled:
            return self.labelled.frames
        if self.context.frames.tensors is None or self.context.recipe.takes_arrays:
            return self.context.frames
        return synthetic(self.context.recipe, self.context.original.inputs)

    @property
    def wish(self) -> Wish:
        """What a candidate must keep, and what is wanted of it."""
        return Wish(self.plan.max_drop, self.context.least_agreement, self.plan.prefer)

    def open_candidate(self, candidate: Candidate, model: Model) -> Session:
        """Open a candidate's model on its own engine."""
        if candidate.name in self.openers:
            return self.openers[candidate.name]()
        return self.engine_of(candidate).open(model, candidate.precision)

    def engine_of(self, candidate: Candidate) -> Engine:
        """Return the engine that runs a candidate."""
        others = (one for one in self.context.alternatives if one.target.name == candidate.profile)
        engine = next(others, self.context.engine) if candidate.profile else self.context.engine
        return engine.with_options(candidate.options)


def model_file(name: str) -> str:
    """Return where a candidate's model lies in the output folder."""
    return f"candidates/{name}/model.onnx"


def finished_candidates(run: Run, name: str) -> list[Candidate]:
    """Return the candidates of a step that an earlier run of the same kind finished; none where it was interrupted."""
    files = run.workspace.finished(name)
    found = [one for one in map(run.workspace.find, files or ()) if one is not None]
    if files is not None and len(found) == len(files):
        return found
    if files is None and (torn := stored_candidates(run, name)):
        told = f"{name} was interrupted after {plural(len(torn), 'candidate')}: it is made again, whole"
        run.context.notes.append(Note(NoteKind.INFO, told))
    return []


def stored_candidates(run: Run, name: str) -> list[Candidate]:
    """Return the candidates of one name that an earlier run of the same kind left, finished or not."""
    found: list[Candidate] = []
    while candidate := run.workspace.find(model_file(numbered(name, len(found)))):
        found.append(candidate)
    return found


def outcome_on_disk(run: Run, candidate: Candidate) -> Outcome:
    """Return what made a candidate that is taken up from disk."""
    model = load_model(run.workspace.path(candidate.file), candidate.name)
    return Outcome(model, candidate.changes, candidate.notes, candidate.options)
