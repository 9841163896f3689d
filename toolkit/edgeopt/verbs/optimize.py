"""`optimize`: make a workload fast on a device, and prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from edgeopt.verbs._perform import Result, perform, with_options_of_kinds
from edgeopt.verbs.wishes import OptimizeWishes

if TYPE_CHECKING:
    from edgeopt.steps._context import Listener


@with_options_of_kinds("optimize")
def optimize(
    workload: str | Path,
    *,
    options: object = None,
    listener: Listener | None = None,
    **wishes: Unpack[OptimizeWishes],
) -> Result:
    """Make a workload fast on a target, measure it, and write candidates, bundle and report.

    Args:
        workload: An ONNX file, a shipped model's name, a source that `edgeopt export` takes, or a `pipeline.toml`.
        options: What to do, the dataclass of its kind; None: all defaults.
        listener: Hears progress.
        **wishes: Fields of the options that differ, such as `calib="pictures/", budget_ms=33`.

    Returns:
        The report of its kind.

    Raises:
        EdgeoptError: On what the user can mend before work begins, or where nothing can be written.
    """
    return perform("optimize", str(workload), options, {"target": "cpu", **wishes}, listener).result
