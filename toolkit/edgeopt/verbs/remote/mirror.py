"""Which files of this machine a command needs on a device, and how they are called there.

The device mirrors their places: `/home/me/net.onnx` is `home/me/net.onnx` below the mirror's folder, and the command
runs in the folder that mirrors this one. So relative names in arguments and in files mean the same there.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.measurement.accuracy.label_folders import beside_pictures
from edgeopt.recipes.labels import Labels

_RECIPE = "recipe.toml"


def mirrored(path: Path) -> str:
    """Return the name of a file below the mirror's folder."""
    whole = Path.cwd() / path
    parts = _without_dots(whole).parts[1:]
    drive = whole.drive.rstrip(":").strip("\\/").replace("\\", "/")
    return "/".join([drive, *parts] if drive else parts)


def files_behind(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the files that a command reads, by their names in the mirror.

    Args:
        paths: What its arguments name. Of a folder: all in it. Of a model: its weights outside, and the folder where a
            recipe lies beside it. Of a list of labels or a TOML file: the files that it names.
    """
    named: dict[str, Path] = {}
    for path in paths:
        for file in _files(path):
            named.setdefault(mirrored(file), file)
    return named


def _without_dots(path: Path) -> Path:
    """Return a path without `..`, whose links are not followed: what leads through a link has that name there too."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return Path(*parts)


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.is_file())
        return
    yield path
    if path.suffix == ".onnx":
        yield from _beside_model(path)
    elif path.suffix == ".toml":
        yield from _named_in_toml(path)
    elif path.suffix in (".json", ".csv"):
        yield from _pictures(path)


def _beside_model(path: Path) -> Iterator[Path]:
    with suppress(InvalidFileError):  # the command says what is wrong with it
        yield from outside_files(path)
    if (path.parent / _RECIPE).is_file():
        yield from _files(path.parent)


def _named_in_toml(path: Path) -> Iterator[Path]:
    with suppress(tomllib.TOMLDecodeError, UnicodeDecodeError):
        for text in _texts(tomllib.loads(path.read_text("utf-8"))):
            place = path.parent / text
            if len(text) < 1000 and place.exists() and place.resolve() not in path.resolve().parents:
                yield from _files(place)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _pictures(path: Path) -> Iterator[Path]:
    names = _names(path)
    if not names:
        return
    with suppress(InvalidFileError):
        folder, labels = beside_pictures(path, Labels(names))
        yield from (place for file in labels.files if (place := folder / file).is_file())


def _names(path: Path) -> tuple[str, ...]:
    """Return the files that a list of labels names: COCO's pictures, or the first column of a table."""
    with suppress(ValueError, csv.Error, OSError):
        text = path.read_text("utf-8")
        if path.suffix == ".csv":
            rows = [row for row in csv.reader(text.splitlines()) if row]
            return tuple(dict.fromkeys(row[0] for row in rows[1:]))
        whole = json.loads(text)
        images = whole.get("images") if isinstance(whole, dict) else None
        images = images if isinstance(images, list) else []
        return tuple(str(image["file_name"]) for image in images if isinstance(image, dict) and "file_name" in image)
    return ()
