"""Files for a runtime that is on other systems alone: written of the choice, their numbers computed from the file.

Nothing is measured there, so nothing is said of speed. A file whose numbers are far from the candidate's is not handed
out: then the writer is wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt.errors import StepError, UnavailableError, UnsupportedError
from edgeopt.executors import Executor, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR as ONNXRUNTIME
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.deployment.app_files import AppFiles, answers, distance_db
from edgeopt.optimization.run import Run
from edgeopt.runtime.devices.availability import load_executor

_LEAST_DB = 12.0
"""As INT8 forms must reach at least; half precision reaches 50, and a wrong op is near 0."""


def written_for_elsewhere(run: Run, name: str, candidates: Sequence[Candidate], best: Candidate) -> AppFiles:
    """Return the files of the choice, or of the best candidate that the engine holds, with their numbers.

    Raises:
        UnsupportedError: If it holds none; the error is the choice's.
        StepError: If the numbers of a file are far from the candidate's.
    """
    executor, first = load_executor(name), None
    run.context.listener.say(f"writing files for {executor.foreign_runtime} and computing their numbers")
    for candidate in _in_order(candidates, best):
        model = load_model(run.workspace.path(candidate.file), candidate.name)
        try:
            files = executor.own_files(model.source)
        except UnsupportedError as error:
            first = first or error
            continue
        return _checked(run, executor, candidate, model, files)
    raise first or UnavailableError(f"{name} is given no compiled model", remedy="choose another target")


def _in_order(candidates: Sequence[Candidate], best: Candidate) -> list[Candidate]:
    """Return the choice, then what else may be written, the fastest here first."""
    others = [candidate for candidate in candidates if candidate is not best and not candidate.refused]
    others.sort(key=lambda candidate: candidate.speed.speedup if candidate.speed else 0.0, reverse=True)
    return [candidate for candidate in (best, *others) if not candidate.compiled]


def _checked(run: Run, executor: Executor, candidate: Candidate, model: Model, files: Mapping[str, bytes]) -> AppFiles:
    plain = SessionOptions(("CPUExecutionProvider",), 1, UNOPTIMIZED)
    expected = answers(run, lambda: ONNXRUNTIME.open(model.source, plain), model)
    packages = dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="edgeopt-emit-") as folder:
        for file, data in files.items():
            path = Path(folder, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        for package in sorted({file.partition("/")[0] for file in files}):
            packages[package] = _numbers(run, executor, candidate, model, Path(folder, package), expected)
    near = [known["candidate_sqnr_db"] for known in packages.values() if "candidate_sqnr_db" in known]
    if near and min(near) < _LEAST_DB:
        raise StepError(
            f"the files answer {min(near):.0f} dB from {candidate.name}, of which they were written",
            remedy="report it, with the model",
        )
    facts = {
        "runtime": executor.foreign_runtime,
        "checked": executor.own_check,
        "judged_on": candidate.executor,
        "speed": None,
        "speed_verdict": f"not measured: it takes {executor.foreign_runtime}",
        "packages": packages,
    }
    return AppFiles(candidate, files, facts, _standing(executor, packages))


def _numbers(
    run: Run, executor: Executor, candidate: Candidate, model: Model, path: Path, expected: list[Tensors]
) -> dict[str, Any]:
    """Return what a package is, and how far its numbers lie from the original's and from its candidate's."""
    facts: dict[str, Any] = dict(executor.own_facts(path.name))
    try:
        made = answers(run, lambda: executor.open(path, SessionOptions()), model)
    except UnsupportedError as error:
        return {**facts, "unchecked": error.problem}
    if candidate.input_size == run.candidates[0].input_size:
        facts["sqnr_db"] = round(distance_db(run.context.original_outputs(), made), 1)
    return {**facts, "candidate_sqnr_db": round(distance_db(expected, made), 1)}


def _standing(executor: Executor, packages: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what is known of the packages, in one line."""
    key = "sqnr_db" if any("sqnr_db" in facts for facts in packages.values()) else "candidate_sqnr_db"
    origin = "the original" if key == "sqnr_db" else "the candidate"
    near = [f"{package} {facts[key]:.0f} dB" for package, facts in packages.items() if key in facts]
    unread = [
        f"{package} not compared: {facts['unchecked']}" for package, facts in packages.items() if key not in facts
    ]
    compared = [f"{', '.join(near)} from {origin}, computed by {executor.own_check}"] if near else []
    return "; ".join([f"not run, which takes {executor.foreign_runtime}", *compared, *unread])
