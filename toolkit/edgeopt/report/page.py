"""Results as Markdown, by the templates of this package. What a template writes of a value is escaped here, once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from edgeopt.system.text import markdown


class _Ready(str):
    """Markdown that is written as it is."""

    __slots__ = ()


def render(template: str, **values: Any) -> str:
    """Return a page.

    Args:
        template: File name in `templates/`; `{{ row | cells }}` there is a row of a table.
        **values: What it shows.
    """
    pages = Environment(
        loader=PackageLoader("edgeopt.report"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        finalize=lambda value: value if isinstance(value, _Ready) else markdown(str(value)),
    )
    pages.filters["cells"] = _cells
    return pages.get_template(template).render(**values)


def _cells(row: Iterable[object]) -> _Ready:
    return _Ready(" | ".join(markdown(str(cell)) for cell in row))
