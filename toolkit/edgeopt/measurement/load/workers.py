"""Calls that run at the same time, one thread each; the first error ends all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from edgeopt.executors import Session
from edgeopt.tasks import Task

Pipeline: TypeAlias = tuple[Task, Session]
"""Task and session of one worker; two workers never share one, since tasks reuse their input buffer."""


def run_together(calls: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run all calls until each has returned; a single one runs in this thread.

    Args:
        calls: One or more.
        stop: Called when one of them fails or the user interrupts; it must make the others return soon.
    """
    if len(calls) == 1:
        calls[0]()
        return
    with ThreadPoolExecutor(len(calls)) as pool:
        try:
            for done in [pool.submit(_stopping(call, stop)) for call in calls]:
                done.result()
        except BaseException:
            stop()
            raise


def _stopping(call: Callable[[], None], stop: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            call()
        except BaseException:
            stop()
            raise

    return run
