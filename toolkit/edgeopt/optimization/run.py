"""The state of one call of `optimize` on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from edgeopt.errors import Note, NoteKind
from edgeopt.executors import Session
from edgeopt.executors._child import EngineAbortError
from edgeopt.graph.model import Model
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress
from edgeopt.measurement.accuracy.judgement import LEVELS_OF_LOOKS, NoProof
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.choice.selection import Wish
from edgeopt.optimization.expected_progress import Course
from edgeopt.optimization.folder.replay import Replay
from edgeopt.optimization.folder.workspace import Workspace
from edgeopt.optimization.plan import Plan
from edgeopt.recipes.inputs.feeding import synthetic
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.steps._context import Context, Engine, Listener
from edgeopt.system.declared.target import Target
from edgeopt.tasks import Accuracy

_OF_SMALLER = 2
"""Power of the agreement that is asked, where pictures are smaller and labels decide in the end: once for the size and
once for the form. Boxes move with the pixels: YOLOX-nano agrees in 0.76 at 352x352 and in 0.71 at 320x320, and loses
less than 0.01 AP by it."""


class Silence:
    """A listener that keeps quiet."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        """Ignore it."""

    def ahead(self, part: str, part_s: float, rest_s: float) -> None:
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

    def ahead(self, part: str, part_s: float, rest_s: float) -> None:
        """Ignore it: a bar of the whole is for longer work."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at labels: the probability that what it proves is wrong, and that of the look after it."""

    level: float = LEVELS_OF_LOOKS[0]
    later: float = LEVELS_OF_LOOKS[1]


@dataclass
class Run:
    """One call of `optimize` on its way: what its steps share, and the candidates so far."""

    context: Context
    plan: Plan
    workspace: Workspace
    labelled: LabelledFrames | None
    resume: bool
    listener: Listener
    of_labels: tuple[Note, ...] = ()
    """How the labels were divided, and why they may prove nothing: said before the search."""
    of_engines: tuple[Note, ...] = ()
    """Why engines of the device are not tried on this machine."""
    no_proof: NoProof | None = None
    """Why the labels prove nothing; None: they prove."""
    look: Look = Look()
    """This look at the labels that prove."""
    replay: Replay | None = None
    """Run of before whose choice holds in place of this run's; None: there is none."""
    by_rule: bool = False
    """Whether nothing compiles for the target here, so that its rules say where nodes would run."""
    openers: dict[str, Callable[[], Session]] = field(default_factory=dict)
    """How the candidates of a compiler are opened on the device, by name; a candidate from disk has none."""
    configurations: Path = Path()
    """Folder in which Hugging Face's may lie, of the model as it was given."""
    untimed: str = ""
    """Why nothing is measured here; empty: all candidates are."""
    candidates: list[Candidate] = field(default_factory=list)
    frame_ms: float = 0.0
    """Milliseconds of the original, one frame timed where there is a time limit; 0: not known."""
    paces: dict[str, float] = field(default_factory=dict)
    """Target's name -> time of the float model on the target's own engine over its time on that engine of the
    device."""
    fault_of: Callable[[Target], str] = lambda _: ""
    """Tells how the engine of another target errs on the model as it came."""
    looked_at: frozenset[str] = frozenset()
    """Names of targets whose heavy engine was looked at; see `candidates/heavy_engines.py`."""
    left_out: frozenset[str] = frozenset()
    """Those of them that are not tried, or not tried further."""
    judged_scores: dict[str, Accuracy] = field(default_factory=dict)
    """Metric of the candidates that were scored on the labels that prove, by name."""
    to_label: str = ""
    """Labels that a person may add so that the accuracy is proven, in a sentence; empty: none are wanted."""
    was_cut: bool = False
    """Whether it was interrupted: what is proven by then is written."""
    course: Course = field(init=False)
    """The parts that are still to come, which the listener is told ahead."""

    def __post_init__(self) -> None:
        self.course = Course(self.listener)

    @property
    def timed(self) -> Frames:
        """The timed frames: as the device gets them, or of random colour where only their tensors are here."""
        if self.labelled:
            return self.labelled.frames
        if self.context.frames.tensors is None or self.context.recipe.takes_arrays:
            return self.context.frames
        return synthetic(self.context.recipe, self.context.original.inputs)

    @property
    def wish(self) -> Wish:
        """The accuracy that a candidate must keep, and the preference."""
        return Wish(
            max_drop=self.plan.max_drop,
            least_agreement=self.context.least_agreement,
            least_of_smaller=round(self.context.least_agreement**_OF_SMALLER, 3)
            if self.labelled and self.no_proof is None
            else None,
            prefer=self.plan.prefer,
            must_be_timed=self.plan.must_be_timed,
        )

    def leave_out(self, name: str, abort: EngineAbortError) -> None:
        """Say that an engine aborted on a form: the others go on."""
        note = Note(NoteKind.WARNING, f"{name} left out: {abort.problem}", abort.remedy)
        self.context.notes.append(note)
        self.listener.say(f"warning: {note}")

    def open_candidate(self, candidate: Candidate, model: Model) -> Session:
        """Open a candidate's model on its own engine."""
        if candidate.name in self.openers:
            return self.openers[candidate.name]()
        return self.engine_of(candidate).open(model, candidate.precision)

    def runnable_of(self, candidate: Candidate, model: Model) -> Runnable | None:
        """Return how another process opens a candidate's model; None where only this one can."""
        if candidate.name in self.openers:
            return None
        return self.context.runnable(model, self.engine_of(candidate), candidate.precision)

    def engine_of(self, candidate: Candidate) -> Engine:
        """Return the engine that runs a candidate."""
        others = (
            alternative for alternative in self.context.alternatives if alternative.target.name == candidate.profile
        )
        engine = next(others, self.context.engine) if candidate.profile else self.context.engine
        return engine.with_options(candidate.options)


def model_file(name: str) -> str:
    """Return where a candidate's model lies in the output folder."""
    return f"candidates/{name}/model.onnx"
