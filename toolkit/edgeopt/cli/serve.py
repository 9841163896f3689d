"""Answer requests over HTTP."""

from __future__ import annotations

from typing import Any

import click

from edgeopt.cli._output import show_line
from edgeopt.cli._verb import read_values, verb_command

INTERRUPTED = "the server had not begun"


@verb_command("serve", "Address and name", "Limits", "Who may ask", "Language models", "Guessing ahead")
@click.argument("bundle")
@click.pass_context
def serve(ctx: click.Context, /, *, bundle: str, **options: Any) -> None:
    """Answer requests over HTTP with BUNDLE, until Ctrl-C or SIGTERM; answers on their way are finished.

    BUNDLE is a language model (a shipped one, its ONNX file or folder), asked as OpenAI's clients ask:
    /v1/completions, /v1/chat/completions; an encoder with a decoder: POST a WAV to /v1/audio/transcriptions, or a text
    to /v1/completions; or the bundle of a model of pictures: POST one to /v1/frames.
    /v1/models, /healthz and /metrics are there for both. It needs: pip install 'edgeopt[serve]'.
    """
    del options
    from edgeopt.verbs._perform import perform

    values = read_values(ctx, bundle)
    show_line(str(perform("serve", bundle, None, values, _tell).summary), err=True)


def _tell(line: str) -> None:
    show_line(line, err=True)


COMMAND = serve
