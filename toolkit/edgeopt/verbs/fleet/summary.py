"""The lines and the page of a fleet."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable

from edgeopt.errors import EXIT_ERROR, EXIT_INTERRUPTED, WORD_OF
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.report.document import (
    CommandOutcome,
    Document,
    JudgedCase,
    Section,
    Table,
    Value,
    VerdictLines,
    make_table,
)
from edgeopt.system.text import format_bytes, format_score, plural
from edgeopt.verbs.fleet.result import LEAST_CHANGE, CellResult, FleetBundle, FleetResult, cost_of, grouped

_WORDS = {**WORD_OF, EXIT_ERROR: "ERROR", EXIT_INTERRUPTED: "CUT"}


def cell_line(cell: CellResult) -> str:
    """Return what a terminal shows as soon as a cell ends."""
    took = f" after {_took(cell)}" if cell.run else ""
    parts = [_chosen(cell), f"p50 {_ms(cell.p50_ms)} ms" if cell.p50_ms else "", cell.problem]
    details = "; ".join(part for part in parts if part)
    return f"{cell.name}: {_word(cell)}{took}" + (f", {details}" if details else "")


def summarize(result: FleetResult) -> Document:
    """Return what a reader sees: a row a cell, the best of each workload, what changed since the last run."""
    best = _best(result.cells)
    return Document(
        result,
        subject=result.name,
        title=f"Fleet {result.name}",
        sections=(
            Section(table=_table(result.cells)),
            Section(
                values=tuple(Value("error", f"{cell.name}: {cell.problem}") for cell in result.cells if cell.problem)
            ),
            Section("Best of each workload and device", table=best) if best.rows else Section(),
            Section(
                "One bundle for all devices",
                table=_bundles(result),
                values=tuple(Value(each.workload, f"none: {each.problem}") for each in result.bundles if each.problem),
            )
            if result.bundles
            else Section(),
            Section(
                "Since the last run",
                values=tuple(Value("changed", text) for text in result.changes()),
                text=f"Times that differ by less than {LEAST_CHANGE:g}x count as equal: the runs were not in turns.",
            )
            if result.changes()
            else Section(),
            Section("Devices", table=_used(result, "device"), is_detail=result.cost is None),
            Section("Cost of each workload", table=_used(result, "workload")) if result.cost is not None else Section(),
        ),
        verdict=_verdict(result),
        judgements=tuple(JudgedCase.by_exit(cell.name, cell.exit_code, cell_line(cell)) for cell in result.cells),
    )


def _table(cells: Iterable[CellResult]) -> Table:
    columns: dict[str, Callable[[CellResult], str]] = {
        "cell": lambda cell: cell.name,
        "result": _word,
        "chosen": _chosen,
        "speed": lambda cell: str(cell.best.speed) if cell.best and cell.best.speed else "",
        "p50 ms": lambda cell: _ms(cell.p50_ms),
        "accuracy": lambda cell: format_score(cell.score),
        "took": _took,
    }
    return make_table(cells, columns, words=["result", "chosen"], less=["took", "accuracy", "speed"])


def _best(cells: tuple[CellResult, ...]) -> Table:
    """Return the target of each workload and device whose chosen form has the shortest median frame."""
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for cell in cells:
        if cell.p50_ms is not None:
            groups.setdefault((cell.workload, cell.device), []).append(cell)
    best = [min(group, key=lambda cell: cell.p50_ms or 0.0) for group in groups.values()]
    slowest = {max(best, key=lambda cell: cell.p50_ms or 0.0).name} if len(best) > 1 else set[str]()
    columns: dict[str, Callable[[CellResult], str]] = {
        "workload": lambda cell: cell.workload,
        "device": lambda cell: cell.device,
        "target": lambda cell: cell.target,
        "chosen": _chosen,
        "p50 ms": lambda cell: _ms(cell.p50_ms),
        "": lambda cell: "slowest" if cell.name in slowest else "",
    }
    return make_table(best, columns, words=["device", "target", "chosen", ""])


def _bundles(result: FleetResult) -> Table:
    columns: dict[str, Callable[[FleetBundle], str]] = {
        "workload": lambda each: each.workload,
        "targets": lambda each: str(len(each.targets)),
        "size": lambda each: format_bytes(each.size_bytes),
        "folder": lambda each: str(each.folder),
    }
    return make_table([each for each in result.bundles if each.folder], columns, words=["folder"])


def _used(result: FleetResult, by: str) -> Table:
    """Return how long each device was used in this run or each workload took, and what that costs."""
    cells_of = grouped(result.cells, by)
    columns: dict[str, Callable[[str], str]] = {by: lambda name: name}
    if by == "device":
        columns["processor"] = lambda name: ", ".join(dict.fromkeys(filter(None, map(_processor, cells_of[name]))))
    columns["cells"] = lambda name: str(len(cells_of[name]))
    columns["minutes"] = lambda name: f"{sum(cell.device_s for cell in cells_of[name]) / 60:.1f}"
    if result.cost is not None:
        columns["cost"] = lambda name: _money(cost_of(cells_of[name]))
    return make_table(cells_of, columns, words=["processor"])


def _cost(result: FleetResult) -> str:
    """Return the price of the run, and which of its hours have none."""
    unpriced = {cell.device for cell in result.cells if cell.cost is None}
    hours = sum(cell.device_s for cell in result.cells) / 3600
    without = f", without a price those of {plural(len(unpriced), 'device')}" if unpriced else ""
    return f"{_money(result.cost)} {CURRENCY}; {hours:.2f} device hours{without}"


def _money(cost: float | None) -> str:
    """Return an amount with two digits behind the point, or with the first two that count."""
    return "" if cost is None else f"{cost:.2f}" if cost >= 1 or not cost else f"{cost:.2g}"


def _verdict(result: FleetResult) -> VerdictLines:
    counts = Counter(map(_word, result.cells))
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    kept = sum(cell.is_kept for cell in result.cells)
    facts = [Value("report", str(result.folder / "fleet.html"))]
    facts += [Value("kept", f"{plural(kept, 'cell')} of an earlier run")] if kept else []
    facts += [Value("cost", _cost(result))] if result.cost is not None else []
    facts += [Value("overlap", f"{one} and {other} measured at one time") for one, other in result.overlaps]
    is_error = result.exit_code == EXIT_ERROR
    outcome = CommandOutcome.FAIL if is_error else CommandOutcome.by_exit(result.exit_code)
    first = next((cell for cell in result.cells if cell.report), None)
    following = f"edgeopt report {shlex.quote(str(result.folder / 'cells' / first.name))}" if first else ""
    return VerdictLines(outcome, f"{plural(len(result.cells), 'cell')}: {words}", tuple(facts), next_command=following)


def _word(cell: CellResult) -> str:
    return _WORDS.get(cell.exit_code, f"exit {cell.exit_code}")


def _chosen(cell: CellResult) -> str:
    best = cell.best
    return f"{best.name} ({best.executor}, {best.precision})" if best else ""


def _processor(cell: CellResult) -> str:
    """Return the name of the processor that measured, as the report tells it."""
    fact = cell.report.environment.facts.get("cpu.model") if cell.report else None
    return str(fact.value) if fact else ""


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _seconds(cell: CellResult) -> float:
    return cell.run.ended_s - cell.run.began_s if cell.run else 0.0


def _took(cell: CellResult) -> str:
    return f"{_seconds(cell):.0f} s" if cell.run else ""
