"""Make one GroupQueryAttention of a decoder's attention, which writes what is new behind the past in the same memory.

    present = Concat(past, new);  Softmax(q * k * scale + mask) * v   ->   GroupQueryAttention(q, k, v, past, length)

Where queries and keys are turned by the same tables just before, it turns them too. The mask must hide what comes
later, and nothing else but what lies further back than a window; it is asked for a few lengths. Afterwards a mask says
by its sum how many tokens of a row are real, and these come first: rows are filled up on the right, not on the left.
Source: Ainslie et al., 2023, arXiv:2305.13245; com.microsoft.GroupQueryAttention of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from edgeopt.executors.onnxruntime.decoder import MASK, PAST, POSITIONS, SHARING_OP
from edgeopt.graph.graph import Graph, Node, Value, attribute
from edgeopt.passes import Pass, Phase
from edgeopt.passes._decoder import (
    MICROSOFT,
    computed,
    context_of,
    input_of,
    scalar,
    split_heads,
    swaps_heads,
    width_of,
)

_RANK = 4
_HEAD_STEP, _TURNED_HEAD_STEP = 8, 16
_PASSING = ("Unsqueeze", "Expand", "Reshape", "Transpose", "Cast", "Identity", "Squeeze")
_HIDDEN = -1e4
"""Bound above which a number of a mask means that the token is seen."""
_COUNT, _BEHIND = 3, 5
_OPSET = 13


@dataclass(frozen=True, slots=True)
class _Attention:
    """One layer's attention as it stands in the graph."""

    parts: tuple[Node, Node]
    """The two Concat that continue the cache."""
    q: Value
    """(batch, heads, tokens, head)."""
    scale: float
    softcap: float
    window: int
    """Tokens that a query sees; 0: all."""
    last: Node
    """The Reshape that joins the heads again: (batch, tokens, heads * head), or as many rows."""


def fuse_group_query_attention(graph: Graph) -> int:
    """Return how many attentions became one node."""
    mask = input_of(graph, MASK)
    if mask is None or graph.opset < _OPSET:
        return 0
    fused = 0
    lengths: tuple[Value, Value] | None = None
    for past in [input_ for input_ in graph.inputs if (name := PAST.fullmatch(str(input_.name))) and name[2] == "key"]:
        attention = _attention(graph, past)
        if attention is not None:
            lengths = lengths or _lengths(graph, mask)
            fused += _write(graph, attention, lengths)
    if fused:
        graph.remove_unused()
        _drop_positions(graph)
    return fused


def _attention(graph: Graph, key: Value) -> _Attention | None:
    value = input_of(graph, str(key.name).removesuffix("key") + "value")
    parts = tuple(_continued(graph, other) for other in (key, value))
    if parts[0] is None or parts[1] is None or width_of(key) is None:
        return None
    keys, values = dict(_reached(graph, parts[0].outputs[0])), dict(_reached(graph, parts[1].outputs[0]))
    for node in {consumer: None for value in values for consumer in graph.consumers(value)}:
        if _is(node, "MatMul") and _factor(values, node, 1) == 1.0:
            found = _of_products(graph, node, keys)
        elif _is(node, "Attention") and _factor(values, node, 2) == 1.0:
            found = _of_op(graph, node, keys)
        else:
            continue
        if found is None:
            return None
        q, scale, softcap, mask = found
        window = _window(graph, mask)
        last = _joined(graph, node.outputs[0])
        if window is None or last is None:
            return None
        return _Attention((parts[0], parts[1]), q, scale, softcap, window, last)
    return None


def _factor(values: dict[Value, float], node: Node, place: int) -> float | None:
    value = node.inputs[place] if len(node.inputs) > place else None
    return None if value is None else values.get(value)


def _is(node: Node, op: str) -> bool:
    return node.op_type == op and node.domain in ("", "ai.onnx")


def _continued(graph: Graph, past: Value | None) -> Node | None:
    """Return the Concat that puts what is new behind a part of the cache."""
    joins = [consumer for consumer in graph.consumers(past) if _is(consumer, "Concat")] if past is not None else []
    if len(joins) != 1 or len(joins[0].inputs) != 2 or joins[0].inputs[0] is not past:
        return None
    return joins[0] if attribute(joins[0], "axis", 0) in (-2, _RANK - 2) else None


def _reached(graph: Graph, value: Value) -> Iterator[tuple[Value, float]]:
    """Yield what is the same numbers, repeated for the queries of a group, with the factor that was multiplied."""
    waiting = [(value, 1.0)]
    while waiting:
        other, factor = waiting.pop()
        yield other, factor
        for node in graph.consumers(other):
            if node.domain not in ("", "ai.onnx") or not node.inputs or not node.outputs:
                continue
            if node.op_type in _PASSING and node.inputs[0] is other:
                waiting.append((node.outputs[0], factor))
            elif (found := scalar(graph, node, "Mul", "Div")) and found[0] is other:
                waiting.append((node.outputs[0], factor * found[1]))


_Found = tuple[Value, float, float, Value | None]
"""Queries, scale, soft limit of the scores (0: none), mask."""


def _of_products(graph: Graph, node: Node, keys: dict[Value, float]) -> _Found | None:
    """Follow back from the product of shares and values: Softmax, mask, limit, scale, queries."""
    softmax = graph.producer(_shares(graph, node.inputs[0]), "Softmax")
    if softmax is None or attribute(softmax, "axis", -1) not in (-1, _RANK - 1):
        return None
    scores, mask = softmax.inputs[0], None
    add = graph.producer(scores, "Add")
    if add is not None:
        scores, mask = add.inputs
        if not _leads_to_scores(graph, scores):
            scores, mask = mask, scores
    scores, factor, limit = _limited(graph, scores)
    product = graph.producer(scores, "MatMul")
    if product is None or product.inputs[1] not in keys or product.inputs[0] is None:
        return None
    factor *= keys[product.inputs[1]]
    q, inner = _scaled(graph, product.inputs[0])
    return (q, factor * inner, limit, mask) if not limit or factor else None


def _shares(graph: Graph, value: Value | None) -> Value | None:
    """Return shares before a guard against NaN, which rows that see nothing have."""
    while True:
        node = graph.producer(value)
        if node is None or node.domain:
            return value
        if node.op_type == "Where" and graph.producer(node.inputs[0], "IsNaN") is not None:
            value = node.inputs[2]
        elif node.op_type in ("Cast", "Identity", "Dropout"):
            value = node.inputs[0]
        else:
            return value


def _leads_to_scores(graph: Graph, value: Value | None) -> bool:
    return graph.producer(_limited(graph, value)[0], "MatMul") is not None


def _limited(graph: Graph, value: Value | None) -> tuple[Value | None, float, float]:
    """Return what is scaled, the factor, and c of c * Tanh(x / c), 0 where there is none."""
    outer, factor = _scaled(graph, value)
    tanh = graph.producer(outer, "Tanh")
    if tanh is None:
        return outer, factor, 0.0
    inner, divided = _scaled(graph, tanh.inputs[0])
    return inner, factor * divided, factor


def _scaled(graph: Graph, value: Value | None) -> tuple[Value, float]:
    """Return a value before it was multiplied by numbers, and these."""
    factor = 1.0
    while (found := scalar(graph, graph.producer(value), "Mul", "Div")) is not None:
        value, factor = found[0], factor * found[1]
    assert value is not None
    return value, factor


def _of_op(graph: Graph, node: Node, keys: dict[Value, float]) -> _Found | None:
    """Return what a standard Attention on tensors of four axes, without a past of its own, computes."""
    inputs = [*node.inputs, *[None] * (6 - len(node.inputs))]
    q, key, _, mask, *past = inputs[:6]
    is_plain = not any(past) and not any(output.uses() for output in node.outputs[1:])
    if (
        q is None
        or key not in keys
        or not is_plain
        or attribute(node, "is_causal", 0)
        or graph.rank(q) not in (None, _RANK)
    ):
        return None
    head = q.shape[-1] if q.shape is not None else None
    scale = attribute(node, "scale", 0.0) or (head**-0.5 if isinstance(head, int) else 0.0)
    q, inner = _scaled(graph, q)
    factor = scale * inner * keys[key]
    return (q, factor, attribute(node, "softcap", 0.0), mask) if factor else None


def _window(graph: Graph, mask: Value | None) -> int | None:
    """Return how many tokens a query sees, 0 for all; None where the mask hides others, or is not known."""
    if mask is None:
        return None
    far = _seen(graph, mask, 1, context_of(graph) - 1)
    near = _seen(graph, mask, _COUNT, _BEHIND)
    alone = _seen(graph, mask, _COUNT, 0)
    if far is None or near is None or alone is None:
        return None
    count = int(far.sum())
    window = 0 if count == far.size else count
    for seen, past in ((far, context_of(graph) - 1), (near, _BEHIND), (alone, 0)):
        tokens, total = seen.shape
        back = np.arange(past, past + tokens)[:, None] - np.arange(total)[None]
        if total != past + tokens or not np.array_equal(seen, (back >= 0) & (back < (window or total))):
            return None
    return window


def _seen(graph: Graph, mask: Value, count: int, past: int) -> np.ndarray | None:
    """Return (tokens, past + tokens) of what each token sees."""
    found = computed(graph, mask, count, past)
    if found is None or found[0].ndim < 2 or found[0].size != found[0].shape[-1] * found[0].shape[-2]:
        return None
    rows = found[0].reshape(found[0].shape[-2:])
    if rows.dtype == np.bool_:
        return rows
    seen = rows > _HIDDEN
    return None if np.any(rows[seen]) else np.asarray(seen)


def _joined(graph: Graph, value: Value) -> Node | None:
    """Return the Reshape behind the transposition, which joins heads."""
    swap = graph.sole_consumer(value, "Transpose")
    if swap is None or not swaps_heads(swap):
        return None
    join = graph.sole_consumer(swap.outputs[0], "Reshape")
    return join if join is not None and graph.rank(join.outputs[0]) in (2, 3) else None


def _write(graph: Graph, attention: _Attention, lengths: tuple[Value, Value]) -> bool:
    join_key, join_value = attention.parts
    key, value, head = join_key.inputs[1], join_value.inputs[1], width_of(join_key.inputs[0]) or 0
    q, key, tables = _unturned(graph, attention.q, key)
    flat = [split_heads(graph, other, head) for other in (q, key, value) if other is not None]
    if len(flat) < 3 or None in flat or head % (_TURNED_HEAD_STEP if tables else _HEAD_STEP):
        return False
    (queries, heads), (keys, kv_heads), (values, again) = (one for one in flat if one is not None)
    if heads % kv_heads or again != kv_heads:
        return False
    attributes = {
        "num_heads": heads, "kv_num_heads": kv_heads, "scale": attention.scale, "softcap": attention.softcap,
        "do_rotary": int(bool(tables)), "rotary_interleaved": 0, "local_window_size": attention.window or -1,
    }  # fmt: skip
    inputs = [queries, keys, values, join_key.inputs[0], join_value.inputs[0], *lengths, *tables]
    names = [
        f"{attention.last.outputs[0].name}_seen",
        *(f"{part.outputs[0].name}_continued" for part in attention.parts),
    ]
    new = graph.insert(
        SHARING_OP, inputs, attributes, domain=MICROSOFT, outputs=names, name=f"{attention.last.name}_gqa"
    )
    if graph.rank(attention.last.outputs[0]) == _RANK - 1:
        graph.replace(attention.last.outputs[0], new.outputs[0])
    else:
        graph.set_input(attention.last, 0, new.outputs[0])
    for join, present in zip(attention.parts, new.outputs[1:], strict=True):
        graph.replace(join.outputs[0], present)
    return True


def _unturned(graph: Graph, q: Value, key: Value | None) -> tuple[Value | None, Value | None, tuple[Value, ...]]:
    """Return queries and keys before they were turned, and the tables; as they are where their tables differ."""
    first, second = _turn(graph, q), _turn(graph, key)
    if first is None or second is None or first[1] != second[1]:
        return q, key, ()
    return first[0], second[0], first[1]


def _turn(graph: Graph, value: Value | None) -> tuple[Value, tuple[Value, ...]] | None:
    """Return what is turned, whole or its first numbers only, and the tables."""
    node, whole = graph.producer(value), None
    if (
        node is not None
        and node.op_type == "Concat"
        and len(node.inputs) == 2
        and attribute(node, "axis", 0) in (-1, 3)
    ):
        rest = graph.producer(node.inputs[1])
        whole = rest.inputs[0] if rest is not None and rest.op_type in ("Slice", "Split") else None
        node = graph.producer(node.inputs[0])
        part = graph.producer(node.inputs[0]) if node is not None and node.inputs else None
        if whole is None or part is None or part.op_type not in ("Slice", "Split") or part.inputs[0] is not whole:
            return None
    if node is None or node.op_type != "RotaryEmbedding" or node.domain != MICROSOFT:
        return None
    x, (cos, sin) = whole or node.inputs[0], node.inputs[2:4]
    return None if x is None or cos is None or sin is None else (x, (cos, sin))


def _lengths(graph: Graph, mask: Value) -> tuple[Value, Value]:
    """Return each row's last position and the longest row, as the op takes them."""

    def node(op: str, *inputs: Value, **attributes: int) -> Value:
        return graph.insert(op, inputs, attributes, name=f"lengths_{op}").outputs[0]

    value = graph.add_initializer("lengths_one", np.array(1, np.int64))
    columns = graph.add_initializer("lengths_columns", np.array([1], np.int64))
    last = node("Sub", node("ReduceSum", mask, columns, keepdims=0), value)
    total = node("Gather", node("Shape", mask), value, axis=0)
    return node("Cast", last, to=TensorProto.INT32), node("Cast", total, to=TensorProto.INT32)


def _drop_positions(graph: Graph) -> None:
    """Ask for positions no longer where nothing reads them."""
    positions = input_of(graph, POSITIONS)
    if positions is not None:
        graph.drop_input(positions)


PASS = Pass(fuse_group_query_attention, Phase.DECODER)
