"""The route of a model that embeds texts: `/v1/embeddings`.

Source: OpenAI API reference, `POST /v1/embeddings`; `truncate` as Hugging Face's text-embeddings-inference has it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeopt.recipes.inputs.text_input import TokenText
from edgeopt.runtime.serve.asking import answers, read_body, require_kind
from edgeopt.runtime.serve.refused import unknown_model, wrong
from edgeopt.runtime.serve.routes.text_reading import TextReading, TextsToRead, clean_text, require_known
from edgeopt.runtime.serve.text_request import read_object
from edgeopt.tasks.embedding import Embedding

_MOST_TEXTS: Final = 2048
"""OpenAI's limit of a request."""
_INPUT: Final = "a text, a list of its tokens, or a list of either; none is empty"
_FORMATS: Final = ("float", "base64")
_TAKEN: Final = frozenset({"model", "input", "encoding_format", "truncate", "user"})


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """The texts of a request, and how their vectors are written."""

    texts: tuple[str, ...]
    is_packed: bool
    """Whether a vector is base64 of its float32 in place of a list of numbers."""
    truncates: bool
    """Whether a text that is too long is cut; else it is refused."""


class EmbeddingRoute:
    """Answers requests for vectors of texts."""

    def __init__(self, model: str, reading: TextReading) -> None:
        """Take the model's name, and what has texts read by it."""
        self._model, self._reading = model, reading

    def routes(self) -> list[Route]:
        """Return what is answered where."""
        return [Route("/v1/embeddings", answers(self._answer, self._reading.tally), methods=["POST"])]

    async def _answer(self, request: Request) -> Response:
        end_s = monotonic() + self._reading.limits.seconds
        require_kind(request, "application/json")
        values = read_object(await read_body(request, self._reading.limits))
        wanted = read_embedding_request(values, self._model)
        names = tuple(f"input[{place}]" for place in range(len(wanted.texts)))
        texts = TextsToRead(wanted.texts, names, wanted.truncates)
        read = await self._reading.read(request, texts, "embeddings", end_s)
        reply = {
            "object": "list",
            "model": self._model,
            "data": [
                {"object": "embedding", "index": place, "embedding": _written(answer, is_packed=wanted.is_packed)}
                for place, answer in enumerate(read.answers)
            ],
            "usage": read.usage,
            "edgeopt": read.told,
        }
        return JSONResponse(reply, headers=read.headers)


def read_embedding_request(values: Mapping[str, Any], model: str) -> EmbeddingRequest:
    """Return what the body of a request asks for.

    Raises:
        RefusedError: If it asks for another model, or for what is not done here.
    """
    require_known(values, _TAKEN, ("dimensions",))
    if values.get("model") != model:
        raise unknown_model(values.get("model"), model)
    texts = _texts(values.get("input"))
    if len(texts) > _MOST_TEXTS:
        raise wrong("input", f"up to {_MOST_TEXTS} texts a request, not {len(texts)}")
    form = values.get("encoding_format", _FORMATS[0])
    if form not in _FORMATS:
        raise wrong("encoding_format", f"one of {', '.join(_FORMATS)}")
    truncates = values.get("truncate", False)
    if not isinstance(truncates, bool):
        raise wrong("truncate", "true or false")
    return EmbeddingRequest(tuple(texts), form == "base64", truncates)


def _texts(value: Any) -> list[str]:
    """Return the texts of a text, its tokens, or a list of either."""
    is_single = isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int)
    texts = [value] if is_single else value
    if not isinstance(texts, list) or not texts:
        raise wrong("input", _INPUT)
    return [_text(text) for text in texts]


def _text(value: Any) -> str:
    if isinstance(value, str) and value:
        return clean_text(value)
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return TokenText(value)
    raise wrong("input", _INPUT)


def _written(answer: Embedding, *, is_packed: bool) -> str | list[float]:
    if is_packed:
        return base64.b64encode(np.asarray(answer.vector, "<f4").tobytes()).decode()
    return [float(value) for value in answer.vector]
