"""Answers of `run` whatever the kind of workload, and how the run ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from edgeopt.errors import EXIT_INTERRUPTED, EXIT_PASS, EdgeoptError, Note
from edgeopt.report.result import Result
from edgeopt.system.machine.environment import Environment

if TYPE_CHECKING:
    from edgeopt.runtime.decoding.generation import Account, Piece
    from edgeopt.runtime.decoding.speech.segments import SpeechSegment
    from edgeopt.runtime.stream import Event, StreamStats


class RunAnswer(Protocol):
    """An answer, or a part of one: of a frame, a token, a segment of speech."""

    def as_json(self) -> dict[str, Any]:
        """Return the values of its line of `edgeopt run --json`."""
        ...


class LineAnswer(RunAnswer, Protocol):
    """An answer that is whole, and worth a line."""

    def as_text(self) -> str:
        """Return the line of a terminal."""
        ...


class TaskAnswer(Protocol):
    """The answer of a task to a frame, as `predict` returns it: `Classes`, `Detections`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Result):
    """How a run went; a kind of workload adds its own figures in a dataclass below this one."""

    command: ClassVar[str] = "run"
    kind: str = ""
    """Name of the kind of workload; the verb says it."""
    environment: Environment | None = None
    """The machine that answered, and its software; None on the command line, which prints answers alone."""
    answers: tuple[RunAnswer, ...] = ()
    """In their order: a `FrameAnswer` a frame, a `Piece` a token, a `SpeechSegment` a segment. Empty where a function
    heard each of them in place of being kept, as on the command line."""
    notes: tuple[Note, ...] = ()
    """Notes for the user."""
    interrupted: bool = False
    """Whether Ctrl-C or SIGTERM ended it."""
    is_stream: bool = False
    """Whether the source was a stream, which goes on until somebody ends it; a video is one too."""
    failure: EdgeoptError | None = None
    """The error that ended it after its first answer: the source is gone, or the disk is full."""

    @property
    def is_cut(self) -> bool:
        """Whether an interrupt left something unanswered, as it does of all that is no stream."""
        return self.interrupted and not self.is_stream

    @property
    def exit_code(self) -> int:
        """0, or what the budget says where one was asked for; 130 if an interrupt left something unanswered."""
        return EXIT_INTERRUPTED if self.is_cut else EXIT_PASS

    @property
    def text(self) -> str:
        """All that was written or heard; empty for frames."""
        return "".join(str(getattr(answer, "text", "")) for answer in self.answers)

    def told(self) -> Self:
        """Return the result for another process: without the model that answered."""
        return self

    def shared_figures(self) -> dict[str, Any]:
        """Return what every kind tells; `answers` are the lines of `edgeopt run --json`."""
        return {
            "answers": [answer.as_json() for answer in self.answers],
            "notes": [asdict(note) for note in self.notes],
            "interrupted": self.interrupted,
            "failure": None if self.failure is None else self.failure.problem,
        }


class RunListener:
    """Hears of a run; whoever shows or keeps more takes its place."""

    talks_on = False
    """Whether Ctrl-C ends an answer and not the conversation: at a terminal, where the person is asked again."""

    def begin(self, notes: tuple[Note, ...], view: str, *, by_line: bool, is_endless: bool) -> None:
        """Hear what is to know before the first answer to a source.

        Args:
            notes: About the workload and the source.
            view: Address of the page; empty: there is none.
            by_line: Whether the source has few samples, so that each answer is worth a line.
            is_endless: Whether nothing says that answers end: a camera without a limit.
        """

    def hear(self, answer: LineAnswer) -> None:
        """Hear a whole answer."""

    def write(self, piece: Piece, account: Account) -> None:
        """Hear the next piece of an answer that is written, and what it took so far."""

    def segment(self, segment: SpeechSegment, account: Account, is_timed: bool) -> None:
        """Hear the next segment of a transcription, what it took so far, and whether its times are the model's."""

    def ask(self) -> str | None:
        """Return the next words of the person in a conversation; None: there are no more."""
        return None

    def over(self) -> None:
        """Hear that an answer of a conversation is over."""

    def progress(self, what: str, done: int, of: int) -> None:
        """Hear how far work before an answer is."""

    def tick(self, figures: Callable[[], StreamStats], total: int | None) -> None:
        """Be asked after each frame whether it is time to show figures."""

    def event(self, event: Event) -> None:
        """Hear what happened, in any thread."""
