"""Who may ask a server: by which name it is called, from which page of the web, with which key.

A page that a browser shows may send forms and texts to any address, this machine's too, unasked; what it is answered
it cannot read, but the machine works for it. Source: WHATWG Fetch, CORS; RFC 6454, Origin; RFC 6750, bearer tokens.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware

from edgeopt.runtime.serve.asking import refused
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.watching.health import HEALTH
from edgeopt.runtime.serve.watching.tally import Tally

ANY_PAGE: Final = "*"


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask."""

    hosts: Collection[str] | None = None
    """Names by which the server is called; None: any. A page of elsewhere whose name leads here is refused."""
    key: str = ""
    """Key that each request must carry, `Authorization: Bearer KEY`; empty: none."""
    origins: tuple[str, ...] = ()
    """Pages of elsewhere that may ask, such as `https://app.example`; `*`: all."""


def guarded(app: Any, access: Access, tally: Tally) -> Any:
    """Return an app that refuses who may not ask; pages that may are told so, as browsers want it (CORS)."""
    guard: Any = _Guard(app, access, tally)
    if access.origins:
        guard = CORSMiddleware(
            guard,
            allow_origins=access.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Server-Timing", "Retry-After"],
        )
    return guard


class _Guard:
    def __init__(self, app: Any, access: Access, tally: Tally) -> None:
        self._app, self._access, self._tally = app, access, tally
        self._hosts = None if access.hosts is None else frozenset(access.hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
            self._tally.refuse(refusal.status)
            await refused(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Any) -> RefusedError | None:
        """Return why a request is refused; None: it is not."""
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            text = f"this server is called {' or '.join(sorted(self._hosts))}; start it with --host for others"
            return RefusedError(403, text, code="wrong_host")
        if origin is not None and not self._is_welcome(origin, host):
            text = f"pages of {origin[:100]} may not ask this server; start it with --allow-origin for them"
            return RefusedError(403, text, code="wrong_origin")
        scheme, _, given = headers.get(b"authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        key = self._access.key.encode()
        if key and scope["path"] != HEALTH and not hmac.compare_digest(given.encode("latin-1"), key):
            what = "a wrong key" if given else "no key"
            return RefusedError(401, f"{what}: send Authorization: Bearer KEY", code="invalid_api_key")
        return None

    def _is_welcome(self, origin: str, host: str) -> bool:
        """Return whether a page may ask: one of this server, or of those allowed."""
        is_own = bool(host) and origin.partition("://")[2] == host
        return is_own or bool({origin, ANY_PAGE} & {*self._access.origins})


def _name_of(host: str) -> str:
    name = host if host.endswith("]") else host.rpartition(":")[0] if ":" in host else host
    return name.lower()
