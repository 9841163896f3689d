"""Answer requests over HTTP."""

from __future__ import annotations

from typing import Any

import click

from edgeopt.cli._options import exit_codes
from edgeopt.cli._output import show_line
from edgeopt.cli._values import ModelName
from edgeopt.cli._verb import read_values_of_each, verb_command
from edgeopt.errors import EXIT_ERROR

INTERRUPTED = "the server had not begun"


@verb_command("serve", "address", "limits", "access", "language", "guess", "speech")
@click.argument("bundles", nargs=-1, required=True, type=ModelName(), metavar="BUNDLE...")
@click.pass_context
@exit_codes(
    "ended by Ctrl-C or SIGTERM; answers on their way had 30 s to finish",
    last=EXIT_ERROR,
    interrupted="interrupted before it listened",
)
def serve(ctx: click.Context, /, *, bundles: tuple[str, ...], **options: Any) -> None:
    """Answer requests over HTTP with BUNDLE, until Ctrl-C or SIGTERM; then finish the answers on their way.

    BUNDLE is a bundle, the name of a shipped model, or the ONNX file or folder of a language model.

    It is asked at:

    \b
    /v1/completions, /v1/chat/completions       a language model (OpenAI's API)
    /v1/audio/transcriptions, .../translations  an encoder with a decoder: a WAV
    /v1/frames                                  a model of pictures: a picture
    /v1/embeddings, /v1/rerank                  a model that embeds texts
    /v1/rerank                                  a cross-encoder
    /v1/models, /healthz, /metrics              always there

    An encoder with a decoder that translates texts answers at /v1/completions. With several BUNDLES the request's
    field "model" picks one, which is opened when it is first asked for. Needs: pip install 'edgeopt[serve]'.
    """
    del options
    from edgeopt.verbs.serve import served

    show_line(str(served(bundles, read_values_of_each(ctx, bundles), _tell)), err=True)


def _tell(line: str) -> None:
    show_line(line, err=True)


COMMAND = serve
