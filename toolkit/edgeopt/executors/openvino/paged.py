"""A decoder as OpenVINO computes it best: attention over pages of a cache that stays in the engine.

OpenVINO's own way for `GroupQueryAttention` hands the whole past through the graph in each run, and its fused attention
with a state takes a slow path behind a past. What OpenVINO GenAI runs is neither: attention over pages. Its pass puts
it in place of a state and a `ScaledDotProductAttention`, so that is written here of each `GroupQueryAttention` first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edgeopt.errors import UnsupportedError

MASK, POSITIONS, BEAMS = "attention_mask", "position_ids", "beam_idx"
ROWS = "rows"
"""Input with the tokens behind which logits are wanted: the head is computed of no others."""
_LOGITS = "logits"
_BEHIND_HEAD = ("Reshape", "Convert", "Add", "Multiply", "Divide", "Tanh")
"""Ops that may stand between the product of a head and its logits, each of which takes each token by itself."""
_OP = "GroupQueryAttention"
_REMEDY = "let ONNX Runtime compute it"
_RANK, _NUMBERS, _TABLES = 4, 3, 9
"""Dimensions of queries, keys and values (batch, heads, tokens, numbers), and inputs with the tables of positions."""


def over_pages(openvino: Any, model: Any, *, gives_logits: bool = False) -> Any:
    """Return the graph with attention over pages.

    Args:
        openvino: The package.
        model: A decoder, or a graph of prompts, that it read from ONNX.
        gives_logits: Whether its output is the logits behind those of the new tokens that the input `ROWS` names; else
            its outputs are keys and values of the new tokens.

    Raises:
        UnsupportedError: If it attends in another way, or this version of OpenVINO has no such pass.
    """
    try:
        from openvino._offline_transformations import paged_attention_transformation as to_pages
    except ImportError as error:
        raise UnsupportedError("this OpenVINO has no attention over pages", remedy=_REMEDY) from error
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == _OP]
    if not attentions:
        raise UnsupportedError("OpenVINO finds no GroupQueryAttention in the graph", remedy=_REMEDY)
    made = _Rewriting(openvino, model)
    for node in attentions:
        made.rewrite(node)
    if gives_logits:
        made.keep_logits(model)
    whole = openvino.Model(made.results, made.sinks, made.parameters, model.get_friendly_name())
    try:
        to_pages(whole)
    except RuntimeError as error:
        problem = "OpenVINO does not put attention over pages into the graph"
        raise UnsupportedError(problem, remedy=_REMEDY) from error
    return whole


class _Rewriting:
    """Parts that the graph gets in place of its attentions."""

    def __init__(self, openvino: Any, model: Any) -> None:
        self._openvino, self._ops = openvino, openvino.opset13
        kept = [node for node in model.get_parameters() if not _name(node).startswith("past_key_values")]
        names = {_name(node): node for node in kept}
        added = {
            MASK: ([-1, -1], np.int64),
            POSITIONS: ([-1, -1], np.int64),
            BEAMS: ([-1], np.int32),
        }
        for name, (shape, kind) in added.items():
            if name not in names:
                names[name] = self._ops.parameter(shape, kind, name=name)
                names[name].output(0).set_names({name})
        self.parameters = [*names.values()]
        self.results, self.sinks = list[Any](), list[Any]()
        self._positions, self._beams = names[POSITIONS], names[BEAMS]
        as_floats = self._ops.convert(names[MASK], "f32")  # any mask: the pass takes it away
        self._mask = self._ops.unsqueeze(as_floats, self._numbers(1, 2))
        self._turns: tuple[Any, Any] | None = None

    def rewrite(self, node: Any) -> None:
        """Write out one attention."""
        facts, inputs = node.get_attributes(), node.input_values()
        query, key, value, past_key, past_value = inputs[:5]
        _require_plain(facts, inputs)
        heads, groups = facts["num_heads"], facts["kv_num_heads"]
        head = query.get_partial_shape()[_NUMBERS].get_length()
        query, key = (self._turned(each, inputs[7:_TABLES], head) for each in (query, key))
        for i, new in ((1, key), (2, value)):
            result = self._ops.result(new)
            result.output(0).set_names(node.output(i).get_names())
            self.results.append(result)
        readers = [*node.output(0).get_target_inputs()]
        if not readers:  # of the last layer keys and values are all that is needed
            return
        keys, values = (self._held(past, new, groups, head) for past, new in ((past_key, key), (past_value, value)))
        scale = np.float32(facts["scale"] or 1 / math.sqrt(head))
        seen = self._ops.scaled_dot_product_attention(
            query,
            self._repeated(keys, heads, groups, head),
            self._repeated(values, heads, groups, head),
            self._mask,
            self._ops.constant(scale),
        )
        rows = self._ops.transpose(seen, self._numbers(0, 2, 1, 3))
        joined = self._ops.reshape(rows, self._numbers(0, 0, heads * head), special_zero=True)
        for reader in readers:
            reader.replace_source_output(joined.output(0))

    def keep_logits(self, model: Any) -> None:
        """Let the logits of the wanted tokens be the only output."""
        ops = self._ops
        results = [node for node in model.get_results() if _LOGITS in node.input_value(0).get_names()]
        if not results:
            raise UnsupportedError("OpenVINO finds no logits in the graph", remedy=_REMEDY)
        head = results[0].input_value(0).get_node()
        while head.get_type_name() in _BEHIND_HEAD:
            head = head.input_value(0).get_node()
        rows = ops.parameter([-1], np.int64, name=ROWS)
        rows.output(0).set_names({ROWS})
        port = head.input(0) if head.get_type_name() == "MatMul" else results[0].input(0)
        # the pass makes each token a text of its own: they lie along the first dimension
        wanted = ops.gather(port.get_source_output(), rows, ops.constant(np.int64(0)))
        port.replace_source_output(wanted.output(0))
        if port.get_node().get_type_name() != "MatMul":
            wanted.output(0).set_names({_LOGITS})
        self.parameters.append(rows)
        self.results = results

    def _turned(self, each: Any, tables: Any, head: int) -> Any:
        """Return queries or keys turned by their positions, in the one way of writing it that OpenVINO fuses."""
        ops = self._ops
        if self._turns is None:
            rows = [ops.gather(table, self._positions, ops.constant(np.int64(0))) for table in tables]
            cosines, sines = (ops.unsqueeze(ops.concat([row, row], -1), self._numbers(1)) for row in rows)
            self._turns = cosines, sines
        halves = ops.variadic_split(each, ops.constant(np.int64(_NUMBERS)), self._numbers(head // 2, head // 2))
        negative = ops.multiply(halves.output(1), ops.constant(np.float32(-1)))
        other = ops.concat([negative, halves.output(0)], -1)
        return ops.add(ops.multiply(each, self._turns[0]), ops.multiply(other, self._turns[1]))

    def _held(self, past: Any, new: Any, groups: int, head: int) -> Any:
        """Return the state of a past joined with what is new."""
        ops, name = self._ops, _name(past.get_node())
        empty = ops.broadcast(ops.constant(np.float32(0)), self._numbers(1, groups, 0, head))
        shape = self._openvino.PartialShape([-1, groups, -1, head])
        state = ops.read_value(empty, name, np.float32, shape)
        ordered = ops.gather(state, self._beams, ops.constant(np.int64(0)))
        joined = ops.concat([ordered, new], 2)
        self.sinks.append(ops.assign(joined, name))
        return joined

    def _repeated(self, each: Any, heads: int, groups: int, head: int) -> Any:
        """Return keys or values once for each head that reads them."""
        ops = self._ops
        apart = ops.unsqueeze(each, self._numbers(2))
        wide = ops.broadcast(apart, self._numbers(1, 1, heads // groups, 1, 1), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, self._numbers(0, heads, -1, head), special_zero=True)

    def _numbers(self, *values: int) -> Any:
        return self._ops.constant(np.array(values, np.int64))


def _require_plain(facts: dict[str, Any], inputs: list[Any]) -> None:
    """Raise on an attention of which more than heads, scale and positions is to be known."""
    checks: tuple[tuple[Callable[[], bool], str], ...] = (
        (lambda: len(inputs) >= _TABLES and bool(facts["do_rotary"]), "turns no positions"),
        (lambda: not facts["rotary_interleaved"], "turns neighbours"),
        (lambda: facts.get("local_window_size", -1) <= 0, "sees a window"),
        (lambda: not facts.get("smooth_softmax", False), "limits its scores"),
        (lambda: all(value.get_element_type().is_dynamic() for value in inputs[_TABLES:]), "reads further inputs"),
        (lambda: inputs[0].get_partial_shape().rank.get_length() == _RANK, "has its heads in one row"),
        (
            lambda: (
                2 * inputs[7].get_partial_shape()[1].get_length()
                == inputs[0].get_partial_shape()[_NUMBERS].get_length()
            ),
            "turns a part of each head",
        ),
    )
    for holds, what in checks:
        if not holds():
            raise UnsupportedError(f"attention of the graph {what}", remedy=_REMEDY)


def _name(node: Any) -> str:
    return str(node.output(0).get_any_name())
