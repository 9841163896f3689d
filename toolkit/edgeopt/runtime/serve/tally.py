"""What became of requests, and what answers took, for whoever watches the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

from edgeopt.runtime.stats import Stats
from edgeopt.runtime.stats.exporters.prometheus import Collector
from edgeopt.runtime.stats.ring import StageRing
from edgeopt.system.optional import require


class Tally:
    """Counts of one server; any number of threads may write and read.

    An answer is a frame of the ring: `fed` when its request was understood, `dropped` when the client went away or the
    line was full, `failed` when it broke.
    """

    def __init__(self, name: str, stages: tuple[str, ...]) -> None:
        """Begin at zero.

        Args:
            name: Of the model.
            stages: Of an answer, in order.
        """
        self.name, self.ring = name, StageRing(stages)
        self._turn = Lock()
        self._refused = Counter[int]()
        self._counts = Counter[str]()
        self.running = self.waiting = 0
        """Answers that are written now, and requests that wait for it."""
        self.is_loaded, self.loads = True, 1

    def refuse(self, status: int) -> None:
        """Count a request that was refused."""
        with self._turn:
            self._refused[status] += 1

    def add_tokens(self, counts: Mapping[str, int]) -> None:
        """Count tokens by kind: `prompt`, `reused`, `computed`, `output`."""
        with self._turn:
            self._counts.update(counts)

    def read(self) -> tuple[Stats, Mapping[int, int], Mapping[str, int]]:
        """Return figures of answers, refusals by status and tokens by kind."""
        with self._turn:
            return self.ring.stats(), dict(self._refused), dict(self._counts)

    def page(self) -> bytes:
        """Return all of it as Prometheus reads it.

        Raises:
            MissingDependencyError: If prometheus-client is not installed.
        """
        client = require("prometheus_client", extra="serve", purpose="the page of metrics")
        registry = client.CollectorRegistry()
        registry.register(Collector({self.name: self.ring.stats}))
        registry.register(_Requests(self))
        page: bytes = client.generate_latest(registry)
        return page


class _Requests:
    """What a server has beside the figures that every runtime has."""

    def __init__(self, tally: Tally) -> None:
        self._tally, self._core = tally, require("prometheus_client.core", extra="serve", purpose="metrics")

    def collect(self) -> Iterator[Any]:
        tally, core = self._tally, self._core
        _, refused, tokens = tally.read()
        gauges = {
            "running": ("Answers that are written now.", tally.running),
            "queued": ("Requests that wait for a slot.", tally.waiting),
            "loaded": ("Whether the model is in memory.", int(tally.is_loaded)),
        }
        for name, (told, value) in gauges.items():
            family = core.GaugeMetricFamily(f"edgeopt_{name}", told, labels=["name"])
            family.add_metric([tally.name], value)
            yield family
        loads = core.CounterMetricFamily("edgeopt_loads", "How often the model was opened.", labels=["name"])
        loads.add_metric([tally.name], tally.loads)
        yield loads
        family = core.CounterMetricFamily("edgeopt_refused", "Requests refused, by status.", labels=["name", "status"])
        for status, count in sorted(refused.items()):
            family.add_metric([tally.name, str(status)], count)
        yield family
        family = core.CounterMetricFamily("edgeopt_tokens", "Tokens by kind.", labels=["name", "kind"])
        for kind, count in sorted(tokens.items()):
            family.add_metric([tally.name, kind], count)
        yield family
