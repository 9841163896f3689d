"""Results that `edgeopt bench -o` wrote, read back for a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind
from edgeopt.measurement.bench.result import RAW
from edgeopt.measurement.common_options import MAX_MISS_RATIO
from edgeopt.measurement.resources.trust import warning_of
from edgeopt.measurement.samples import FRAME, Samples
from edgeopt.measurement.statistics.budget import Verdict, worst_of
from edgeopt.report.result import SCHEMA
from edgeopt.system.machine.environment import Environment, Use
from edgeopt.system.toml import read_object

RESULT = "bench.json"
_SHOWN = 60  # characters of a value: processor flags fill pages


@dataclass(frozen=True)
class StoredResult:
    """One earlier run: its raw samples and where they come from."""

    path: Path
    name: str
    kind: str
    """Kind of workload."""
    over_network: bool
    """Whether times hold the way to another machine."""
    source: str
    """Samples or prompts that it was fed, in words; empty: not recorded."""
    samples: Samples
    environment: Environment
    trust: str
    """`trusted`, `noisy` or `invalid`; empty: nothing was recorded about that, as of a server."""
    target: str
    """Empty: the workload has none."""
    executor: str
    """Empty: the workload has several, or none here."""
    threads: int
    """0: not recorded."""
    budget_ms: float | None
    """Milliseconds that a frame may take; None: no frames, or no budget."""
    max_miss_ratio: float
    """Share of frames that may take longer."""
    load: str
    """How the frames of `samples` came, in words; empty: nobody says, or answers, which are there one at a time."""
    verdict: str
    """Verdict of the run on its limits; empty: there were none."""


def is_stored(path: Path) -> bool:
    """Return whether a path is such a result: its JSON file, or the folder that holds one."""
    return path.suffix == ".json" or (path / RESULT).is_file()


def read_stored(path: Path) -> StoredResult:
    """Read a result of any kind of workload, and its raw samples.

    Raises:
        InvalidFileError: If it is none, damaged, of another schema, or its samples are missing.
    """
    file = path / RESULT if path.is_dir() else path
    remedy = "measure again with edgeopt bench MODEL -o FOLDER, and name that folder"
    values = read_object(file, schema=SCHEMA, remedy=remedy)
    try:
        judged, budget = values.get("judged", ()), _budget_of(values)
        raw = str(values.get("raw", RAW))
        if not raw:
            page = file.with_suffix(".html")
            problem = f"{file} holds figures of the kind {values['kind']}, and no raw samples to read again"
            raise InvalidFileError(problem, remedy=f"open {page}" if page.is_file() else remedy)
        npz = file.with_name(raw)
        if not npz.exists():
            raise InvalidFileError(f"{npz} does not exist, so {file} has no times to read again", remedy=remedy)
        samples = Samples.read(npz)
        return StoredResult(
            path=path,
            name=str(values["name"]),
            kind=str(values["kind"]),
            over_network=bool(values["over_network"]),
            source=str(values.get("source", "")),
            samples=samples,
            environment=Environment.from_json(values.get("environment")),
            trust=str(values["trust"]["level"]) if values["trust"] else "",
            target=str(values.get("target", "")),
            executor=str(values.get("executor", "")),
            threads=int(values.get("threads", 0)),
            budget_ms=budget.get("budget_ms"),
            max_miss_ratio=budget.get("max_miss_ratio", MAX_MISS_RATIO),
            load=str(values.get("load", "")) if samples.whole == FRAME else "",
            verdict=str(worst_of([Verdict(limit["verdict"]) for limit in judged])) if judged else "",
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = str(error) if isinstance(error, ValueError) else repr(error)
        raise InvalidFileError(f"{file} is no result of edgeopt bench: {why}", remedy=remedy) from error


def _budget_of(values: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the time that a frame may take and how many may miss it; nothing without frames or without a budget."""
    budget = values.get("budget")
    names = ("budget_ms", "max_miss_ratio")
    return {name: float(budget[name]) for name in names if name in budget} if budget else {}


def show_difference(environment: Environment, other: Environment, key: str) -> str:
    """Return `cpu.model: A, B`, each cut to a readable length."""

    def shown(found: Environment) -> str:
        fact = found.facts.get(key)
        text = "not recorded" if fact is None else "unknown" if fact.value is None else str(fact.value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

    mine, theirs = shown(environment), shown(other)
    if mine != theirs:
        return f"{key} ({mine} / {theirs})"
    words = [set(str(found.facts[key].value).split()) for found in (environment, other)]
    return f"{key} (only one has {', '.join(sorted(words[0] ^ words[1])[:5])})"


def require_comparable(stored_result: StoredResult, other: StoredResult) -> tuple[Note, ...]:
    """Return what differs and may, as notes.

    Raises:
        EdgeoptError: If machine, software or load differ, or one run is invalid; the keys are named.
    """
    if stored_result.kind != other.kind:
        problem = f"{stored_result.path} is of the kind {stored_result.kind}, and {other.path} of {other.kind}"
        raise EdgeoptError(problem, remedy="compare results of one kind of workload")
    for result in (stored_result, other):
        if result.trust == "invalid":
            raise EdgeoptError(f"{result.path} is INVALID: its figures mean nothing", remedy="measure it again")
    if keys := stored_result.environment.why_not_comparable(other.environment):
        shown = "; ".join(show_difference(stored_result.environment, other.environment, key) for key in keys)
        raise EdgeoptError(
            f"{stored_result.path} and {other.path} come from different machines or software: {shown}",
            remedy="measure both here: edgeopt compare with the models themselves, not their results",
        )
    if (stored_result.samples.intended_ns is None) != (other.samples.intended_ns is None):
        raise EdgeoptError(
            f"{stored_result.path} and {other.path} ran under different loads: one closed, one with arrivals",
            remedy="measure both with the same --load",
        )
    if stored_result.load != other.load:
        loads = [result.load or "no load" for result in (stored_result, other)]
        raise EdgeoptError(
            f"{stored_result.path} and {other.path} ran under different loads: {loads[0]}, and {loads[1]}",
            remedy="measure both under the same load",
        )
    if stored_result.source != other.source and stored_result.samples.whole != FRAME:
        raise EdgeoptError(
            f"{stored_result.path} was measured on {stored_result.source}, and {other.path} on {other.source}",
            remedy="measure both with the same lengths of prompts and answers",
        )
    return (*_differences(stored_result, other), *_noise(stored_result), *_noise(other))


def _differences(stored_result: StoredResult, other: StoredResult) -> tuple[Note, ...]:
    notes = []
    subject = stored_result.environment.differing(other.environment, Use.SUBJECT)
    state = stored_result.environment.differing(other.environment, Use.INFORMATIONAL)
    if subject:
        shown = "; ".join(show_difference(stored_result.environment, other.environment, key) for key in subject)
        notes.append(Note(NoteKind.INFO, f"compared: {shown}"))
    threads = [result.threads for result in (stored_result, other)]
    if "session.threads" not in subject and all(threads) and threads[0] != threads[1]:
        notes.append(Note(NoteKind.INFO, f"compared: threads ({threads[0]} / {threads[1]})"))
    if state:
        notes.append(Note(NoteKind.INFO, f"the state of the moment differed: {', '.join(state)}"))
    if stored_result.source != other.source:
        detail = f"{stored_result.path} ran on {stored_result.source}, {other.path} on {other.source}"
        notes.append(Note(NoteKind.WARNING, detail, "use one --source"))
    return tuple(notes)


def _noise(result: StoredResult) -> tuple[Note, ...]:
    if result.trust != "noisy":
        return ()
    return (Note(NoteKind.WARNING, f"{result.path} is {warning_of('NOISY')}", "measure both in turns"),)
