"""Several models behind one port: the field `model` of a request picks one, and its first request opens it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgeopt.runtime.serve.asking import Endpoint, answers, read_body, while_there
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError, unknown_model
from edgeopt.runtime.serve.routes.forms import FORM, read_fields
from edgeopt.runtime.serve.text_request import read_object
from edgeopt.runtime.serve.watching.tally import Tally

_JSON = "application/json"


class Answering(Protocol):
    """A model that was opened, with what answers requests for it."""

    @property
    def tally(self) -> Tally:
        """The counts of its requests."""
        ...

    @property
    def routes(self) -> Sequence[Route]:
        """The paths that it answers."""
        ...


@dataclass(frozen=True, slots=True)
class ServableModel:
    """A model that can be opened."""

    name: str
    """Name under which clients ask for it."""
    paths: tuple[str, ...]
    """The paths that it answers, such as `/v1/embeddings`."""
    open: Callable[[], Answering]
    """Opens it; it may take seconds, and wait for memory."""


class LazyModel:
    """One model of several; its first request opens it."""

    def __init__(self, model: ServableModel, limits: Limits) -> None:
        """Take what opens it; nothing is opened yet."""
        self.name, self.paths = model.name, model.paths
        self._open, self._limits = model.open, limits
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="edgeopt-opening")
        self._opening: asyncio.Future[Answering] | None = None
        self._waiting = 0
        self.answering: Answering | None = None
        """None: nobody asked for it yet."""

    async def opened(self, end_s: float) -> Answering:
        """Return the model, open at least once.

        Raises:
            RefusedError: 429 if too many wait for it, 503 if it was not opened in time.
            EdgeoptError: If it does not open.
        """
        if self.answering is not None:
            return self.answering
        if self._waiting >= self._limits.waiting:
            text = f"{self._waiting} requests wait for {self.name!r} to open; ask again in 1 s"
            raise RefusedError(429, text, code="queue_full")
        if self._opening is None:
            self._opening = asyncio.get_running_loop().run_in_executor(self._thread, self._open)
            self._opening.add_done_callback(self._settle)
        self._waiting += 1
        try:
            async with asyncio.timeout(end_s - monotonic()):
                return await asyncio.shield(self._opening)
        except TimeoutError as error:
            text = f"{self.name!r} was not opened within {self._limits.seconds:g} s"
            raise RefusedError(503, text, code="queue_timeout") from error
        finally:
            self._waiting -= 1

    def _settle(self, done: asyncio.Future[Answering]) -> None:
        self._opening = None  # the next request tries again where it failed
        if not done.cancelled() and done.exception() is None:
            self.answering = done.result()

    def close(self) -> None:
        """End, after an opening that is on its way."""
        self._thread.shutdown(wait=True, cancel_futures=True)


class SeveralModels:
    """The models of one server, and the paths that they answer together."""

    def __init__(self, models: Sequence[LazyModel], limits: Limits, tally: Tally) -> None:
        """Take one model or more with names of their own.

        Args:
            models: In the order in which they are listed.
            limits: Of a request.
            tally: Counts requests that are refused before a model is known.
        """
        self._models = {model.name: model for model in models}
        self._limits, self._tally = limits, tally

    def routes(self) -> list[Route]:
        """Return each path once."""
        paths = dict.fromkeys(path for model in self._models.values() for path in model.paths)
        return [Route(path, answers(self._pick(path), self._tally), methods=["POST"]) for path in paths]

    def _pick(self, path: str) -> Endpoint:
        async def answer(request: Request) -> Response:
            end_s = monotonic() + self._limits.seconds
            body = await read_body(request, self._limits)
            model = await self._model_of(request, body, path)
            answering = await while_there(request, model.opened(end_s))
            endpoint = next(route.endpoint for route in answering.routes if route.path == path)
            reply: Response = await endpoint(_again(request, body))
            return reply

        return answer

    async def _model_of(self, request: Request, body: bytes, path: str) -> LazyModel:
        """Return the model that a request names; it need not name the only one that answers its path.

        Raises:
            RefusedError: If it names none, one that is not here, or one that does not answer this path.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == _JSON:
            name: Any = read_object(body).get("model")
        elif kind == FORM:
            name = (await read_fields(_again(request, body))).get("model") or request.query_params.get("model")
        else:
            name = request.query_params.get("model")
        able = [model for model in self._models.values() if path in model.paths]
        if name is None and len(able) == 1 and kind != _JSON:
            return able[0]
        if name is None:
            names = ", ".join(repr(model.name) for model in able)
            where = "" if kind == _JSON else f"; here as {path}?model=NAME"
            raise RefusedError(400, f"model: name one of {names}{where}", code="invalid_value", param="model")
        model = self._models.get(name) if isinstance(name, str) else None
        if model is None:
            raise unknown_model(name, *self._models)
        if path not in model.paths:
            text = f"{model.name!r} does not answer {path}, but {', '.join(model.paths)}"
            raise RefusedError(400, text, code="unsupported_value", param="model")
        return model


def _again(request: Request, body: bytes) -> Request:
    """Return a request whose body was read, as if it had not been."""
    is_read = False

    async def receive() -> Any:
        nonlocal is_read
        if is_read:
            return await request.receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)
