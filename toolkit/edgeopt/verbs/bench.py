"""`bench`: how fast a workload is, part by part, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from edgeopt.measurement.bench.result import BenchResult
from edgeopt.verbs._once import benched
from edgeopt.verbs._perform import with_options_of_kinds
from edgeopt.verbs.wishes import BenchWishes

Tell = Callable[[str, int, int], None]


@with_options_of_kinds("bench")
def bench(
    workload: str | Path,
    *,
    options: object = None,
    on: str | None = None,
    tell: Tell | None = None,
    **wishes: Unpack[BenchWishes],
) -> BenchResult:
    """Measure a workload on this machine, or on a device elsewhere.

    Args:
        workload: An ONNX file, a bundle, a shipped model's name, a pipeline, or the address of a server.
        options: What to measure, the dataclass of its kind; None: all defaults.
        on: The device that does it, `ssh://USER@HOST` or `adb://SERIAL`; None: this machine.
        tell: Hears progress: what, how much is done, of how much.
        **wishes: Fields of the options that differ, such as `load="fps:30", budget_ms=33`.

    Returns:
        A `BenchResult`, with the figures of its kind.

    Raises:
        EdgeoptError: If something cannot be used, wishes contradict each other, or are for another kind.
    """
    if on:
        from edgeopt.verbs.remote.elsewhere import RemoteCall, result_on

        remote: BenchResult = result_on(RemoteCall("bench", (str(workload),), options, wishes, on), tell)
        return remote
    return benched(str(workload), options, wishes, tell).result
