"""The seam of `bench`: all that it asks of a kind of workload, and knows of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.bench.view import BenchView
from edgeopt.measurement.sides import Tell


class BenchBlock(Protocol):
    """A workload that is ready to be timed: all that lies outside the clock is done."""

    def run(self, tell: Tell | None) -> BenchResult:
        """Time it under its load, and judge what was seen; None hears nothing, and costs nothing between samples.

        Raises:
            EdgeoptError: If it fails, or nothing was measured.
        """
        ...


class BenchOfKind(Protocol):
    """The file `bench.py` of a kind of workload."""

    def prepare(self, source: str, options: Any) -> AbstractContextManager[BenchBlock]:
        """Open a workload and what it is fed with, as long as the `with` lasts.

        Args:
            source: As the user named it.
            options: The kind's options of `bench`.

        Raises:
            EdgeoptError: If something cannot be opened, or options contradict each other: before minutes are spent.
        """
        ...

    def view(self, result: Any) -> BenchView:
        """Return what a reader sees of the kind's own figures."""
        ...
