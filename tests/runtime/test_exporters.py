"""Figures reach the real client libraries of Prometheus and OpenTelemetry as the ring has them."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from threading import active_count
from urllib.request import urlopen

import pytest

from edgeopt.errors import EdgeoptError, MissingDependencyError, NotFoundError
from edgeopt.runtime.stats import Stats, exporters
from edgeopt.runtime.stats.exporters import export
from edgeopt.runtime.stats.ring import StageRing
from edgeopt.runtime.stream.result import StreamStats
from edgeopt.system.declared import registry

STAGES = ("preprocess", "execute", "look up")


@pytest.fixture
def ring() -> StageRing:
    """Return 200 frames of 1 to 200 ms, half of them without the last stage."""
    made = StageRing(STAGES)
    made.feed(210)
    for one in range(1, 201):
        ns = one * 1_000_000
        made.record((ns // 10, ns, ns // 2 if one % 2 else -1), 2 * ns, 3 * ns, is_missed=one > 190)
    made.drop(6)
    made.fail(3)
    return made


def test_the_exporters_are_found_by_their_names():
    assert registry.names(exporters) == ("opentelemetry", "prometheus")
    with pytest.raises(NotFoundError, match="no exporter named 'promotheus'"):
        export("promotheus", {})


def scraped(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    from prometheus_client.parser import text_string_to_metric_families

    with urlopen(address, timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    return {(sample.name, frozenset(sample.labels.items())): sample.value for one in families for sample in one.samples}


def test_prometheus_scrapes_what_the_ring_says(ring):
    pytest.importorskip("prometheus_client")
    threads = active_count()
    with export("prometheus", {"door": ring.stats, "yard": StageRing(STAGES).stats}, "127.0.0.1:0") as served:
        found, stats = scraped(served.address), ring.stats()

        def of(metric: str, **labels: str) -> float | None:
            return found.get((f"edgeopt_{metric}", frozenset({"name": "door", **labels}.items())))

        assert of("fed_frames_total") == 210
        assert [of("frames_total", outcome=one) for one in ("served", "dropped", "failed")] == [200, 6, 3]
        assert (of("missed_frames_total"), of("waiting_frames")) == (10, 1)
        assert of("last_age_seconds") == pytest.approx(0.6)
        assert of("frame_seconds", quantile="0.99") == pytest.approx(stats.frame.p99_ms / 1e3)
        for name, times in stats.stages.items():
            assert of("stage_seconds", stage=name, quantile="0.9") == pytest.approx(times.p90_ms / 1e3)
            assert of("stage_seconds_sum", stage=name) == pytest.approx(times.total_ms / 1e3)
            assert of("stage_seconds_count", stage=name) == times.total_frames
        assert of("stage_seconds_count", stage="look up") == 100
        assert ("edgeopt_frame_seconds", frozenset({"name": "yard", "quantile": "0.5"}.items())) not in found
        assert found["edgeopt_frame_seconds_count", frozenset({("name", "yard")})] == 0

        ring.record((1, 1, 1), 1)
        assert scraped(served.address)["edgeopt_frame_seconds_count", frozenset({("name", "door")})] == 201
    with pytest.raises(OSError):
        urlopen(served.address, timeout=2)
    served.close()
    assert active_count() == threads


def test_prometheus_says_where_no_page_can_be(ring):
    pytest.importorskip("prometheus_client")
    with export("prometheus", {"door": ring.stats}, "0") as served:
        port = served.address.split(":")[-1].split("/")[0]
        with pytest.raises(EdgeoptError, match=f"no page can be served at 127.0.0.1:{port}"):
            export("prometheus", {"door": ring.stats}, port)
    for wrong in ("here", "127.0.0.1:", "1.2.3.4:99999"):
        with pytest.raises(EdgeoptError, match="is no address"):
            export("prometheus", {}, wrong)


def test_an_apps_own_registry_takes_the_collector(ring):
    client = pytest.importorskip("prometheus_client")
    from edgeopt.runtime.stats.exporters.prometheus import Collector

    registered = client.CollectorRegistry()
    registered.register(Collector({"door": ring.stats}))
    assert registered.get_sample_value("edgeopt_stage_seconds_count", {"name": "door", "stage": "execute"}) == 200


def test_opentelemetry_reads_what_the_ring_says(ring):
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from edgeopt.runtime.stats.exporters.opentelemetry import observe

    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])

    def read() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        data = reader.get_metrics_data()
        if data is None:
            return {}
        metrics = [one for scope in data.resource_metrics[0].scope_metrics for one in scope.metrics]
        units = {one.name: one.unit for one in metrics}
        assert units["edgeopt.frames"] == "{frame}"
        assert units["edgeopt.stage.quantile"] == "s"
        return {
            (one.name.removeprefix("edgeopt."), frozenset(point.attributes.items())): point.value
            for one in metrics
            for point in one.data.data_points
        }

    try:
        told = observe({"door": ring.stats, "yard": StageRing(STAGES).stats}, provider)
        found, stats = read(), ring.stats()

        def of(metric: str, **labels: str) -> float | None:
            return found.get((metric, frozenset({"name": "door", **labels}.items())))

        assert (of("fed"), of("missed"), of("waiting")) == (210, 10, 1)
        assert [of("frames", outcome=one) for one in ("served", "dropped", "failed")] == [200, 6, 3]
        assert of("last_age") == pytest.approx(0.6)
        assert of("age.quantile", quantile="0.5") == pytest.approx(stats.age.p50_ms / 1e3)
        for name, times in stats.stages.items():
            assert of("stage.quantile", stage=name, quantile="0.99") == pytest.approx(times.p99_ms / 1e3)
            assert of("stage.time", stage=name) == pytest.approx(times.total_ms / 1e3)
            assert of("stage.count", stage=name) == times.total_frames
        assert not [name for name, labels in found if ("name", "yard") in labels and "quantile" in name]
        ring.record((1, 1, 1), 1)
        assert read()["frame.count", frozenset({("name", "door")})] == 201
        told.close()
        assert read() == {}
    finally:
        provider.shutdown()


def test_opentelemetry_takes_the_apps_own_provider_and_no_address(ring):
    pytest.importorskip("opentelemetry.sdk.metrics")
    with export("opentelemetry", {"door": ring.stats}) as told:
        assert told.address == ""
    with pytest.raises(EdgeoptError, match="takes no address"):
        export("opentelemetry", {}, "http://localhost:4318")


class Absent:
    """A finder that comes first and finds no such package."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, *_: object) -> None:
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {self.package!r}", name=self.package)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry", "otel")],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, name, package, extra):
    for module in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Absent(package), *sys.meta_path])
    with pytest.raises(MissingDependencyError) as caught:
        export(name, {})
    assert caught.value.remedy == f"pip install 'edgeopt[{extra}]'"
    assert f"{package} is not installed" in str(caught.value)


def test_figures_of_a_stream_are_exported_too(ring):
    client = pytest.importorskip("prometheus_client")
    from edgeopt.runtime.stats.exporters.prometheus import Collector

    fields = {one.name: getattr(ring.stats(), one.name) for one in dataclasses.fields(Stats)}
    others = {one.name: None for one in dataclasses.fields(StreamStats) if one.name not in fields}
    registered = client.CollectorRegistry()
    registered.register(Collector({"door": lambda: StreamStats(**fields, **others)}))
    assert registered.get_sample_value("edgeopt_waiting_frames", {"name": "door"}) == 1


def test_the_page_about_it_runs(capsys):
    pytest.importorskip("prometheus_client")
    pytest.importorskip("opentelemetry.sdk.metrics")
    page = (Path(__file__).parents[2] / "docs" / "observing.md").read_text("utf-8")
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    assert capsys.readouterr().out.splitlines()[0] == "2.6 2.4 4.0 4.0"
