"""Results that `edgeopt bench -o` wrote, read back for a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeopt.errors import EdgeoptError, InvalidFileError, Note, NoteKind
from edgeopt.measurement.bench.result import SCHEMA
from edgeopt.measurement.resources.trust import warning_of
from edgeopt.measurement.samples import Samples
from edgeopt.system.machine.environment import Environment, Use
from edgeopt.system.text import short
from edgeopt.system.toml import read_object

RESULT, RAW = "bench.json", "samples.npz"
_READ = "frames"
"""Kind of workload whose results are read again: theirs are compared and shown side by side."""
_SHOWN = 60  # characters of a value: processor flags fill pages


@dataclass(frozen=True)
class StoredResult:
    """One earlier run: its raw samples and where they come from."""

    path: Path
    name: str
    source: str
    samples: Samples
    environment: Environment
    trust: str
    """`trusted`, `noisy` or `invalid`."""
    target: str
    executor: str
    threads: int
    budget_ms: float


def is_stored(path: Path) -> bool:
    """Return whether a path is such a result: its JSON file, or the folder that holds one."""
    return path.suffix == ".json" or (path / RESULT).is_file()


def read_stored(path: Path) -> StoredResult:
    """Read a result and its raw samples.

    Raises:
        InvalidFileError: If it is none, damaged, of another schema or kind, or its samples are missing.
    """
    file = path / RESULT if path.is_dir() else path
    remedy = "measure again with edgeopt bench MODEL -o FOLDER, and name that folder"
    values = read_object(file, schema=SCHEMA, remedy=remedy)
    if (kind := values.get("kind", _READ)) != _READ:
        page = file.with_suffix(".html")
        problem = f"{file} is of the kind {short(kind)}, and only results of models that answer frames are read again"
        raise InvalidFileError(problem, remedy=f"open {page}" if page.is_file() else remedy)
    try:
        return StoredResult(
            path=path,
            name=str(values["name"]),
            source=str(values["source"]),
            samples=Samples.read(file.with_name(RAW)),
            environment=Environment.from_json(values["environment"]),
            trust=str(values["trust"]["level"]),
            target=str(values["target"]),
            executor=str(values["executor"]),
            threads=int(values["threads"]),
            budget_ms=float(values["budget"]["budget_ms"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidFileError(f"{file} is no result of edgeopt bench: {error!r}", remedy=remedy) from error


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
    return (*_differences(stored_result, other), *_noise(stored_result), *_noise(other))


def _differences(stored_result: StoredResult, other: StoredResult) -> tuple[Note, ...]:
    notes = []
    subject = stored_result.environment.differing(other.environment, Use.SUBJECT)
    state = stored_result.environment.differing(other.environment, Use.INFORMATIONAL)
    if subject:
        shown = "; ".join(show_difference(stored_result.environment, other.environment, key) for key in subject)
        notes.append(Note(NoteKind.INFO, f"compared: {shown}"))
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
