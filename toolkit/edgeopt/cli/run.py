"""`edgeopt run`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli._answer_line import AnswerLine
from edgeopt.cli._groups import GroupedCommand
from edgeopt.cli._live_line import live_line
from edgeopt.cli._options import (
    answer_budget,
    code_option,
    exit_codes,
    first_given,
    frame_budget_ms,
    prefixes_option,
    require_drawing,
    require_guesses,
    require_only,
    system_option,
    threads_option,
)
from edgeopt.cli._output import show, show_line
from edgeopt.cli._progress import Progress
from edgeopt.cli._status import StatusLine
from edgeopt.cli._values import Budget, Number, RecipeName, Share, TargetName, Whole
from edgeopt.errors import EXIT_INCONCLUSIVE

if TYPE_CHECKING:
    from edgeopt.errors import Note
    from edgeopt.measurement.generation.budget import AnswerBudget
    from edgeopt.pipeline.live import Listener
    from edgeopt.pipeline.live_subject import Subject
    from edgeopt.pipeline.writing import WrittenResult
    from edgeopt.runtime.decoding.generation import Account, Asked, Piece
    from edgeopt.runtime.stream import Event, StreamResult, StreamStats

_OF_PROMPTS = ("system", "prefixes", "long", "context")
_DRAWN = ("temperature", "top_k", "top_p", "seed")
_OF_ANSWERS = ("output_tokens", *_DRAWN, "repetition_penalty", "stop", "guesses", "draft", "exact", *_OF_PROMPTS)
"""Options that say how a language model answers."""
_GUESSES = 4
"""Where a draft is named and no number."""
_OF_ENCODED = ("output_tokens", *_DRAWN, "repetition_penalty", "stop", "long")
_EVERY_S = 0.25
"""Between two lines of figures: counting percentiles takes a millisecond."""


_GROUPS = {
    "The stream": ("budget", "max_miss", "fps", "queue", "no_degrade", "limit", "threads"),
    "Where answers go": ("view", "save", "as_json"),
    "A model that is no bundle": ("recipe", "target"),
    "Language models": ("prompt", "output_tokens", "system", "prefixes", "long", "context", "stop"),
    "How tokens are drawn": ("temperature", "top_k", "top_p", "seed", "repetition_penalty"),
    "Guessing ahead": ("guesses", "draft", "exact"),
    "Pipelines": ("code",),
}
"""Headings of the help, and the options below each."""


@click.command(cls=GroupedCommand, groups=_GROUPS)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("source", required=False)
@click.option(
    "--recipe",
    "-r",
    type=RecipeName(),
    metavar="NAME|FILE",
    show_default="read from the model",
    help="Of a model that is no bundle: how it is fed and read.",
)
@click.option(
    "--target",
    "-t",
    type=TargetName(),
    metavar="NAME|FILE",
    show_default="cpu",
    help="Of a model that is no bundle: the device.",
)
@click.option("--prompt", help="Let a language model answer this text, in place of SOURCE.")
@click.option(
    "--output-tokens", type=Whole(min=1), show_default="256", help="Tokens that the answer to --prompt may have."
)
@click.option(
    "--temperature", type=Number(min=0, max=100), show_default="0, the likeliest", help="Draw the tokens of the answer."
)
@click.option("--top-k", type=Whole(min=1, max=1 << 20), show_default="all", help="Draw from so many of the likeliest.")
@click.option("--top-p", type=Share(), show_default="100%", help="Draw from the likeliest that reach this share.")
@click.option("--seed", type=Whole(min=0), show_default="0", help="Of what is drawn.")
@click.option(
    "--repetition-penalty",
    type=Number(min=0.01, max=100),
    show_default="1, none",
    help="Divide the logits of tokens that were there already by this; drawn or not.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; repeatable.")
@click.option(
    "--guesses",
    type=Whole(min=0, max=64),
    show_default="the recipe's; 4 with --draft",
    help="Tokens guessed, by the draft or from the text so far, and verified in one run; blocks: with --exact.",
)
@click.option(
    "--draft",
    metavar="MODEL",
    show_default="the recipe's",
    help="A smaller model with the same tokens that makes the guesses; none: the text so far does.",
)
@click.option(
    "--exact", is_flag=True, help="Run single tokens as several: the same answer with guesses or without; slower."
)
@system_option
@prefixes_option
@click.option(
    "--long",
    type=click.Choice(["refuse", "head", "middle", "tail", "summarise", "windows"]),
    show_default="refuse",
    help="Of a prompt beyond the context, or a sound beyond a window: refuse it, cut this part of it, let the model "
    "summarise the text in parts, or hear the sound in windows, one after the other.",
)
@click.option(
    "--context",
    type=Whole(min=2),
    show_default="the model's",
    help="Tokens of prompt and answer, for which memory is reserved.",
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
    type=Budget(),
    show_default="the bundle's, no gate",
    help="Time from a frame to its answer, such as 33ms: a gate. Of a language model ttft:200ms,tpot:20ms.",
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
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    repetition_penalty: float | None,
    stop: tuple[str, ...],
    guesses: int | None,
    draft: str | None,
    exact: bool,
    system: Path | None,
    prefixes: Path | None,
    long: str | None,
    context: int | None,
    budget: float | AnswerBudget | None,
    max_miss: float,
    threads: int | None,
    as_json: bool,
    no_degrade: bool,
    **wishes: Any,
) -> None:
    """Run BUNDLE on SOURCE, and print how it keeps up.

    SOURCE is a picture, a folder of pictures, a video, an .npz, a camera's number, or an address (RTSP, RTMP, HLS).
    BUNDLE is that of a model or a pipeline; or MODEL.onnx as it is, where its recipe is known. Pictures are answered
    in one line each. Ctrl-C ends with the summary.
    With --prompt BUNDLE is that of a language model (or a shipped one, or a folder that edgeopt export wrote), and its
    answer is printed as it comes. A folder of optimum-cli with an encoder and a decoder answers a .wav file as SOURCE,
    or --prompt.
    """
    if "" in stop:
        raise click.UsageError("--stop is empty; write the text before which the answer ends")
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    drawn |= {"repetition_penalty": repetition_penalty}
    by_text = draft == "none"
    require_guesses(guesses, draft)
    guesses = _GUESSES if guesses is None and draft else guesses
    wanted = {"most_tokens": output_tokens, "stop": stop or None, "guesses": guesses, "uses_draft": not by_text}
    wanted |= {"exact": exact or None}
    from edgeopt.pipeline.answering import is_encoder_decoder

    if prompt == "":
        raise click.UsageError("--prompt is empty; write what is to be answered")
    if prompt is not None or is_encoder_decoder(str(bundle)):
        require_drawing(temperature, top_k=top_k, top_p=top_p, seed=seed)
    if is_encoder_decoder(str(bundle)):
        if (source is None) is (prompt is None):
            raise click.UsageError("an encoder with a decoder answers SOURCE, a .wav file, or --prompt TEXT")
        require_only(
            ctx, "source", "prompt", *_OF_ENCODED, "budget", "threads", "as_json", what="an encoder with a decoder"
        )
        limits = answer_budget(budget)
        heard = bundle, source, prompt or "", long or "refuse"
        ctx.exit(_answer(*heard, drawn, wanted, threads or 0, limits, as_json=as_json))
    if prompt is not None:
        if source is not None:
            raise click.UsageError("--prompt takes the place of SOURCE; leave one of them out")
        require_only(ctx, "prompt", *_OF_ANSWERS, "budget", "threads", "as_json")
        if prefixes is not None and system is None:
            raise click.UsageError("--prefixes belongs to --system")
        limits = answer_budget(budget)
        before = {"system": system, "prefixes": prefixes, "long": long, "context": context}
        before |= {"draft": None if by_text else draft}
        ctx.exit(_write(str(bundle), prompt, drawn, wanted, before, threads or 0, limits, as_json=as_json))
    if source is None:
        raise click.UsageError("Missing argument 'SOURCE'; or --prompt TEXT for a language model.")
    if given := first_given(ctx, _OF_ANSWERS):
        raise click.UsageError(f"{given} belongs to --prompt")
    from edgeopt.pipeline.writing import is_language_model

    if is_language_model(str(bundle)):
        raise click.UsageError(f"{bundle} is a language model: it answers --prompt TEXT, and no SOURCE")
    from edgeopt.pipeline.live import LiveOptions, run_live
    from edgeopt.pipeline.live_summary import summarize

    budget_ms = frame_budget_ms(budget)
    options = LiveOptions(budget_ms=budget_ms, max_miss_ratio=max_miss, degrade=not no_degrade, **wishes)
    listener = _listener(as_json)
    try:
        result = run_live(bundle, source, options, listener, threads or 0)
    finally:
        listener.end()
    show(summarize(result), "terminal", err=as_json)
    if result.failure is not None:
        raise result.failure
    ctx.exit(result.exit_code)


def _write(
    model: str,
    prompt: str,
    drawn: dict[str, Any],
    wanted: dict[str, Any],
    before: dict[str, Any],
    threads: int,
    budget: AnswerBudget | None,
    *,
    as_json: bool,
) -> int:
    """Print the answer of a language model as it comes, and what it took; return the exit code."""
    from edgeopt.pipeline.writing import Prompting, write_answer

    with AnswerLine() as line, Progress(quiet=as_json) as progress:
        prompting, hear = Prompting(**_known(before)), _hear(line, as_json=as_json)
        asked = _asked(drawn, wanted)
        result = write_answer(model, prompt, asked, hear, threads, budget, prompting, progress.progress)
    return _show_written(result, as_json=as_json)


def _answer(
    folder: Path,
    source: str | None,
    prompt: str,
    long: str,
    drawn: dict[str, Any],
    wanted: dict[str, Any],
    threads: int,
    budget: AnswerBudget | None,
    *,
    as_json: bool,
) -> int:
    """Print what an encoder with a decoder answers, and what it took; return the exit code."""
    from edgeopt.pipeline.answering import answer_source

    with AnswerLine() as line:
        hear, sound = _hear(line, as_json=as_json), Path(source) if source is not None else None
        result = answer_source(folder, sound, prompt, _asked(drawn, wanted), hear, threads, budget, long)
    return _show_written(result, as_json=as_json)


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _asked(drawn: dict[str, Any], wanted: dict[str, Any]) -> Asked:
    from edgeopt.runtime.decoding.generation import Asked
    from edgeopt.runtime.decoding.sampling import Sampling

    return Asked(sampling=Sampling(**_known(drawn)), **_known(wanted))


def _hear(line: AnswerLine, *, as_json: bool) -> Callable[[Piece, Account], None]:
    """Return what prints each piece of an answer."""

    def hear(piece: Piece, account: Account) -> None:
        if as_json:
            click.echo(json.dumps({"token": piece.token, "text": piece.text, "at_ms": piece.at_ns / 1e6}))
        else:
            line.write(piece.text, account)

    return hear


def _show_written(result: WrittenResult, *, as_json: bool) -> int:
    """Print notes and figures behind an answer; return the exit code."""
    if not as_json:
        click.echo()
    for note in result.notes:
        show_line(f"{note.kind}: {note}", err=True)
    show_line(str(result), err=True)
    return result.exit_code


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
