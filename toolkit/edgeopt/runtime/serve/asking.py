"""Requests over HTTP, as far as they are alike whatever the model answers: their body, their client, their refusal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.watching.tally import Tally

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
_LOG = logging.getLogger("edgeopt.serve")
_GONE_STATUS = 499
"""Nobody reads it; other servers write it into their logs for a client that went away."""
_PAST_LIMIT = 4
"""So many times the limit of a body is still read, and thrown away: a client that is writing reads no reply."""


class GoneError(Exception):
    """The client closed the connection."""


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request.

    Raises:
        RefusedError: If it is too large, or does not arrive.
        GoneError: If the client went away.
    """
    parts, size, most = list[bytes](), 0, limits.body_bytes
    declared = request.headers.get("content-length", "")
    length = int(declared[:18]) if declared.isdecimal() else 0
    too_large = RefusedError(
        413, f"the body has more than {most} bytes, the limit of this server", code="body_too_large"
    )
    if length > _PAST_LIMIT * most:
        raise too_large
    try:
        async with asyncio.timeout(limits.stalled_s):
            async for part in request.stream():
                size += len(part)
                if max(size, length) <= most:
                    parts.append(part)
                elif size > _PAST_LIMIT * most:
                    raise too_large
    except TimeoutError as error:
        text = f"the request did not arrive within {limits.stalled_s:g} s"
        raise RefusedError(408, text, code="request_timeout") from error
    except ClientDisconnect as error:
        raise GoneError from error
    if max(size, length) > most:
        raise too_large
    return b"".join(parts)


def require_kind(request: Request, *kinds: str) -> str:
    """Return what a body is said to be.

    Raises:
        RefusedError: If it is none of these.
    """
    text: str = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not any(text == kind or (kind.endswith("/") and text.startswith(kind)) for kind in kinds):
        wanted = " or ".join(f"{kind}*" if kind.endswith("/") else kind for kind in kinds)
        raise RefusedError(
            415, f"Content-Type is {text[:80] or 'missing'}: send {wanted}", code="unsupported_media_type"
        )
    return text


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what work gives, unless the client goes away before: then the work is cancelled.

    Raises:
        GoneError: If the client went away.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, RefusedError):
                await task


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def refused(refusal: RefusedError) -> Response:
    """Return the reply that says why there is no answer."""
    headers = {"Retry-After": "1"} if refusal.status in (429, 503) else {}
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if refusal.status in (401, 408, 413):
        headers["Connection"] = "close"
    return JSONResponse(refusal.as_json(), refusal.status, headers)


def answers(endpoint: Endpoint, tally: Tally) -> Endpoint:
    """Return an endpoint whose refusals and failures become replies; each is counted once, and only here."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RefusedError as refusal:
            tally.refuse(refusal.status)
            return refused(refusal)
        except GoneError:
            tally.lose(is_gone=True)
            return Response(status_code=_GONE_STATUS)
        except asyncio.CancelledError:
            tally.lose(is_gone=True)
            raise
        except EdgeoptError as error:
            _LOG.error("%s", error.problem)
            reply = RefusedError(503, f"the model cannot answer: {error.problem}", code="model_unavailable")
        except Exception:
            _LOG.exception("a request broke")
            reply = RefusedError(500, "the server failed; its log says why", code="internal_error")
        tally.lose(is_gone=False)
        return refused(reply)

    return answer
