"""Prometheus: a page that it scrapes. Times are summaries: quantiles of the last frames, `_sum` and `_count` of all.

An app that has a page of its own registers `Collector` there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.stats.exporters import Export, Sources
from edgeopt.runtime.stats.exporters._metrics import METRICS, TIMES, ExportedMetric, quantiles_s, read_all
from edgeopt.system.declared.optional import require

_HOST, _PORT = "127.0.0.1", 9464
_LARGEST_PORT: Final = 65535


class Collector:
    """A collector for `prometheus_client.CollectorRegistry.register`; it reads the figures at each scrape."""

    def __init__(self, sources: Sources) -> None:
        """Keep the sources.

        Raises:
            MissingDependencyError: If prometheus-client is not installed.
        """
        self._core, self._sources = _client("prometheus_client.core"), sources

    def collect(self) -> Iterator[Any]:
        """Yield one family of samples a metric; a figure that nothing was seen of has no sample."""
        seen = read_all(self._sources)
        for metric in METRICS:
            kind = self._core.CounterMetricFamily if metric.is_count else self._core.GaugeMetricFamily
            family = kind(f"edgeopt_{metric.name}{_suffix(metric)}", metric.help)
            for name, stats in seen.items():
                for labels, value in metric.read(stats):
                    if value is not None:
                        sample = f"{family.name}_total" if metric.is_count else family.name
                        family.add_sample(sample, {"name": name, **labels}, value)
            yield family
        for series in TIMES:
            family = self._core.SummaryMetricFamily(f"edgeopt_{series.name}_seconds", series.help)
            for name, stats in seen.items():
                for labels, times in series.read(stats):
                    labels = {"name": name, **labels}
                    for share, value in quantiles_s(times):
                        family.add_sample(family.name, labels | {"quantile": share}, value)
                    family.add_sample(f"{family.name}_count", labels, times.total_frames)
                    family.add_sample(f"{family.name}_sum", labels, times.total_ms / 1e3)
            yield family


def _suffix(metric: ExportedMetric) -> str:
    """Return what Prometheus's rules for names put behind one: its unit."""
    if metric.name == "frames":
        return ""
    return {"s": "_seconds", "{frame}": "_frames"}.get(metric.unit, "")


def _client(module: str) -> Any:
    return require(module, extra="prometheus", purpose="exporting to Prometheus")


class _Prometheus:
    """The exporter `prometheus`."""

    def start(self, sources: Sources, where: str = "") -> Export:
        """Serve the page that Prometheus scrapes.

        Args:
            sources: What is told of.
            where: `HOST:PORT` or `PORT`; 0: a free port. Without a host this machine only, 127.0.0.1; port 9464.

        Raises:
            MissingDependencyError: If prometheus-client is not installed.
            EdgeoptError: If the address is none, or is taken.
        """
        host, port = _parse_address(where)
        client = _client("prometheus_client")
        registry = client.CollectorRegistry()
        registry.register(Collector(sources))
        try:
            server, thread = client.start_http_server(port, host, registry)
        except OSError as error:
            raise EdgeoptError(
                f"no page can be served at {host}:{port}: {error.strerror or error}",
                remedy="choose another address, or port 0 for a free one",
            ) from error

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return Export(f"http://{host}:{server.server_port}/metrics", stop)


def _parse_address(where: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    if where and not (port.isascii() and port.isdigit() and int(port) <= _LARGEST_PORT):
        raise EdgeoptError(f"{where!r} is no address", remedy="write HOST:PORT or PORT, such as 0.0.0.0:9464")
    return host or _HOST, int(port or _PORT)


EXPORTER = _Prometheus()
