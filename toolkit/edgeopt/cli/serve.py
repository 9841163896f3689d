"""`edgeopt serve`."""

from __future__ import annotations

from pathlib import Path

import click

from edgeopt.cli._groups import GroupedCommand
from edgeopt.cli._options import key_of, prefixes_option, require_guesses, system_option, threads_option
from edgeopt.cli._output import show_line
from edgeopt.cli._values import Duration, Number, Whole

INTERRUPTED = "the server had not begun"
_MIB = 1 << 20


_GROUPS = {
    "Address and name": ("host", "port", "name"),
    "Limits": (
        "slots",
        "waiting",
        "time_limit",
        "output_tokens",
        "body_mib",
        "picture_megapixels",
        "stalled",
        "keep",
        "threads",
    ),
    "Who may ask": ("access_log", "key_from", "allow_origin", "cert", "cert_key"),
    "Language models": ("context", "system", "prefixes", "guesses", "draft", "exact"),
}
"""Headings of the help, and the options below each."""


@click.command(cls=GroupedCommand, groups=_GROUPS)
@click.argument("bundle")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen at; others than this machine's."
)
@click.option("--port", type=Whole(min=0, max=65535), default=8000, show_default=True, help="0: one that is free.")
@click.option("--name", show_default="the recipe's", help="Under which clients ask for the model.")
@click.option("--slots", type=Whole(min=1, max=256), default=4, show_default=True, help="Answers made at once.")
@click.option(
    "--waiting", type=Whole(min=0), default=64, show_default=True, help="Requests that may wait; more are refused."
)
@click.option(
    "--time-limit",
    type=Duration("s"),
    default="5m",
    show_default=True,
    help="From a request to the end of its answer, waiting included.",
)
@click.option("--output-tokens", type=Whole(min=1), show_default="what the context holds", help="Most of an answer.")
@click.option(
    "--body-mib", type=Number(min=0, min_open=True, max=1024), default=8, show_default=True, help="Most of a request."
)
@click.option(
    "--picture-megapixels",
    type=Number(min=0, min_open=True, max=1000),
    default=50,
    show_default=True,
    help="Most of a picture; large ones are taken one at a time.",
)
@click.option(
    "--stalled",
    type=Duration("s"),
    default="30s",
    show_default=True,
    help="Cut a client off that sends or takes nothing for so long.",
)
@click.option(
    "--keep",
    type=Duration("s"),
    show_default="for ever",
    help="Free the model's memory after so long without a request.",
)
@click.option(
    "--access-log",
    metavar="FILE",
    help="Write a line of JSON for each request: time, client, method, path, status, ms; - for standard error.",
)
@click.option("--key-from", metavar="NAME", help="Variable of the environment with the key that each client must send.")
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="URL",
    help="Pages from there, such as https://app.example, may ask too; * for all. Repeatable.",
)
@click.option("--cert", type=click.Path(path_type=Path), help="Certificate in PEM: connections are encrypted (https).")
@click.option(
    "--cert-key", type=click.Path(path_type=Path), show_default="in the file of --cert", help="Its key, in PEM."
)
@system_option
@prefixes_option
@click.option(
    "--context", type=Whole(min=2), show_default="the model's", help="Most tokens of a prompt and its answer."
)
@click.option(
    "--guesses",
    type=Whole(min=0, max=64),
    show_default="the recipe's; 4 with --draft",
    help="Tokens guessed and verified in one run; for --slots 1.",
)
@click.option(
    "--draft",
    metavar="MODEL",
    show_default="the recipe's",
    help="A smaller model that makes the guesses; none: the text so far does.",
)
@click.option("--exact", is_flag=True, help="All answers as run --exact gives them: guesses then change no token.")
@threads_option("as measured; a language model: physical cores")
def serve(
    *,
    bundle: str,
    host: str,
    port: int,
    name: str | None,
    slots: int,
    waiting: int,
    time_limit: float,
    output_tokens: int | None,
    body_mib: float,
    picture_megapixels: float,
    stalled: float,
    keep: float | None,
    access_log: str | None,
    key_from: str | None,
    allow_origin: tuple[str, ...],
    cert: Path | None,
    cert_key: Path | None,
    system: Path | None,
    prefixes: Path | None,
    context: int | None,
    guesses: int | None,
    draft: str | None,
    exact: bool,
    threads: int | None,
) -> None:
    """Answer requests over HTTP with BUNDLE, until Ctrl-C or SIGTERM; answers on their way are finished.

    BUNDLE is a language model (a shipped one, its ONNX file or folder), asked as OpenAI's clients ask:
    /v1/completions, /v1/chat/completions; an encoder with a decoder: POST a WAV to /v1/audio/transcriptions, or a text
    to /v1/completions; or the bundle of a model of pictures: POST one to /v1/frames.
    /v1/models, /healthz and /metrics are there for both. It needs: pip install 'edgeopt[serve]'.
    """
    from edgeopt.pipeline.serving import ServeOptions, serve
    from edgeopt.pipeline.writing import Prompting
    from edgeopt.runtime.serve.limits import Limits

    limits = Limits(
        body_bytes=round(body_mib * _MIB),
        picture_pixels=round(picture_megapixels * 1e6),
        answer_tokens=output_tokens or 0,
        seconds=time_limit,
        waiting=waiting,
        slots=slots,
        stalled_s=stalled,
    )
    if cert_key is not None and cert is None:
        raise click.UsageError("--cert-key belongs to --cert")
    if prefixes is not None and system is None:
        raise click.UsageError("--prefixes belongs to --system")
    require_guesses(guesses, draft)
    options = ServeOptions(
        host,
        port,
        name or "",
        threads or 0,
        keep,
        key_of(key_from),
        allow_origin,
        cert,
        cert_key,
        Prompting(system, prefixes, context=context or 0, draft="" if draft in (None, "none") else draft),
        guesses,
        draft != "none",
        limits,
        access_log or "",
        exact,
    )
    served = serve(bundle, options, lambda line: show_line(line, err=True))
    show_line(str(served), err=True)


COMMAND = serve
