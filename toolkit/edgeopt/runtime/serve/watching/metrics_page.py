"""The page of metrics: the counts of every model of a server, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeopt.runtime.serve.watching.tally import Tally
from edgeopt.runtime.stats.exporters.prometheus import Collector
from edgeopt.system.declared.optional import require


def metrics_page(
    tallies: Sequence[Tally], unopened: Sequence[str] = (), refused: Mapping[int, int] | None = None
) -> bytes:
    """Return the page.

    Args:
        tallies: Of the models that were opened, one each.
        unopened: Names of models that nobody asked for yet.
        refused: Requests by status that were refused before a model was known; they stand under an empty name.

    Raises:
        MissingDependencyError: If prometheus-client is not installed.
    """
    client = require("prometheus_client", extra="serve", purpose="the page of metrics")
    registry = client.CollectorRegistry()
    registry.register(Collector({tally.name: tally.ring.stats for tally in tallies}))
    registry.register(_Requests(tallies, unopened, refused or {}))
    page: bytes = client.generate_latest(registry)
    return page


class _Requests:
    """Figures of a server beside those that every runtime has."""

    def __init__(self, tallies: Sequence[Tally], unopened: Sequence[str], refused: Mapping[int, int]) -> None:
        self._tallies, self._unopened, self._refused = tallies, unopened, refused
        self._core = require("prometheus_client.core", extra="serve", purpose="metrics")

    def collect(self) -> Iterator[Any]:
        core, tallies = self._core, self._tallies
        closed = [(name, 0) for name in self._unopened]
        gauges = {
            "running": ("Answers that are written now.", [(tally.name, tally.running) for tally in tallies]),
            "queued": ("Requests that wait for a slot.", [(tally.name, tally.waiting) for tally in tallies]),
            "loaded": (
                "Whether the model is in memory.",
                [(tally.name, int(tally.held.is_loaded)) for tally in tallies] + closed,
            ),
        }
        for name, (text, values) in gauges.items():
            family = core.GaugeMetricFamily(f"edgeopt_{name}", text, labels=["name"])
            for model, value in values:
                family.add_metric([model], value)
            yield family
        loads = core.CounterMetricFamily("edgeopt_loads", "How often the model was opened.", labels=["name"])
        for model, value in [(tally.name, tally.held.loads) for tally in tallies] + closed:
            loads.add_metric([model], value)
        yield loads
        yield from self._histograms()
        counts = [(tally.name, *tally.read()[1:]) for tally in tallies]
        family = core.CounterMetricFamily("edgeopt_refused", "Requests refused, by status.", labels=["name", "status"])
        for model, refused in [(model, refused) for model, refused, _ in counts] + [("", self._refused)]:
            for status, count in sorted(refused.items()):
                family.add_metric([model, str(status)], count)
        yield family
        family = core.CounterMetricFamily("edgeopt_tokens", "Tokens by kind.", labels=["name", "kind"])
        for model, _, tokens in counts:
            for kind, count in sorted(tokens.items()):
                family.add_metric([model, kind], count)
        yield family

    def _histograms(self) -> Iterator[Any]:
        """Yield each family once, with the series of all models that have it."""
        families = dict[str, Any]()
        for tally in self._tallies:
            for histogram in tally.histograms:
                family = families.get(histogram.name)
                if family is None:
                    family = self._core.HistogramMetricFamily(histogram.name, histogram.told, labels=["name"])
                    families[histogram.name] = family
                histogram.add_to(family, tally.name)
        yield from families.values()
