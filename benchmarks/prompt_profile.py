"""Where the time of a long prompt goes, op by op: the graph of prompts of a pair on ONNX Runtime and on OpenVINO.

    pip install edgeopt[cpu,openvino]
    python benchmarks/prompt_profile.py FOLDER [--engine openvino] [--tokens 1900] [--chunk 256]

FOLDER holds `prefill.onnx`, as `optimize` writes two graphs over one cache. Attention counts what a causal one needs,
4 * heads * numbers of a head for each pair of tokens; what an engine computes behind the mask is not counted.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import SHARING_OP, cache_parts
from edgeopt.executors.onnxruntime.prefill import OnnxPrefill, Prefill
from edgeopt.executors.openvino.pages import options_on_openvino
from edgeopt.executors.openvino.prefill import OpenVinoPrefill

_FIRST_TOKEN, _MOST_TOKEN = 5, 1000
_PRODUCTS = ("MatMul", "MatMulNBits", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FullyConnected")
_ATTENTION = (SHARING_OP, "PagedAttentionExtension")


def flops_of(file: Path, tokens: int) -> tuple[float, float]:
    """Return the operations of products with weights, and of attention, of a prompt."""
    proto = onnx.load(file, load_external_data=False)
    sizes = {tensor.name: tensor.dims for tensor in proto.graph.initializer}
    products = attention = 0.0
    for node in proto.graph.node:
        values = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type == SHARING_OP:
            cache = next(one for one in proto.graph.input if one.name == node.input[3])
            head = cache.type.tensor_type.shape.dim[3].dim_value
            attention += 4.0 * values["num_heads"] * head * tokens * (tokens + 1) / 2
        elif node.op_type == "MatMulNBits":
            products += 2.0 * tokens * values["K"] * values["N"]
        elif node.op_type in _PRODUCTS and len(node.input) > 1:
            weights = next((sizes[name] for name in node.input[1:2] if name in sizes), None)
            stored = next((sizes[f"{name}_bfloat16"] for name in node.input[1:2] if f"{name}_bfloat16" in sizes), None)
            products += 2.0 * tokens * float(np.prod(weights or stored or [0]))
    return products, attention


def run(graph: Prefill, session: Any, tokens: int, chunk: int, told: Callable[[], None] = lambda: None) -> None:
    """Compute a prompt of random tokens once; `told` is called behind each part."""
    parts = cache_parts(session.inputs, session.outputs, needs_logits=False)
    memory = [np.zeros((1, part.heads, tokens + 2, part.head), part.dtype) for part in parts]
    prompt = np.random.default_rng(0).integers(_FIRST_TOKEN, _MOST_TOKEN, tokens).tolist()
    bound = graph.bound(memory)
    for start in range(0, tokens, chunk):
        graph.run(bound, prompt[start : start + chunk], start)
        told()


def on_onnxruntime(file: Path, tokens: int, chunk: int) -> dict[str, float]:
    """Return ms by op of the second of two prompts."""
    totals, runs = defaultdict[str, float](float), 2
    with TemporaryDirectory() as folder:
        session = EXECUTOR.open(file, SessionOptions(threads=1, profile_to=str(Path(folder) / "profile")))
        parts = cache_parts(session.inputs, session.outputs, needs_logits=False)
        graph = OnnxPrefill(session, parts)
        for _ in range(runs):
            run(graph, session, tokens, chunk)
        profile = Path(session.engine.end_profiling())
        events = [event for event in json.loads(profile.read_text("utf-8")) if event["cat"] == "Node"]
        for event in events[len(events) // runs :]:
            if event["name"].endswith("kernel_time"):
                totals[event["args"]["op_name"]] += event["dur"] / 1e3
        graph.close()
    return totals


def on_openvino(file: Path, tokens: int, chunk: int) -> dict[str, float]:
    """Return ms by op of the second of two prompts."""
    options, totals = options_on_openvino(1), defaultdict[str, float](float)
    graph = OpenVinoPrefill(file, replace(options, entries={**options.entries, "PERF_COUNT": "YES"}))
    graph.fitted(cache_parts(graph.inputs, graph.outputs, needs_logits=False))

    def add() -> None:
        for value in graph._graph._request.get_profiling_info():
            totals[value.node_type] += value.real_time.total_seconds() * 1e3

    run(graph, graph, tokens, chunk)
    run(graph, graph, tokens, chunk, add)
    graph.close()
    return totals


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", choices=["onnxruntime", "openvino"], default="onnxruntime")
    parser.add_argument("--tokens", type=int, default=1900)
    parser.add_argument("--chunk", type=int, default=256)
    given = parser.parse_args()
    file = given.folder / "prefill.onnx"
    profile = on_openvino if given.engine == "openvino" else on_onnxruntime
    times = profile(file, given.tokens, given.chunk)
    products, attention = flops_of(file, given.tokens)
    work = f"{products / 1e9:.0f} GFLOP of products, {attention / 1e9:.0f} of attention"
    print(f"{given.tokens} tokens in parts of {given.chunk}, {given.engine}: {work}")
    for op, ms in sorted(times.items(), key=lambda pair: -pair[1])[:8]:
        flops = products if op.startswith(_PRODUCTS) else attention if op in _ATTENTION else 0.0
        rate = f"{flops / ms / 1e6:8.0f} GFLOP/s" if flops else ""
        print(f"{ms:9.1f} ms  {100 * ms / sum(times.values()):5.1f} %  {op:<28} {rate}", flush=True)


if __name__ == "__main__":
    main()
