"""Where figures of a running app go, one kind of monitoring a file; the file name is the exporter's name.

Each ends in `EXPORTER`. Figures are read from the ring when the monitoring asks for them: frames pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from edgeopt.runtime.stats import Stats, exporters
from edgeopt.system.declared import registry
from edgeopt.system.processes.closing import Closing

Sources = Mapping[str, Callable[[], Stats]]
"""Statistics by name: `{"door": stream.stats}`."""


class Export(Closing):
    """Figures that are being exported, until it is closed; a context manager."""

    def __init__(self, address: str, stop: Callable[[], None]) -> None:
        """Keep how to end it.

        Args:
            address: Where the figures can be read; empty: an app's own SDK sends them.
            stop: Ends it, at once and without error.
        """
        self.address, self._stop = address, stop

    def close(self) -> None:
        """Stop exporting. Further calls do nothing."""
        stop, self._stop = self._stop, _nothing
        stop()


def _nothing() -> None:
    pass


class Exporter(Protocol):
    """One kind of monitoring."""

    def start(self, sources: Sources, where: str = "") -> Export:
        """Begin to export.

        Args:
            sources: What is told of.
            where: What the kind wants to know; empty: its default.

        Raises:
            MissingDependencyError: If its package is not installed.
            EdgeoptError: If it cannot begin there.
        """
        ...


def export(name: str, sources: Sources, where: str = "") -> Export:
    """Begin to export to the monitoring of this name: `prometheus`, `opentelemetry`.

    Raises:
        NotFoundError: If there is none of this name.
        MissingDependencyError: If its package is not installed.
        EdgeoptError: If it cannot begin there.
    """
    exporter: Exporter = registry.load(exporters, name).EXPORTER
    return exporter.start(sources, where)
