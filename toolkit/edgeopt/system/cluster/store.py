"""Files for a worker: read from where they lie on a shared disk, else sent once and kept by content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.caches import cache_folder

_KEPT_S = 30 * 86400
_BATCH_BYTES = 8 << 20
"""Bytes of files that are sent in one message."""


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """Files that a worker has not yet."""

    worker: str
    digests: frozenset[str]


def root() -> Path:
    """Return the folder of clusters on this machine, which all workers of one user share."""
    return cache_folder() / "fleet"


def machine_lock() -> Path:
    """Return the file that is held by whoever measures on this machine alone, and shared by what computes there."""
    return root() / "machine.lock"


def stored(digest: str) -> Path:
    """Return where a file of this SHA-256 is kept."""
    return root() / "store" / digest[:2] / digest


def store(digest: str, data: bytes) -> None:
    """Keep a file that was sent.

    Raises:
        ValueError: If it has another hash.
    """
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"a file that was sent has another hash than {digest}")
    place = stored(digest)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{digest}.{os.getpid()}")
    draft.write_bytes(data)
    os.replace(draft, place)


def store_all(files: Mapping[str, bytes]) -> None:
    """Keep files that were sent, by their SHA-256.

    Raises:
        ValueError: If one has another hash.
    """
    for digest, data in files.items():
        store(digest, data)


def read_stored(digest: str, origin: str) -> bytes | None:
    """Return a file from the store or from where it lies; None where neither has it as it was."""
    place = stored(digest)
    with contextlib.suppress(OSError):
        data = place.read_bytes()
        os.utime(place)  # it is in use
        return data
    with contextlib.suppress(OSError):
        data = Path(origin).read_bytes()
        return data if hashlib.sha256(data).hexdigest() == digest else None
    return None


def forget_old() -> None:
    """Remove what nobody used for a month."""
    oldest_s = time.time() - _KEPT_S
    for path in (*(root() / "store").glob("*/*"), *(root() / "cells").glob("*")):
        with contextlib.suppress(OSError):  # another worker may be about to remove it
            if path.stat().st_mtime < oldest_s:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def send(client: Any, missing: MissingFiles, places: Mapping[str, Path]) -> None:
    """Send files to a worker that has no way to them, a few megabytes at a time.

    Args:
        client: Of the cluster.
        missing: What the worker lacks.
        places: Where files lie here, by SHA-256.

    Raises:
        InvalidFileError: If a file is not any more what it was.
    """
    batch, size = dict[str, bytes](), 0
    for digest in sorted(missing.digests):
        batch[digest] = _read(places[digest], digest)
        size += len(batch[digest])
        if size >= _BATCH_BYTES:
            _send_batch(client, missing.worker, batch)
            batch, size = {}, 0
    if batch:
        _send_batch(client, missing.worker, batch)


def _send_batch(client: Any, worker: str, batch: Mapping[str, bytes]) -> None:
    client.run(store_all, dict(batch), workers=[worker], on_error="ignore")


def _read(path: Path, digest: str) -> bytes:
    """Return a file that is to be sent.

    Raises:
        InvalidFileError: If it is not any more what it was when its hash was taken.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidFileError(f"{path} cannot be read: {error.strerror}", remedy="correct it") from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise InvalidFileError(f"{path} changed since it was first read", remedy="run the command again")
    return data
