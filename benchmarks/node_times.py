"""Show where ONNX Runtime's time goes in models, op by op of its own graph, one thread; least time of each node.

PYTHONPATH=toolkit python benchmarks/node_times.py MODEL.onnx ... --pictures FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.tasks import make_task


def first_input(model: Model, pictures: Path) -> Tensors:
    recipe = choose_recipe(None, None, model.inputs, model.outputs, model.metadata).recipe
    return next(
        iter(
            model_inputs(
                make_task(recipe, model.inputs, model.outputs, evaluating=False), open_frames(pictures).spread(1)
            )
        )
    )


def node_times_us(model: Model, inputs: Tensors, runs: int) -> dict[tuple[str, str], int]:
    """Return the least time of each node, by op and name."""
    with tempfile.TemporaryDirectory() as folder:
        session = EXECUTOR.open(model.source, SessionOptions(threads=1, profile_to=str(Path(folder) / "profile")))
        for _ in range(runs):
            session.run(inputs)
        events = json.loads(session.end_profiling().read_text("utf-8"))
        session.close()
    least: dict[tuple[str, str], int] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            name = event["args"]["op_name"], event["name"]
            least[name] = min(int(event["dur"]), least.get(name, int(event["dur"])))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument(
        "--pictures", required=True, type=Path, help="a folder; its first picture is shown to the models"
    )
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--nodes", type=int, default=5, help="how many of the slowest nodes to name")
    options = parser.parse_args()
    for path in options.models:
        model = load_model(path)
        times_us = node_times_us(model, first_input(model, options.pictures), options.runs)
        ops: dict[str, list[int]] = defaultdict(list)
        for (op, _), time_us in times_us.items():
            ops[op].append(time_us)
        print(f"\n{path}: {sum(times_us.values()) / 1000:.2f} ms in {len(times_us)} nodes")
        for op, each in sorted(ops.items(), key=lambda item: -sum(item[1])):
            print(f"  {op:24} {len(each):4} {sum(each) / 1000:7.2f} ms")
        for (op, name), time_us in sorted(times_us.items(), key=lambda item: -item[1])[: options.nodes]:
            print(f"    {time_us / 1000:.2f} ms  {op} {name.removesuffix('_kernel_time')}")


if __name__ == "__main__":
    main()
