"""How a document becomes text: one format a file, the file name is the format's name.

Names in models and files come in as they are. Here, once, they become lines in which nothing drives a terminal; a
format escapes its own markup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from edgeopt.report import formats
from edgeopt.report.document import Document
from edgeopt.system.declared import registry
from edgeopt.system.disk.files import write_beside
from edgeopt.system.text import printable


@dataclass(frozen=True, slots=True)
class Paper:
    """The medium that a document is written on."""

    width: int = 0
    """Columns; 0: lines are as long as they are."""
    is_coloured: bool = False
    folder: Path | None = None
    """Folder of the document's pictures; None: they are not to be had."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way of writing documents; each file of this folder has one, called `FORMAT`."""

    render: Callable[[Document, Paper], str]
    """Returns the whole text, a line break at its end."""
    suffix: str = ""
    """Suffix of the file that is written beside every result; empty: none is."""


def names() -> tuple[str, ...]:
    """Return the names of all formats."""
    return registry.names(formats)


def find(name: str) -> Format:
    """Return the format of this name.

    Raises:
        NotFoundError: If there is none.
    """
    result = registry.load(formats, name).FORMAT
    assert isinstance(result, Format)
    return result


def render(document: Document, name: str, paper: Paper | None = None) -> str:
    """Return a document as text in the format of this name."""
    return find(name).render(_printable(document), paper or Paper())


def write_pages(document: Document, folder: Path, stem: str) -> None:
    """Write `STEM.json`, `STEM.md` and what other formats have a file, into the folder of a result.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    for name in sorted(names(), key="json".__eq__):  # what is read again comes last: then all is there
        if suffix := find(name).suffix:
            write_beside(folder / f"{stem}{suffix}", render(document, name, Paper(folder=folder)))


def write_page(document: Document, file: Path, pictures: Path | None) -> None:
    """Write a document as HTML.

    Args:
        document: What it shows.
        file: Where it goes.
        pictures: The folder in which the document's pictures lie; None: it has none.

    Raises:
        InvalidFileError: If the file cannot be written.
    """
    write_beside(file, render(document, "html", Paper(folder=pictures)))


def _printable(value: Any) -> Any:
    """Return a document, or a part of it, with all its texts made printable; the result for programs stays."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple | frozenset):
        return type(value)(map(_printable, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "result"}
    return replace(value, **{name: _printable(part) for name, part in parts.items()})
