"""Ask the target's engine what became of a quantized model: which layers really run on integers.

ONNX Runtime writes the graph that it made; there every DequantizeLinear on an activation is followed to the next
QuantizeLinear. OpenVINO tells the precision of each layer that it compiled. Other engines are not asked.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from edgeopt import executors
from edgeopt.errors import Note, NoteKind
from edgeopt.executors import Placement, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR, INT8_FUSED
from edgeopt.graph.model import Model
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.processor import this_processor
from edgeopt.system.text import plural

_WEIGHTED = frozenset({"Conv", "FusedConv", "MatMul", "Gemm", "FusedGemm", "FusedMatMul"})
_INTEGER = ("QLinear", "Integer", "QGemm", "QAttention", "DynamicQuantize")
_KERNELS = frozenset(
    {
        "Conv",
        "MatMul",
        "Gemm",
        "Add",
        "Mul",
        "Sigmoid",
        "LeakyRelu",
        "Softmax",
        "AveragePool",
        "GlobalAveragePool",
        "Concat",
        "Where",
    }
)
"""Ops that ONNX Runtime makes one integer op of, together with the pairs around them.
Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions, 1.31."""
_MOVES = frozenset(
    {
        "Transpose",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Identity",
        "ReorderInput",
        "ReorderOutput",
        "Slice",
        "Gather",
        "Expand",
        "Tile",
    }
)
_ABOUT_SHAPES = ("Shape", "Size")
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"
_MOST_NAMED = 4
_OPENVINO_INTEGERS = ("u8", "i8")
_OPENVINO_PARTS = re.compile(r"(/(WithoutBiases|DequantizationMultiply|DequantizationSubtract))+$")
"""Endings that OpenVINO appends to the name of a layer that it has taken apart."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Float operators between the integers that they read and those that are made of them."""

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    is_defect: bool
    """Whether it is one operator that has an integer kernel: its pairs should have gone into it."""

    def __str__(self) -> str:
        return f"{self.nodes[0]}: {', '.join(dict.fromkeys(self.ops))}"


@dataclass(frozen=True, slots=True)
class Fusion:
    """The engine's own graph, as far as integers are concerned."""

    op_counts: Mapping[str, int]
    unfused: tuple[str, ...]
    """Float layers that read stored integers: a Q/DQ pair that only costs time."""
    between: tuple[Stretch, ...] = ()
    """Other float operators with a DequantizeLinear before and a QuantizeLinear behind them."""
    rounded: tuple[str, ...] = ()
    """Nodes of pairs with nothing between, but for changes of layout: from integers to integers, or to and back."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """The fused pairs, a warning for each kind of pair that should not be left, and the pairs that must be."""
        fused = {op: count for op, count in sorted(self.op_counts.items()) if _is_integer(op)}
        left = {op: self.op_counts.get(op, 0) for op in (_Q, _DQ)}
        counted = ", ".join(f"{op} {count}" for op, count in (fused | left).items())
        notes = [Note(NoteKind.INFO, f"ONNX Runtime runs it as {counted}")]
        notes += _unfused_note(self.unfused)
        if defects := [stretch for stretch in self.between if stretch.is_defect]:
            detail = f"{plural(len(defects), 'operator')} with an integer kernel still in float between Q and DQ"
            notes.append(_stretches(NoteKind.WARNING, detail, defects))
        if self.rounded:
            detail = f"{plural(len(self.rounded), 'pair')} of Q and DQ with nothing between"
            notes.append(Note(NoteKind.WARNING, detail, _shown(self.rounded), self.rounded))
        if others := [stretch for stretch in self.between if not stretch.is_defect]:
            count = sum(len(other.nodes) for other in others)
            detail = f"{plural(count, 'operator')} in float in {plural(len(others), 'place')} between integers"
            notes.append(_stretches(NoteKind.INFO, detail, others))
        return tuple(notes)


def _unfused_note(names: Sequence[str]) -> list[Note]:
    detail = f"{plural(len(names), 'layer')} with INT8 weights still run in float"
    return [Note(NoteKind.WARNING, detail, _shown(names), tuple(names))] if names else []


def _stretches(kind: NoteKind, detail: str, stretches: Sequence[Stretch]) -> Note:
    names = tuple(name for stretch in stretches for name in stretch.nodes)
    return Note(kind, detail, _shown([str(stretch) for stretch in stretches], "; "), names)


def _is_integer(op: str) -> bool:
    return any(word in op for word in _INTEGER)


def _shown(names: Sequence[str], mark: str = ", ") -> str:
    more = len(names) - _MOST_NAMED
    return mark.join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def fusion_notes(
    model: Model, target: Target, threads: int = 1, options: Mapping[str, str] | None = None
) -> tuple[Note, ...]:
    """Return what the target's engine made of a quantized model; nothing of engines that cannot tell it on a CPU.

    Args:
        model: A quantized model.
        target: Whose session options hold.
        threads: Of the session.
        options: Session configuration entries beyond the target's.
    """
    opened = SessionOptions(target.providers, threads, {**target.options, **(options or {})})
    if (target.executor, target.device) == ("onnxruntime", "cpu"):
        return read_fusion(model, replace(opened, entries={**fused_as_there(target), **opened.entries})).notes
    if (target.executor, target.device) == ("openvino", "cpu"):
        return _openvino_notes(model, opened)
    return ()


def fused_as_there(target: Target) -> Mapping[str, str]:
    """Return the entry with which ONNX Runtime fuses pairs of int8 as it does by itself on a target elsewhere.

    Without it pairs of int8 are fused on Arm alone. Empty where both processors are of one architecture. Source:
    onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selector_action_transformer.h, 1.31.
    """
    is_known = (target.executor, target.device) == ("onnxruntime", "cpu") and bool(target.architectures)
    if not is_known or this_processor().architecture in target.architectures:
        return {}
    return {INT8_FUSED: "1" if "arm64" in target.architectures else "0"}


def read_fusion(model: Model, options: SessionOptions = SessionOptions()) -> Fusion:  # noqa: B008, frozen
    """Open the model and read the graph that ONNX Runtime made of it.

    Args:
        model: A quantized model.
        options: Of the session.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        EXECUTOR.open(model.source, replace(options, save_optimized_to=str(path))).close()
        walk = _Walk(onnx.load(str(path), load_external_data=False).graph)
    unfused = tuple(walk.name(node) for node in walk.unfused)
    return Fusion(walk.op_counts(), unfused, tuple(walk.stretches()), tuple(walk.rounded()))


class _Walk:
    """ONNX Runtime's graph, and what of it lies between integers. Nodes are known by their first output."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes = {node.output[0]: node for node in graph.node if node.output}
        self._outputs = {value.name for value in graph.output}
        self._stored = {tensor.name for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        weights = {node.output[0] for node in graph.node if node.op_type == _DQ and node.input[0] in self._stored}
        self.unfused = [node for node in graph.node if node.op_type in _WEIGHTED and weights & set(node.input)]

    def name(self, node: onnx.NodeProto) -> str:
        """Return a node's name; of those that ONNX Runtime made without one, what it stands behind."""
        before, others = node, 0
        while not before.name and (makers := self._before(before)):
            before, others = makers[0], others + 1
        return f"{node.op_type} behind {before.name}" if others else str(node.name or node.output[0])

    def op_counts(self) -> dict[str, int]:
        """Return how many nodes of each op there are."""
        counts: dict[str, int] = {}
        for node in self.nodes.values():
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
        return counts

    def stretches(self) -> Iterable[Stretch]:
        """Yield the connected float operators between DequantizeLinear and QuantizeLinear, in order."""
        borders = [node for node in self.nodes.values() if node.op_type == _DQ and node.input[0] not in self._stored]
        ends = [node for node in self.nodes.values() if node.op_type == _Q and node.input[0] not in self._stored]
        on_the_way = self._reached(borders, self._after) & self._reached(ends, self._before)
        left = on_the_way - {node.output[0] for node in self.unfused}
        for key in [other for other in self.nodes if other in left]:
            if key in left:
                found = self._connected(key, left)
                left -= found
                nodes = [node for name, node in self.nodes.items() if name in found]
                computing = [node for node in nodes if node.op_type not in _MOVES]
                if computing:
                    lone = computing[0] if len(computing) == 1 else None
                    defect = lone is not None and lone.op_type in _KERNELS and self._is_paired(lone)
                    yield Stretch(tuple(map(self.name, nodes)), tuple(node.op_type for node in nodes), defect)

    def rounded(self) -> Iterable[str]:
        """Yield the QuantizeLinear nodes that only undo, or are undone by, the DequantizeLinear beside them."""
        for node in self.nodes.values():
            if node.op_type != _Q or node.input[0] in self._stored:
                continue
            following = self._behind_moves(node.output[0])
            undone = bool(following) and all(other.op_type == _DQ for other in following)
            if undone or self._is_real_integer(node.input[0]):
                yield self.name(node)

    def _reached(
        self, starts: Sequence[onnx.NodeProto], step: Callable[[onnx.NodeProto], list[onnx.NodeProto]]
    ) -> set[str]:
        """Return the float operators that can be reached from some nodes."""
        result: set[str] = set()
        ahead = [other for node in starts for other in step(node)]
        while ahead:
            node = ahead.pop()
            stops = node.op_type in (_Q, _DQ, *_ABOUT_SHAPES) or _is_integer(node.op_type)
            if not stops and node.output[0] not in result:
                result.add(node.output[0])
                ahead.extend(step(node))
        return result

    def _after(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [reader for name in node.output for reader in self._readers.get(name, ())]

    def _before(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        return [self._makers[name] for name in node.input if name in self._makers]

    def _connected(self, key: str, among: AbstractSet[str]) -> set[str]:
        result, ahead = set[str](), [key]
        while ahead:
            key = ahead.pop()
            if key in among and key not in result:
                result.add(key)
                ahead += [node.output[0] for node in (*self._after(self.nodes[key]), *self._before(self.nodes[key]))]
        return result

    def _is_paired(self, node: onnx.NodeProto) -> bool:
        """Whether all that varies comes from integers, and only integers are made of the result.

        A layer with float weights was left in float on purpose.
        """
        if node.op_type in _WEIGHTED and self._stored & set(node.input):
            return False
        data = [name for name in node.input if name and name not in self._stored]
        readers = self._behind_moves(node.output[0])
        return all(map(self._is_real_integer, data)) and {reader.op_type for reader in readers} == {_Q}

    def _is_real_integer(self, name: str) -> bool:
        """Whether a float tensor is integers dequantized, at most moved since then."""
        maker = self._makers.get(name)
        while maker is not None and maker.op_type in _MOVES:
            maker = self._makers.get(maker.input[0])
        return maker is not None and maker.op_type == _DQ and maker.input[0] not in self._stored

    def _behind_moves(self, name: str) -> list[onnx.NodeProto]:
        """Return what reads a tensor, moved or not; nothing where it is an answer of the model."""
        nodes: list[onnx.NodeProto] = []
        for node in self._readers.get(name, ()):
            nodes += self._behind_moves(node.output[0]) if node.op_type in _MOVES else [node]
        return [] if name in self._outputs else nodes


def _openvino_notes(model: Model, options: SessionOptions) -> tuple[Note, ...]:
    """Return which layers with INT8 weights OpenVINO compiled to integer kernels, and which it did not."""
    wanted = _layers_of_integers(model.proto.graph)
    session = registry.load(executors, "openvino").EXECUTOR.open(model.source, options)
    rows: tuple[Placement, ...] = session.placement()
    session.close()
    layers = {wanted[name]: row for row in rows if (name := _OPENVINO_PARTS.sub("", row.node)) in wanted}
    real = [name for name, row in layers.items() if not row.reason.endswith(_OPENVINO_INTEGERS)]
    unknown = [name for name in dict.fromkeys(wanted.values()) if name not in layers]
    alone = tuple(row.node for row in rows if row.op == "FakeQuantize")
    count = plural(len(layers) + len(unknown), "layer")
    text = f"OpenVINO runs {len(layers) - len(real)} of {count} with INT8 weights on integers"
    hint = f"it knows others under other names: {_shown(unknown)}" if unknown else ""
    notes = [Note(NoteKind.INFO, text, hint, tuple(unknown)), *_unfused_note(real)]
    if alone:
        detail = f"{plural(len(alone), 'tensor')} rounded in a pass of its own, after the layer that makes it"
        notes.append(Note(NoteKind.INFO, detail, _shown(alone), alone))
    return tuple(notes)


def _layers_of_integers(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the layers that read stored integers: the names of node and output, each with the node's name."""
    stored = {tensor.name for tensor in graph.initializer}
    weights = {node.output[0] for node in graph.node if node.op_type == _DQ and node.input[0] in stored}
    layers = [node for node in graph.node if node.op_type in _WEIGHTED and node.input[1] in weights]
    return {name: node.name or node.output[0] for node in layers for name in (node.name, node.output[0]) if name}
