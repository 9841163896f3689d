"""The result of a fleet: what became of each cell, and what the last run made of the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from edgeopt.errors import EXIT_ERROR, EXIT_PASS, WORD_OF, EdgeoptError
from edgeopt.measurement.resources.cost import cloud_per_s
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.result import ModelReport
from edgeopt.report.result import Result
from edgeopt.system.text import format_score
from edgeopt.system.toml import read_json
from edgeopt.verbs.fleet.work import CellRun

RESULT = "fleet"
"""Name of the files of figures."""
_ORDER = (EXIT_ERROR, 2, 3, 4, EXIT_PASS)
"""Exit codes of cells, what counts for the whole first."""
_ERROR = "error:"
"""Beginning of the line with which a command says why it failed."""
LEAST_CHANGE = 1.1
"""Two runs of a fleet are days apart and not in turns: times that differ by less are taken for equal."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell that ended."""

    name: str
    workload: str
    device: str
    target: str
    run: CellRun | None
    """None: it never came to an end."""
    report: ModelReport | None
    """None where the kind writes another, or the command failed."""
    problem: str
    """Why there is no result; empty where there is one."""
    is_kept: bool = False
    """Whether an earlier run of the fleet made it, or another cell of the same command: it took no time of its own."""
    price_per_h: float | None = None
    """Price of an hour of its device; None: nobody says."""

    @property
    def exit_code(self) -> int:
        """The exit code of its command; 1 where it never ended."""
        return EXIT_ERROR if self.run is None else self.run.code

    @property
    def best(self) -> Candidate | None:
        """The chosen candidate, where a report tells of one."""
        return self.report.best if self.report else None

    @property
    def p50_ms(self) -> float | None:
        """The median time of a frame as the bundle computes it; None where nothing was measured."""
        return self.report.latency.frame.p50_ms if self.report and self.report.latency else None

    @property
    def score(self) -> float | None:
        """The metric of the chosen candidate on the labels; None without."""
        return self.best.score.value if self.best and self.best.score else None

    @property
    def device_s(self) -> float:
        """Seconds for which this run of the fleet held the device; of a kept cell none, nor of one without an end."""
        return self.run.ended_s - self.run.began_s if self.run and not self.is_kept else 0.0

    @property
    def cost(self) -> float | None:
        """The price of these seconds; None: nobody says what the device costs."""
        return None if self.price_per_h is None else cloud_per_s(self.price_per_h) * self.device_s

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        run, best = self.run, self.best
        return {
            "name": self.name,
            "workload": self.workload,
            "device": self.device,
            "target": self.target,
            "exit_code": self.exit_code,
            "problem": self.problem,
            "kept": self.is_kept,
            "chosen": best.name if best else None,
            "precision": best.precision if best else None,
            "executor": best.executor if best else None,
            "speedup": best.speed.speedup if best and best.speed else None,
            "p50_ms": self.p50_ms,
            "score": self.score,
            "worker": run.worker if run else None,
            "machine": run.machine if run else None,
            "processor": run.processor if run else None,
            "waited_s": run.waited_s if run else None,
            "began_s": run.began_s if run else None,
            "ended_s": run.ended_s if run else None,
            "device_s": self.device_s,
            "cost": self.cost,
        }


@dataclass(frozen=True, slots=True)
class FleetBundle:
    """One bundle for a workload, for all targets of all devices."""

    workload: str
    folder: Path | None = None
    """None: it could not be made."""
    targets: tuple[str, ...] = ()
    """Names of the targets that it is for, with their devices."""
    size_bytes: int = 0
    problem: str = ""
    """Why there is none."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "folder": str(self.folder) if self.folder else None, "targets": [*self.targets]}


@dataclass(frozen=True, slots=True)
class FleetResult(Result):
    """All cells of a fleet."""

    command: ClassVar[str] = "fleet"

    name: str
    folder: Path
    cells: tuple[CellResult, ...]
    before: Mapping[str, Mapping[str, Any]]
    """Account of each cell from the fleet's last run, by the cell's name."""
    bundles: tuple[FleetBundle, ...] = ()
    """One of each workload of which a cell left a bundle."""

    @property
    def exit_code(self) -> int:
        """The first of 1, 2, 3, 4 that a cell ended with, any other taken for 1; 0 where all ended with 0."""
        codes = {cell.exit_code if cell.exit_code in _ORDER else EXIT_ERROR for cell in self.cells}
        return next((code for code in _ORDER if code in codes), EXIT_ERROR)

    @property
    def verdict_word(self) -> str:
        """PASS where all cells ended with 0; FAIL where one missed its budget or failed; else not decided."""
        return WORD_OF.get(self.exit_code, "FAIL")

    @property
    def overlaps(self) -> tuple[tuple[str, str], ...]:
        """Pairs of cells that measured on one device at the same time: there should be none."""
        by_device: dict[str, list[tuple[int, CellRun]]] = {}
        for place, cell in enumerate(self.cells):
            if cell.run and not cell.is_kept:
                by_device.setdefault(cell.device, []).append((place, cell.run))
        pairs = sorted(pair for ran in by_device.values() for pair in _overlapping(ran))
        return tuple((self.cells[first].name, self.cells[second].name) for first, second in pairs)

    @property
    def cost(self) -> float | None:
        """The price of this run, of all devices that have one; None: none has."""
        return cost_of(self.cells)

    def changes(self) -> tuple[str, ...]:
        """Return what differs from the last run, a sentence each: slower and less accurate cells first."""
        lines = [(worse, text) for cell in self.cells for worse, text in _changes(cell, self.before.get(cell.name))]
        return tuple(text for _, text in sorted(lines, key=lambda line: not line[0]))

    def own_figures(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "fleet": self.name,
            "cells": [cell.as_json() for cell in self.cells],
            "cost": self.cost,
            "devices": self._sums("device"),
            "workloads": self._sums("workload"),
            "bundles": [bundle.as_json() for bundle in self.bundles],
        }

    def _sums(self, by: str) -> dict[str, Any]:
        return {
            name: {"device_s": sum(cell.device_s for cell in cells), "cost": cost_of(cells)}
            for name, cells in grouped(self.cells, by).items()
        }


def grouped(cells: Iterable[CellResult], by: str) -> dict[str, list[CellResult]]:
    """Return cells by their `device` or their `workload`, in one pass: a night may have 100,000."""
    groups: dict[str, list[CellResult]] = {}
    for cell in cells:
        groups.setdefault(getattr(cell, by), []).append(cell)
    return groups


def cost_of(cells: Iterable[CellResult]) -> float | None:
    """Return the price of cells, without those whose device has none; None: none has."""
    costs = [cell.cost for cell in cells if cell.cost is not None]
    return sum(costs) if costs else None


def _overlapping(runs: list[tuple[int, CellRun]]) -> Iterator[tuple[int, int]]:
    """Yield the places of each two cells of one device that ran at one time.

    In the order of their beginnings a cell is compared with those that have not ended yet, of which there should be
    none: comparing all pairs would be five thousand million comparisons of 100,000 cells.
    """
    running: list[tuple[int, CellRun]] = []
    for place, run in sorted(runs, key=lambda each: each[1].began_s):
        running = [each for each in running if each[1].ended_s > run.began_s]
        yield from ((min(other, place), max(other, place)) for other, before in running if _overlap(before, run))
        running.append((place, run))


def _overlap(first: CellRun, second: CellRun) -> bool:
    return first.began_s < second.ended_s and second.began_s < first.ended_s


def _changes(cell: CellResult, before: Mapping[str, Any] | None) -> list[tuple[bool, str]]:
    """Return sentences, each with whether it is for the worse."""
    if before is None or cell.is_kept:
        return []
    lines = list[tuple[bool, str]]()
    p50_ms, was_ms = cell.p50_ms, before.get("p50_ms")
    if p50_ms and was_ms and max(p50_ms / was_ms, was_ms / p50_ms) > LEAST_CHANGE:
        word = "slower" if p50_ms > was_ms else "faster"
        lines.append((p50_ms > was_ms, f"{cell.name} is {word}: {p50_ms:.2f} ms, was {was_ms:.2f}"))
    score, was = cell.score, before.get("score")
    if score is not None and was is not None and score != was:
        lines.append((score < was, f"{cell.name} scores {format_score(score)}, was {format_score(was)}"))
    if cell.exit_code != (code := before.get("exit_code")) and isinstance(code, int):
        lines.append((cell.exit_code != EXIT_PASS, f"{cell.name} ends with {cell.exit_code}, was {code}"))
    return lines


def read_before(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return what the last run in a folder told of its cells; nothing where there was none."""
    try:
        values = read_json(folder / f"{RESULT}.json", remedy="")
        return {str(cell["name"]): cell for cell in values["cells"]}
    except (EdgeoptError, KeyError, TypeError):
        return {}


def result_of(
    names: Sequence[str],
    folder: Path,
    run: CellRun | None,
    problem: str = "",
    *,
    is_kept: bool = False,
    price_per_h: float | None = None,
) -> CellResult:
    """Return the result of a cell that lies in a folder.

    Args:
        names: Of the cell, its workload, device and target.
        folder: With its report, where its command wrote one.
        run: How it ran; None: it never ended.
        problem: Why not.
        is_kept: Whether an earlier run made it, or another cell of the same command.
        price_per_h: Price of an hour of its device; None: nobody says.
    """
    report = None
    if run is not None:
        try:
            report = read_report(folder, ModelReport)
        except EdgeoptError:
            problem = problem or (_problem_in(run.lines) if run.code == EXIT_ERROR else "")
    name, workload, device, target = names
    return CellResult(name, workload, device, target, run, report, problem, is_kept, price_per_h)


def _problem_in(lines: Sequence[str]) -> str:
    """Return the error that a command ended with, of the last lines that it said; else the last of them."""
    begins = [i for i, line in enumerate(lines) if line.startswith(_ERROR)]
    ends = lines[begins[-1] :] if begins else lines[-1:]
    return " ".join(line.strip() for line in ends).removeprefix(_ERROR).strip()
