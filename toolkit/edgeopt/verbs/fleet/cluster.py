"""The Dask cluster of a fleet: one of this machine, a worker for each device, or any that a scheduler leads.

A device is a resource of which a worker has one, so that one cell at a time measures on it. Each worker of our own
offers one device: a task may stay behind though its resource is free where a worker offers several
(dask/distributed#6136).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.system.declared.optional import require
from edgeopt.system.text import plural, short
from edgeopt.verbs.fleet import EXTRA, PURPOSE
from edgeopt.verbs.fleet.work import version

_CONNECT_S, _WORKERS_S = 15, 60.0
"""Seconds in which a scheduler answers, also one that was lost, and in which workers come."""
_LOOK_S = 0.2
_MOST_LISTED = 10
_FAILURES = 3
"""Workers that may end in the middle of one cell before it counts as what ends them."""


@contextmanager
def open_cluster(scheduler: str, devices: Sequence[str], say: Callable[[str], None]) -> Iterator[Any]:
    """Yield a client of a cluster in which a worker offers each device.

    Args:
        scheduler: Address; empty: workers are started here.
        devices: Names of the resources.
        say: FleetListener one line.

    Raises:
        MissingDependencyError: If distributed is not installed.
        UnavailableError: If no scheduler answers, or no worker offers a device.
        EdgeoptError: If a worker has another edgeopt.
    """
    distributed = require("distributed", extra=EXTRA, purpose=PURPOSE)
    dask = require("dask", extra=EXTRA, purpose=PURPOSE)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a worker that ends is told of in our own words
    settings = {
        "distributed.scheduler.allowed-failures": _FAILURES,
        "distributed.admin.system-monitor.gil.enabled": False,
        "distributed.comm.timeouts.connect": f"{_CONNECT_S}s",
    }
    with dask.config.set(settings), tempfile.TemporaryDirectory(prefix="edgeopt-fleet-") as folder:
        if scheduler:
            with _connected(distributed, scheduler) as client:
                yield _ready(client, devices, scheduler, say)
            return
        with _own(distributed, devices, folder) as cluster, distributed.Client(cluster) as client:
            yield _ready(client, devices, "", say)


def _connected(distributed: Any, scheduler: str) -> Any:
    try:
        return distributed.Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        problem = f"no scheduler answers at {short(scheduler)}"
        raise UnavailableError(problem, remedy="start one: dask scheduler; and name its address") from error


def _own(distributed: Any, devices: Sequence[str], folder: str) -> Any:
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
    scheduler = {"cls": distributed.Scheduler, "options": {**shared, "port": 0}}
    workers = {
        device: {"cls": distributed.Nanny, "options": {**worker, "name": device, "resources": {device: 1}}}
        for device in devices
    }
    return distributed.SpecCluster(
        workers=workers, scheduler=scheduler, security=security, silence_logs=logging.CRITICAL
    )


def _ready(client: Any, devices: Sequence[str], scheduler: str, say: Callable[[str], None]) -> Any:
    """Return the client, once workers offer every device and have this very edgeopt."""
    ends_s, missing = monotonic() + _WORKERS_S, list(devices)
    while missing and monotonic() < ends_s:
        offered = {name for each in workers_of(client).values() for name in each.get("resources", {})}
        missing = [device for device in devices if device not in offered]
        if missing:
            sleep(_LOOK_S)
    if missing:
        where = scheduler or "this machine"
        raise UnavailableError(
            f"no worker of {where} offers {_listed(missing)}",
            remedy=f'start one there: dask worker {scheduler} --nthreads 1 --resources "{missing[0]}=1"',
        )
    mine = version()
    others = {address: key for address, key in client.run(version, on_error="return").items() if key != mine}
    for address, key in others.items():
        what = f"edgeopt {key}" if isinstance(key, str) else f"none that answers ({short(str(key))})"
        raise EdgeoptError(
            f"the worker {address} has {what}, and this is edgeopt {mine}", remedy="install the same there"
        )
    if scheduler:
        say(f"dashboard {client.dashboard_link}")
    return client


def _listed(names: Sequence[str]) -> str:
    """Return names as a line shows them: a fleet may miss thousands."""
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {plural(more, 'other')}" if more > 0 else "")


def workers_of(client: Any) -> dict[str, Any]:
    """Return the workers of a cluster by their addresses, as the scheduler tells of them."""
    workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return workers
