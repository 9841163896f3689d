"""Ask ONNX Runtime what became of a quantized model: which layers really run on integers. It changes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from edgeopt.errors import Note, NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.model import Model
from edgeopt.target import Target
from edgeopt.text import plural

_WEIGHTED = frozenset({"Conv", "FusedConv", "MatMul", "Gemm", "FusedGemm", "FusedMatMul"})
_INTEGER = ("QLinear", "Integer", "QGemm", "QAttention", "DynamicQuantize")
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Fusion:
    """The engine's own graph, as far as integers are concerned."""

    op_counts: Mapping[str, int]
    unfused: tuple[str, ...]
    """Float layers that read stored integers: a Q/DQ pair that only costs time."""
    between: tuple[str, ...] = ()
    """Single float operators with a DequantizeLinear before and a QuantizeLinear behind them."""
    rounded: tuple[str, ...] = ()
    """QuantizeLinear nodes whose integers nothing but a DequantizeLinear reads."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was fused, a warning that names layers meant to be integers that are not, and pairs that are left."""
        fused = {op: count for op, count in sorted(self.op_counts.items()) if _is_integer(op)}
        left = {op: self.op_counts.get(op, 0) for op in (_Q, _DQ)}
        counted = ", ".join(f"{op} {count}" for op, count in (fused | left).items())
        found = [Note(NoteKind.INFO, f"ONNX Runtime runs it as {counted}")]
        if self.unfused:
            detail = f"{plural(len(self.unfused), 'layer')} with INT8 weights still run in float"
            found.append(Note(NoteKind.WARNING, detail, _names(self.unfused)))
        if self.between:
            detail = f"{plural(len(self.between), 'operator')} in float between two pairs of Q and DQ"
            found.append(Note(NoteKind.INFO, detail, _names(self.between)))
        if self.rounded:
            detail = f"{plural(len(self.rounded), 'tensor')} rounded to integers and back at once"
            found.append(Note(NoteKind.INFO, detail, _names(self.rounded)))
        return tuple(found)


def _is_integer(op: str) -> bool:
    return any(word in op for word in _INTEGER)


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def fusion_notes(
    model: Model, target: Target, threads: int = 1, options: Mapping[str, str] | None = None
) -> tuple[Note, ...]:
    """Return what the target's engine made of a quantized model; nothing where it is not ONNX Runtime on a CPU.

    Args:
        model: A quantized model.
        target: Whose session options hold.
        threads: Of the session.
        options: Session configuration entries beyond the target's.
    """
    if (target.executor, target.device) != ("onnxruntime", "cpu"):
        return ()
    entries = {**target.options, **(options or {})}
    return read_fusion(model, SessionOptions(target.providers, threads, entries)).notes


def read_fusion(model: Model, options: SessionOptions = SessionOptions()) -> Fusion:  # noqa: B008, frozen
    """Open the model and read the graph that ONNX Runtime made of it.

    Args:
        model: A quantized model.
        options: Of the session.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        EXECUTOR.open(model.data, replace(options, save_optimized_to=str(path))).close()
        graph = onnx.load(str(path)).graph
    counts: dict[str, int] = {}
    for node in graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    stored = {tensor.name for tensor in graph.initializer}
    weights = {node.output[0] for node in graph.node if node.op_type == _DQ and node.input[0] in stored}
    unfused = [node.name for node in graph.node if node.op_type in _WEIGHTED and weights & set(node.input)]
    return Fusion(counts, tuple(unfused), tuple(_between(graph, set(unfused), stored)), tuple(_rounded(graph)))


def _readers(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return readers


def _between(graph: onnx.GraphProto, unfused: set[str], stored: set[str]) -> Iterable[str]:
    """Yield the float operators whose data all come from integers and go to integers again, at once."""
    readers, real = _readers(graph), {node.output[0] for node in graph.node if node.op_type == _DQ}
    for node in graph.node:
        data = [name for name in node.input if name and name not in stored]
        if node.op_type in (_Q, _DQ) or node.name in unfused or not data or not set(data) <= real:
            continue
        if any(reader.op_type == _Q for name in node.output for reader in readers.get(name, ())):
            yield node.name


def _rounded(graph: onnx.GraphProto) -> Iterable[str]:
    readers, outputs = _readers(graph), {value.name for value in graph.output}
    for node in graph.node:
        following = readers.get(node.output[0], ())
        if node.op_type == _Q and node.output[0] not in outputs and all(one.op_type == _DQ for one in following):
            yield node.name
