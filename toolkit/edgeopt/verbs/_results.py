"""Earlier results of `bench -o` in place of workloads, of any kind of workload: nothing runs."""

from __future__ import annotations

from collections.abc import Mapping

from edgeopt.errors import EdgeoptError
from edgeopt.measurement.compare.options import Contest
from edgeopt.system.declared.options import flags_of
from edgeopt.verbs._perform import is_result, require_two
from edgeopt.workloads import kind_of, kinds

_TAKEN = ("margin", "out")
"""Options of `compare` that do not say how something runs."""


def are_results(sources: tuple[str, ...]) -> bool:
    """Return whether all sources are earlier results; False: none is.

    Raises:
        EdgeoptError: If results and workloads are mixed, or one is not there.
    """
    results = [source for source in sources if is_result(source)]
    others = [source for source in sources if source not in results]
    if results and others:
        kind_of(others[0]).require(others[0])
        raise EdgeoptError(
            f"{results[0]} is an earlier result and {others[0]} is a model",
            remedy="name models only, so that they run in turns, or results only",
        )
    return bool(results)


def options_for_results(sources: tuple[str, ...], options: object, values: Mapping[str, object]) -> Contest:
    """Return the options of a comparison of earlier results.

    Raises:
        EdgeoptError: If there are fewer than two, or an option says how something runs.
    """
    require_two(sources)
    for kind in kinds():
        for name, flag in flags_of(kind.options["compare"]).items() if "compare" in kind.options else ():
            if name in values and name not in _TAKEN:
                problem = f"{flag} is for what runs, and {sources[0]} is an earlier result"
                raise EdgeoptError(problem, remedy=f"leave {flag} out, or name models")
    chosen: Contest = kinds()[-1].make_options("compare", values, options)
    return chosen
