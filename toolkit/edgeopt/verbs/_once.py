"""`bench`, `check` and `compare`, which are written once, over what a kind opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgeopt.measurement.bench.block import BenchOfKind
from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.bench.run import bench as bench_block
from edgeopt.measurement.bench.summary import summarize as summarize_bench
from edgeopt.measurement.check import summary as check_summary
from edgeopt.measurement.check.result import CheckReport
from edgeopt.measurement.check.run import check as check_sides
from edgeopt.measurement.compare import stored
from edgeopt.measurement.compare import summary as compare_summary
from edgeopt.measurement.compare.result import Comparison
from edgeopt.measurement.compare.run import compare as compare_sides
from edgeopt.verbs._perform import Performed, prepare, prepare_sides
from edgeopt.verbs._results import are_results, options_for_results

Tell = Callable[[str, int, int], None]


def benched(source: str, options: object, wishes: Mapping[str, object], tell: Tell | None) -> Performed[BenchResult]:
    """Do what `bench` does, and say how it is shown."""
    kind, chosen = prepare("bench", (source,), options, wishes)
    module = kind.module("bench")
    return shown(bench_block(module, source, chosen, tell), module)


def shown(result: BenchResult, module: BenchOfKind) -> Performed[BenchResult]:
    """Return a result of `bench` and how it is shown."""
    return Performed(result, lambda measured: summarize_bench(measured, module))


def checked(source: str, options: object, wishes: Mapping[str, object], tell: Tell | None) -> Performed[CheckReport]:
    """Do what `check` does, and say how it is shown."""
    kind, chosen = prepare("check", (source,), options, wishes)
    report = check_sides(
        kind.module("check"), source, chosen, tell, kind=kind.name, noun=kind.noun, own_checks=kind.checks
    )
    return Performed(report, check_summary.summarize)


def compared(
    sources: tuple[str, ...], options: object, wishes: Mapping[str, object], tell: Tell | None
) -> Performed[Comparison]:
    """Do what `compare` does, and say how it is shown."""
    if are_results(sources):
        taken = options_for_results(sources, options, wishes)
        name = stored.kind_of_results(sources)
        return Performed(compare_sides(stored, sources, taken, tell, kind=name), compare_summary.summarize)
    kind, chosen = prepare_sides(sources, options, wishes)
    result = compare_sides(kind.module("compare"), sources, chosen, tell, kind=kind.name)
    return Performed(result, compare_summary.summarize)
