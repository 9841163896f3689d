"""A Dask cluster: workers of this machine that nobody else reaches, or any that a scheduler leads."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

from edgeopt.errors import UnavailableError
from edgeopt.system.cluster import EXTRA
from edgeopt.system.declared.optional import require
from edgeopt.system.disk.wheel import make_wheel
from edgeopt.system.text import short

CONNECT_S = 15
"""Seconds in which a scheduler answers, also one that was lost."""
_FAILURES = 3
"""Workers that may end in the middle of one task before it counts as what ends them."""


def require_dask(purpose: str) -> Any:
    """Return the package `distributed`.

    Args:
        purpose: What needs it, such as `running a fleet`.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    require("dask", extra=EXTRA, purpose=purpose)
    return require("distributed", extra=EXTRA, purpose=purpose)


@contextmanager
def dask_client(
    scheduler: str, own: Mapping[str, Mapping[str, float]], purpose: str, *, shows_dashboard: bool = False
) -> Iterator[Any]:
    """Yield a client of a cluster.

    Args:
        scheduler: Address; empty: workers are started here.
        own: Names of the workers that are started here, and the resources that each offers.
        purpose: As `require_dask`.
        shows_dashboard: Whether a cluster of this machine has Dask's dashboard, where bokeh is installed.

    Raises:
        MissingDependencyError: If distributed is not installed.
        UnavailableError: If no scheduler answers.
    """
    distributed = require_dask(purpose)
    dask = require("dask", extra=EXTRA, purpose=purpose)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a worker that ends is told of in our own words
    settings = {
        "distributed.scheduler.allowed-failures": _FAILURES,
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.comm.timeouts.connect": f"{CONNECT_S}s",
        "distributed.worker.profile.enabled": False,  # it looks at each thread a hundred times a second
        "distributed.nanny.pre-spawn-environ": {},  # threads of libraries as here: other numbers add up otherwise
    }
    with dask.config.set(settings), tempfile.TemporaryDirectory(prefix="edgeopt-cluster-") as folder:
        if scheduler:
            with _connected(distributed, scheduler) as client:
                yield client
            return
        has_dashboard = shows_dashboard and find_spec("bokeh") is not None
        with _own(distributed, own, folder, has_dashboard) as cluster, distributed.Client(cluster) as client:
            yield client


def _connected(distributed: Any, scheduler: str) -> Any:
    asking = asyncio.wait_for(_require_scheduler(distributed, scheduler), CONNECT_S)
    try:
        with ThreadPoolExecutor(1) as thread:  # this one may run a loop, as a notebook does
            thread.submit(asyncio.run, asking).result()
        return distributed.Client(scheduler, timeout=CONNECT_S)
    except Exception as error:  # what answers there may be anything, and Dask reads it as its own
        why = "" if isinstance(error, OSError) else f": {type(error).__name__}"
        problem = f"no scheduler answers at {short(scheduler)}{why}"
        raise UnavailableError(problem, remedy="start one: dask scheduler; and name its address") from error


async def _require_scheduler(distributed: Any, scheduler: str) -> None:
    """Ask who answers at an address: Dask's client waits for its first words without end."""
    arguments = distributed.Security().get_connection_args("client")
    comm = await distributed.comm.connect(scheduler, timeout=CONNECT_S, **arguments)
    try:
        await comm.write({"op": "identity", "reply": True})
        if (await comm.read())["type"] != "Scheduler":
            raise ValueError("a worker")
    finally:
        comm.abort()


def _own(distributed: Any, own: Mapping[str, Mapping[str, float]], folder: str, has_dashboard: bool) -> Any:
    """Return a cluster of this machine; a worker that ends is started again.

    Who may send a task to a worker runs what he likes as its user: certificates of this run alone keep out the other
    users of this machine.
    """
    security = distributed.Security.temporary()
    shared = {
        "security": security,
        "protocol": "tls",
        "host": "127.0.0.1",
        "dashboard": False,
        "dashboard_address": "127.0.0.1:0",
    }
    worker = {"nthreads": 1, "memory_limit": 0, "local_directory": folder, "silence_logs": logging.CRITICAL, **shared}
    scheduler = {"cls": distributed.Scheduler, "options": {**shared, "dashboard": has_dashboard, "port": 0}}
    workers = {
        name: {"cls": distributed.Nanny, "options": {**worker, "name": name, "resources": dict(resources)}}
        for name, resources in own.items()
    }
    return distributed.SpecCluster(
        workers=workers, scheduler=scheduler, security=security, silence_logs=logging.CRITICAL
    )


def workers_of(client: Any) -> dict[str, Any]:
    """Return the workers of a cluster by their addresses, as the scheduler tells of them."""
    workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return workers


def dashboard_of(client: Any) -> str:
    """Return the address of a cluster's dashboard; empty where its scheduler has none, as without bokeh.

    A scheduler names a port in any case: it also answers with figures there.
    """
    try:
        return str(client.dashboard_link) if client.run_on_scheduler(_has_dashboard) else ""
    except Exception:  # a scheduler of another version, or a pattern of links that is wrong; the fleet goes on
        return ""


def _has_dashboard(dask_scheduler: Any) -> bool:
    """Return whether pages were added to the scheduler's own routes."""
    return bool(dask_scheduler.http_application.applications)


def worker_address() -> str:
    """Return the address of the worker that runs this; empty outside of a cluster."""
    try:
        from distributed import get_worker

        return str(get_worker().address)
    except (ImportError, ValueError):
        return ""


@cache
def version() -> str:
    """Return what must be the same on all machines of a cluster: edgeopt's version and the hash of its files."""
    return make_wheel().key
