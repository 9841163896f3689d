"""The Dask cluster of a fleet: one of this machine, a worker for each device, or any that a scheduler leads.

A device is a resource of which a worker has one, so that one cell at a time measures on it. Each worker of our own
offers one device, and one of somebody else's that offers several is refused: a task may stay behind there though its
resource is free (dask/distributed#6136).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.system.cluster.dask import dashboard_of, dask_client, version, workers_of
from edgeopt.system.text import plural, short
from edgeopt.verbs.fleet import PURPOSE

_WORKERS_S = 60.0
"""Seconds in which workers come."""
_LOOK_S = 0.2
_MOST_LISTED = 10


@contextmanager
def open_cluster(scheduler: str, devices: Sequence[str], say: Callable[[str], None]) -> Iterator[Any]:
    """Yield a client of a cluster in which a worker offers each device.

    Args:
        scheduler: Address; empty: workers are started here.
        devices: Names of the resources.
        say: Tells one line.

    Raises:
        MissingDependencyError: If distributed is not installed.
        UnavailableError: If no scheduler answers, or no worker offers a device.
        EdgeoptError: If a worker offers several of the devices, or has another edgeopt.
    """
    own = {device: {device: 1} for device in devices}
    with dask_client(scheduler, own, PURPOSE, shows_dashboard=True) as client:
        yield _ready(client, devices, scheduler, say)


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
    _require_one_each(client, devices)
    mine = version()
    others = {address: key for address, key in client.run(version, on_error="return").items() if key != mine}
    for address, key in others.items():
        what = f"edgeopt {key}" if isinstance(key, str) else f"none that answers ({short(str(key))})"
        raise EdgeoptError(
            f"the worker {address} has {what}, and this is edgeopt {mine}", remedy="install the same there"
        )
    if address := dashboard_of(client):
        say(f"dashboard {address}")
    return client


def _require_one_each(client: Any, devices: Sequence[str]) -> None:
    """Refuse a worker on which a cell of one device would wait for that of another.

    Raises:
        EdgeoptError: If a worker offers several of the devices.
    """
    for address, worker in workers_of(client).items():
        offered = [device for device in devices if device in worker.get("resources", {})]
        if len(offered) > 1:
            raise EdgeoptError(
                f"the worker {address} offers {_listed(offered)}: Dask may let cells of one wait for those of another",
                remedy=f'start a worker for each device: --nthreads 1 --resources "{offered[0]}=1"',
            )


def _listed(names: Sequence[str]) -> str:
    """Return names as a line shows them: a fleet may miss thousands."""
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {plural(more, 'other')}" if more > 0 else "")
