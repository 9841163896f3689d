"""`compare`: which of several workloads is faster, proven, and what it loses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from edgeopt.measurement.compare.result import Comparison
from edgeopt.verbs._once import compared
from edgeopt.verbs._perform import prepare_sides, with_options_of_kinds
from edgeopt.verbs.wishes import CompareWishes

Tell = Callable[[str, int, int], None]


@with_options_of_kinds("compare")
def compare(
    *workloads: str | Path,
    options: object = None,
    on: str | None = None,
    tell: Tell | None = None,
    **wishes: Unpack[CompareWishes],
) -> Comparison:
    """Compare workloads with the first of them, in turns.

    Args:
        *workloads: Two or more of one kind, or a language model beside `rivals`; or two or more results of `bench`.
        options: What to measure, the dataclass of their kind; None: all defaults.
        on: The device that does it, `ssh://USER@HOST` or `adb://SERIAL`; None: this machine.
        tell: Hears progress.
        **wishes: Fields of the options that differ, such as `seconds=60`.

    Returns:
        The comparison of their kind.

    Raises:
        EdgeoptError: If there are fewer than two, they are of two kinds, or one cannot be used.
    """
    sources = tuple(map(str, workloads))
    if on:
        from edgeopt.verbs.remote.elsewhere import RemoteCall, result_on

        prepare_sides(sources, options, wishes)
        remote: Comparison = result_on(RemoteCall("compare", sources, options, wishes, on), tell)
        return remote
    return compared(sources, options, wishes, tell).result
