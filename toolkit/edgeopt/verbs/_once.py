"""`bench`, `check` and `compare`, which are written once, over what a kind opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgeopt.measurement.bench.block import BenchOfKind
from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.bench.run import bench as bench_block
from edgeopt.measurement.bench.summary import summarize as summarize_bench
from edgeopt.measurement.check import summary as check_summary
from edgeopt.measurement.check.run import check as check_sides
from edgeopt.measurement.compare import summary as compare_summary
from edgeopt.measurement.compare.run import compare as compare_sides
from edgeopt.verbs._perform import Performed, prepare, prepare_sides

Tell = Callable[[str, int, int], None]


def benched(source: str, options: object, wishes: Mapping[str, object], tell: Tell | None) -> Performed:
    """Do what `bench` does, and say how it is shown."""
    kind, chosen = prepare("bench", (source,), options, wishes)
    module = kind.module("bench")
    return shown(bench_block(module, source, chosen, tell), module)


def shown(result: BenchResult, module: BenchOfKind) -> Performed:
    """Return a result of `bench` and how it is shown."""
    return Performed(result, lambda measured: summarize_bench(measured, module))


def checked(source: str, options: object, wishes: Mapping[str, object], tell: Tell | None) -> Performed:
    """Do what `check` does, and say how it is shown."""
    kind, chosen = prepare("check", (source,), options, wishes)
    report = check_sides(kind.module("check"), source, chosen, tell, noun=kind.noun, names=kind.checks)
    return Performed(report, check_summary.summarize)


def compared(sources: tuple[str, ...], options: object, wishes: Mapping[str, object], tell: Tell | None) -> Performed:
    """Do what `compare` does, and say how it is shown."""
    kind, chosen = prepare_sides(sources, options, wishes)
    return Performed(compare_sides(kind.module("compare"), sources, chosen, tell), compare_summary.summarize)
