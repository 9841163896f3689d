"""Where files may lead: the one rule for models, weights, recipes, tokenizers, bundles, labels and pictures.

- What a user points at may be a link.
- What a file that nobody pointed at names, such as the weights of a model or the labels of the recipe beside it, lies
  in the tree of the file that names it: in its folder or below.
- Links inside a tree may lead into the store that the tree was made of: the blobs of Hugging Face's cache, DVC's files
  that are named after their content, its cache and the objects of git-annex in a folder above; and where the file
  that names another is itself a link, the store in which it lies. Every other link out of the tree is refused.

A label file is pointed at by the user: it may name pictures anywhere, which are decoded as pictures and nothing else.
So may a recipe that is named (`--recipe`) and a `pipeline.toml`.

Kubernetes' links (`model.onnx` to `..data/model.onnx`) stay in the tree, and hard links are files like all others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_STORES_ABOVE = ((".dvc", "cache"), (".git", "annex", "objects"))
"""Folders in a repository that its links lead into."""
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"
"""Snapshots and blobs of a repository in Hugging Face's cache: links, and the files that they lead to."""
_NESTED = (("files", "md5"), ("annex", "objects"), ("lfs", "objects"), (".dvc", "cache"))
"""The last folders of a store that spreads its files over folders of its own."""
_SPREAD = re.compile(r"[0-9a-f]{2}")
"""A folder in a store: the first two digits of the hashes in it."""
_HASHED = re.compile(r"[0-9a-f]{30}|[0-9a-f]{38}|[0-9a-f]{62}")
"""A file in such a folder: the other digits of an MD5, SHA-1 or SHA-256."""


def beside(file: Path, name: str | Path) -> Path:
    """Return the path of a name beside a file; where nothing is there and the file is a link, beside its target."""
    path = file.parent / name
    if file.is_symlink() and not _exists(path) and (own := resolved(file)) and _exists(own.parent / name):
        return own.parent / name
    return path


def named_by(holder: Path, name: str | Path) -> Path | None:
    """Return the file that another file names, where it lies in its tree; None where it leads out.

    Args:
        holder: The file that names it; it may be a link.
        name: A path relative to the holder's folder, or to the folder of the file that a link leads to.
    """
    path = beside(holder, name)
    is_own = path == holder.parent / name
    folder = holder.parent if is_own else holder.resolve().parent
    return path if lies_in_tree(path, folder, holder if is_own else None) else None


def files_of(folder: Path, names: Iterable[str], holder: Path | None = None) -> list[Path]:
    """Return those of these names that are files of a folder; a link out of its tree is none.

    Args:
        folder: The root of the tree.
        names: Without folders.
        holder: As of `lies_in_tree`.
    """
    paths = (folder / name for name in names)
    return [path for path in paths if path.is_file() and lies_in_tree(path, folder, holder)]


def leads_elsewhere(path: Path) -> bool:
    """Return whether a file or one beside it is a link to where engines do not look for weights.

    ONNX Runtime 1.32 reads weights from the model's folder, and from that of the file which a model's link leads to.
    """
    root, own = path.parent.resolve(), path.resolve()
    if path.is_symlink() and not own.is_relative_to(root):
        return True
    links = (Path(entry.path).resolve() for entry in os.scandir(path.parent) if entry.is_symlink())
    return any(not target.is_relative_to(root) for target in links)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def lies_in_tree(path: Path, folder: Path, holder: Path | None = None) -> bool:
    """Return whether a path lies in a folder, its links followed, or in the store that the folder's links lead into.

    Args:
        path: It need not exist.
        folder: The root of the tree.
        holder: A file in the folder whose own link tells of a store; None: only known stores count.
    """
    place, root = resolved(path), resolved(folder)
    if place is None or root is None:
        return False
    if place.is_relative_to(root):
        return True
    if not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)):
        return False  # its name leads out, not a link
    if _is_content(place) or any(place.is_relative_to(store) for store in _known_stores(root)):
        return True
    target = resolved(holder) if holder is not None and holder.is_symlink() else None
    return target is not None and _share_store(place, target)


def pinned(path: Path) -> Path:
    """Return an absolute path whose folders are no links; the last name stays one, as weights may lie beside it."""
    return path.parent.resolve() / path.name


def resolved(path: Path) -> Path | None:
    """Return a path without links; None where it is none, or its links lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return None


def _known_stores(root: Path) -> Iterator[Path]:
    for above in (root, *root.parents):
        yield from (above.joinpath(*store) for store in _STORES_ABOVE)
        if above.name == _SNAPSHOTS:
            yield above.parent / _BLOBS


def _is_content(place: Path) -> bool:
    """Return whether a file is named after its content, as DVC does: who can name it knows what is in it."""
    return bool(_SPREAD.fullmatch(place.parent.name) and _HASHED.fullmatch(place.name))


def _share_store(place: Path, target: Path) -> bool:
    """Return whether two files lie in one folder, or in one store that spreads its files over folders."""
    store = _spread_store(target)
    return place.parent == target.parent or (store is not None and place.is_relative_to(store))


def _spread_store(target: Path) -> Path | None:
    """Return the store in which a file lies in a folder named after its hash; None where it lies in none."""
    parts = target.parts
    for end in range(len(parts) - 1, 2, -1):
        if any(parts[:end][-len(nested) :] == nested for nested in _NESTED):
            return Path(*parts[:end])
    return target.parent.parent if _SPREAD.fullmatch(target.parent.name) else None
