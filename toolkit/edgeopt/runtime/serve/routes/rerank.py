"""The route of a model that says how well documents answer a query: `/v1/rerank`.

A cross-encoder reads query and document together; its number becomes a score from 0 to 1 by the logistic function, as
sentence-transformers' CrossEncoder has it for one label. A model that embeds texts reads them one by one; their score
is the cosine of the vectors. Source: the APIs of Cohere (v1 `rerank`), Jina and vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeopt.recipes.inputs.text_files import PAIR
from edgeopt.runtime.serve.asking import answers, read_body, require_kind
from edgeopt.runtime.serve.refused import RefusedError, unknown_model, wrong
from edgeopt.runtime.serve.routes.text_reading import TextReading, TextsToRead, clean_text, require_known
from edgeopt.runtime.serve.text_request import read_object
from edgeopt.system.text import short

_MOST_DOCUMENTS: Final = 2048
_TAKEN: Final = frozenset({"model", "query", "documents", "top_n", "return_documents", "truncate", "user"})
_NOT_DONE: Final = ("rank_fields", "max_chunks_per_doc", "max_tokens_per_doc", "truncate_prompt_tokens")
RERANK: Final = "/v1/rerank"


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A query, and the documents that may answer it."""

    query: str
    documents: tuple[str, ...]
    top: int
    """Documents that are wanted, the best ones."""
    returns_documents: bool
    truncates: bool


class RerankRoute:
    """Answers requests with a query and documents."""

    def __init__(self, model: str, reading: TextReading, *, reads_pairs: bool) -> None:
        """Take the model.

        Args:
            model: Its name.
            reading: Has texts read by it.
            reads_pairs: Whether it reads query and document together and gives one number; else it embeds texts.
        """
        self._model, self._reading, self._reads_pairs = model, reading, reads_pairs

    def routes(self) -> list[Route]:
        """Return what is answered where."""
        return [Route(RERANK, answers(self._answer, self._reading.tally), methods=["POST"])]

    async def _answer(self, request: Request) -> Response:
        end_s = monotonic() + self._reading.limits.seconds
        require_kind(request, "application/json")
        values = read_object(await read_body(request, self._reading.limits))
        wanted = read_rerank_request(values, self._model)
        read = await self._reading.read(request, self._texts(wanted), "rerank", end_s)
        scores = _logistic(read.answers) if self._reads_pairs else _cosines(read.answers)
        best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[: wanted.top]
        results = [
            {"index": place, "relevance_score": scores[place]}
            | ({"document": {"text": wanted.documents[place]}} if wanted.returns_documents else {})
            for place in best
        ]
        reply = {"id": f"rerank-{uuid4().hex}", "model": self._model, "results": results, "usage": read.usage}
        return JSONResponse(reply | {"edgeopt": read.told}, headers=read.headers)

    def _texts(self, wanted: RerankRequest) -> TextsToRead:
        """Return what the model reads: each document behind the query, or all of them apart."""
        places = [f"documents[{place}]" for place in range(len(wanted.documents))]
        if not self._reads_pairs:
            return TextsToRead((wanted.query, *wanted.documents), ("query", *places), wanted.truncates)
        query = wanted.query.replace(PAIR, " ")  # the first one parts the two
        pairs = tuple(f"{query}{PAIR}{document}" for document in wanted.documents)
        return TextsToRead(pairs, tuple(f"query with {place}" for place in places), wanted.truncates)


def _logistic(outputs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return a score from 0 to 1 for each answer of one number.

    Raises:
        RefusedError: If one is no number.
    """
    logits = [float(np.asarray(next(iter(answer.values()))).reshape(-1)[0]) for answer in outputs]
    if wrong_ones := [place for place, logit in enumerate(logits) if math.isnan(logit)]:
        raise RefusedError(500, f"the model gives no number for documents[{wrong_ones[0]}]", code="internal_error")
    return [1 / (1 + math.exp(-min(max(logit, -700.0), 700.0))) for logit in logits]


def _cosines(embeddings: Sequence[Any]) -> list[float]:
    """Return the cosine of the first vector, that of the query, with each other one; all are of length 1."""
    query, *documents = (answer.vector.astype(np.float64) for answer in embeddings)
    return [float(query @ document) for document in documents]


def read_rerank_request(values: Mapping[str, Any], model: str) -> RerankRequest:
    """Return what the body of a request asks for.

    Raises:
        RefusedError: If it asks for another model, or for what is not done here.
    """
    require_known(values, _TAKEN, _NOT_DONE)
    if values.get("model") != model:
        raise unknown_model(values.get("model"), model)
    query, documents = values.get("query"), values.get("documents")
    if not isinstance(query, str) or not query:
        raise wrong("query", "a text that is not empty")
    if not isinstance(documents, list) or not documents:
        raise wrong("documents", "a list of one text or more")
    if len(documents) > _MOST_DOCUMENTS:
        raise wrong("documents", f"up to {_MOST_DOCUMENTS} texts a request, not {len(documents)}")
    texts = tuple(_document(document, f"documents[{place}]") for place, document in enumerate(documents))
    top = values.get("top_n")
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1):
        raise wrong("top_n", f"a whole number from 1 on, not {short(top)}")
    flags = {name: values.get(name, False) for name in ("return_documents", "truncate")}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise wrong(name, "true or false")
    return RerankRequest(clean_text(query), texts, top or len(texts), flags["return_documents"], flags["truncate"])


def _document(value: Any, place: str) -> str:
    """Return the text of a document: itself, or the field `text` of an object."""
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str) or not text:
        raise wrong(place, 'a text that is not empty, or {"text": ...}')
    return clean_text(text)
