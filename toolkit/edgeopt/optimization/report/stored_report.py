"""The report of earlier runs, whatever wrote them: one of a model, one of a pipeline, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EXIT_PASS, EdgeoptError
from edgeopt.measurement.bench.stored import is_stored
from edgeopt.optimization.generation.result import LANGUAGE_RUN
from edgeopt.optimization.pipelines.result import is_joint_report, read_joint_report
from edgeopt.optimization.pipelines.summary import summarize as summarize_joint
from edgeopt.optimization.report.device_results import merge_results
from edgeopt.optimization.report.runs import is_report, read_runs
from edgeopt.optimization.report.runs_summary import summarize_runs
from edgeopt.optimization.report.summary import summarize
from edgeopt.report.document import Document


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
        folders: Of `optimize` or `bench -o`, one or more.
        results: Of a device, which are joined with the first folder where it is the only one.

    Raises:
        EdgeoptError: If a folder holds no report, or these cannot be shown together.
    """
    first, *others = folders
    if folder := next((path for path in folders if (path / LANGUAGE_RUN).is_file()), None):
        raise EdgeoptError(f"{folder} holds the report of a language model", remedy=f"open {folder / 'report.html'}")
    if any(map(is_joint_report, folders)):
        if results or others:
            raise EdgeoptError("the report of a pipeline is shown alone", remedy="name one FOLDER, without --merge")
        joint = read_joint_report(first)
        return StoredReport(summarize_joint(joint), joint.exit_code, first)
    if not others and (results or is_report(first) or not is_stored(first)):
        report = merge_results(first, results)
        return StoredReport(summarize(report), report.exit_code, first)
    return StoredReport(summarize_runs(read_runs(folders)), EXIT_PASS)
