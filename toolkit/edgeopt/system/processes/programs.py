"""Programs that compute for this process, such as a browser: their processor time and memory are its own.

The system adds the times of a child to its parent's when it has ended, but not those of the child's children when they
outlive it for a moment, as a browser's pages do. So they are counted here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil


@dataclass(slots=True)
class _Account:
    """The programs of this process."""

    running: dict[int, psutil.Process] = field(default_factory=dict)
    ended_s: float = 0.0
    """Processor seconds of what ended programs had started."""


_account = _Account()


def add_program(pid: int) -> None:
    """Count a child, and all that it starts, from now on."""
    _account.running[pid] = psutil.Process(pid)


def drop_program(pid: int) -> None:
    """Count it as ended: to be called right before it is."""
    program = _account.running.pop(pid, None)
    if program is not None:
        _account.ended_s += _seconds(_started_by(program))


def add_ended_s(seconds: float) -> None:
    """Count what programs of a child of this process used, as the child tells it by `started_s`."""
    _account.ended_s += seconds


def started_s() -> float:
    """Return the processor seconds of what the programs started: the system counts them for no parent."""
    return _account.ended_s + sum(_seconds(_started_by(program)) for program in _account.running.values())


def own_s() -> float:
    """Return the processor seconds of this process, its ended children, and its programs with all that they started.

    Some milliseconds pass where there are programs.
    """
    times = os.times()
    here_s = times.user + times.system + times.children_user + times.children_system
    return here_s + _seconds(_account.running.values()) + started_s()


def own_ns() -> int:
    """Return `own_s` in nanoseconds, as a clock."""
    return round(own_s() * 1e9)


def program_bytes() -> int:
    """Return the resident memory of the running programs, in bytes; 0 where there are none."""
    processes = [process for program in _account.running.values() for process in (program, *_started_by(program))]
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            total += memory.rss - getattr(memory, "shared", 0)  # Linux alone says what several programs share
    return total


def _started_by(program: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        started: list[psutil.Process] = program.children(recursive=True)
        return started
    return []


def _seconds(processes: Iterable[psutil.Process]) -> float:
    total_s = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s
