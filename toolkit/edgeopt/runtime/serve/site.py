"""The whole of what a server answers, as an ASGI app: the routes of its model and what every server has."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeopt.runtime.serve.access import HEALTH, Access, guarded
from edgeopt.runtime.serve.asking import answers, refused
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.watching.access_log import AccessLog, Logged
from edgeopt.runtime.serve.watching.tally import Tally

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def make_site(
    tally: Tally, routes: Sequence[Route], access: Access, lifespan: Any, log: AccessLog | None = None
) -> Any:
    """Return the app.

    Args:
        tally: Of the model that is served.
        routes: Of the model.
        access: Who may ask.
        lifespan: What goes on beside it, as Starlette takes it.
        log: Where requests are written down; None: nowhere.
    """
    model = {"id": tally.name, "object": "model", "created": int(time.time()), "owned_by": "edgeopt"}

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def one_model(request: Request) -> Response:
        if request.path_params["name"] != tally.name:
            raise RefusedError(404, f"only {tally.name!r} is here", code="model_not_found", param="model")
        return JSONResponse(model)

    async def health(_: Request) -> Response:
        values = {"loaded": tally.held.is_loaded, "running": tally.running, "waiting": tally.waiting}
        return JSONResponse({"status": "ok", "model": tally.name, **values})

    async def metrics(_: Request) -> Response:
        return Response(tally.page(), media_type=_PROMETHEUS)

    async def other(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        text = {404: "no such path here", 405: "this path takes another method"}.get(status, "it cannot be done")
        return refused(RefusedError(status, text, code="not_found" if status == 404 else "not_allowed"))

    app = Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", answers(one_model, tally)),
            Route(HEALTH, health),
            Route("/metrics", answers(metrics, tally)),
            *routes,
        ],
        exception_handlers={HTTPException: other},
        lifespan=lifespan,
    )
    site = guarded(app, access, tally)
    return site if log is None else Logged(site, log)
