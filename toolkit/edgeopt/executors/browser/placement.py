"""Where onnxruntime-web places nodes, as its log says it: it has no other way to tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from edgeopt.executors import Placement

_ALL = re.compile(r" All nodes placed on \[(?P<provider>\w+)\]")
_SOME = re.compile(r" Node\(s\) placed on \[(?P<provider>\w+)\]")
_NODE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]?\s+(?P<op>[\w.]+) \((?P<node>.*)\)$")
_WORDS: Mapping[str, str] = {"CPUExecutionProvider": "wasm", "WebGpuExecutionProvider": "webgpu"}
"""The engine's names of providers in the words of a page."""


def placements(lines: Iterable[str], model: bytes) -> tuple[Placement, ...]:
    """Return where nodes run: those that the log lists, or the model's own where it says that all run together.

    Args:
        lines: What the engine logged while it created the session.
        model: The ONNX model.
    """
    provider, listed = "", list[Placement]()
    for line in lines:
        if match := _ALL.search(line):
            return _all_nodes(model, _word(match["provider"]))
        if match := _SOME.search(line):
            provider = _word(match["provider"])
        elif provider and (node := _NODE.search(line)):
            listed.append(Placement(node["node"], node["op"], provider))
    return tuple(listed)


def _word(provider: str) -> str:
    return _WORDS.get(provider, provider)


def _all_nodes(model: bytes, provider: str) -> tuple[Placement, ...]:
    import onnx

    nodes = onnx.load_model_from_string(model).graph.node
    return tuple(Placement(node.name, node.op_type, provider) for node in nodes)
