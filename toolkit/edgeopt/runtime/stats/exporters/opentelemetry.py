"""OpenTelemetry: observable instruments on the app's MeterProvider, which decides when and where figures are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.stats import Stats, Times
from edgeopt.runtime.stats.exporters import Export, Sources
from edgeopt.runtime.stats.exporters._metrics import METRICS, TIMES, Labels, TimesMetric, quantiles_s
from edgeopt.system.declared.optional import require

Observed = Iterator[tuple[Labels, float | None]]


def observe(sources: Sources, provider: Any = None) -> Export:
    """Make the instruments.

    Args:
        sources: What is told of.
        provider: A `MeterProvider`; None: the app's global one. Without one, OpenTelemetry sends nothing, and says so
            nowhere.

    Raises:
        MissingDependencyError: If opentelemetry-api is not installed.
    """
    metrics = require("opentelemetry.metrics", extra="otel", purpose="exporting to OpenTelemetry")
    meter = (provider or metrics.get_meter_provider()).get_meter("edgeopt")
    values = dict(sources)

    def instrument(make: Any, name: str, unit: str, says: str, read: Callable[[Stats], Observed]) -> None:
        def observations(_: Any) -> Iterator[Any]:
            for source, stats in tuple(values.items()):
                for labels, value in read(stats()):
                    if value is not None:
                        yield metrics.Observation(value, {"name": source, **labels})

        make(f"edgeopt.{name}", [observations], unit, says)

    counter, gauge = meter.create_observable_counter, meter.create_observable_gauge
    for metric in METRICS:
        instrument(counter if metric.is_count else gauge, metric.name, metric.unit, metric.help, metric.read)
    for series in TIMES:
        instrument(gauge, f"{series.name}.quantile", "s", f"{series.help} Of the last frames.", _quantiles(series))
        total, count = (
            _each(series, lambda times: times.total_ms / 1e3),
            _each(series, lambda times: times.total_frames),
        )
        instrument(counter, f"{series.name}.time", "s", f"{series.help} Sum since the start.", total)
        instrument(counter, f"{series.name}.count", "{frame}", f"{series.help} Frames since the start.", count)
    return Export("", values.clear)


def _quantiles(metric: TimesMetric) -> Callable[[Stats], Observed]:
    def read(stats: Stats) -> Observed:
        for labels, times in metric.read(stats):
            for share, value in quantiles_s(times):
                yield {**labels, "quantile": share}, value

    return read


def _each(metric: TimesMetric, figure: Callable[[Times], float]) -> Callable[[Stats], Observed]:
    return lambda stats: ((labels, figure(times)) for labels, times in metric.read(stats))


class _OpenTelemetry:
    """The exporter `opentelemetry`."""

    def start(self, sources: Sources, where: str = "") -> Export:
        """Make the instruments on the app's global MeterProvider; `observe` takes another.

        Raises:
            MissingDependencyError: If opentelemetry-api is not installed.
            EdgeoptError: If an address is given: the MeterProvider has it.
        """
        if where:
            raise EdgeoptError(
                f"OpenTelemetry takes no address here, and {where!r} is given",
                remedy="leave it out: the app's MeterProvider, or OTEL_EXPORTER_OTLP_ENDPOINT, says where",
            )
        return observe(sources)


EXPORTER = _OpenTelemetry()
