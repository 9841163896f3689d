"""Files of an engine for an app that brings its own runtime: `--emit litert` writes them into `emitted/litert/`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.executors import SessionOptions, arithmetic
from edgeopt.graph.model import load_model
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.deployment.app_files import AppFiles, original_db, read_by_apps
from edgeopt.optimization.deployment.embedding import EmbeddedParts
from edgeopt.optimization.deployment.emitted_elsewhere import written_for_elsewhere
from edgeopt.optimization.run import Run
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.system.text import format_bytes

FOLDER, FACTS = "emitted", "edgeopt.json"


def emit(
    run: Run, candidates: Sequence[Candidate], best: Candidate, embedded: EmbeddedParts
) -> tuple[tuple[str, ...], list[Note]]:
    """Write the files of each engine that was asked for; return their folders, and what each holds.

    Args:
        run: With its workspace and engines.
        candidates: With what was measured, the baseline first.
        best: The choice; where another engine runs it, the best of the engine's own candidates is written.
        embedded: What the bundle's models hold of the recipe, and these files do not.
    """
    folders, notes = list[str](), list[Note]()
    for name in run.plan.emit:
        try:
            notes.append(_emitted(run, name, candidates, best))
            folders.append(f"{FOLDER}/{name}")
        except EdgeoptError as error:
            notes.append(Note(NoteKind.WARNING, f"nothing emitted for {name}: {error.problem}", error.remedy))
    if folders and embedded.inside:
        text = (
            f"emitted files take the model's own tensors: {' and '.join(embedded.inside.parts)} is in the bundle alone"
        )
        notes.append(Note(NoteKind.SKIPPED, text, f"do what recipe in {FACTS} says"))
    return tuple(folders), notes


def _emitted(run: Run, name: str, candidates: Sequence[Candidate], best: Candidate) -> Note:
    write = written_for_elsewhere if load_executor(name).foreign_runtime else _of_engine
    written = write(run, name, candidates, best)
    candidate = written.candidate
    for file, data in written.files.items():
        run.workspace.write(f"{FOLDER}/{name}/{file}", data)
    facts = {
        "engine": name,
        "candidate": candidate.name,
        "precision": candidate.precision,
        "agreement": candidate.agreement,
        "accuracy": candidate.word or None,
        **written.facts,
        "files": {file: len(data) for file, data in written.files.items()},
        "recipe": read_by_apps(run.context.recipe),
    }
    run.workspace.write(f"{FOLDER}/{name}/{FACTS}", json.dumps(facts, indent=1) + "\n")
    size = format_bytes(sum(map(len, written.files.values())))
    detail = f"{FOLDER}/{name} holds {candidate.name}: {written.standing}, {size}"
    remedy = "" if candidate is best else "it is not the choice"
    is_known = candidate is best and candidate.executor == name
    return Note(NoteKind.INFO if is_known else NoteKind.WARNING, detail, remedy)


def _of_engine(run: Run, name: str, candidates: Sequence[Candidate], best: Candidate) -> AppFiles:
    """Return the files of an engine that ran here, with what was measured on it."""
    candidate = _best_of(name, candidates, best)
    engine = next(own for own in (run.context.engine, *run.context.alternatives) if own.target.executor == name)
    model = load_model(run.workspace.path(candidate.file), candidate.name)
    files = engine.executor.own_files(model.source)
    whole = files.get(f"model{engine.executor.own_suffix}")  # where the engine's own files are one
    network = whole or engine.executor.own_file(model.source)
    options = SessionOptions(engine.target.providers, engine.threads, engine.target.options)
    sqnr_db = original_db(run, candidate, lambda: engine.opening(candidate.precision).open(network), model)
    facts = {
        "arithmetic": arithmetic(candidate.precision),
        "threads": engine.threads,
        "cores": engine.target.cores,
        "options": dict(engine.target.options),
        "settings": dict(engine.executor.own_settings(options, arithmetic(candidate.precision))),
        "sqnr_db": None if sqnr_db is None else round(sqnr_db, 1),
        "speed": None if candidate.speed is None else candidate.speed.speedup,
        "speed_verdict": None if candidate.speed is None else str(candidate.speed.verdict),
    }
    numbers = "" if sqnr_db is None else f", {sqnr_db:.0f} dB from the original"
    return AppFiles(candidate, files, facts, f"{_standing(candidate)}{numbers}")


def _best_of(name: str, candidates: Sequence[Candidate], best: Candidate) -> Candidate:
    """Return the choice where the engine runs it; else its fastest candidate that is not refused, by one process.

    Raises:
        UnavailableError: If the engine has no candidate.
    """
    own = [candidate for candidate in candidates if candidate.executor == name and not candidate.refused]
    if best in own:
        return best
    if not own:
        raise UnavailableError(f"{name} ran none of the candidates", remedy="see why in the notes above")
    return max(own, key=lambda candidate: candidate.speed.speedup if candidate.speed else 0.0)


def _standing(candidate: Candidate) -> str:
    """Return what is known of a candidate's speed and accuracy, in words of the table."""
    speed = f"{candidate.speed} {candidate.speed.verdict}" if candidate.speed else "not timed"
    return f"{speed}, accuracy {candidate.word or 'not judged'}"
