"""The whole of what a server answers, as an ASGI app: the routes of its models and what every server has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeopt.runtime.serve.access import Access, guarded
from edgeopt.runtime.serve.asking import answers, refused
from edgeopt.runtime.serve.refused import RefusedError, unknown_model
from edgeopt.runtime.serve.watching.access_log import AccessLog, Logged
from edgeopt.runtime.serve.watching.health import HEALTH, health_of
from edgeopt.runtime.serve.watching.metrics_page import metrics_page
from edgeopt.runtime.serve.watching.tally import Tally

_RESPONSES = "/v1/responses"
"""A second form of OpenAI's for conversations, which its clients may try first."""
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Watched:
    """The models of a server as those see them who look after it."""

    names: tuple[str, ...]
    tallies: Callable[[], Sequence[Tally]]
    """Returns those of the models that were opened."""
    own: Tally
    """Counts requests that are refused before a model is known; that of the only model where there is one."""

    def page(self) -> bytes:
        """Return the page of metrics."""
        tallies = self.tallies()
        opened = {tally.name for tally in tallies}
        refused = {} if self.own in tallies else self.own.read()[1]
        return metrics_page(tallies, [name for name in self.names if name not in opened], refused)


def make_site(
    watched: Watched, routes: Sequence[Route], access: Access, lifespan: Any, log: AccessLog | None = None
) -> Any:
    """Return the app.

    Args:
        watched: The models that are served.
        routes: Of the models.
        access: Who may ask.
        lifespan: What goes on beside it, as Starlette takes it.
        log: Where requests are written down; None: nowhere.
    """
    created = int(time.time())
    models = {
        name: {"id": name, "object": "model", "created": created, "owned_by": "edgeopt"} for name in watched.names
    }

    async def all_models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": list(models.values())})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in models:
            raise unknown_model(name, *models)
        return JSONResponse(models[name])

    async def health(_: Request) -> Response:
        return JSONResponse(health_of(watched.names, watched.tallies()))

    async def metrics(_: Request) -> Response:
        return Response(watched.page(), media_type=_PROMETHEUS)

    async def other(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == 404 and (request.url.path + "/").startswith(f"{_RESPONSES}/"):
            text = f"{_RESPONSES} is not done here: ask /v1/chat/completions"
            return refused(RefusedError(status, text, code="not_found"))
        text = {404: "no such path here", 405: "this path takes another method"}.get(status, "it cannot be done")
        return refused(RefusedError(status, text, code="not_found" if status == 404 else "not_allowed"))

    app = Starlette(
        routes=[
            Route("/v1/models", all_models),
            Route("/v1/models/{name:path}", answers(one_model, watched.own)),
            Route(HEALTH, health),
            Route("/metrics", answers(metrics, watched.own)),
            *routes,
        ],
        exception_handlers={HTTPException: other},
        lifespan=lifespan,
    )
    site = guarded(app, access, watched.own)
    return site if log is None else Logged(site, log)
