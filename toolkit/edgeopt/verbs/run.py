"""`run`: a workload answers what it is given, for a person or a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from edgeopt.errors import EdgeoptError, Note
from edgeopt.running.answers import LineAnswer, RunAnswer, RunListener, RunResult
from edgeopt.system.machine.environment import read_environment
from edgeopt.verbs._perform import Performed, prepare, with_options_of_kinds
from edgeopt.verbs.android import is_phone

if TYPE_CHECKING:  # a command's first token does not wait for the types of all options
    from edgeopt.runtime.decoding.generation import Account, Piece
    from edgeopt.runtime.decoding.speech.segments import SpeechSegment
    from edgeopt.runtime.stream import Event
    from edgeopt.verbs.wishes import RunWishes

Tell = Callable[[str, int, int], None]


@with_options_of_kinds("run")
def run(
    workload: str | Path,
    sample: str | Path | int | None = None,
    *,
    options: object = None,
    on: str | None = None,
    hear: Callable[[RunAnswer], None] | None = None,
    ask: Callable[[], str | None] | None = None,
    tell: Tell | None = None,
    say: Callable[[str], None] | None = None,
    **wishes: Unpack[RunWishes],
) -> RunResult:
    """Let a workload answer what it is given, on this machine or on a device elsewhere.

    Args:
        workload: A bundle, an ONNX file, a shipped model's name, a language model, or a pipeline's bundle.
        sample: A picture, a folder of pictures, a video, an .npz, a camera's number, an address, or a .wav file; None:
            an option asks, such as `prompt`.
        options: How it answers, the dataclass of its kind; None: all defaults.
        on: The device that answers, `ssh://USER@HOST` or `adb://SERIAL`; None: this machine.
        hear: Called with each answer as it comes: a frame's, a token, a segment of speech; of a device behind ssh they
            come when the run is over. Answers are not kept then, as a source without an end asks. None: the result
            holds all of them.
        ask: With `chat=True`: returns the next words of the person; None from it ends the conversation.
        tell: Hears how far work before an answer is.
        say: Hears lines of a run on frames: the address of the page that `view=True` shows, and what happens.
        **wishes: Fields of the options that differ: `prompt="Once"`, `output_tokens=40`, `limit=10`.

    Returns:
        A `LiveResult` of frames; a `WrittenResult`, or of a conversation a `TalkResult`, of a model that writes.

    Raises:
        EdgeoptError: If it gives no answer at all, a wish is for another kind, or the source or the disk ended it.
        KeyboardInterrupt: If Ctrl-C ended it.
    """
    named = None if sample is None else str(sample)
    if on and is_phone(on):
        from edgeopt.verbs.android.perform import on_phone

        known = {each.name: getattr(options, each.name) for each in fields(options)} if is_dataclass(options) else {}
        with on_phone("run", (str(workload),), {**known, **wishes}, on, tell or _ignore):
            return run(workload, sample, options=options, hear=hear, ask=ask, tell=tell, say=say, **wishes)
    if on:
        from edgeopt.verbs.remote.elsewhere import RemoteCall, result_on

        call = RemoteCall("run", (str(workload),), options, wishes, on, sample=named)
        return _heard(result_on(call, tell, say=say), hear)
    listener = _Program(hear, ask, tell, say)
    result = answer(str(workload), named, options, wishes, listener).result
    if result.interrupted:
        raise KeyboardInterrupt
    if result.failure is not None:
        raise result.failure
    return replace(result, answers=tuple(listener.answers), environment=read_environment())


def _heard(result: RunResult, hear: Callable[[RunAnswer], None] | None) -> RunResult:
    """Hand the answers of a device over; who hears them keeps them."""
    if hear is None:
        return result
    for each in result.answers:
        hear(each)
    return replace(result, answers=())


def _ignore(*_: object) -> None:
    """Hear nothing."""


def answer(
    workload: str,
    sample: str | None,
    options: object,
    wishes: Mapping[str, Any],
    listener: RunListener | None = None,
) -> Performed[RunResult]:
    """Do what `run` does, and say how it is shown.

    Args:
        workload: A bundle, a model as it is, or a pipeline's bundle.
        sample: A picture, a folder, a video, a camera's number, an address, a sound; None: an option asks.
        options: The dataclass of the kind; None: its defaults.
        wishes: Fields of the options that differ, by name.
        listener: Hears answers as they come.

    Raises:
        EdgeoptError: If it gives no answer at all.
    """
    kind, chosen = prepare("run", (workload,), options, wishes)
    module = kind.module("run")
    result = replace(module.work(workload, chosen, listener, sample), kind=kind.name)
    return Performed(result, module.summarize)


class _Program(RunListener):
    """Hands answers to a program, or keeps them for it."""

    def __init__(
        self,
        hear: Callable[[RunAnswer], None] | None,
        ask: Callable[[], str | None] | None,
        tell: Tell | None,
        say: Callable[[str], None] | None,
    ) -> None:
        self.answers: list[RunAnswer] = []
        self._take = hear or self.answers.append
        self._keeps, self._ask, self._tell, self._say = hear is None, ask, tell, say

    def begin(self, notes: tuple[Note, ...], view: str, *, by_line: bool, is_endless: bool) -> None:
        """Refuse to keep answers that do not end; tell where they are shown."""
        del notes, by_line
        if self._keeps and is_endless:
            raise EdgeoptError(
                "this source has no end, and its answers cannot all be kept",
                remedy="pass limit=, or on this machine hear=, a function that takes each",
            )
        if view and self._say is not None:
            self._say(f"view: {view}")

    def event(self, event: Event) -> None:
        """Say what happened."""
        if self._say is not None:
            self._say(str(event))

    def hear(self, answer: LineAnswer) -> None:
        """Take the answer for a frame."""
        self._take(answer)

    def write(self, piece: Piece, account: Account) -> None:
        """Take a token."""
        del account
        self._take(piece)

    def segment(self, segment: SpeechSegment, account: Account, is_timed: bool) -> None:
        """Take a segment."""
        del account, is_timed
        self._take(segment)

    def ask(self) -> str | None:
        """Return the next words of the program's person."""
        if self._ask is None:
            raise EdgeoptError(
                "--chat asks for each turn, and nobody is there to be asked",
                remedy="pass ask=, a function that returns the next words, or None at the end",
            )
        return self._ask()

    def progress(self, what: str, done: int, of: int) -> None:
        """Tell how far work before an answer is."""
        if self._tell is not None:
            self._tell(what, done, of)
