"""Ask ONNX Runtime what became of a quantized model: which layers really run on integers. It changes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from edgeopt.errors import Note, NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.model import Model
from edgeopt.text import plural

_WEIGHTED = frozenset({"Conv", "FusedConv", "MatMul", "Gemm", "FusedGemm", "FusedMatMul"})


@dataclass(frozen=True, slots=True)
class Fusion:
    """The engine's own graph, as far as integers are concerned."""

    op_counts: Mapping[str, int]
    unfused: tuple[str, ...]
    """Float layers that read stored integers: a Q/DQ pair that only costs time."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """A warning that names the layers that were not fused."""
        if not self.unfused:
            return ()
        shown = ", ".join(self.unfused[:4]) + (f" and {len(self.unfused) - 4} more" if len(self.unfused) > 4 else "")
        detail = f"{plural(len(self.unfused), 'layer')} with INT8 weights still run in float"
        return (Note(NoteKind.WARNING, detail, shown),)


def read_fusion(model: Model, *, threads: int = 1) -> Fusion:
    """Open the model and read the graph that ONNX Runtime made of it.

    Args:
        model: A quantized model.
        threads: Of the session.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        EXECUTOR.open(model.data, SessionOptions(threads=threads, save_optimized_to=str(path))).close()
        graph = onnx.load(str(path)).graph
    counts: dict[str, int] = {}
    for node in graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    stored = {tensor.name for tensor in graph.initializer}
    real = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in stored}
    unfused = [node.name for node in graph.node if node.op_type in _WEIGHTED and real & set(node.input)]
    return Fusion(counts, tuple(unfused))
