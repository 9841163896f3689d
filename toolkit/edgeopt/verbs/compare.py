"""`compare`: which of several workloads is faster, proven, and what it loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Unpack

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.compare.run import compare as compare_sides
from edgeopt.measurement.compare.summary import summarize
from edgeopt.verbs._perform import Performed, Result, prepare, with_options_of_kinds
from edgeopt.verbs.wishes import CompareWishes

Tell = Callable[[str, int, int], None]


@with_options_of_kinds("compare")
def compare(
    *workloads: str | Path, options: object = None, tell: Tell | None = None, **wishes: Unpack[CompareWishes]
) -> Result:
    """Compare workloads with the first of them, in turns.

    Args:
        *workloads: Two or more of one kind; or two or more results of `bench`.
        options: What to measure, the dataclass of their kind; None: all defaults.
        tell: Hears progress.
        **wishes: Fields of the options that differ, such as `seconds=60`.

    Returns:
        The comparison of their kind.

    Raises:
        EdgeoptError: If fewer than two are named, they are of two kinds, or one cannot be used.
    """
    return compared(tuple(map(str, workloads)), options, wishes, tell).result


def compared(sources: tuple[str, ...], options: object, wishes: Mapping[str, object], tell: Tell | None) -> Performed:
    """Do what `compare` does, and say how it is shown."""
    require_two(sources)
    kind, chosen = prepare("compare", sources, options, wishes)
    return Performed(compare_sides(kind.module("compare"), sources, chosen, tell), summarize)


def require_two(sources: tuple[str, ...]) -> None:
    """Raise where there is nothing to compare.

    Raises:
        EdgeoptError: If fewer than two are named.
    """
    if len(sources) < 2:
        raise EdgeoptError(
            f"a comparison needs two, {len(sources)} given",
            remedy="name the model to compare with first, then the others; edgeopt bench measures one",
        )
