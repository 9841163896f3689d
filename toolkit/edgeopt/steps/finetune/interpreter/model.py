"""A model as a torch module."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass

import onnx
import torch

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors._torch.ops import known_ops
from edgeopt.executors._torch.ops._node import node_of, op_name, tensor_of
from edgeopt.executors._torch.plan import ComputationPlan, NodeStep, Values, run, try_out
from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import all_nodes
from edgeopt.steps.finetune.interpreter.batches import Unproven, batched
from edgeopt.steps.finetune.interpreter.grids import grids_of
from edgeopt.steps.finetune.interpreter.roles import stored_floats, weights_of
from edgeopt.steps.finetune.interpreter.rounding import (
    Rounding,
    parameter_key,
    rounding_of,
    store,
    with_pairs_joined,
    write,
)

_FIRST_OPSET = 7
_INTEGER_OPS = frozenset(
    {"QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearConcat", "QGemm"}
    | {"ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeLinear", "MatMulNBits"}
)
"""Operators that compute with integers themselves: nothing is left there to round."""
_ALIKE, _ALIKE_ON_GRIDS = 1e-3, 0.1
"""Largest error over the answer, both root mean square, between a sample among others and the sample alone."""


def missing_ops(model: Model) -> tuple[str, ...]:
    """Return the ops of a model that cannot be trained here, in alphabetical order."""
    return tuple(sorted({op_name(node) for node in all_nodes(model.proto.graph)} - known_ops().keys()))


@dataclass(frozen=True, slots=True)
class _Way:
    """How inputs of certain shapes are computed."""

    one: ComputationPlan
    """Plan for a single sample."""
    all: ComputationPlan | None
    """Plan for all samples at once; None: one by one."""
    first: Values
    """The answers to the first sample alone, against which the first answers for all are checked; then empty."""


class TorchModel(torch.nn.Module):
    """An ONNX model whose weights are torch parameters.

    Statistics of BatchNormalization are frozen, Dropout is off. A model that was exported for a single picture takes
    any number: all at once where axis 0 can be traced through every node, otherwise one after the other.

    Source: the ONNX operators, opsets 7 to 23.
    """

    def __init__(self, model: Model, trainable: Collection[str] | None = None) -> None:
        """Take the weights over.

        Args:
            model: Float; all of its ops are known, see `missing_ops`. It is not changed.
            trainable: Names of the float constants that are parameters; None: `weights_of(model)`.

        Raises:
            UnsupportedError: If an op is not known, or the opset is too old.
            EdgeoptError: If `trainable` names something that is no float constant.
        """
        super().__init__()
        _require_known(model)
        self._model = model
        floats = stored_floats(model.proto)
        wanted = set(weights_of(model) if trainable is None else trainable)
        grids = grids_of(model)
        on_grids = wanted & {*grids.alike, *(stored.integers for stored in grids.stored)}
        if unknown := sorted(wanted - floats.keys() - on_grids):
            raise EdgeoptError(
                f"{model.name} holds no constant to train called {unknown[0]!r}", remedy="name its float initializers"
            )
        self._rounding = rounding_of(model, on_grids)
        first = {name: tensor_of(tensor) for name, tensor in floats.items() if name in wanted - on_grids}
        keys = {**{name: name for name in first}, **{name: parameter_key(name) for name in self._rounding.parameters}}
        self._names, self._keys = tuple(keys), tuple(keys.values())
        first |= self._rounding.parameters
        self._values = torch.nn.ParameterList([first[name] for name in self._names])
        self._others = {
            constant.name: tensor_of(constant)
            for constant in model.proto.graph.initializer
            if constant.name not in floats
        }
        self._steps = _steps(model, floats, self._rounding)
        made = {name for step in self._steps for name in step.outputs}
        frozen = {name: tensor_of(tensor) for name, tensor in floats.items() if name not in made and name not in first}
        frozen |= self._rounding.frozen
        self._frozen = tuple(frozen)
        for place, value in enumerate(frozen.values()):
            self.register_buffer(f"frozen_{place}", value, persistent=False)
        self._outputs = tuple(output.name for output in model.outputs)
        self._tensors = {name for step in self._steps for name in (*step.inputs, *step.outputs) if name}
        self._alike = _ALIKE if not grids.alike else _ALIKE_ON_GRIDS
        self._ways: dict[tuple[object, ...], _Way] = {}

    @property
    def weights(self) -> Mapping[str, torch.nn.Parameter]:
        """The parameters by the names of their constants.

        That of stored integers is the floats behind them; that of a grid's scale is a factor on its first value.
        """
        return dict(zip(self._names, self._values, strict=True))

    def forward(self, inputs: Mapping[str, torch.Tensor], watch: Collection[str] = ()) -> Values:
        """Return the model's outputs and the tensors of `watch`, by name.

        Args:
            inputs: By name, like the model's; where it has a single sample, any number of them along axis 0.
            watch: Names of tensors within the graph.

        Returns:
            Shapes as the model has them, with the number of samples along axis 0. What has no axis of size 1 in front
            gets one for the samples, if they are several.

        Raises:
            UnsupportedError: Where torch cannot compute a node, or the answers to several samples differ in shape.
            EdgeoptError: If an input is missing or does not fit, or `watch` names no tensor.
        """
        if unknown := sorted(set(watch) - self._tensors - set(self._outputs)):
            raise EdgeoptError(f"{self._model.name} has no tensor {unknown[0]!r}", remedy="name a tensor of its graph")
        values = self._given(inputs)
        samples = self._samples(values)
        keep = frozenset(self._outputs) | frozenset(watch)
        key = (samples, keep, *((name, tuple(x.shape), x.dtype, x.device) for name, x in values.items()))
        if key not in self._ways:
            self._ways[key] = self._find_way(values, samples, keep)
        way = self._ways[key]
        if way.all is None:
            return self._one_by_one(way.one, values, samples, keep)
        found = self._run(way.all, values, keep)
        made = {name: _in_front(way.all, name, value) for name, value in found.items()}
        if way.first:
            is_alike = all(_is_alike(value, made[name], self._alike) for name, value in way.first.items())
            self._ways[key] = _Way(way.one, way.all if is_alike else None, {})
            if not is_alike:
                return self._one_by_one(way.one, values, samples, keep)
        return made

    def to_model(self) -> Model:
        """Return the model with the parameters as they are now; what did not change keeps its bytes."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self._model.proto)
        floats, weights = stored_floats(proto), self.weights
        for name, parameter in weights.items():
            if name not in self._rounding.parameters:
                write(floats[name], parameter)
        with torch.no_grad():
            plan = ComputationPlan(self._rounding.steps, {})
            scales = {step.outputs[0] for step in self._rounding.steps}
            made = run(plan, self._values_with({}), scales)
        store(self._rounding, proto, weights, made)
        return Model(proto, self._model.name)

    def _given(self, inputs: Mapping[str, torch.Tensor]) -> Values:
        result = {}
        for spec in self._model.inputs:
            value = inputs.get(spec.name)
            if value is None or value.ndim != len(spec.shape):
                text = "is missing" if value is None else f"has {value.ndim} axes, not {len(spec.shape)}"
                raise EdgeoptError(f"input {spec.name!r} of {self._model.name} {text}", remedy="give it as it is")
            result[spec.name] = value
        return result

    def _samples(self, values: Values) -> int:
        """Return how many samples lie along axis 0 of what was exported for a single one, or for any number."""
        counts = {int(values[name].shape[0]) for name in self._free}
        if len(counts) > 1:
            raise EdgeoptError(
                f"the inputs of {self._model.name} hold {' and '.join(map(str, sorted(counts)))} samples",
                remedy="give as many samples in each of them",
            )
        return max(counts.pop(), 1) if counts else 1

    @property
    def _free(self) -> tuple[str, ...]:
        """Names of the inputs whose axis 0 counts samples."""
        return tuple(spec.name for spec in self._model.inputs if spec.shape and not _is_fixed(spec.shape[0]))

    def _values_with(self, values: Values) -> Values:
        frozen = {name: self.get_buffer(f"frozen_{place}") for place, name in enumerate(self._frozen)}
        return {**self._others, **frozen, **self._by_key(), **values}

    def _by_key(self) -> Values:
        return dict(zip(self._keys, self._values, strict=True))

    def _run(self, plan: ComputationPlan, values: Values, keep: Set[str]) -> Values:
        return run(plan, {**self._by_key(), **values}, keep)

    def _one_by_one(self, plan: ComputationPlan, values: Values, samples: int, keep: Set[str]) -> Values:
        result = [self._run(plan, self._sample(values, other), keep) for other in range(samples)]
        return {name: _stacked(name, [entry[name] for entry in result]) for name in result[0]}

    def _sample(self, values: Values, place: int) -> Values:
        free = self._free
        return {name: x[place : place + 1] if name in free else x for name, x in values.items()}

    def _find_way(self, values: Values, samples: int, keep: Set[str]) -> _Way:
        """Try out one sample; find out whether all can be computed at once."""
        first = Values()
        frozen = {*self._others, *self._frozen}

        def listen(name: str, value: torch.Tensor) -> None:
            if name in keep and samples > 1:
                first[name] = value

        with torch.no_grad():
            plan = try_out(self._steps, self._values_with(self._sample(values, 0)), frozen, keep, listen)
        if samples == 1:
            return _Way(plan, plan, {})
        try:
            whole = batched(plan, dict.fromkeys(self._free, 0), samples)
        except Unproven:
            return self._whole_as_it_is(plan, values, samples, frozen, keep)
        return _Way(plan, whole, first)

    def _whole_as_it_is(
        self, plan: ComputationPlan, values: Values, samples: int, frozen: Set[str], keep: Set[str]
    ) -> _Way:
        """Compute all at once, as the graph says, if it says that it takes any number and gives as many answers."""
        if any(spec.shape[0] == 1 for spec in self._model.inputs if spec.name in self._free):
            return _Way(plan, None, {})
        with torch.no_grad():
            whole = try_out(self._steps, self._values_with(values), frozen, keep, lambda _name, _value: None)
        counted = all(whole.sizes[name][:1] == (samples,) for name in self._outputs)
        return _Way(plan, whole if counted else None, {})


def _is_fixed(size: int | str | None) -> bool:
    return isinstance(size, int) and size != 1


def _require_known(model: Model) -> None:
    if missing := missing_ops(model):
        remedy = "let simplify run first, or export the model with other ops"
        if any(name.rpartition(".")[2] in _INTEGER_OPS for name in missing):
            remedy = (
                'train the float model, or the form of a target with forms = ["qdq"]: QuantizeLinear and its inverse'
            )
        raise UnsupportedError(f"training cannot compute {', '.join(missing)} of {model.name}", remedy=remedy)
    if model.opset < _FIRST_OPSET:
        raise UnsupportedError(
            f"{model.name} has opset {model.opset}; training reads {_FIRST_OPSET} and later",
            remedy="let the step simplify run first: it upgrades the opset",
        )
    if model.proto.graph.sparse_initializer:
        raise UnsupportedError(f"{model.name} holds sparse constants", remedy="export it with dense ones")


def _steps(model: Model, floats: Collection[str], rounding: Rounding) -> list[NodeStep]:
    """Return the nodes in order behind what makes rounded constants, without those that only hold floats."""
    compute, steps = known_ops(), list[NodeStep]()
    for proto in model.proto.graph.node:
        if proto.op_type != "Constant" or proto.output[0] not in floats:
            node = node_of(proto, model.opset)
            steps.append(NodeStep(node, compute[node.op], tuple(proto.input), tuple(proto.output)))
    constants = {constant.name: tensor_of(constant) for constant in model.proto.graph.initializer}
    made = {step.outputs[0] for step in rounding.steps}
    others = [step for step in with_pairs_joined(steps, constants) if step.outputs[0] not in made]
    return [*rounding.steps, *others]


def _in_front(plan: ComputationPlan, name: str, value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of several samples with them along axis 0; that of one sample as it is."""
    if plan.samples == 1:
        return value
    size, axis = plan.sizes[name], plan.axes.get(name)
    if axis is None:
        return _stacked(name, [value] * plan.samples)
    if axis == 0 and size[0] == 1:
        return value
    value = value.unflatten(axis, (plan.samples, size[axis])).movedim(axis, 0)
    return value.squeeze(1) if size[0] == 1 else value


def _stacked(name: str, values: list[torch.Tensor]) -> torch.Tensor:
    if len({value.shape for value in values}) > 1:
        shapes = " and ".join(dict.fromkeys(str(tuple(value.shape)) for value in values))
        raise UnsupportedError(
            f"{name!r} has another shape for each sample: {shapes}",
            remedy="cut the model before the op that selects boxes, or give samples one by one",
        )
    return torch.cat(values) if values[0].ndim and values[0].shape[0] == 1 else torch.stack(values)


def _is_alike(alone: torch.Tensor, among: torch.Tensor, most: float) -> bool:
    """Whether the first of several samples got the answer that it gets alone."""
    mine = among.detach()[0].reshape(alone.shape)
    if not alone.is_floating_point() or not alone.numel():
        return bool((mine == alone).float().mean() >= 1 - most) if alone.numel() else True
    error, size = (float(value.double().square().mean().sqrt()) for value in (mine - alone, alone))
    return not error > most * max(size, 1e-6)
