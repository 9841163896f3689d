"""A network of PyTorch as an ONNX model."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx

from edgeopt.errors import Note, NoteKind, UnsupportedError
from edgeopt.export.from_torch import said
from edgeopt.export.network import Network
from edgeopt.export.quiet import quiet_export
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import all_nodes, subgraphs
from edgeopt.system.declared.target import Target
from edgeopt.system.text import short

RANK = 4
"""Dimensions of attention that torch.onnx translates."""


def write_out_attention(torch: Any, program: Any) -> Any:
    """Return an exported program; where one attention has another rank, products and softmax in place of all.

    Args:
        torch: The package.
        program: By `torch.export.export`.
    """
    attention = torch.ops.aten.scaled_dot_product_attention.default
    nodes = [node for node in program.graph.nodes if node.op == "call_function" and node.target is attention]
    if all(len(node.args[0].meta["val"].shape) == RANK for node in nodes):
        return program

    def written_out(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,  # a network in use drops nothing
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        if enable_gqa:
            key, value = (entry.repeat_interleave(query.shape[-3] // entry.shape[-3], -3) for entry in (key, value))
        scores = (query * factor) @ key.transpose(-2, -1)
        if is_causal:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return scores.softmax(-1) @ value

    return program.run_decompositions({attention: written_out})


Axes = Mapping[str, Sequence[int]]
"""Input to its axes that stay free."""
OLDEST_OPSET = 18
"""Oldest opset that torch.export writes; what it makes of a lower one fails at the first reduction."""
_TRACED = 2
"""Size of a free axis in a trace, where 1 was asked: torch.export takes 0 and 1 for fixed."""
_MADE_UP = re.compile(r"s\d+")
"""Names of free dimensions as torch.export makes them up."""
_DETECTORS = "torchvision.models.detection"
"""Detectors whose lists of boxes have any length, which torch.export does not follow; PyTorch's older exporter does."""


def choose_opset(target: Target, form: str) -> tuple[int, tuple[Note, ...]]:
    """Return the opset for a target: its own, or the next one that is written.

    Raises:
        UnsupportedError: If the target takes none that is written.
    """
    if form == "torchscript" or target.opset >= OLDEST_OPSET:
        return target.opset, ()
    if 0 < target.opset_most < OLDEST_OPSET:
        raise UnsupportedError(
            f"{target.name} takes opset {target.opset_most} at most, and torch.export writes {OLDEST_OPSET} and above",
            remedy="torch.jit.trace the module and name the TorchScript file, which is written at any opset",
        )
    text = f"opset {OLDEST_OPSET}: torch.export writes no lower one, and {target.name} takes it"
    return OLDEST_OPSET, (Note(NoteKind.INFO, text, f"it asks for {target.opset}"),)


def to_onnx(network: Network, outputs: Sequence[str], dynamic: Axes, opset: int) -> Model:
    """Return a network as a checked ONNX model, without the traces of its code that torch writes into it.

    Args:
        network: What is exported.
        outputs: Names of the tensors that it returns.
        dynamic: Axes that stay free.
        opset: Of the model.

    Raises:
        UnsupportedError: If torch cannot export it.
        InvalidFileError: If what torch wrote is no valid model.
    """
    import torch

    with quiet_export(torch):
        try:
            if network.form == "torchscript":
                proto = _by_torchscript(torch, network, outputs, dynamic, opset)
            else:
                proto = _by_export(torch, network, outputs, dynamic, opset)
        except Exception as error:
            cause = error.__cause__ or error
            raise UnsupportedError(
                f"torch cannot export {network.name}: {said(cause)}", remedy=_remedy(network, dynamic)
            ) from error
    _name_axes(proto, dynamic)
    forget_traces(proto)
    require_valid(proto, network.name)
    return Model(proto, network.name)


def example(torch: Any, network: Network, dynamic: Axes) -> tuple[Any, ...]:
    """Return tensors on which a network is traced."""
    drawn = []
    for input_ in network.inputs:
        free = {axis: max(input_.shape[axis], _TRACED) for axis in dynamic.get(input_.name, ())}
        drawn.append(torch.from_numpy(input_.draw(0, free)))
    return tuple(drawn)


def _by_export(torch: Any, network: Network, outputs: Sequence[str], dynamic: Axes, opset: int) -> onnx.ModelProto:
    names = {"input_names": [input_.name for input_ in network.inputs], "output_names": list(outputs)}
    common = {**names, "dynamo": True, "opset_version": opset, "verbose": False}
    if network.form == "program":
        return _proto_of(torch.onnx.export(write_out_attention(torch, network.program), **common))
    axes = tuple(dict.fromkeys(dynamic.get(input_.name, ()), torch.export.Dim.DYNAMIC) for input_ in network.inputs)
    values = {"dynamic_shapes": axes} if dynamic else {}
    traced = torch.export.export(network.module, example(torch, network, dynamic), strict=False, **values)
    return _proto_of(torch.onnx.export(write_out_attention(torch, traced), **common))


def _proto_of(exported: Any) -> onnx.ModelProto:
    proto: onnx.ModelProto = exported.model_proto
    return proto


def _by_torchscript(torch: Any, network: Network, outputs: Sequence[str], dynamic: Axes, opset: int) -> onnx.ModelProto:
    file = io.BytesIO()
    torch.onnx.export(
        network.module,
        example(torch, network, dynamic),
        file,
        dynamo=False,
        opset_version=opset,
        input_names=[input_.name for input_ in network.inputs],
        output_names=list(outputs),
        dynamic_axes={name: list(axes) for name, axes in dynamic.items()} or None,
    )
    return onnx.load_model_from_string(file.getvalue())


def _remedy(network: Network, dynamic: Axes) -> str:
    fixed = "leave --dynamic out; or " if dynamic else ""
    if network.form == "torchscript":
        return f"{fixed}name the code that makes the module: torch:package.module:factory"
    if type(network.module).__module__.startswith(_DETECTORS):
        return f'torch.onnx.export(net, (images,), "{network.name}.onnx", dynamo=False) follows it; optimize that file'
    return f"{fixed}change what is named so that torch.export.export follows it: no branch on values of tensors"


def _name_axes(proto: onnx.ModelProto, dynamic: Axes) -> None:
    """Give free dimensions names that a reader knows, in place of `s34`; one that torch made equal keeps one name."""
    renamed: dict[str, str] = {}
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis in dynamic.get(value.name, ()) or _MADE_UP.fullmatch(dim.dim_param):  # free in a program too
                renamed.setdefault(dim.dim_param, "batch" if axis == 0 else f"{value.name}_{axis}")
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in renamed:
                dim.dim_param = renamed[dim.dim_param]


def forget_traces(proto: onnx.ModelProto) -> None:
    """Take out what torch notes of files and lines: paths of the machine, often more bytes than the graph."""
    for graph in (proto.graph, *subgraphs(all_nodes(proto.graph))):
        for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
            part.ClearField("metadata_props")
        for node in graph.node:
            node.ClearField("doc_string")
    for function in proto.functions:
        function.ClearField("metadata_props")
    proto.ClearField("doc_string")


def flat_outputs(torch: Any, answer: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return names and tensors of an answer: a tensor, or a sequence or mapping of tensors, nested or not.

    Raises:
        UnsupportedError: If it holds none, or something else beside them.
    """
    result = dict(_flat(torch, answer, ""))
    if not result:
        raise UnsupportedError("the network returns no tensor", remedy="return a tensor, or a dictionary of tensors")
    return tuple(result), tuple(result.values())


def _flat(torch: Any, answer: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(answer, torch.Tensor):
        yield name or "output", answer
    elif isinstance(answer, Mapping):
        for key, value in answer.items():
            yield from _flat(torch, value, f"{name}_{key}" if name else str(key))
    elif isinstance(answer, list | tuple):
        for i, value in enumerate(answer):
            yield from _flat(torch, value, f"{name or 'output'}_{i}")
    elif answer is not None:
        raise UnsupportedError(
            f"the network returns a {type(answer).__name__} ({short(str(answer))}) beside tensors",
            remedy="return a tensor, or a dictionary of tensors",
        )
