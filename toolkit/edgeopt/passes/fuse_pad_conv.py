"""Let a Conv do the padding of a Pad before it: zeros, height and width only."""

from __future__ import annotations

from edgeopt.graph.graph import Graph, Node, attribute
from edgeopt.passes import Pass, Phase


def fuse_pad_conv(graph: Graph) -> int:
    """Return how many Pad nodes disappeared into a Conv."""
    fused = 0
    for conv in graph.nodes("Conv"):
        pad = graph.sole_producer(conv.inputs[0], "Pad")
        extra = _spatial_pads(graph, pad) if pad is not None else None
        mode: str = attribute(conv, "auto_pad", "NOTSET")
        if pad is None or extra is None or mode not in ("NOTSET", "VALID"):
            continue
        pads: tuple[int, ...] = attribute(conv, "pads", (0,) * len(extra))
        graph.set_attribute(conv, "auto_pad", None)
        graph.set_attribute(conv, "pads", [own + more for own, more in zip(pads, extra, strict=True)])
        fused += graph.bypass(pad)
    return fused


def _spatial_pads(graph: Graph, pad: Node) -> tuple[int, ...] | None:
    """Return the pads of a Pad (opset 11 or later) in a Conv's order, None unless a Conv can do them."""
    constants = graph.constants(value for value in pad.inputs[1:] if value is not None)
    rank = graph.rank(pad.outputs[0])
    if not constants or rank is None or attribute(pad, "mode", "constant") != "constant":
        return None
    amounts, filling, axes = constants[0].tolist(), 0.0, list(range(rank))
    for name, array in zip(_names_after_pads(pad), constants[1:], strict=True):
        if name == "value":
            filling = float(array.reshape(()))
        else:
            axes = [axis % rank for axis in array.tolist()]
    begin, end = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        begin[axis], end[axis] = amounts[i], amounts[i + len(axes)]
    if filling != 0 or any(begin[:2] + end[:2]) or min(begin + end) < 0:
        return None
    return (*begin[2:], *end[2:])


def _names_after_pads(pad: Node) -> list[str]:
    optional = zip(pad.inputs[2:], ("value", "axes"), strict=False)
    return [name for value, name in optional if value is not None]


PASS = Pass(fuse_pad_conv, Phase.FUSE)
