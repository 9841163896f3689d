"""Candidates of which the engine makes the original's own graph: nothing can make one faster than the other."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx

from edgeopt.errors import EdgeoptError
from edgeopt.graph.facts.computation import computation_hash
from edgeopt.graph.model import load_model
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.run import Run


def same_as_original(run: Run, candidates: Sequence[Candidate]) -> frozenset[str]:
    """Return the names of the rewrites that run the original's operators on its values, opened as it is.

    ONNX Runtime writes the graph that it made of each. Of other engines, and of models above 2 GB, nothing is known.

    Args:
        run: With the candidates on disk.
        candidates: The original first.
    """
    first = candidates[0]
    engine = run.engine_of(first)
    if engine.target.executor != "onnxruntime" or run.context.original.is_outside:
        return frozenset()
    opening = engine.opening(first.precision)
    alike = [
        candidate
        for candidate in candidates[1:]
        if candidate.is_rewrite and run.engine_of(candidate).opening(candidate.precision) == opening
    ]
    if not alike or (wanted := _made_of(run, first)) is None:
        return frozenset()
    return frozenset(candidate.name for candidate in alike if _made_of(run, candidate) == wanted)


def _made_of(run: Run, candidate: Candidate) -> str | None:
    """Return what the engine's own graph computes; None where it cannot be told."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "optimized.onnx"
        try:
            opening = run.engine_of(candidate).opening(candidate.precision).saving_to(file)
            opening.open(load_model(run.workspace.path(candidate.file), candidate.name).source).close()
        except EdgeoptError:
            return None
        return computation_hash(onnx.load(str(file))) if file.is_file() else None
