"""Does `edgeopt compare` tell the truth on this machine? A model against itself, and against a copy with more work.

The copy repeats some of the model's own convolutions with weights of zero and adds the largest of their results, which
is zero, to the output: the answers stay, the work grows by the share of multiplications asked for. Against itself the
model must never come out faster or slower, in no stage; the copy must come out slower in execution.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported
from edgeopt import compare
from edgeopt.graph.model import find_model
from edgeopt.measurement.compare.result import Comparison
from edgeopt.measurement.statistics.ratio import Change


def multiplications(model: onnx.ModelProto) -> dict[str, int]:
    """Return the multiplications of each convolution without groups, by the name of its output."""
    inferred = shape_inference.infer_shapes(model).graph
    values = [*inferred.value_info, *inferred.output]
    shapes = {one.name: [size.dim_value for size in one.type.tensor_type.shape.dim] for one in values}
    weights = {one.name: list(one.dims) for one in model.graph.initializer}
    return {
        node.output[0]: int(np.prod(shapes[node.output[0]][2:]) * np.prod(weights[node.input[1]]))
        for node in model.graph.node
        if node.op_type == "Conv" and node.input[1] in weights and weights[node.input[1]][1] > 1
    }


def choose(costs: dict[str, int], share: float) -> list[str]:
    """Return convolutions that together cost about that share of all."""
    wanted, chosen = share * sum(costs.values()), []
    for name, cost in sorted(costs.items(), key=lambda item: -item[1]):
        if cost <= wanted:
            chosen.append(name)
            wanted -= cost
    return chosen


def make_heavier(model: onnx.ModelProto, share: float) -> tuple[onnx.ModelProto, float]:
    """Return a copy with more work and the same answers, and the share that was added."""
    costs = multiplications(model)
    chosen = choose(costs, share)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, extra = made.graph, []
    weights = {one.name: one for one in graph.initializer}
    if made.ir_version < 4:  # it wants weights among the inputs; later versions take such weights for variable
        fed = [one for one in graph.input if one.name not in weights]
        del graph.input[:]
        graph.input.extend(fed)
        made.ir_version = 4
    for i, node in enumerate([node for node in graph.node if node.output[0] in chosen]):
        zeros = np.zeros(tuple(weights[node.input[1]].dims), np.float32)
        graph.initializer.append(numpy_helper.from_array(zeros, f"more_weight_{i}"))
        conv = helper.make_node("Conv", [node.input[0], f"more_weight_{i}"], [f"more_{i}"], f"more_{i}")
        conv.attribute.extend(node.attribute)
        extra += [conv, helper.make_node("ReduceMax", [f"more_{i}"], [f"more_max_{i}"], keepdims=0)]
    total = graph.output[0].name
    last = next(node for node in graph.node if total in node.output)
    last.output[list(last.output).index(total)] = "less"
    sums = ["less", *(f"more_sum_{i}" for i in range(len(chosen) - 1)), total]
    adds = [helper.make_node("Add", [sums[i], f"more_max_{i}"], [sums[i + 1]]) for i in range(len(chosen))]
    graph.node.extend([*extra, *adds])
    onnx.checker.check_model(made)
    return made, sum(costs[name] for name in chosen) / sum(costs.values())


def show(result: Comparison, run: int) -> None:
    row = result.rows[1]
    shown = ", ".join(f"{part} {ratio} {ratio.verdict}" for part, ratio in row.ratios.items())
    null = ", ".join(f"{part} {one.speedup:.3f}" for part, one in result.null.items())
    print(f"{run:3}  {shown}  (itself: {null})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default="digits_detector", help="ONNX file or shipped model")
    parser.add_argument("--recipe")
    parser.add_argument("--source", help="pictures")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--more", type=float, default=0.05, help="share of work that the copy adds")
    given = parser.parse_args()
    path = find_model(given.model)
    recipe = given.recipe or given.model
    heavier, added = make_heavier(onnx.load(str(path)), given.more)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "heavier.onnx"
        onnx.save(heavier, str(copy))
        for title, other in (("itself", path), (f"a copy with {added:.1%} more work", copy)):
            print(f"\n{path.parent.name}/{path.name} against {title}, {given.runs} runs of {given.seconds:.0f} s")
            verdicts: dict[str, Counter[Change]] = {}
            for run in range(given.runs):
                result = compare(
                    path,
                    other,
                    recipe=recipe,
                    source=given.source,
                    threads=1,
                    seconds=given.seconds,
                    seed=run,
                )
                show(result, run)
                for part, ratio in result.rows[1].ratios.items():
                    verdicts.setdefault(part, Counter())[ratio.verdict] += 1
            for part, counts in verdicts.items():
                print(f"{part:12}{', '.join(f'{verdict} {count}' for verdict, count in counts.items())}")


if __name__ == "__main__":
    main()
