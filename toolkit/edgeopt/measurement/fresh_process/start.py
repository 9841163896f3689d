"""The environment in which a fresh process finds this package."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

_ROOT = str(Path(__file__).parents[3])


def child_environment() -> dict[str, str]:
    """Return this process's environment, with this package on the path of a child even from a checkout."""
    if sysconfig.get_paths()["purelib"] == _ROOT:
        return dict(os.environ)
    path = os.pathsep.join(part for part in (_ROOT, os.environ.get("PYTHONPATH", "")) if part)
    return dict(os.environ) | {"PYTHONPATH": path}
