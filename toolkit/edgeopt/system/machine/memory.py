"""Free memory, and whether something fits into it: known before it is opened."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from pathlib import Path

from edgeopt.errors import EdgeoptError
from edgeopt.system.text import format_bytes

_LIMITS = (
    ("", "memory.max", "memory.current", "file", "shmem"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
)
"""Files of control groups of version 2 and 1: folder, limit, use, and the part of the use that is files which can be
dropped."""


SMALLER_SAMPLES = "fix a smaller size with --shape where the model leaves it free, or use a machine with more memory"
"""Remedy where a sample of a model's inputs does not fit into memory."""


def free_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return what the system can give without swapping, and what a container's limit leaves where that is less.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.max and memory.current
    """
    return min([_available(proc), *_left_by_groups(proc, groups)])


def _available(proc: Path) -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = (proc / "meminfo").read_text("ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    import psutil  # where no file tells: its import takes as long as reading a bundle

    return int(psutil.virtual_memory().available)


def _left_by_groups(proc: Path, groups: Path) -> list[int]:
    """Return what each limit of this process's control groups leaves; empty where there is none."""
    result = list[int]()
    with suppress(OSError, IndexError):  # no Linux
        names = {line.split(":", 2)[2].strip("/") for line in (proc / "self/cgroup").read_text("utf-8").splitlines()}
        for kind, limit, used, files, shared in _LIMITS:
            places = {path for name in names for path in (groups / kind / name, *(groups / kind / name).parents)}
            for place in (path for path in places if path.is_relative_to(groups) and (path / limit).is_file()):
                with suppress(OSError, ValueError, IndexError):  # `max`: no limit
                    most = int((place / limit).read_text("utf-8"))
                    rows = (line.split() for line in (place / "memory.stat").read_text("utf-8").splitlines())
                    values = {row[0]: int(row[1]) for row in rows}
                    kept = int((place / used).read_text("utf-8")) - values.get(files, 0) + values.get(shared, 0)
                    result.append(max(0, most - kept))
    return result


def require_bytes(needed: int, what: str, remedy: str) -> None:
    """Raise where so many bytes are not free.

    Raises:
        EdgeoptError: If so.
    """
    if needed > (free := free_bytes()):
        raise EdgeoptError(f"{what} of {format_bytes(needed)} do not fit: {format_bytes(free)} are free", remedy=remedy)


def give_back() -> None:
    """Return memory to the system that nothing needs any more.

    Graphs refer to themselves, so that Python frees what they hold when it looks for it.
    """
    gc.collect()
    trim()


def trim() -> None:
    """Return memory to the system that is freed: glibc keeps gigabytes that were freed in pieces of megabytes."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library keeps none, or has no such function
            ctypes.CDLL(None).malloc_trim(0)
