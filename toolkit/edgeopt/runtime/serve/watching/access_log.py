"""A line for each request: when, who, what, which status, how long. Never a body, a key, a header or a query.

One JSON object a line, as collectors of logs read it without a pattern.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

from edgeopt.errors import EdgeoptError

STANDARD_ERROR: Final = "-"
_MOST_PATH: Final = 200
"""Characters: a client writes what it likes."""
_GONE: Final = 499
"""The status of a client that went away, as other servers write it."""


class AccessLog:
    """Where the lines go. A file is opened for each line, so that it may be moved away meanwhile."""

    def __init__(self, place: str) -> None:
        """Begin.

        Args:
            place: Path of a file, which is written on; `-`: standard error.

        Raises:
            EdgeoptError: If it cannot be written.
        """
        self._file = None if place == STANDARD_ERROR else Path(place)
        if self._file is not None:
            try:
                self._file.open("ab").close()
            except OSError as error:
                raise EdgeoptError(
                    f"{place} cannot be written: {error.strerror}", remedy="name another file: --access-log access.log"
                ) from error

    def write(self, line: str) -> None:
        """Write one line; a full disk stops no answer."""
        with suppress(OSError, ValueError):
            if self._file is None:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()
                return
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


class Logged:
    """An ASGI app whose requests are written down, those that are refused too."""

    def __init__(self, app: Any, log: AccessLog) -> None:
        """Take the app."""
        self._app, self._log = app, log

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer, and write the line when the last of the answer is on its way or the client is gone."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_ns, status = perf_counter_ns(), _GONE

        async def heard(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, heard)
        finally:
            client = scope.get("client")
            took_ms = (perf_counter_ns() - begun_ns) / 1e6
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "client": client[0] if client else "",
                "method": scope["method"][:_MOST_PATH],
                "path": scope["path"][:_MOST_PATH],
                "status": status,
                "ms": round(took_ms, 1),
            }
            self._log.write(json.dumps(line))
