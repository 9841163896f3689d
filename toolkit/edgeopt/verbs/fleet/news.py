"""News of a fleet that runs, for whoever draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeopt.steps._context import Listener


@dataclass(frozen=True, slots=True)
class CellNews:
    """A cell began, its command printed a line, or it is over."""

    cell: str
    device: str
    worker: str = ""
    line: str = ""
    """A line that the command printed; empty: it began, or is over."""
    is_over: bool = False
    """Whether its result is stored."""


class FleetListener(Listener, Protocol):
    """Hears how far a fleet is; of its cells from a thread of Dask's as well."""

    def begins(self, devices: Sequence[str]) -> None:
        """Hear the device of each cell that will run, in the order of the plan."""
        ...

    def cell_news(self, news: CellNews) -> None:
        """Hear of one cell."""
        ...
