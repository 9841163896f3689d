"""The result of `optimize` of a single model as a document."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.statistics.quantile import StageTime
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.report.charts import key_figures, overview, stage_charts
from edgeopt.optimization.report.columns import (
    Columns,
    frame_columns,
    make_document,
    make_frames_table,
    ms_or_none,
    write_document,
)
from edgeopt.optimization.report.detail_charts import answers, layer_chart, placement_map
from edgeopt.optimization.report.frontier import pruning_sections, removed_words
from edgeopt.optimization.report.training_charts import training_charts
from edgeopt.optimization.report.verdict import judge, judgements_of
from edgeopt.optimization.result import ModelReport
from edgeopt.report.document import Document, Section, Table, Value
from edgeopt.steps.quantize.inspection.table import COLUMNS, TENSORS, timed_layers, worst_tensors
from edgeopt.system.machine.affinity import threads_in_words
from edgeopt.system.text import format_bytes, format_score, plural

_SHOWN_FROM = 0.01
"""Share of the frame from which a stage gets a column."""


def summarize(report: ModelReport) -> Document:
    """Return what a reader sees: candidates, stages, notes, then in detail what each candidate is."""
    sections = [
        Section(table=make_frames_table(report, _columns(report)), values=_refused(report), figures=overview(report)),
        Section(_stage_title(report), make_frames_table(report, _stage_columns(report)), figures=stage_charts(report))
        if _is_timed(report)
        else Section(),
        *pruning_sections(report),
        Section("Training", figures=training_charts(report), is_detail=True),
        Section("Answers", figures=answers(report), is_detail=True),
        Section("Placement", figures=placement_map(report, report.best), is_detail=True),
        Section("Notes", notes=_shared_notes(report, NoteKind.WARNING, NoteKind.SKIPPED)),
        Section("Why", values=_why(report), notes=_shared_notes(report, NoteKind.CHOICE), is_detail=True),
        _tensors(report),
        Section("How to read it", text=_reading(report), is_detail=True),
        *(_candidate(report, candidate) for candidate in report.candidates),
        Section("Where this was measured", values=_facts(report), notes=_infos(report), is_detail=True),
    ]
    return make_document(
        report, sections, judge(report), key_figures=key_figures(report), judgements=judgements_of(report)
    )


def write_report(report: ModelReport) -> None:
    """Write `report.json`, `report.md` and what other formats have a file, into the output folder.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    write_document(report, summarize(report))


def candidate_line(candidate: Candidate) -> str:
    """Return one line about a candidate that was just made."""
    score = candidate.score.short if candidate.score else ""
    simulated = f"{format_score(candidate.simulated.value)} with the device's numbers" if candidate.simulated else ""
    parts = (f"{format_bytes(candidate.size_bytes):>8}", score, simulated, candidate.placement, candidate.unfit)
    resumed = "from disk" if candidate.is_resumed else ""
    return f"{candidate.name:<14}  {'  '.join(part for part in (*parts, resumed) if part)}"


def _columns(report: ModelReport) -> Columns[Candidate]:
    def mark(candidate: Candidate) -> str:
        return "chosen" if candidate.name == report.chosen else "front" if candidate.on_front else ""

    return {
        "candidate": lambda candidate: candidate.name,
        **frame_columns(report, "simulated" if report.untimed else "on device"),
        "wire": lambda candidate: "" if candidate.wire_bytes is None else format_bytes(candidate.wire_bytes),
        "channels": lambda candidate: removed_words(report, candidate),
        "": mark,
    }


def _has_p99(report: ModelReport) -> bool:
    """Whether any stage has a p99: with few frames none has, and a column of n/a tells nothing."""
    timed = [candidate.latency for candidate in report.candidates if candidate.latency]
    return any(time.p99_ms is not None for latency in timed for time in latency.stages.values())


def _stage_title(report: ModelReport) -> str:
    times = "p50 / p99" if _has_p99(report) else "p50: too few frames for a p99"
    return f"Stages of one process in ms, {times}"


def _stage_columns(report: ModelReport) -> Columns[Candidate]:
    """Return a column for each stage that takes time: on a CPU upload and download take next to nothing."""
    show = _times if _has_p99(report) else _median

    def times(stage: str) -> Callable[[Candidate], str]:
        return lambda candidate: show(candidate.latency.stages.get(stage) if candidate.latency else None)

    shares: dict[str, float] = {}
    for other in report.candidates:
        for name, time in (other.latency.stages if other.latency else {}).items():
            whole = other.latency.frame.p50_ms if other.latency else None
            shares[name] = max(shares.get(name, 0.0), (time.p50_ms or 0.0) / (whole or 1.0))
    shown = {name: times(name) for name, share in shares.items() if share >= _SHOWN_FROM}
    return {"candidate": lambda candidate: candidate.name, **shown}


def _is_timed(report: ModelReport) -> bool:
    return any(candidate.latency for candidate in report.candidates)


def _times(time: StageTime | None) -> str:
    return "n/a" if time is None else f"{ms_or_none(time.p50_ms)} / {ms_or_none(time.p99_ms)}"


def _median(time: StageTime | None) -> str:
    return "n/a" if time is None else ms_or_none(time.p50_ms)


def _refused(report: ModelReport) -> tuple[Value, ...]:
    return tuple(
        Value("refused", f"{candidate.name}: {candidate.refused}")
        for candidate in report.candidates
        if candidate.refused
    )


def _shared_notes(report: ModelReport, *kinds: NoteKind) -> tuple[Note, ...]:
    """Return the notes of some kinds, each once, those of candidates with their names."""
    owners: dict[Note, list[str]] = {note: [] for note in report.notes}
    for candidate in report.candidates:
        for note in dict.fromkeys(candidate.notes):
            if note not in report.notes:
                owners.setdefault(note, []).append(candidate.name)
    return tuple(
        replace(note, detail=f"{', '.join(names)}: {note.detail}") if names else note
        for note, names in owners.items()
        if note.kind in kinds
    )


def _why(report: ModelReport) -> tuple[Value, ...]:
    known = {
        "chosen": report.reason,
        "verdict": report.verdict_line,
        "calibrated": report.calibrated_on,
        "machine": report.trust,
    }
    return tuple(Value(label, text) for label, text in known.items() if text)


def _infos(report: ModelReport) -> tuple[Note, ...]:
    return tuple(note for note in report.notes if note.kind is NoteKind.INFO)


_READING = (
    "Times are p50 / p99 of single frames in ms; n/a: too few frames to say. Speed is the original's frame time over "
    "the candidate's, whole frames in turns, with its 95 % interval. FASTER is proven over fresh processes. "
    "UNCONFIRMED was measured in one process, which proves nothing: a session's place in memory alone moves a small "
    "model by 10 to 20 %. KEPT: what is lost at most, by labels that steered nothing, lies within what is allowed. "
    "LOST: what is lost at least lies above it. NOT DECIDED: neither is shown. AGREES is said without labels: answers "
    "are like the original's. Each bound is wrong in 5 % of cases. A candidate without a word is not proven faster."
)


_READING_PREDICTIONS = (
    " Predicted is execution alone on a device that is not here, from the times of layers that were measured on it; "
    "95 % of the networks by which those were checked lie within the interval."
)


def _reading(report: ModelReport) -> str:
    return _READING + (_READING_PREDICTIONS if report.best.predicted else "")


def _candidate(report: ModelReport, candidate: Candidate) -> Section:
    """Return what made a candidate, and what it does to answers and time."""
    as_it_is = f"{candidate.parent} as it is" if candidate.parent else "the model as it came"
    processes = (
        f", {candidate.speed.processes} fresh processes" if candidate.speed and candidate.speed.processes > 1 else ""
    )
    known = {
        "changes": ", ".join(f"{name} {count}" for name, count in candidate.changes.items()) or as_it_is,
        "input": f"{'x'.join(map(str, candidate.input_size))}, smaller than the original's"
        if candidate.input_size
        else "",
        "runs on": f"{candidate.executor}, {candidate.precision}",
        "file": candidate.file,
        "compiled": candidate.compiled,
        "outputs": f"SQNR {candidate.drift.sqnr_db:.1f} dB, cosine {candidate.drift.cosine:.6f}"
        if candidate.drift
        else "",
        "frame": f"{candidate.speed} {candidate.speed.verdict}{processes}" if candidate.speed else "",
        "execute": f"{candidate.execute} {candidate.execute.verdict}" if candidate.execute else "",
        "placement": candidate.placement,
    }
    figures = placement_map(report, candidate) if candidate is not report.best else ()
    values = tuple(Value(label, text) for label, text in known.items() if text)
    return Section(
        f"Candidate {candidate.name}",
        values=values,
        figures=figures,
        notes=candidate.notes,
        is_detail=True,
        is_folded=True,
    )


def _tensors(report: ModelReport) -> Section:
    """Return what suffers most in the chosen INT8 candidate, or else in the one nearest to it."""
    near = sorted(
        report.candidates,
        key=lambda candidate: (candidate is not report.best, candidate.profile != report.best.profile),
    )
    files = [
        (report.folder / candidate.file).with_name(TENSORS) for candidate in near
    ]  # one file for all of an engine's search
    rows = next((rows for file in files if (rows := worst_tensors(file))), ())
    if not rows:
        return Section()
    text = (
        "SQNR on the tensor's grid: channel by channel, of the whole tensor, and of the answer with this tensor alone "
        "on integers. All tensors: candidates/*/tensors.json."
    )
    layers = next((layers for file in files if (layers := timed_layers(file))), ())
    title, table = "Tensors that suffer most from integers", Table(COLUMNS, rows, frozenset(COLUMNS[-1:]))
    return Section(title, table, text, figures=layer_chart(layers), is_detail=True)


def _facts(report: ModelReport) -> tuple[Value, ...]:
    machine = report.environment
    cores = plural(machine.cores, "core")
    packages = [f"{name} {version}" for name, version in machine.packages.items()]
    known = {
        "recipe": f"{report.recipe} ({report.recipe_reason})",
        "target": f"{report.target}, {threads_in_words(report.threads, report.cores)}",
        "machine": f"{machine.cpu}, {machine.architecture}, {cores}: {', '.join(machine.instructions)}",
        "software": ", ".join((machine.system, f"Python {machine.python}", *packages)),
        "latency": f"measured on {report.measured_on}" if report.measured_on else "",
        "fingerprint": machine.hash,
        "samples": "candidates/*/samples.npz; of fresh processes candidates/*/confirmed.npz",
        "command": machine.command,
    }
    return tuple(Value(label, text, is_command=label == "command") for label, text in known.items() if text)
