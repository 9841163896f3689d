"""A node as the functions of the ops see it, and what they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx
import torch
from onnx import helper, numpy_helper

from edgeopt.errors import UnsupportedError

Result: TypeAlias = "torch.Tensor | tuple[torch.Tensor | None, ...]"
Compute: TypeAlias = Callable[..., Result]

_DEFAULT_DOMAIN = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Node:
    """Op, attributes and opset of one node."""

    op: str
    """An op of another domain than ONNX's: `domain.name`."""
    name: str
    """Name of its first output that has one."""
    attributes: Mapping[str, Any]
    """Numbers, texts, lists of them, and torch tensors."""
    opset: int
    """Opset of the default domain."""
    outputs: int
    """How many are asked for, counted up to the last that has a name."""

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute, or `default` where it is not written."""
        return self.attributes.get(name, default)

    def refuse(self, what: str) -> UnsupportedError:
        """Return the error that says what of this node torch has no way to compute here."""
        return UnsupportedError(
            f"torch cannot compute {self.op} {self.name!r} with {what}",
            remedy="let simplify and fuse run first, or export the model without it",
        )


def op_name(node: onnx.NodeProto) -> str:
    """Return the name under which an op is known here."""
    return str(node.op_type if node.domain in _DEFAULT_DOMAIN else f"{node.domain}.{node.op_type}")


def node_of(proto: onnx.NodeProto, opset: int) -> Node:
    """Read a node of a model."""
    attributes = {attribute.name: _value(attribute) for attribute in proto.attribute}
    outputs = max((place for place, name in enumerate(proto.output, 1) if name), default=0)
    name = next((value_info for value_info in proto.output if value_info), proto.name)
    return Node(op_name(proto), name, attributes, opset, outputs)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return tensor_of(value)
    if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [entry.decode("utf-8", "replace") for entry in value]
    return value


def tensor_of(proto: onnx.TensorProto) -> torch.Tensor:
    """Return a stored constant as a tensor on the CPU."""
    return torch.from_numpy(numpy_helper.to_array(proto).copy())


def ints(value: torch.Tensor | Sequence[int] | None) -> list[int]:
    """Return axes, sizes or paddings as numbers; none where they are left out."""
    if value is None:
        return []
    return [int(one) for one in (value.reshape(-1).tolist() if isinstance(value, torch.Tensor) else value)]


def number(value: torch.Tensor | float) -> Any:
    """Return the one number of a tensor; as a list, which torch's recording of a program allows of constants."""
    return value.reshape(-1).tolist()[0] if isinstance(value, torch.Tensor) else value


def given(node: Node, name: str, value: torch.Tensor | None) -> list[int] | None:
    """Return integers that older opsets have as an attribute and newer ones as an input; None: left out."""
    if value is not None:
        return ints(value)
    written = node.get(name, None)
    return None if written is None else ints(written)


def same_padding(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], *, lower: bool) -> list[int]:
    """Return the padding of SAME_UPPER or SAME_LOWER: all begins, then all ends.

    Args:
        sizes: Of the input, without batch and channels.
        kernel: With its dilations.
        strides: Of each axis.
        lower: Whether the odd one goes to the begin.
    """
    begins, ends = list[int](), list[int]()
    for size, reach, stride in zip(sizes, kernel, strides, strict=True):
        total = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
        begins.append(total - total // 2 if lower else total // 2)
        ends.append(total // 2 if lower else total - total // 2)
    return [*begins, *ends]


def windows_padding(
    node: Node, x: torch.Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Return the padding of a node whose windows glide over pictures: all begins, then all ends."""
    kind = node.get("auto_pad", "NOTSET")
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    if kind in ("SAME_UPPER", "SAME_LOWER"):
        return same_padding(x.shape[2:], reach, strides, lower=kind == "SAME_LOWER")
    return [0] * 2 * len(kernel) if kind == "VALID" else list(node.get("pads", [0] * 2 * len(kernel)))


def torch_padding(pads: Sequence[int]) -> list[int]:
    """Return ONNX's padding (all begins, then all ends) as torch wants it: pairs, the last axis first."""
    rank = len(pads) // 2
    return [pads[axis + side * rank] for axis in reversed(range(rank)) for side in (0, 1)]
