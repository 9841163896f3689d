"""Run a bundle on a camera, video or files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli._answer_line import AnswerLine
from edgeopt.cli._live_line import live_line
from edgeopt.cli._options import TERMINAL, exit_codes
from edgeopt.cli._output import show, show_line
from edgeopt.cli._progress import Progress
from edgeopt.cli._remote import RESULT
from edgeopt.cli._status import StatusLine
from edgeopt.cli._verb import read_values, verb_command
from edgeopt.errors import EXIT_INCONCLUSIVE
from edgeopt.running.answers import RunListener
from edgeopt.system.processes.interrupts import Terminated

if TYPE_CHECKING:
    from pathlib import Path

    from edgeopt.errors import Note
    from edgeopt.running.answers import LineAnswer
    from edgeopt.runtime.decoding.generation import Account, Piece
    from edgeopt.runtime.decoding.speech.segments import SpeechSegment
    from edgeopt.runtime.stream import Event, StreamStats

_EVERY_S = 0.25
"""Between two lines of figures: counting percentiles takes a millisecond."""


@verb_command(
    "run",
    "stream",
    "answers",
    "drift",
    "model",
    "device",
    "language",
    "form",
    "speech",
    "draw",
    "guess",
)
@click.argument("bundle")
@click.argument("source", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each answer.")
@click.pass_context
@exit_codes(last=EXIT_INCONCLUSIVE, interrupted="interrupted, and not all was answered")
def run(ctx: click.Context, /, *, bundle: str, source: str | None, as_json: bool, **options: Any) -> None:
    """Run BUNDLE on SOURCE, and print how it keeps up.

    BUNDLE is the bundle of a model or a pipeline, the name of a shipped model, or an ONNX file whose recipe is known.
    SOURCE is a picture, a folder of pictures, a video, an .npz, a camera's number, or an address (RTSP, RTMP, HLS).
    A language model needs none: it answers --prompt or --chat.

    Each picture is answered in one line. Ctrl-C or SIGTERM ends the run with the summary; a camera or a video that is
    ended in this way is no error.

    A language model may also be the folder that edgeopt export wrote. It answers --prompt, printed as it comes, or
    talks with --chat. An encoder with a decoder (also a folder of optimum-cli) answers --prompt, or a .wav file as
    SOURCE; where SOURCE is -, a WAV on the standard input is transcribed as it comes.
    """
    del options
    from edgeopt.verbs.run import answer

    values = read_values(ctx, bundle)
    if (file := ctx.params.get(RESULT)) is not None:
        ctx.exit(_run_for_program(bundle, source, values, file))
    with Printed(as_json=as_json) as printed:
        done = answer(bundle, source, None, values, printed)
    summary = done.summary
    if isinstance(summary, str):
        for line in summary.splitlines():
            show_line(line, err=True)
    else:
        show(summary, TERMINAL, err=as_json)
    if (failure := done.result.failure) is not None:
        raise failure
    ctx.exit(done.exit_code)


def _run_for_program(bundle: str, source: str | None, values: dict[str, Any], file: Path) -> int:
    """Run without printing answers, and write the result for the program that began the command elsewhere."""
    from edgeopt.verbs.remote.results import store_result
    from edgeopt.verbs.run import run as run_in_python

    result = run_in_python(bundle, source, say=lambda line: show_line(line, err=True), **values)
    store_result(result.told(), file)
    return result.exit_code


class Printed(RunListener):
    """Answers on the standard output, all else on the standard error."""

    talks_on = True

    def __init__(self, *, as_json: bool) -> None:
        """Print nothing yet."""
        self._as_json = as_json
        self._status, self._by_line, self._lines, self._due_s = StatusLine(), False, 0, 0.0
        self._answer: AnswerLine | None = None
        self._is_by_segment = False
        self._progress = Progress(quiet=as_json)

    def __enter__(self) -> Printed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        if self._answer is not None:
            self._answer.__exit__(kind, error, trace)
            if kind is None and not self._as_json and not self._is_by_segment:
                click.echo()
        self._end()

    def progress(self, what: str, done: int, of: int) -> None:
        """Show how far work before an answer is."""
        self._progress.progress(what, done, of)

    def write(self, piece: Piece, account: Account) -> None:
        """Print the next piece of an answer that is written."""
        if self._as_json:
            click.echo(json.dumps(piece.as_json()))
            return
        if self._answer is None:
            self._progress.__exit__(None, None, None)
            self._answer = AnswerLine().__enter__()
        self._answer.write(piece.text, account)

    def segment(self, segment: SpeechSegment, account: Account, is_timed: bool) -> None:
        """Print the next segment of a transcription, with its times where the model writes them."""
        if self._as_json:
            click.echo(json.dumps(segment.as_json(), allow_nan=False))
            return
        from edgeopt.runtime.decoding.speech.subtitles import clock

        if self._answer is None:
            self._progress.__exit__(None, None, None)
            self._answer = AnswerLine().__enter__()
        text = " ".join(segment.text.split())
        line = f"[{clock(segment.start_s)} --> {clock(segment.end_s)}] " if is_timed else ""
        self._answer.write(f"{line}{text}\n", account)
        for word in segment.words:
            self._answer.write(f"  [{clock(word.start_s)} --> {clock(word.end_s)}] {word.text.strip()}\n", account)
        self._is_by_segment = True

    def ask(self) -> str | None:
        """Return the next line of the person; None: it is empty, or there is none."""
        self._progress.__exit__(None, None, None)
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt as error:
            if isinstance(error, Terminated):
                raise
            line = ""
        return line.encode("utf-8", "replace").decode("utf-8").strip() or None

    def over(self) -> None:
        """Leave the line of an answer behind which another turn comes."""
        if self._answer is not None:
            self._answer.__exit__(None, None, None)
            self._answer = None
        if not self._as_json:
            click.echo()

    def begin(self, notes: tuple[Note, ...], view: str, *, by_line: bool, is_endless: bool) -> None:
        """Show what is to know before the first frame."""
        del is_endless
        self._by_line = by_line and not self._as_json
        for note in notes:
            show_line(f"{note.kind}: {note}", err=True)
        if view:
            show_line(f"view: {view}", err=True)

    def hear(self, answer: LineAnswer) -> None:
        """Print the answer for a frame."""
        if self._as_json:
            click.echo(json.dumps(answer.as_json(), allow_nan=False))
        elif self._by_line:
            show_line(answer.as_text())
            self._lines += 1

    def tick(self, figures: Callable[[], StreamStats], total: int | None) -> None:
        """Show figures from time to time."""
        if self._status.is_live and not self._by_line and monotonic() >= self._due_s:
            self._status.show(live_line(figures(), total, self._status.width))
            self._due_s = monotonic() + _EVERY_S

    def event(self, event: Event) -> None:
        """Print what happened."""
        self._status.clear()
        show_line(str(event), err=True)

    def _end(self) -> None:
        """Leave a line free behind answers."""
        self._status.clear()
        if self._lines:
            click.echo()
            self._lines = 0


COMMAND = run
