"""JSON: the result itself as plain values, for other programs; every one begins with the same head."""

from __future__ import annotations

import json

from edgeopt.report.document import Document
from edgeopt.report.formats import Format, Paper


def _render(document: Document, _: Paper) -> str:
    return json.dumps(document.data, indent=2, allow_nan=False) + "\n"


FORMAT = Format(_render, suffix=".json")
