"""`optimize`: make a workload fast on a device, and prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from edgeopt.errors import EdgeoptError
from edgeopt.report.result import Result
from edgeopt.verbs._perform import perform, with_options_of_kinds
from edgeopt.verbs.wishes import OptimizeWishes

if TYPE_CHECKING:
    from edgeopt.steps._context import Listener


@with_options_of_kinds("optimize")
def optimize(
    workload: str | Path,
    *,
    options: object = None,
    on: str | None = None,
    search_there: bool = False,
    listener: Listener | None = None,
    **wishes: Unpack[OptimizeWishes],
) -> Result:
    """Make a workload fast on a target, measure it, and write candidates, bundle and report.

    Args:
        workload: An ONNX file, a shipped model's name, a source that `edgeopt export` takes, or a `pipeline.toml`.
        options: What to do, the dataclass of its kind; None: all defaults.
        on: The device that measures and chooses, `ssh://USER@HOST` or `adb://SERIAL`; candidates are made here. None:
            this machine.
        search_there: Whether candidates are made on that device too.
        listener: Hears progress, and lines.
        **wishes: Fields of the options that differ, such as `calib="pictures/", budget_ms=33`.

    Returns:
        The report of its kind.

    Raises:
        EdgeoptError: On what the user can mend before work begins, or where nothing can be written.
    """
    values: dict[str, object] = {"target": "cpu", **wishes}
    if on:
        from edgeopt.verbs.remote.elsewhere import RemoteCall, result_on

        remote: Result = result_on(
            RemoteCall("optimize", (str(workload),), options, values, on, search_there), listener=listener
        )
        return remote
    if search_there:
        raise EdgeoptError("search_there= is for a device elsewhere", remedy="name it: on='ssh://USER@HOST'")
    return perform("optimize", str(workload), options, values, listener).result
