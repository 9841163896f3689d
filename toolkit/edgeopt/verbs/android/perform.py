"""A command that measures on a phone, from its options to its result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.measurement.bench import summary as bench_summary
from edgeopt.measurement.bench.options import BenchOptions
from edgeopt.measurement.bench.stored import is_stored
from edgeopt.measurement.compare import summary as compare_summary
from edgeopt.measurement.compare.options import CompareOptions
from edgeopt.runtime.bundle import is_bundle
from edgeopt.system.declared.options import default_of, options_of
from edgeopt.verbs._perform import Performed, prepare, require_two
from edgeopt.verbs.android import require_measuring, serial_in
from edgeopt.verbs.android.bench import bench_there
from edgeopt.verbs.android.compare import compare_there
from edgeopt.verbs.android.phone import Phone, Tell
from edgeopt.verbs.android.subject import SubjectWishes

_OPENED = frozenset({"target", "recipe", "threads", "source", "shapes", "seed", "seconds", "out"})
_TAKEN: Mapping[str, frozenset[str]] = {
    "bench": _OPENED | {"min_frames", "minutes", "budget_ms", "max_miss_ratio", "spin"},
    "compare": _OPENED | {"margin"},
}
"""Options that mean the same on a phone, by verb."""


def perform_on_phone(
    verb: str, sources: tuple[str, ...], values: Mapping[str, Any], address: str, tell: Tell
) -> Performed:
    """Measure on a phone.

    Args:
        verb: `bench` or `compare`.
        sources: What it is pointed at.
        values: Options that differ from the defaults, by field.
        address: Of the phone.
        tell: Hears progress.

    Raises:
        EdgeoptError: If the verb or an option is not for phones, or it cannot be measured there.
    """
    require_measuring(verb, address)
    if verb == "compare":
        require_two(sources)
    kind, options = prepare(verb, sources, None, values)
    # a pipeline has its recipes itself: whose options name one is a single model
    if not isinstance(options, BenchOptions | CompareOptions) or not hasattr(options, "recipe"):
        raise UnsupportedError(
            f"{sources[0]} is {kind.noun}, and edgeopt-runner times single models of frames on a phone",
            remedy="measure it here, or on a device behind ssh",
        )
    _require_taken(options, _TAKEN[verb])
    if stored := next((name for name in sources if is_stored(Path(name)) and not is_bundle(Path(name))), ""):
        raise EdgeoptError(f"{stored} is an earlier result, which runs nowhere", remedy="leave --on out")
    chosen: Any = options
    entries = options.entries if isinstance(options, BenchOptions) else {}
    wishes = SubjectWishes(chosen.target, chosen.recipe, options.threads, options.source, options.shapes, entries)
    connect = partial(Phone, serial_in(address), tell)
    if isinstance(options, CompareOptions):
        return Performed(compare_there(connect, sources, wishes, options, tell), compare_summary.summarize)
    result = bench_there(connect, sources[0], wishes, options, chosen.out, tell)
    return Performed(result, bench_summary.summarize)


def _require_taken(options: Any, taken: frozenset[str]) -> None:
    """Raise where an option is for this machine alone.

    Raises:
        UnsupportedError: If so.
    """
    for name, each in options_of(type(options)):
        if name not in taken and getattr(options, name) != default_of(type(options), name):
            raise UnsupportedError(
                f"{each.flags[0]} has no meaning on a phone, where edgeopt-runner runs one frame after the other",
                remedy="leave it out, or name a device behind ssh",
            )
