"""Time OpenVINO's activations in the place of a model's SiLUs, each in the kernel of the convolution before it.

    python benchmarks/openvino_activations.py OUT/candidates/fuse/model.onnx [--precision bf16] [--rounds 40]

All models run in turns, one thread; a ratio is the time of the model with Relu, which costs next to nothing, over the
activation's. The answers of all but `silu` mean nothing. The model is of opset 14 or later, as `edgeopt optimize`
leaves it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgeopt.executors import SessionOptions
from edgeopt.executors.openvino import EXECUTOR
from edgeopt.graph.graph import Graph, Value
from edgeopt.graph.model import Model, load_model
from edgeopt.steps.quantize.patterns import is_silu, silu_sigmoid

CALLS = 3


def one(op: str) -> Callable[[Graph, Value], Value]:
    return lambda graph, x: graph.insert(op, [x]).outputs[0]


def gelu(graph: Graph, x: Value) -> Value:
    """Written out: the op is of opset 20; OpenVINO recognises it."""
    root, half, unit = (graph.add_initializer("number", np.array(n, np.float32)) for n in (2**-0.5, 0.5, 1.0))
    error = graph.insert("Erf", [graph.insert("Mul", [x, root]).outputs[0]]).outputs[0]
    product = graph.insert("Mul", [x, graph.insert("Add", [error, unit]).outputs[0]]).outputs[0]
    return graph.insert("Mul", [product, half]).outputs[0]


PLAIN = ("Relu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Exp", "Elu", "Softplus")
ACTIVATIONS = {op.lower(): one(op) for op in PLAIN} | {"gelu": gelu}


def with_activation(model: Model, make: Callable[[Graph, Value], Value]) -> Model:
    graph = Graph.from_model(model)
    for node in [node for node in graph.nodes("Mul") if is_silu(graph, node)]:
        gate = silu_sigmoid(graph, node)
        if gate is not None and gate.inputs[0] is not None:
            graph.bypass(node, keep=make(graph, gate.inputs[0]))
    graph.remove_unused()
    return graph.to_model()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    if reason := EXECUTOR.why_unavailable():
        print(f"left out: {reason}")
        return
    model = load_model(given.model)
    options = SessionOptions(("CPU",), 1, {"ENABLE_CPU_PINNING": "NO"}, precision=given.precision)
    models = {"silu": model, **{name: with_activation(model, make) for name, make in ACTIVATIONS.items()}}
    sessions = {name: EXECUTOR.open(made.data, options) for name, made in models.items()}
    chance = np.random.default_rng(0)
    inputs = {
        spec.name: chance.uniform(0, 255, [int(size or 1) for size in spec.shape]).astype(spec.dtype)
        for spec in model.inputs
    }
    times = {name: np.zeros(given.rounds) for name in sessions}
    for number in range(-2, given.rounds):
        for name in list(sessions)[:: 1 if number % 2 else -1]:
            taken = []
            for _ in range(CALLS):
                started = time.perf_counter_ns()
                sessions[name].run(inputs)
                taken.append(time.perf_counter_ns() - started)
            times[name][max(number, 0)] = min(taken) / 1e6
    half = min(0.5, 0.98 / given.rounds**0.5)
    print("| activation | ms | relu's time over its own | 95 % |\n|---|--:|--:|--:|")
    for name, took in sorted(times.items(), key=lambda item: float(np.median(item[1]))):
        middle, low, high = np.quantile(times["relu"] / took, [0.5, 0.5 - half, 0.5 + half])
        print(f"| {name} | {np.median(took):.2f} | {middle:.2f} | {low:.2f} to {high:.2f} |")


if __name__ == "__main__":
    main()
