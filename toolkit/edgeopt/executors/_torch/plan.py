"""The nodes that have to be computed for inputs of certain shapes, in order, with all that is known before.

A trial with one sample tells all shapes. What depends on shapes and frozen constants alone is computed in it, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors._torch.ops._node import Compute, Node
from edgeopt.executors._torch.ops.activations import silu

Values = dict[str, torch.Tensor]
_OF_SHAPES = ("Shape", "Size")


@dataclass(frozen=True, slots=True)
class NodeStep:
    """One node, and what computes it."""

    node: Node
    compute: Compute
    inputs: tuple[str, ...]
    """Empty names: left out."""
    outputs: tuple[str, ...]
    repeats: Mapping[int, int] = field(default_factory=dict)
    """Inputs that are alike for all samples and must be written once for each of them: place -> axis."""
    frees: tuple[str, ...] = ()
    """Names of the tensors that no later node reads."""


@dataclass(frozen=True, slots=True)
class ComputationPlan:
    """Steps, and the values that they find."""

    steps: tuple[NodeStep, ...]
    known: Mapping[str, torch.Tensor]
    samples: int = 1
    axes: Mapping[str, int] = field(default_factory=dict)
    """Axis along which the samples of a tensor lie, by the tensor's name; constants are absent."""
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of each tensor for one sample."""


def run(plan: ComputationPlan, values: Values, keep: Set[str]) -> Values:
    """Compute a plan's steps; return what is in `keep`, as far as it was made.

    Args:
        plan: What to do.
        values: Inputs and parameters by name.
        keep: Names of tensors that are asked for.

    Raises:
        UnsupportedError: Where torch refuses a node.
    """
    values = {**values, **plan.known}
    for step in plan.steps:
        _compute(step, values, plan.samples)
        for name in step.frees:
            if name not in keep:
                values.pop(name, None)
    return {name: values[name] for name in sorted(keep) if name in values}


def _compute(step: NodeStep, values: Values, samples: int) -> None:
    given = [values[name] if name else None for name in step.inputs]
    for place, axis in step.repeats.items():
        one = given[place]
        if one is not None:
            given[place] = one.repeat([samples if axis == i else 1 for i in range(one.ndim)])
    try:
        made = step.compute(step.node, *given)
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise _refused(step.node, error) from error
    several = made if isinstance(made, tuple) else (made,)
    values |= {name: value for name, value in zip(step.outputs, several, strict=False) if name and value is not None}


def _refused(node: Node, error: Exception) -> EdgeoptError:
    text = " ".join(str(error).split())[:300]
    return UnsupportedError(
        f"torch cannot compute {node.op} {node.name!r}: {text}",
        remedy="check the model with onnxruntime; if it runs there, export it in a newer opset or simplify it",
    )


def with_frees(steps: Sequence[NodeStep], keep: Collection[str] = ()) -> tuple[NodeStep, ...]:
    """Return the steps, each with the tensors that nothing reads behind it."""
    read = set(keep)
    frees = []
    for step in reversed(steps):
        last = {name for name in (*step.inputs, *step.outputs) if name and name not in read}
        read |= last
        frees.append(replace(step, frees=tuple(sorted(last))))
    return tuple(reversed(frees))


def try_out(
    steps: Sequence[NodeStep],
    values: Values,
    frozen: Set[str],
    keep: Set[str],
    listen: Callable[[str, torch.Tensor], None],
) -> ComputationPlan:
    """Compute all steps once and return the plan for inputs of these shapes.

    Args:
        steps: Of the whole graph.
        values: Inputs, parameters and constants by name, of one sample.
        frozen: Names of the constants that no training changes.
        keep: Names of tensors that are asked for.
        listen: Told each tensor by name as it is made.
    """
    known = {name: values[name] for name in frozen}
    sizes = {name: tuple(value.shape) for name, value in values.items()}
    left = []
    values = dict(values)
    for step in with_frees(steps):
        is_known = step.node.op in _OF_SHAPES or all(name in known for name in step.inputs if name)
        _compute(step, values, 1)
        for name in step.outputs:
            if name in values:
                sizes[name] = tuple(values[name].shape)
                listen(name, values[name])
                if is_known:
                    known[name] = values[name]
        if not is_known:
            left.append(step)
        for name in step.frees:
            values.pop(name, None)
    left = _with_silu(left, keep)
    read = {name for step in left for name in step.inputs} | keep
    known = {name: entry for name, entry in known.items() if name in read}
    return ComputationPlan(with_frees(left), known, 1, {}, sizes)


def _with_silu(steps: Sequence[NodeStep], keep: Set[str]) -> list[NodeStep]:
    """Join x * Sigmoid(x) to one step, which keeps one tensor for its gradient in place of three."""
    readers = Counter(name for step in steps for name in step.inputs)
    gates = {step.outputs[0]: step for step in steps if step.node.op == "Sigmoid" and step.outputs[0] not in keep}
    gates = {name: step for name, step in gates.items() if readers[name] == 1}
    joined: dict[str, NodeStep] = {}
    for step in steps:
        if step.node.op == "Mul" and len(step.inputs) == 2:
            for gate, other in (step.inputs, step.inputs[::-1]):
                if gate in gates and gates[gate].inputs[0] == other:
                    joined[gate] = step
    products = {step.outputs[0] for step in joined.values()}
    swish = {name: replace(step.node, op="Swish", attributes={}) for step in joined.values() for name in step.outputs}
    return [
        NodeStep(swish[one.outputs[0]], lambda _node, x: silu(x), _sources(one, joined), one.outputs)
        if one.outputs[0] in products
        else one
        for one in steps
        if one.outputs[0] not in joined
    ]


def _sources(product: NodeStep, gates: Mapping[str, NodeStep]) -> tuple[str, ...]:
    return tuple(name for name in product.inputs if name not in gates)


def arguments(plan: ComputationPlan, step: NodeStep) -> list[Any]:
    """Return the known values among a step's inputs; None for the others."""
    return [plan.known.get(name) for name in step.inputs]
