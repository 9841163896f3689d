"""Pictures inside the page, as data: the page is one file."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from edgeopt.report.figures import BeforeAfter, Figure
from edgeopt.report.html.chart import wrap
from edgeopt.report.html.markup import Markup, tag

_KINDS = {".jpg": "image/jpeg", ".png": "image/png", ".svg": "image/svg+xml"}
_MOST_BYTES = 1 << 20
"""Of one picture: a page is mailed."""


def draw_picture(figure: Figure, folder: Path | None) -> Markup | None:
    """Return the picture in a figure's file; None where it is not to be had."""
    source = _data(figure.file, folder)
    if source is None:
        return None
    return wrap(figure, tag("img", src=source, alt=figure.text or figure.title, class_="picture"))


def draw_before_after(figure: BeforeAfter, folder: Path | None) -> Markup | None:
    """Return the pictures that are there, each under a slider; None without any."""
    slides = []
    for pair in figure.pairs:
        before, after = _data(pair.before, folder), _data(pair.after, folder)
        if before is not None and after is not None:
            slides.append(_slide(figure, pair.name, before, after))
    return wrap(figure, tag("div", *slides, class_="slides")) if slides else None


def _slide(figure: BeforeAfter, name: str, before: str, after: str) -> Markup:
    return tag(
        "div",
        tag("img", src=before, alt=f"{name}, {figure.before}", class_="before"),
        tag("img", src=after, alt=f"{name}, {figure.after}", class_="after"),
        tag("span", figure.before, class_="which left"),
        tag("span", figure.after, class_="which right"),
        tag(
            "input",
            type="range",
            min="0",
            max="100",
            value="50",
            aria_label=f"{name}: {figure.before} to {figure.after}",
        ),
        class_="slide",
    )


def _data(file: str, folder: Path | None) -> str | None:
    """Return the address of a file's content; None where it is none of ours, absent or too large."""
    if folder is None or not file or (kind := _KINDS.get(Path(file).suffix)) is None:
        return None
    try:
        data = (folder / file).read_bytes()
    except OSError:
        return None
    return f"data:{kind};base64,{b64encode(data).decode('ascii')}" if len(data) <= _MOST_BYTES else None
