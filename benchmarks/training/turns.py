"""Time one model against YOLOX-nano in turns on every engine here, and score it; prints one line of JSON.

    python turns.py DENSE.onnx MODEL.onnx DATA SECONDS_OF_A_SEARCH

yolox.py starts it, with the interpreter that has OpenVINO. The base of every ratio is the dense model in float32 on
ONNX Runtime, one thread; times are the process's CPU time, as other programs may run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import edgeopt
from edgeopt.executors import Session
from edgeopt.executors.openvino import EXECUTOR as OPENVINO
from edgeopt.graph.model import load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import answers, open_labelled
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.opening import opening_for
from edgeopt.system.declared.target import find_target
from edgeopt.tasks import make_task

ROUNDS, CALLS = 30, 4
TARGETS = ("cpu", "openvino-cpu")


def opened(file: Path, target: str, precision: str, options: dict[str, str]) -> Session:
    return opening_for(find_target(target), precision, 1, "").with_entries(options).open(load_model(file).data)


def forms(file: Path, folder: Path, data: Path, search_s: float) -> Iterator[tuple[str, str, Path, dict[str, str]]]:
    """Yield target, precision, file and session options of the model as it is and on integers."""
    for name in TARGETS:
        target = find_target(name)
        if name == "openvino-cpu" and OPENVINO.why_unavailable():
            continue
        for precision in target.precisions:
            if precision.startswith(("fp", "bf")) and not target.why_no_precision(precision):
                yield name, precision, file, {}
        if not search_s:
            continue
        made = folder / f"{name}.onnx"
        found = edgeopt.quantize(
            file, target=name, out=made, calib=data / "coco/calib", recipe="yolox", threads=1, time_limit_s=search_s
        )
        if found.file:
            for precision in ("w8a8", "w8a8+bf16"):
                if precision in target.precisions and not target.why_no_precision(precision):
                    yield name, precision, made, dict(found.options)


def in_turns(base: Session, other: Session, inputs: Tensors) -> tuple[float, float, float]:
    """Return the median over rounds of the base's time over the other's, and its 95 % interval by ranks."""
    ratios = []
    for number in range(-2, ROUNDS):
        took = {}
        for session in (base, other) if number % 2 else (other, base):
            taken = []
            for _ in range(CALLS):
                started = time.process_time_ns()
                session.run(inputs)
                taken.append(time.process_time_ns() - started)
            took[session] = min(taken)
        if number >= 0:
            ratios.append(took[base] / took[other])
    half = min(0.5, 0.98 / len(ratios) ** 0.5)
    middle, low, high = np.quantile(ratios, [0.5, 0.5 - half, 0.5 + half])
    return float(middle), float(low), float(high)


def main() -> None:
    dense, file, data = map(Path, sys.argv[1:4])
    model = load_model(dense)
    recipe = choose_recipe("yolox", None, model.inputs, model.outputs, model.metadata).recipe
    task = make_task(recipe, model.inputs, model.outputs, evaluating=True)
    labelled = open_labelled(data / "coco" / "instances_val.json")
    inputs, _ = task.preprocess(labelled.frames.picture(0))
    base = opened(dense, "cpu", "fp32", {})

    def ap(session: Session) -> float:
        return float(task.score(answers(session, task, labelled.frames), labelled.labels).value)

    best, found = ap(base), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for name, precision, its, options in forms(file, Path(folder), data, float(sys.argv[4])):
            session = opened(its, name, precision, options)
            middle, low, high = in_turns(base, session, inputs)
            value = ap(session)
            engine = find_target(name).executor
            found.append(
                {"engine": engine, "precision": precision, "speed": middle, "low": low, "high": high}
                | {"ap": value, "lost": best - value}
            )
            session.close()
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
