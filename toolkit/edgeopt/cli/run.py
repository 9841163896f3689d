"""`edgeopt run`."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli._live_line import live_line
from edgeopt.cli._options import code_option, exit_codes, first_given, require_only, threads_option
from edgeopt.cli._output import show, show_line
from edgeopt.cli._status import StatusLine
from edgeopt.cli._values import Duration, Number, Share, Whole
from edgeopt.errors import EXIT_INCONCLUSIVE
from edgeopt.system.text import printable

if TYPE_CHECKING:
    from edgeopt.errors import Note
    from edgeopt.pipeline.live import Listener
    from edgeopt.pipeline.live_subject import Subject
    from edgeopt.runtime.stream import Event, StreamResult, StreamStats

_OF_ANSWERS = ("output_tokens", "temperature", "top_p", "seed", "stop", "guesses")
"""Options that say how a language model answers."""
_EVERY_S = 0.25
"""Between two lines of figures: counting percentiles takes a millisecond."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("source", required=False)
@click.option("--prompt", help="Let a language model answer this text, in place of SOURCE.")
@click.option(
    "--output-tokens", type=Whole(min=1), show_default="256", help="Tokens that the answer to --prompt may have."
)
@click.option(
    "--temperature", type=Number(min=0, max=100), show_default="0, the likeliest", help="Draw the tokens of the answer."
)
@click.option("--top-p", type=Share(), show_default="100%", help="Draw from the likeliest that reach this share.")
@click.option("--seed", type=Whole(min=0), show_default="0", help="Of what is drawn.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable.")
@click.option(
    "--guesses",
    type=Whole(min=0),
    show_default="0",
    help="Tokens guessed from the text so far; the answer stays the same.",
)
@click.option("--view", is_flag=True, help="Show the answers on a page of this machine; prints its address.")
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    help="Write the frames with their answers drawn: into a video (.mp4, .avi, .mkv, .mov), or a folder of pictures.",
)
@click.option(
    "--fps",
    type=Number(min=0, max=1000, min_open=True),
    show_default="a camera's own; a file: as fast as it is answered",
    help="Frames a second that come from a file, or are asked of a camera.",
)
@click.option(
    "--budget",
    type=Duration("ms"),
    show_default="the bundle's, no gate",
    help="Time from a frame to its answer, such as 33ms: a gate.",
)
@click.option(
    "--max-miss", type=Share(), default="1%", show_default=True, help="Share of the frames that may be late or lost."
)
@click.option(
    "--queue",
    default="latest",
    show_default=True,
    help="Which frames wait while the model is busy: fifo, bounded:K or latest.",
)
@click.option("--no-degrade", is_flag=True, help="Never skip frames or take a lighter model where frames are late.")
@click.option("--limit", type=Whole(min=1), help="Stop after so many answers.")
@threads_option("as measured")
@code_option
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each answer.")
@click.pass_context
@exit_codes(last=EXIT_INCONCLUSIVE)
def run(
    ctx: click.Context,
    /,
    *,
    bundle: Path,
    source: str | None,
    prompt: str | None,
    output_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    stop: tuple[str, ...],
    guesses: int | None,
    budget: float | None,
    max_miss: float,
    threads: int | None,
    as_json: bool,
    no_degrade: bool,
    **wishes: Any,
) -> None:
    """Run BUNDLE on SOURCE, and print how it keeps up.

    SOURCE is a picture, a folder of pictures, a video, an .npz, a camera's number, or an address (RTSP, RTMP, HLS).
    BUNDLE is that of a model or a pipeline. Pictures are answered in one line each. Ctrl-C ends with the summary.
    With --prompt BUNDLE is a language model (a shipped one, or the folder that edgeopt export wrote), and its answer is
    printed as it comes.
    """
    drawn = {"temperature": temperature, "top_p": top_p, "seed": seed}
    wanted = {"most_tokens": output_tokens, "stop": stop or None, "guesses": guesses}
    if prompt is not None:
        if source is not None:
            raise click.UsageError("--prompt takes the place of SOURCE; leave one of them out")
        require_only(ctx, "prompt", *_OF_ANSWERS, "threads", "as_json")
        ctx.exit(_write(str(bundle), prompt, drawn, wanted, threads or 0, as_json=as_json))
    if source is None:
        raise click.UsageError("Missing argument 'SOURCE'; or --prompt TEXT for a language model.")
    if given := first_given(ctx, _OF_ANSWERS):
        raise click.UsageError(f"{given} belongs to --prompt")
    from edgeopt.pipeline.live import LiveOptions, run_live
    from edgeopt.pipeline.live_summary import summarize

    budget_ms = budget * 1000 if budget else None
    options = LiveOptions(budget_ms=budget_ms, max_miss_ratio=max_miss, degrade=not no_degrade, **wishes)
    listener = _listener(as_json)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service that is stopped ends its video like Ctrl-C
    try:
        result = run_live(bundle, source, options, listener, threads or 0)
    finally:
        listener.end()
    show(summarize(result), "terminal", err=as_json)
    if result.failure is not None:
        raise result.failure
    ctx.exit(result.exit_code)


def _write(
    model: str, prompt: str, drawn: dict[str, Any], wanted: dict[str, Any], threads: int, *, as_json: bool
) -> int:
    """Print the answer of a language model as it comes, and what it took; return the exit code."""
    from edgeopt.pipeline.writing import write_answer
    from edgeopt.runtime.decoding.generation import Asked, Piece
    from edgeopt.runtime.decoding.sampling import Sampling

    def known(values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value is not None}

    def hear(piece: Piece) -> None:
        if as_json:
            click.echo(json.dumps({"token": piece.token, "text": piece.text, "at_ms": piece.at_ns / 1e6}))
        else:
            click.echo("\n".join(printable(line) for line in piece.text.split("\n")), nl=False)

    asked = Asked(sampling=Sampling(**known(drawn)), **known(wanted))
    result = write_answer(model, prompt, asked, hear, threads)
    if not as_json:
        click.echo()
    show_line(str(result), err=True)
    return 0


def _listener(as_json: bool) -> Listener:
    """Return what prints a run."""
    from edgeopt.pipeline import live

    class Printed(live.Listener):
        """Answers on the standard output, all else on the standard error."""

        def __init__(self) -> None:
            self._status, self._by_line, self._lines, self._due_s = StatusLine(), False, 0, 0.0

        def begin(self, subject: Subject, notes: tuple[Note, ...], view: str, *, by_line: bool) -> None:
            self._subject, self._by_line = subject, by_line and not as_json
            for note in notes:
                show_line(f"{note.kind}: {note}", err=True)
            if view:
                show_line(f"view: {view}", err=True)

        def hear(self, result: StreamResult, problem: str) -> None:
            if as_json:
                told = {"problem": problem} if problem else self._subject.as_json(result.answer)
                click.echo(json.dumps({**_figures(result), **told}, allow_nan=False))
            elif self._by_line:
                said = f"no answer: {problem}" if problem else self._subject.as_text(result.answer)
                show_line(f"{result.name}: {said}")
                self._lines += 1

        def tick(self, figures: Callable[[], StreamStats], total: int | None) -> None:
            if self._status.is_live and not self._by_line and monotonic() >= self._due_s:
                self._status.show(live_line(figures(), total, self._status.width))
                self._due_s = monotonic() + _EVERY_S

        def event(self, event: Event) -> None:
            self._status.clear()
            show_line(str(event), err=True)

        def end(self) -> None:
            self._status.clear()
            if self._lines:
                click.echo()

    return Printed()


def _figures(result: StreamResult) -> dict[str, Any]:
    return {
        "frame": result.name,
        "index": result.index,
        "age_ms": result.age_ns / 1e6,
        "latency_ms": result.latency_ns / 1e6,
        "missed": result.missed,
        "artefact": result.artefact,
    }


COMMAND = run
