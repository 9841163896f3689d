"""INT8 by ONNX Runtime's default, NNCF's default and edgeopt, side by side on two real models.

    python benchmarks/quantization/run.py [--nncf-python PATH] [--openvino-python PATH] [--images 64]
        [--model yolox|squeezenet]

Prints Markdown: speed against the original under ONNX Runtime's defaults (in turns, one thread), the metric on labels
that no contender saw, seconds and peak memory of quantizing. What is not there is left out with the reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.graph.model import Model, load_model
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, model_inputs, open_labelled
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.processes.worker import child_environment
from edgeopt.tasks import Task, make_task

DATA = Path(__file__).parents[3] / "shared" / "data"
CONTENDER = Path(__file__).with_name("contender.py")
HEAD = "| model | contender | speed | 95 % | metric | lost | seconds | peak MiB |\n|---|---|--:|---|--:|--:|--:|--:|"


@dataclass(frozen=True)
class Case:
    """One model with its data."""

    model: str
    recipe: str
    calib: str
    eval: str


CASES = {
    "yolox": Case("models/yolox_nano_416.onnx", "yolox", "coco/calib", "coco/instances_val.json"),
    "squeezenet": Case("models/squeezenet_224.onnx", "imagenet_caffe", "imagenet/calib", "imagenet/val_labels.csv"),
}


def prepare(case: Case, folder: Path, images: int, asked: dict[str, Any]) -> tuple[Model, Task, LabelledFrames]:
    """Write the inputs of all contenders, the same for each."""
    model = load_model(DATA / case.model)
    recipe = choose_recipe(case.recipe, None, model.inputs, model.outputs, model.metadata).recipe
    task = make_task(recipe, model.inputs, model.outputs, evaluating=True)
    labelled = open_labelled(DATA / case.eval)
    name = model.inputs[0].name
    for file, frames in (("calib", open_frames(DATA / case.calib).spread(images)), ("eval", labelled.frames)):
        np.save(folder / f"{file}.npy", np.concatenate([one[name] for one in model_inputs(task, frames)]))
    given = {"model": str(DATA / case.model), "input": name, **asked}
    given |= {"calib": str(DATA / case.calib), "recipe": case.recipe}
    (folder / "given.json").write_text(json.dumps(given), "utf-8")
    return model, task, labelled


def metric(task: Task, model: Model, labelled: LabelledFrames, rows: list[Any]) -> tuple[str, float]:
    names = [one.name for one in model.outputs]
    found = []
    for i, frame in enumerate(labelled.frames):
        _, geometry = task.preprocess(frame)
        found.append(task.postprocess({name: row[i] for name, row in zip(names, rows, strict=True)}, geometry))
    scored = task.score(found, labelled.labels)
    return scored.metric, scored.value


def original_rows(model: Model, folder: Path) -> list[Any]:
    sys.path.insert(0, str(CONTENDER.parent))
    from contender import open_onnxruntime

    given = json.loads((folder / "given.json").read_text("utf-8"))
    run = open_onnxruntime(Path(given["model"]))
    answers = [run({given["input"]: one[None]}) for one in np.load(folder / "eval.npy")]
    return [np.stack(rows) for rows in zip(*answers, strict=True)]


def contend(who: str, python: str, folder: Path) -> dict[str, Any] | str:
    command = [python, str(CONTENDER), who, str(folder)]
    environment = child_environment() if python == sys.executable else None
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    told = [line for line in done.stdout.splitlines() if line.startswith("told ")]
    if done.returncode or not told:
        return f"failed: {(done.stderr.strip().splitlines() or ['no answer'])[-1][:100]}"
    found: dict[str, Any] = json.loads(told[-1].removeprefix("told "))
    return found


def compare(name: str, case: Case, contenders: dict[str, str], images: int, asked: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model, task, labelled = prepare(case, folder, images, asked)
        word, base = metric(task, model, labelled, original_rows(model, folder))
        print(f"| {name} | original | 1.00x | | {word} {base:.4f} | | | |", flush=True)
        for who, python in contenders.items():
            told = contend(who, python, folder)
            if isinstance(told, str):
                print(f"| {name} | {who} | {told} | | | | | |", flush=True)
                continue
            with np.load(folder / f"{who}.npz") as archive:
                _, value = metric(task, model, labelled, [archive[one] for one in archive.files])
            middle, low, high = told["speed"]
            title = f"{who}, float stays" if told["float_stays"] else who
            figures = f"{middle:.2f}x | {low:.2f} to {high:.2f} | {word} {value:.4f} | {base - value:+.4f}"
            print(f"| {name} | {title} | {figures} | {told['seconds']:.0f} | {told['peak_mib']:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nncf-python", help="interpreter of an environment with nncf, openvino and onnxruntime")
    parser.add_argument("--openvino-python", help="interpreter of an environment with edgeopt and openvino")
    parser.add_argument("--images", type=int, default=64, help="calibration pictures for the two defaults")
    parser.add_argument("--rounds", type=int, default=40, help="of five runs each, in turns")
    parser.add_argument("--time-limit", type=float, default=180.0, help="seconds of edgeopt's search")
    parser.add_argument("--model", choices=CASES, action="append", help="repeatable [both]")
    given = parser.parse_args()
    if not DATA.is_dir():
        print(f"left out: {DATA} is absent")
        return
    contenders = {"onnxruntime": sys.executable, "edgeopt": sys.executable}
    for who, option, python in (
        ("edgeopt-openvino", "--openvino-python", given.openvino_python),
        ("nncf", "--nncf-python", given.nncf_python),
    ):
        if python and Path(python).is_file():
            contenders[who] = python
        else:
            print(f"{who} left out: {python or option} is not there\n")
    here = read_environment()
    print(f"{here.cpu}, {here.cores} cores, onnxruntime {here.packages.get('onnxruntime')}; one thread\n\n{HEAD}")
    for name in given.model or CASES:
        asked = {"rounds": given.rounds, "time_limit_s": given.time_limit}
        compare(name, CASES[name], contenders, given.images, asked)


if __name__ == "__main__":
    main()
