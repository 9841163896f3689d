"""Where a target puts each node of a model, why it refuses some, and what would mend it.

Where the target's toolchain is installed it is asked; where it is not, the target's own rules judge, and the
result says that nothing was compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from edgeopt import executors
from edgeopt.errors import EdgeoptError, UnavailableError, UnsupportedError
from edgeopt.executors import Placement, SessionOptions
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.model import Model
from edgeopt.passes import Phase, passes_of
from edgeopt.runtime.devices.availability import why_unavailable
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Target
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.text import plural

CPU = "CPU"
STATIC, FOLDED, FLOAT32, OPSET = "fixed shapes", "simplify", "float32", "opset upgrade"
"""Names of the mends that are no pass."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A model on a target: one entry a node of the graph that was compiled, or judged by rules."""

    target: str
    device: str
    nodes: tuple[Placement, ...]
    """The provider of a refused node is `CPU`; its reason is never empty."""
    mends: Mapping[str, str] = field(default_factory=dict)
    """Name of a refused node -> the rewrite that makes the target take it; `optimize` applies it."""
    copies: int = 0
    """Tensors that cross between the device and the CPU inside the model, once for each direction."""
    not_compiled: str = ""
    """Compiler that is missing here; empty: the model was compiled."""
    problem: str = ""
    """The compiler's objection to the model as a whole; empty: none."""

    @property
    def refused(self) -> tuple[Placement, ...]:
        """The nodes that the target does not take; a processor that is the target leaves none to itself."""
        return () if self.device == "cpu" else tuple(node for node in self.nodes if node.provider == CPU)

    @property
    def verdict(self) -> str:
        """One line: `all 319 nodes on the NPU`, or `NPU 301, CPU 18: Erf x12 (-> fuse_gelu), ...`."""
        device = self.device.upper()
        text = f"all {plural(len(self.nodes), 'node')} on the {device}"
        if self.refused:
            ops = Counter((placement.op, self.mends.get(placement.node, "")) for placement in self.refused)
            parts = [f"{op} x{count}{f' (-> {mend})' if mend else ''}" for (op, mend), count in ops.most_common()]
            taken = len(self.nodes) - len(self.refused)
            text = f"{device} {taken}, CPU {len(self.refused)}: {', '.join(parts)}; {plural(self.copies, 'copy')}"
            text = text.replace("copys", "copies")
        if self.problem:
            text = f"{self.target if self.device == 'cpu' else f'the {device}'} refuses the model: {self.problem}"
        return f"{text} (by rule; not compiled: {self.not_compiled})" if self.not_compiled else text


def explain_placement(model: Model, target: Target) -> Partition:
    """Return where each node runs, the reason where it is refused, and the rewrite that would mend it.

    Args:
        model: Any model; nodes without a name get one.
        target: Its toolchain is asked if it is installed and can be asked without the device.

    Raises:
        StepError: If the vendor's library dies or hangs.
        UnavailableError: If the provider is not here, or takes nothing, and no rule is known for it.
    """
    named = Graph.from_model(model).to_model()
    if (missing := _why_not_asked(target)) and not _only_provider_knows(target):
        partition = _partition(named, target, check_rules(named, target), missing)
    elif target.executor in ("qnn", "rknn"):
        partition = _ask_compiler(named, target)
    else:
        partition = _ask(named, target)
    return replace(partition, mends=_mends(named, target, partition)) if partition.refused else partition


def _why_not_asked(target: Target) -> str:
    """Return what is missing to compile for the target here; empty if nothing is."""
    reason = why_unavailable(target)
    return (target.package or reason) if reason else ""


def _only_provider_knows(target: Target) -> bool:
    """Whether nothing is known of the target without its provider: by rule, it would take everything."""
    limits = (target.static_only, target.refused_ops, target.refused_dtypes, target.opset_most, target.most_dimensions)
    return target.executor == "onnxruntime" and not any(limits)


def _ask_compiler(model: Model, target: Target) -> Partition:
    executor = registry.load(executors, target.executor).EXECUTOR
    options = SessionOptions(target.providers, target.threads or 1, target.options)
    try:
        result = executor.explain(model.source, options)
    except UnsupportedError as error:
        return _refused_whole(model, target, error)
    return _partition(model, target, [_on(value, target.providers[0]) for value in result], "")


def _ask(model: Model, target: Target) -> Partition:
    executor = registry.load(executors, target.executor).EXECUTOR
    options = SessionOptions(target.providers, target.threads or engine_threads(0), target.options)
    try:
        session = executor.open(model.source, options)
    except UnavailableError:
        raise
    except EdgeoptError as error:
        return _refused_whole(model, target, error)
    placed = session.placement()
    session.close()
    return _partition(model, target, [_on(value, target.providers[0]) for value in placed], "")


def _refused_whole(model: Model, target: Target, error: EdgeoptError) -> Partition:
    """Return what the rules say where the compiler refuses all; its own words where the rules find nothing."""
    if target.device == "cpu":
        return _partition(model, target, (), "", error.problem)
    judged = check_rules(model, target)
    is_known = any(placement.provider == CPU for placement in judged)
    return _partition(model, target, judged, "", "" if is_known else error.problem)


def _on(placement: Placement, provider: str) -> Placement:
    return (
        placement
        if placement.provider == provider
        else replace(placement, provider=CPU, reason=placement.reason or "no reason given")
    )


def _partition(
    model: Model, target: Target, nodes: Iterable[Placement], not_compiled: str, problem: str = ""
) -> Partition:
    placed = tuple(nodes)
    refused = {placement.node for placement in placed if placement.provider == CPU}
    return Partition(
        target=target.name,
        device=target.device,
        nodes=placed,
        copies=_copies(Graph.from_model(model), refused) if target.device != "cpu" else 0,
        not_compiled=not_compiled,
        problem=problem,
    )


def partition_of(model: Model, target: Target, nodes: Iterable[Placement]) -> Partition:
    """Return the partition that a toolchain's own answer makes, where it was asked in another way.

    Args:
        model: What was compiled.
        target: The device.
        nodes: Where each node or layer runs.
    """
    return _partition(model, target, [_on(node, target.providers[0]) for node in nodes], "")


def _copies(graph: Graph, refused: set[str]) -> int:
    """Count the tensors that cross between refused nodes and the others."""
    count = 0
    for node in graph.nodes():
        for value in node.outputs:
            readers = {str(consumer.name) in refused for consumer in graph.consumers(value)}
            count += len(readers - {str(node.name) in refused})
    return count


def check_rules(model: Model, target: Target) -> tuple[Placement, ...]:
    """Judge every node by the target's own rules: ops, element types, shapes, dimensions, opset.

    Args:
        model: Its nodes are named.
        target: Its rules; a rule that it leaves out refuses nothing.
    """
    graph = Graph.from_model(model)
    graph.infer_shapes()
    nodes = [node for node in graph.nodes() if node.op_type != "Constant"]
    reasons = {node: _against(graph, node, target) for node in nodes}
    return tuple(
        Placement(str(node.name), node.op_type, CPU if reason else target.providers[0], reason)
        for node, reason in reasons.items()
    )


def _against(graph: Graph, node: Node, target: Target) -> str:
    """Return the first rule that a node breaks; empty if none."""
    if node.op_type in target.refused_ops and node.domain in ("", "ai.onnx"):
        return f"the target has no {node.op_type}"
    if target.taken_ops and (node.op_type not in target.taken_ops or node.domain not in ("", "ai.onnx")):
        return f"{node.op_type} is not among the ops that the target takes"
    if not target.opset_least <= graph.opset <= (target.opset_most or graph.opset):
        return f"opset {graph.opset} is not {target.opset_least} to {target.opset_most}"
    for value in (input_ for input_ in (*node.inputs, *node.outputs) if input_ is not None):
        if reason := _against_value(graph, value, target):
            return reason
    return ""


def _against_value(graph: Graph, value: Value, target: Target) -> str:
    dtype, rank = graph.dtype(value), graph.rank(value)
    if dtype is not None and str(dtype) in target.refused_dtypes:
        return f"{value.name!r} is {dtype}"
    if target.static_only and graph.constant(value) is None and graph.shape(value) is None:
        return f"the shape of {value.name!r} is not fixed"
    if target.most_dimensions and rank is not None and rank > target.most_dimensions:
        return f"{value.name!r} has {rank} dimensions, more than {target.most_dimensions}"
    return ""


def _mends(model: Model, target: Target, partition: Partition) -> Mapping[str, str]:
    """Return the rewrite that takes away the cause, for the refused nodes that have one."""
    refused = {placement.node: placement for placement in partition.refused}
    graph = Graph.from_model(model)
    graph.infer_shapes()
    nodes = {str(node.name): node for node in graph.nodes()}
    is_free = not all(spec.is_static for spec in model.inputs)
    mends: dict[str, str] = {}
    for name, function in passes_of(Phase.DEVICE).items():
        if name in target.rewrites:
            mends |= dict.fromkeys(_changed(model, function) & refused.keys(), name)
    if graph.opset < target.opset_least:
        mends |= dict.fromkeys(refused.keys() - mends.keys(), OPSET)
    for name in refused.keys() & nodes.keys() - mends.keys():
        read = [input_ for input_ in nodes[name].inputs if input_ is not None and graph.constant(input_) is None]
        if any(graph.dtype(value) == np.float64 for value in (*read, *nodes[name].outputs)):
            mends[name] = FLOAT32
        elif target.static_only and any(graph.shape(value) is None for value in read):
            mends[name] = STATIC if is_free else FOLDED
    return mends


def _changed(model: Model, function: object) -> set[str]:
    """Return the names of the nodes that a pass takes out or gives other inputs."""
    graph = Graph.from_model(model)
    graph.infer_shapes()
    before = {str(node.name): tuple(node.inputs) for node in graph.nodes()}
    assert callable(function)
    if not function(graph):
        return set()
    graph.remove_unused()
    after = {str(node.name): tuple(node.inputs) for node in graph.nodes()}
    return {name for name, inputs in before.items() if after.get(name) != inputs}
