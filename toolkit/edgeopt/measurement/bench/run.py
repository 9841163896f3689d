"""`bench`: a workload of any kind is opened, timed under its load, and what was seen is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeopt.measurement.bench.block import BenchOfKind
from edgeopt.measurement.bench.result import BenchResult
from edgeopt.measurement.bench.stored import RESULT
from edgeopt.measurement.bench.summary import summarize
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Tell
from edgeopt.report.formats import write_pages
from edgeopt.system.disk.files import require_writable, write_beside


def bench(kind: BenchOfKind, source: str, options: Any, tell: Tell | None = None) -> BenchResult:
    """Measure a workload.

    Args:
        kind: Opens it.
        source: As the user named it.
        options: What to measure, the kind's own dataclass; with `out`, the folder for the result.
        tell: Hears progress.

    Raises:
        EdgeoptError: If something cannot be opened, written or measured.
    """
    if options.out is not None:
        require_writable(options.out / RESULT)
    with kind.prepare(source, options) as block:
        result = block.run(tell)
    if options.out is not None:
        write(result, kind, options.out)
    return result


def write(result: BenchResult, kind: BenchOfKind, folder: Path) -> None:
    """Write the raw samples first: a summary without them is no result."""
    for name, raw in result.raw_files().items():
        if isinstance(raw, Samples):
            raw.save(folder / name)
        else:
            write_beside(folder / name, raw)
    write_pages(summarize(result, kind), folder, "bench")
