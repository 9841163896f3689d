"""HTML: one page with charts, for people; it opens offline."""

from __future__ import annotations

from edgeopt.report.document import Document
from edgeopt.report.formats import Format, Paper, find
from edgeopt.report.html.page import make_page


def _render(document: Document, paper: Paper) -> str:
    return make_page(document, find("json").render(document, paper), paper.folder)


FORMAT = Format(_render, suffix=".html")
