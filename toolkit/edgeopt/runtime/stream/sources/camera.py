"""A camera of this machine, by its number."""

from __future__ import annotations

from typing import Any

import cv2

from edgeopt.errors import UnavailableError
from edgeopt.runtime.stream.sources import Source, StreamKind, Wishes
from edgeopt.runtime.stream.sources._capture import Live, open_device


def _fits(given: Any) -> bool:
    if isinstance(given, str):
        return given.isascii() and given.isdigit() and len(given) < 4
    return isinstance(given, int) and not isinstance(given, bool)


def _open(given: Any, wishes: Wishes) -> Source:
    number = int(given)
    settings = [(cv2.CAP_PROP_BUFFERSIZE, 1.0), *([(cv2.CAP_PROP_FPS, wishes.fps)] if wishes.fps else [])]

    def reopen() -> Any | None:
        return open_device(number, settings)

    capture = reopen() if number >= 0 else None
    if capture is None:
        raise UnavailableError(
            f"camera {number} does not open", remedy="check its number, its cable, and that no other program has it"
        )
    return Live(f"camera {number}", capture, reopen, wishes.give_up_s)


SOURCE = StreamKind("a camera's number", _fits, _open)
