"""The facts of an environment that only the caller knows: model, session, inputs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.executors import Session, SessionOptions, Source
from edgeopt.graph.tensors import Tensors

_CHUNK = 1 << 20


def subject_facts(
    source: Source,
    options: SessionOptions,
    session: Session | None = None,
    *,
    executor: str = "onnxruntime",
    inputs: Tensors | None = None,
    optimized: Path | None = None,
    opset: int | None = None,
) -> dict[str, Any]:
    """Return plain facts for `read_environment(subject=...)`.

    Args:
        source: The model.
        options: How the session was opened.
        session: The session itself: where its nodes run, and its tensors.
        executor: The executor's name.
        inputs: What ran; hashed.
        optimized: The graph that the engine saved.
        opset: Of the model, where the caller has read it.
    """
    facts: dict[str, Any] = {
        "model.sha256": _hash(source),
        "model.optimized_sha256": _hash(optimized) if optimized else None,
        "model.opset": opset,
        "session.executor": executor,
        "session.providers": list(options.providers),
        "session.threads": options.threads,
        "session.entries": dict(sorted(options.entries.items())),
        "session.spins": options.entries.get("session.intra_op.allow_spinning", "1") == "1",
    }
    if session is not None:
        placed = Counter((node.provider, node.op) for node in session.placement())
        facts["session.placement"] = {f"{provider} {op}": n for (provider, op), n in sorted(placed.items())}
        facts["model.inputs"] = [str(spec) for spec in session.inputs]
        facts["model.outputs"] = [str(spec) for spec in session.outputs]
    if inputs is not None:
        facts["inputs"] = _describe(inputs)
    return facts


def _hash(source: Source) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _describe(inputs: Tensors) -> Mapping[str, Any]:
    return {
        name: {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
        }
        for name, array in sorted(inputs.items())
    }
