"""Where this user's programs keep what can be computed again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return edgeopt's folder below the user's caches; it need not exist.

    Source: XDG Base Directory Specification 0.8; Apple's File System Programming Guide; Windows' LOCALAPPDATA.

    Raises:
        RuntimeError: If the user has no home folder.
    """
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named) / "edgeopt"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "edgeopt" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "edgeopt"
    return Path.home() / ".cache" / "edgeopt"
