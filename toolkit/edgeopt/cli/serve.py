"""Answer requests over HTTP."""

from __future__ import annotations

from typing import Any

import click

from edgeopt.cli._output import show_line
from edgeopt.cli._values import ModelName
from edgeopt.cli._verb import read_values_of_each, verb_command

INTERRUPTED = "the server had not begun"


@verb_command("serve", "Address and name", "Limits", "Who may ask", "Language models", "Guessing ahead")
@click.argument("bundles", nargs=-1, required=True, type=ModelName(), metavar="BUNDLE...")
@click.pass_context
def serve(ctx: click.Context, /, *, bundles: tuple[str, ...], **options: Any) -> None:
    """Answer requests over HTTP with BUNDLE, until Ctrl-C or SIGTERM; answers on their way are finished.

    BUNDLE is a language model (a shipped one, its ONNX file or folder), asked as OpenAI's clients ask:
    /v1/completions, /v1/chat/completions; an encoder with a decoder: POST a WAV to /v1/audio/transcriptions or
    /v1/audio/translations, or a text to /v1/completions; or the bundle of a model of pictures: POST one to
    /v1/frames; of one that embeds texts: /v1/embeddings, /v1/rerank; of a cross-encoder: /v1/rerank. Of several
    models the request's field "model" picks one, which is opened when it is first asked for.
    /v1/models, /healthz and /metrics are always there. It needs: pip install 'edgeopt[serve]'.
    """
    del options
    from edgeopt.verbs.serve import served

    show_line(str(served(bundles, read_values_of_each(ctx, bundles), _tell)), err=True)


def _tell(line: str) -> None:
    show_line(line, err=True)


COMMAND = serve
