"""JSON: the result itself as plain values, for other programs; every one begins with the same head."""

from __future__ import annotations

import json
import math
from typing import Any

from edgeopt.report.document import Document
from edgeopt.report.formats import Format, Paper


def _render(document: Document, _: Paper) -> str:
    return json.dumps(_strict(document.data), indent=2, allow_nan=False) + "\n"


def _strict(value: Any) -> Any:
    """Return the value with null for numbers that JSON does not know."""
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


FORMAT = Format(_render, suffix=".json")
