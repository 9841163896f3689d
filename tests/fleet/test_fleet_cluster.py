"""The cluster of a fleet: which workers are refused, who reaches it, and where its dashboard is."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.request import urlopen

import pytest
from fixture_fleet import cluster

from edgeopt.errors import EdgeoptError
from edgeopt.system.cluster.dask import workers_of
from edgeopt.verbs.fleet.cluster import open_cluster

distributed = pytest.importorskip("distributed")
web = pytest.importorskip("tornado.web")
pytestmark = pytest.mark.filterwarnings("ignore")  # of sockets and loops that Dask leaves to the collector


def test_a_worker_that_offers_two_of_the_devices_is_one_line():
    """Dask may leave a task behind there though its resource is free (distributed#6136)."""
    several = {"alpha": 1, "beta": 1}
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, resources=several, dashboard_address=None
        ) as made,
        pytest.raises(EdgeoptError, match=r"the worker inproc://.* offers alpha, beta: Dask may let") as said,
        open_cluster(made.scheduler_address, ["alpha", "beta"], lambda _: None),
    ):
        pass
    assert '--resources "alpha=1"' in said.value.remedy


def test_a_worker_with_another_edgeopt_is_one_line():
    def be_older() -> None:
        from edgeopt.system.cluster import dask

        dask.version = lambda: "0.0.1+older"

    with cluster("alpha") as made:
        with distributed.Client(made) as client:
            client.run(be_older)
        with (
            pytest.raises(EdgeoptError, match=r"the worker tcp://.* has edgeopt 0\.0\.1\+older, and this is") as said,
            open_cluster(made.scheduler_address, ["alpha"], lambda _: None),
        ):
            pass
    assert said.value.remedy == "install the same there"


def test_the_address_of_a_dashboard_is_told_where_there_is_one():
    """Pages of ours stand for Dask's where bokeh is missing: a scheduler has a port of figures in any case."""
    said = list[str]()
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, resources={"alpha": 1}, dashboard_address="127.0.0.1:0"
    ) as made:
        pages = made.scheduler.http_application
        pages.applications.clear()
        with open_cluster(made.scheduler_address, ["alpha"], said.append):
            assert said == []
        pages.add_application(web.Application())
        with open_cluster(made.scheduler_address, ["alpha"], said.append):
            assert said == [f"dashboard http://localhost:{made.scheduler.http_server.port}/status"]


def test_a_cluster_of_this_machine_has_a_dashboard_where_bokeh_is_installed():
    said = list[str]()
    with open_cluster("", ["alpha"], said.append):
        assert len(said) == (find_spec("bokeh") is not None)
        for line in said:
            address = line.removeprefix("dashboard ")
            assert address.startswith("http://127.0.0.1:")
            with urlopen(address, timeout=30) as page:
                assert b"Dask" in page.read()


def test_nobody_else_reaches_the_workers_of_this_machine():
    """Who reaches a scheduler runs code as its user."""
    with open_cluster("", ["alpha"], lambda _: None) as client:
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        assert all(worker.startswith("tls://127.0.0.1:") for worker in workers_of(client))
        for protocol in ("tls", "tcp"):
            with pytest.raises((OSError, TypeError)):
                distributed.Client(address.replace("tls", protocol), timeout=1)
