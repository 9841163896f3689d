"""`report` of a model that answers frames: joined with what `bench` measured on a device, and beside other runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edgeopt.errors import InvalidFileError, Note, NoteKind
from edgeopt.measurement.bench.stored import StoredResult, read_stored
from edgeopt.optimization.candidates.measure import latency_of
from edgeopt.optimization.report.charts import samples_of
from edgeopt.optimization.report.result import read_report
from edgeopt.optimization.report.runs import EarlierRun
from edgeopt.optimization.report.summary import write_report
from edgeopt.optimization.result import ModelReport
from edgeopt.runtime.bundle import read_bundle


def merge_results(folder: str | Path, results: Sequence[str | Path] = ()) -> ModelReport:
    """Return the report of an output folder, with the latencies of results that a device brought back.

    Args:
        folder: Of `edgeopt optimize`.
        results: What `edgeopt bench BUNDLE -o RESULT` wrote on the device; it must have measured the model of the
            bundle, on its engine. The report on disk is written again, unless there are none.

    Raises:
        InvalidFileError: If folder or result cannot be read, the result is of another model, or means nothing.
    """
    report = read_report(Path(folder), ModelReport)
    for result in results:
        report = _merged(report, read_stored(Path(result)))
    if results:
        write_report(report)
    return report


def _merged(report: ModelReport, result: StoredResult) -> ModelReport:
    if result.trust == "invalid":
        raise InvalidFileError(f"{result.path} is INVALID: its figures mean nothing", remedy="measure it again")
    _require_bundles_model(report, result)
    where = _fact(result, "cpu.model") or "the device"
    detail = f"latency measured on {where} ({result.trust}), {_fact(result, 'session.threads')} thread(s)"
    note = Note(NoteKind.INFO if result.trust == "trusted" else NoteKind.WARNING, detail)
    best, latency = report.best, latency_of(result.samples, report.budget_ms)
    timed = replace(best, latency=latency, notes=tuple(dict.fromkeys((*best.notes, note))))
    candidates = tuple(timed if candidate is best else candidate for candidate in report.candidates)
    kept = tuple(other for other in report.notes if not other.detail.startswith("latency not measured"))
    return replace(report, candidates=candidates, notes=kept, untimed="", measured_on=where, trust=result.trust.upper())


def _require_bundles_model(report: ModelReport, result: StoredResult) -> None:
    """Raise unless the bundle's own model was measured, on the engine that the bundle names for it."""
    bundle, measured = read_bundle(report.bundle), _fact(result, "model.sha256")
    first = bundle.artefacts[0]
    remedy = f"measure the bundle of this report on the device: edgeopt bench {report.bundle} -o RESULT"
    if measured != first.sha256:
        what = next(
            (f"its {artefact.file}" for artefact in bundle.artefacts if artefact.sha256 == measured), "another model"
        )
        raise InvalidFileError(f"{result.path} measured {what}, not {first.file} of {report.bundle}", remedy=remedy)
    executor, providers = _fact(result, "session.executor"), _fact(result, "session.providers")
    if executor != first.executor or providers != str(list(first.providers)):
        wanted = f"{first.executor} {list(first.providers)}"
        raise InvalidFileError(f"{result.path} was measured on {executor} {providers}, not on {wanted}", remedy=remedy)


def _fact(result: StoredResult, key: str) -> str:
    fact = result.environment.facts.get(key)
    return "" if fact is None or fact.value is None else str(fact.value)


def earlier_run(folder: Path) -> EarlierRun:
    """Return the run of an output folder of `edgeopt optimize` as it stands beside others.

    Raises:
        InvalidFileError: If the report cannot be read.
    """
    report = read_report(folder, ModelReport)
    best, latency = report.best, report.latency
    return EarlierRun(
        label="",
        folder=report.folder,
        command="optimize",
        kind=report.kind,
        model=report.model,
        target=report.target,
        device=report.measured_on or report.environment.cpu,
        threads=report.threads,
        budget_ms=report.budget_ms,
        environment=report.environment,
        trust=report.trust,
        latency=latency,
        verdict=latency.verdict if latency else "",
        samples=samples_of(report, best) if latency is best.latency else None,
        chosen=best.name,
        executor=f"{best.executor}, {best.precision}",
        accuracy=best.simulated or best.score,
        drop=best.drop,
        speed=f"{speed} {speed.verdict}" if (speed := report.deployed_speed) else "",
        size_bytes=best.size_bytes,
    )
