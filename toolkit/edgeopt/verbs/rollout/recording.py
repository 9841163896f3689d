"""Frames of a camera or an address, recorded on the device, so that two bundles answer the same ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

import cv2
import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.stream import Stream

_MOST_FRAMES: Final = 64
_APART_S: Final = 0.25
"""Frames of one instant are alike, and judge as one."""
_MOST_S: Final = 30.0


def is_live(source: str) -> bool:
    """Return whether a text names a camera or an address in place of a file."""
    return "://" in source or source.isdecimal()


def record(runtime: Runtime, source: str, folder: Path, tell: Callable[[str, int, int], None] | None) -> None:
    """Write up to 64 frames of a source as pictures, a quarter of a second apart, for 30 s at most.

    Args:
        runtime: Answers meanwhile, as a source is read through a stream.
        source: A camera's number or an address.
        folder: Where pictures go.
        tell: Hears progress.

    Raises:
        EdgeoptError: If the source does not open, or gives no pictures.
    """
    until_s, next_s, count = monotonic() + _MOST_S, 0.0, 0
    with Stream(runtime, source, fps="own", degrade=None, pipelined=False) as stream:
        for result in stream:
            if monotonic() >= next_s and isinstance(result.frame, np.ndarray):
                cv2.imwrite(str(folder / f"{count:04}.png"), result.frame)
                next_s, count = monotonic() + _APART_S, count + 1
                if tell:
                    tell(f"record frames of {stream.source.name}", count, _MOST_FRAMES)
            if count == _MOST_FRAMES or monotonic() > until_s:
                break
    if not count:
        raise EdgeoptError(f"{source} gave no pictures", remedy="pass recorded frames with --frames FOLDER")
