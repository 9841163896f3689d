"""The lines of `edgeopt wheelhouse`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from edgeopt.report.document import CommandOutcome, Document, Value, VerdictLines
from edgeopt.system.text import format_bytes, plural
from edgeopt.verbs.remote.wheelhouse import VARIABLE, DevicePlatform


def summarize(platform: DevicePlatform, wheels: Sequence[Path], folder: Path) -> Document:
    """Return what is shown of collected wheels."""
    size_bytes = sum(path.stat().st_size for path in wheels)
    data = {
        "processor": platform.processor,
        "python": platform.python,
        "folder": str(folder),
        "size_bytes": size_bytes,
        "wheels": [path.name for path in wheels],
    }
    sentence = f"{plural(len(wheels), 'wheel')} for {platform} in {folder}"
    following = f"{VARIABLE}={shlex.quote(str(folder))} edgeopt doctor --on ssh://USER@HOST"
    verdict = VerdictLines(
        CommandOutcome.DONE, sentence, (Value("size", format_bytes(size_bytes)),), next_command=following
    )
    return Document("wheelhouse", str(platform), "Wheels for a device", data, verdict=verdict)
