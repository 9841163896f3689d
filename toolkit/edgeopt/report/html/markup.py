"""HTML and SVG in which every text and every attribute is escaped by construction."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_EMPTY = frozenset({"input", "meta", "img", "br"})
"""Elements of HTML that have no end."""


class Markup(str):
    """Text that is markup already; only this module makes it of anything else."""

    __slots__ = ()


Child = str | None
Attribute = str | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Return an element.

    Args:
        name: Of the element.
        *children: Markup as it is, any other text escaped; None is left out.
        **attributes: `class_` is `class`, `data_x` is `data-x`; None and False are left out, True has no value.
    """
    shown = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    inside = join(children)
    return Markup(f"<{name}{shown}>" if name in _EMPTY else f"<{name}{shown}>{inside}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Return markup one after the other, any other text escaped."""
    return Markup(
        "".join(child if isinstance(child, Markup) else escape(child) for child in children if child is not None)
    )


def raw(text: str) -> Markup:
    """Return our own style sheet or script as markup: never what comes from outside."""
    return Markup(text)


def number(value: float) -> str:
    """Return a number as short as its place on paper allows."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else f"{value:.6g}"


def percent(share: float) -> str:
    """Return a share, 0 to 1, as SVG and CSS write it."""
    return f"{number(100 * share)}%"


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return f" {name}" if value else ""
    text = value if isinstance(value, str) else number(value) if value is not None else ""
    return f' {name}="{escape(text)}"'
