"""Which workers compute as this machine does: instructions, packages and edgeopt are the same."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from edgeopt.system.cluster.dask import version
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.machine.processor import this_processor
from edgeopt.system.text import short

_COMPUTING = re.compile(
    r"^(sse|ssse|pni$|avx|amx|fma|f16c|xop|mmx|3dnow|asimd|sve|sme|fp|i8mm|bf16|neon|vfp|dotprod|v$)"
)
"""Flags by which engines choose among their loops. The rest tells of memory, virtual machines and the kernel, and
differs between machines whose numbers are the same."""
_NOT_IN_FRAMES = frozenset({"edgeopt", "onnx", "onnx-ir", "onnxslim"})
"""Packages of which nothing runs while a frame is answered; edgeopt is compared by its files."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Facts of a worker on which the last bits of an answer may depend."""

    edgeopt: str
    system: str
    architecture: str
    flags: Set[str]
    packages: Mapping[str, str]
    tasks: int = 0
    """How many tasks it computes now, for whomever."""


def worker_facts(dask_worker: Any = None) -> WorkerFacts:
    """Return the facts of this process.

    Args:
        dask_worker: The worker that runs this, which Dask gives to an argument of this name; None: none does.
    """
    processor, tasks = this_processor(), dask_worker.state.executing_count if dask_worker is not None else 0
    flags = frozenset(flag for flag in processor.flags if _COMPUTING.match(flag))
    packages = {name: number for name, number in package_versions().items() if name not in _NOT_IN_FRAMES}
    return WorkerFacts(version(), sys.platform, processor.architecture, flags, packages, tasks)


def why_unlike(mine: WorkerFacts, other: object) -> str:
    """Return why a worker's answers may differ from this machine's; empty where nothing says so.

    Args:
        mine: Of this machine.
        other: What the worker answered: its facts, or an exception.
    """
    if not isinstance(other, WorkerFacts):
        return f"it does not say what it is ({short(f'{type(other).__name__}: {other}')})"
    if other.edgeopt != mine.edgeopt:
        return f"it has edgeopt {other.edgeopt}, and this is {mine.edgeopt}"
    if (other.system, other.architecture) != (mine.system, mine.architecture):
        return f"it is {other.system} on {other.architecture}, and this is {mine.system} on {mine.architecture}"
    if lacking := _listed(mine.flags - other.flags):
        return f"its processor lacks {lacking}"
    if more := _listed(other.flags - mine.flags):
        return f"its processor has {more}, which this one lacks"
    names = sorted(
        name for name in {*mine.packages, *other.packages} if mine.packages.get(name) != other.packages.get(name)
    )
    if names:
        theirs, ours = (packages.get(names[0], "none") for packages in (other.packages, mine.packages))
        return f"it has {names[0]} {theirs}, and this machine {ours}"
    return ""


def _listed(flags: Set[str]) -> str:
    shown = ", ".join(sorted(flags)[:_SHOWN])
    return f"{shown} and {len(flags) - _SHOWN} more" if len(flags) > _SHOWN else shown
