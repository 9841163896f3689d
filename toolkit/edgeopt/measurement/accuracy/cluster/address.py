"""The text of `--cluster`: a scheduler's address, or workers of this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeopt.errors import EdgeoptError
from edgeopt.system.machine.threads import logical_cores
from edgeopt.system.text import short

_LOCAL = re.compile(r"local(?::([1-9]\d{0,3}))?")
_SCHEDULER = re.compile(r"(?:[a-z]\w*://)?[^\s/:]+:\d{1,5}(?:/\S*)?|[a-z]\w*://\[[0-9a-f:.]+\]:\d{1,5}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where workers are."""

    scheduler: str = ""
    """Address of a Dask scheduler; empty: workers are started on this machine."""
    count: int = 0
    """How many workers are started; 0: as many as cores suffice for."""

    def workers(self, threads: int) -> int:
        """Return how many workers are started whose sessions have so many threads; none beside a scheduler's own."""
        if self.scheduler:
            return 0
        return self.count or max(1, logical_cores() // max(threads, 1))


def read_cluster_address(text: str) -> ClusterAddress:
    """Return what `--cluster` says.

    Raises:
        EdgeoptError: If it is no address.
    """
    if match := _LOCAL.fullmatch(text):
        return ClusterAddress(count=int(match[1] or 0))
    if text.startswith("local:") or not _SCHEDULER.fullmatch(text):
        raise EdgeoptError(
            f"{short(text)} is no cluster",
            remedy="name a scheduler such as tcp://lab:8786, or local:2 for two workers of this machine",
        )
    return ClusterAddress(text)
