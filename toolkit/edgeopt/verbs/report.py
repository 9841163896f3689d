"""`report`: what earlier runs of `optimize` or `bench` wrote, of any kind of workload; or several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_PASS, EdgeoptError, InvalidFileError
from edgeopt.measurement.bench.stored import is_stored
from edgeopt.optimization.report.result import is_report, read_values, report_of
from edgeopt.optimization.report.runs import read_runs
from edgeopt.optimization.report.runs_summary import summarize_runs
from edgeopt.report.document import Document
from edgeopt.system.text import short
from edgeopt.verbs._perform import result_type
from edgeopt.workloads import Kind, kinds


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report that is shown again."""

    document: Document
    exit_code: int
    pictures: Path | None = None
    """Folder of the one run it is of, where its page and pictures lie; None: of several."""


def read_stored_report(folders: Sequence[Path], results: Sequence[Path] = ()) -> StoredReport:
    """Read what earlier runs wrote.

    Args:
        folders: Output folders of `optimize` or `bench -o`, one or more.
        results: Results of a device, which are joined with the first folder where it is the only one.

    Raises:
        EdgeoptError: If a folder holds no report, or these cannot be shown together.
    """
    first, *others = folders
    by_folder = {folder: read_values(folder) for folder in folders if is_report(folder)}
    kinds_by_folder = {folder: _kind_of(folder, values) for folder, values in by_folder.items()}
    if results or others:
        alone = next((kind for kind in kinds_by_folder.values() if kind.part("report") is None), None)
        if alone is not None:
            raise EdgeoptError(f"the report of {alone.noun} is shown alone", remedy="name one FOLDER, without --merge")
    if others or (not results and first not in by_folder and is_stored(first)):
        runs = read_runs(folders, lambda folder: _own(kinds_by_folder[folder]).earlier_run(folder))
        return StoredReport(summarize_runs(runs), EXIT_PASS)
    values = by_folder.get(first) or read_values(first)
    kind = kinds_by_folder.get(first) or _kind_of(first, values)
    if results:
        report = _own(kind).merge_results(first, results)
    else:
        report = report_of(first, values, result_type(kind, "optimize"))
    return StoredReport(kind.module("optimize").summarize(report), report.exit_code, first)


def _own(kind: Kind) -> Any:
    """Return the kind's own file of `report`."""
    return kind.part("report")


def _kind_of(folder: Path, values: Mapping[str, Any]) -> Kind:
    """Return the kind of workload that a report is of.

    Raises:
        InvalidFileError: If this machine has no such kind.
    """
    kind = next((kind for kind in kinds() if kind.name == values["kind"]), None)
    if kind is None:
        problem = f"{folder} holds a report of the kind {short(values['kind'])}, which is not installed here"
        raise InvalidFileError(problem, remedy="install the package of that kind of workload")
    return kind
