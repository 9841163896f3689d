"""The files in the folder of a bundle: those that its manifest hashes, and no other."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import read_file
from edgeopt.system.disk.links import lies_in_tree
from edgeopt.system.text import short

FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""How a file of a bundle is called."""
_OF_SYSTEMS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini", ".gitattributes"})
"""Files that Finder, the Explorer and a hub's copy put into folders by themselves; nothing here reads them."""
_MOST_ENTRIES = 10_000
MANIFEST = "manifest.json"
PIPELINE = "pipeline.json"
"""The manifest of a bundle of several models, each with a bundle of its own below it."""
REMEDY = "copy the bundle again, or make it with this edgeopt: edgeopt optimize"
NEWER = "update edgeopt (pip install -U edgeopt), or make the bundle with this one: edgeopt optimize"


def require_inside(folder: Path, path: Path) -> None:
    """Raise where a link leads out of the folder, and not into the store that its manifest lies in too.

    Raises:
        InvalidFileError: If so.
    """
    manifest = next((folder / name for name in (MANIFEST, PIPELINE) if (folder / name).is_file()), None)
    holder = manifest if manifest != path else None
    if path.is_symlink() and not lies_in_tree(path, folder, holder):
        raise InvalidFileError(
            f"{path} is a link out of the bundle",
            remedy="put the file itself there: a bundle reads its own folder only",
        )


def require_content(folder: Path, file: str, size_bytes: int, sha256: str) -> None:
    """Raise InvalidFileError unless a file is in the folder, as long as the manifest says, and has its hash."""
    path = folder / file
    require_inside(folder, path)
    try:
        if not path.is_file():
            raise InvalidFileError(f"{path} is missing", remedy=REMEDY)
        is_whole = path.stat().st_size == size_bytes
        if is_whole:
            with path.open("rb") as opened:
                is_whole = hashlib.file_digest(opened, "sha256").hexdigest() == sha256
    except OSError as error:
        raise InvalidFileError(f"{path} cannot be read: {error.strerror}", remedy=REMEDY) from error
    if not is_whole:
        raise InvalidFileError(f"{path} differs from its hash in {MANIFEST}", remedy=REMEDY)


def names_in(manifest: Path) -> list[object]:
    """Return what the manifest of an earlier bundle names, as far as it can be read."""
    try:
        values = json.loads(read_file(manifest, remedy=REMEDY))
        return [name for target in (values, *(values.get("targets") or ())) for name in _named_by(target)]
    except (InvalidFileError, ValueError, AttributeError, TypeError, RecursionError):
        return []


def _named_by(values: Mapping[str, Any]) -> list[object]:
    lists = [values.get(key) or [] for key in ("artefacts", "lighter", "parts", "attachments")]
    named = [*chain(*lists), values.get("selftest") or {}, values.get("sketch") or {}]
    return [one.get("file") for one in (*named, *((one.get("weights") or {}) for one in named))]


def require_nothing_else(folder: Path, named: Iterable[str], manifest: str) -> None:
    """Raise where a folder holds a file, a pipe or a link that its manifest does not name.

    What a named link points to inside the folder counts as named: volumes of Kubernetes hold their files so.

    Args:
        folder: Of the bundle.
        named: Paths below the folder, with `/`.
        manifest: How the file is called that names them, for the error.

    Raises:
        InvalidFileError: If so, or if the folder cannot be read.
    """
    known = {Path(folder, name) for name in named}
    targets = {os.path.realpath(path) for path in known}
    inside, count = folder.resolve(), 0
    for root, folders, files in os.walk(folder, onerror=_refuse):
        count += len(folders) + len(files)
        if count > _MOST_ENTRIES:
            raise InvalidFileError(f"{folder} holds more than {_MOST_ENTRIES} files", remedy=_REMEDY)
        links = [name for name in folders if Path(root, name).is_symlink()]
        for name in (*files, *links):
            path = Path(root, name)
            is_link_inside = name in links and path.resolve().is_relative_to(inside)
            is_known = path in known or os.path.realpath(path) in targets or is_link_inside
            if not is_known and name not in _OF_SYSTEMS:
                raise InvalidFileError(
                    f"{short(str(path.relative_to(folder)))} in the bundle {folder} is not named in its {manifest}",
                    remedy=_REMEDY,
                )


_REMEDY = "remove it, or copy the bundle again: nobody knows whose file it is"


def _refuse(error: OSError) -> None:
    raise InvalidFileError(f"{error.filename} cannot be read: {error.strerror}", remedy=_REMEDY) from error


def remove_stale(folder: Path, before: Iterable[object], now: Collection[str]) -> None:
    """Remove what an earlier bundle in the same folder named and the new one does not.

    Args:
        folder: Of both bundles.
        before: Names in the earlier manifest, whatever they are: what is no name of a file there stays.
        now: Names in the new one.
    """
    for name in before:
        if not isinstance(name, str) or not FILE_NAME.fullmatch(name) or name in now:
            continue
        with suppress(OSError):  # a file that stays is told when the bundle is opened
            if (folder / name).is_dir() and not (folder / name).is_symlink():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink()
