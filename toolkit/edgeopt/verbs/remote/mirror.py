"""Which files of this machine a command needs on a device, and how they are called there.

The device mirrors their places: `/home/me/net.onnx` is `home/me/net.onnx` below the mirror's folder, and the command
runs in the folder that mirrors this one. So relative names in arguments and in files mean the same there.
"""

from __future__ import annotations

import csv
import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.measurement.accuracy.label_folders import beside_pictures
from edgeopt.measurement.check.baseline import raw_beside
from edgeopt.recipes.inputs.frames import find_kind
from edgeopt.recipes.inputs.pictures import PICTURES, VIDEOS
from edgeopt.recipes.labels import Labels
from edgeopt.runtime.rollout.signature import signature_file

_RECIPE = "recipe.toml"
_CONFIGURATIONS = ("config.json", "genai_config.json")
_OF_TEXTS = (".json", ".jinja", ".model", ".txt")
"""Suffixes of configuration, tokenizer and chat template, which lie beside a network of Hugging Face's kind."""


def mirrored(path: Path) -> str:
    """Return the name of a file below the mirror's folder."""
    whole = whole_path(path)
    drive = whole.drive.rstrip(":").strip("\\/").replace("\\", "/")
    parts = whole.parts[1:]
    return "/".join([drive, *parts] if drive else parts)


def whole_path(path: Path) -> Path:
    """Return a path from the root on, without `..`; links are followed only where `..` stands behind them."""
    whole = Path.cwd() / path
    if ".." not in whole.parts:
        return whole
    last = max(number for number, part in enumerate(whole.parts) if part == "..")
    return Path(os.path.realpath(Path(*whole.parts[: last + 1]))).joinpath(*whole.parts[last + 1 :])


def is_sendable(text: str) -> bool:
    """Return whether a text names a file or a folder here; a camera, a pipe and a text that is no path are none."""
    with suppress(OSError, ValueError):
        return bool(text) and (Path(text).is_file() or Path(text).is_dir())
    return False


def files_behind(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the files that a command reads, by their names in the mirror.

    Args:
        paths: What its arguments name. Of a folder: all in it, also behind links, and beside a bundle its signature.
            Of a model: its weights outside, and the folder where a recipe lies beside it, else the configuration and
            the tokenizer beside it. Of labels: the pictures and sounds that they name. Of a TOML file: what it names
            below its own folder. Of a baseline: its raw samples.
    """
    named: dict[str, Path] = {}
    for path in paths:
        _take(path, named)
    return named


def _take(path: Path, named: dict[str, Path]) -> None:
    """Take a file or a folder in, with what it names; what is taken already is not read again."""
    if path.is_dir():
        for file in _files_in(path):
            named.setdefault(mirrored(file), file)
        if (signature := signature_file(path)).is_file():
            named.setdefault(mirrored(signature), signature)
        return
    name = mirrored(path)
    if name in named:
        return
    named[name] = path
    for other in _beside(path):
        _take(other, named)


def _files_in(folder: Path) -> Iterator[Path]:
    seen = set[str]()
    for place, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(place))
        folders[:] = sorted(each for each in folders if os.path.realpath(Path(place, each)) not in seen)
        yield from (file for name in sorted(names) if (file := Path(place, name)).is_file())


def _beside(path: Path) -> Iterator[Path]:
    """Yield what a file needs that is not in it."""
    if path.suffix == ".onnx":
        with suppress(InvalidFileError):  # the command says what is wrong with it
            yield from outside_files(path)
        if (path.parent / _RECIPE).is_file():
            yield path.parent
        elif any((path.parent / name).is_file() for name in _CONFIGURATIONS):
            yield from (file for file in sorted(path.parent.iterdir()) if file.suffix in _OF_TEXTS and file.is_file())
    elif path.suffix == ".toml":
        yield from _named_in_toml(path)
    elif path.suffix in (".json", ".csv"):
        yield from _named_in_labels(path)
        if (raw := raw_beside(path)).is_file():
            yield raw


def _named_in_toml(path: Path) -> Iterator[Path]:
    with suppress(tomllib.TOMLDecodeError, UnicodeDecodeError):
        for text in _texts(tomllib.loads(path.read_text("utf-8"))):
            folder = Path(os.path.realpath(path.parent))
            if is_sendable(str(folder / text)) and folder in Path(os.path.realpath(folder / text)).parents:
                yield path.parent / text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _named_in_labels(path: Path) -> Iterator[Path]:
    """Yield the pictures and sounds that labels name, wherever they lie: never another kind of file."""
    names = _names(path)
    with suppress(InvalidFileError):
        folder, labels = beside_pictures(path, Labels(names)) if names else (path.parent, Labels(()))
        suffixes = {*PICTURES, *VIDEOS, *find_kind("sound").suffixes}
        for file in labels.files:
            if (place := folder / file).suffix.lower() in suffixes and place.is_file():
                yield place


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
