"""`check`: the regression gate, a workload against its baseline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from edgeopt.measurement.check.result import CheckReport
from edgeopt.verbs._once import checked
from edgeopt.verbs._perform import with_options_of_kinds
from edgeopt.verbs.wishes import CheckWishes

Tell = Callable[[str, int, int], None]


@with_options_of_kinds("check")
def check(
    workload: str | Path,
    *,
    options: object = None,
    on: str | None = None,
    tell: Tell | None = None,
    **wishes: Unpack[CheckWishes],
) -> CheckReport:
    """Check a workload against a baseline, or write the baseline from it.

    Args:
        workload: An ONNX file, a bundle, a shipped model's name.
        options: What is checked, the dataclass of its kind; None: all defaults.
        on: The device that does it, `ssh://USER@HOST` or `adb://SERIAL`; None: this machine.
        tell: Hears progress.
        **wishes: Fields of the options that differ: `baseline="baseline.json"`, `update=True`, `latency_ratio=1.1`.

    Returns:
        A `CheckReport`.

    Raises:
        EdgeoptError: If the baseline is missing or damaged, or the workload cannot be used.
    """
    if on:
        from edgeopt.verbs.remote.elsewhere import RemoteCall, result_on

        remote: CheckReport = result_on(RemoteCall("check", (str(workload),), options, wishes, on), tell)
        return remote
    return checked(str(workload), options, wishes, tell).result
