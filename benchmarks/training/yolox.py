"""YOLOX-nano, the whole line: pruning, cheaper activations, training on unlabelled pictures, integers or bfloat16.

    python benchmarks/training/yolox.py [--minutes 45] [--forms mixed,line] [--work FOLDER]
        [--threads 2] [--openvino-python PATH]

Each form of activation is fitted, judged before training, trained for its share of the minutes in parts, and judged
after each part: speed in turns against the original in float32 on ONNX Runtime, one thread, and AP on labels that
nothing before saw. Pictures to learn from: those that calibrate, and pictures of another set, both without labels.
Everything lies in the work folder, so that a run that was interrupted goes on; a table of what there is so far is
written after each part, into the work folder and, at the end, into benchmarks/results/training.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.steps.activations.fit import fit_all, keep_worst, place
from edgeopt.steps.activations.forms import all_forms
from edgeopt.steps.activations.sites import find_sites
from edgeopt.steps.finetune.distil import distil
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.calibration.calibrate import calibrate
from edgeopt.steps.simplify import simplify
from edgeopt.system.machine.environment import read_environment
from edgeopt.tasks import make_task

HERE = Path(__file__).resolve()
DATA = HERE.parents[3] / "shared" / "data"
RESULTS = HERE.parents[1] / "results" / "training.md"
TURNS = HERE.with_name("turns.py")
SETS = ("coco/calib", "imagenet/calib", "imagenet/val")
"""Pictures to learn from, without labels; `imagenet/val` is not what YOLOX-nano is judged on."""
LINES_KEPT = 0.3
"""Share of all numbers that the form `mixed` computes as HardSwish; the others are computed as lines."""
HEAD = (
    "| form | minutes of training | held-out loss | engine | precision | speed | 95 % | AP | lost |\n"
    "|---|--:|--:|---|---|--:|---|--:|--:|"
)


class Told:
    """Prints progress of a training."""

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def progress(self, what: str, done: int, of: int) -> None:
        """Hear; lines are enough."""


def prepared(work: Path) -> tuple[Model, Recipe]:
    original = load_model(DATA / "models" / "yolox_nano_416.onnx")
    recipe = choose_recipe("yolox", None, original.inputs, original.outputs, original.metadata).recipe
    file = work / "dense.onnx"
    if not file.is_file():
        save_model(fuse(simplify(original, {}).model).model, file)
    return load_model(file), recipe


def changed(dense: Model, recipe: Recipe, form: str, work: Path) -> Model:
    """Return the model with every activation in a form, fitted on the pictures that calibrate."""
    file = work / f"{form}.0.onnx"
    if not file.is_file():
        task = make_task(recipe, dense.inputs, dense.outputs, evaluating=True)
        sites = find_sites(Graph.from_model(dense)).sites
        axes = {str(site.x.name): site.axis for site in sites}
        seen = calibrate(dense, model_inputs(task, open_frames(DATA / "coco/calib").spread(64)), axes).observations
        model, kept = dense, LINES_KEPT if form == "mixed" else 0.0
        for name in ("line", "hard_swish") if form == "mixed" else (form,):
            one = all_forms()[name]
            chosen = keep_worst(fit_all(Graph.from_model(model), seen, one), kept if name == "line" else 0.0)
            model = place(model, chosen, one)
        save_model(model, file)
    return load_model(file)


def pictures(work: Path) -> Path:
    """Return a folder of links to all pictures to learn from."""
    folder = work / "pictures"
    folder.mkdir(exist_ok=True)
    for name in SETS:
        for file in sorted((DATA / name).iterdir()):
            link = folder / f"{name.replace('/', '_')}_{file.name}"
            if not link.exists():
                link.symlink_to(file)
    return folder


def judged(work: Path, file: Path, openvino_python: str, integers: float = 0.0) -> list[dict[str, Any]]:
    """Return speed and AP of a model on every engine and precision here; kept beside it.

    Args:
        work: Where the dense model lies.
        file: The model.
        openvino_python: Interpreter; empty: this one.
        integers: Seconds that each search for integers may take; 0: floats alone.
    """
    stored = file.with_suffix(".judged.json")
    if not stored.is_file():
        interpreter = openvino_python or sys.executable
        command = [interpreter, str(TURNS), str(work / "dense.onnx"), str(file), str(DATA), str(integers)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        stored.write_text(done.stdout.splitlines()[-1], "utf-8")
    found: list[dict[str, Any]] = json.loads(stored.read_text("utf-8"))
    return found


def rows_of(form: str, minutes: float, loss: float | None, found: list[dict[str, Any]]) -> list[str]:
    told = "" if loss is None else f"{loss:.3f}"
    return [
        f"| {form} | {minutes:.0f} | {told} | {one['engine']} | {one['precision']} | {one['speed']:.2f}x "
        f"| {one['low']:.2f} to {one['high']:.2f} | {one['ap']:.4f} | {one['lost']:+.4f} |"
        for one in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=45.0, help="of training, all forms together")
    parser.add_argument("--forms", default="mixed", help="hard_swish, line, mixed, joined by commas")
    parser.add_argument("--start", type=Path, help="train this model (pruned and changed) in place of the forms")
    parser.add_argument("--parts", type=int, default=3, help="after each of which a model is judged")
    parser.add_argument("--integers", type=float, default=60.0, help="seconds of each search at the end; 0: none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("training-yolox"))
    parser.add_argument("--openvino-python", default="", help="interpreter of an environment with edgeopt and openvino")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if not DATA.is_dir():
        print(f"left out: {DATA} is absent")
        return
    work = given.work
    work.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    dense, recipe = prepared(work)
    frames = open_frames(pictures(work))
    rows = rows_of("SiLU", 0, None, judged(work, work / "dense.onnx", given.openvino_python))
    lines = [given.start.stem] if given.start else given.forms.split(",")
    here = read_environment()
    intro = (
        f"{here.cpu}, {here.cores} cores; {given.threads} threads train, one thread is timed; {len(frames)} pictures"
    )

    def tell() -> None:
        text = f"{intro}\n\n{HEAD}\n" + "\n".join(rows) + "\n"
        (work / "table.md").write_text(text, "utf-8")
        print(f"\n{text}\n{(time.monotonic() - began_s) / 60:.1f} minutes", flush=True)

    for form in lines:
        student = load_model(given.start) if given.start else changed(dense, recipe, form, work)
        first = work / f"{form}.0.onnx"
        if given.start:
            save_model(student, first)
        rows += rows_of(form, 0, None, judged(work, first, given.openvino_python))
        tell()
        spent, share = 0.0, given.minutes / len(lines)
        for part in range(given.parts):
            minutes = share / given.parts
            file, note = work / f"{form}.{part + 1}.onnx", work / f"{form}.{part + 1}.json"
            if not (file.is_file() and note.is_file()):
                made = distil(
                    student, dense, frames, recipe, minutes, Told(), work, seed=part, threads=given.threads,
                    checkpoint=f"{form}.{part + 1}.npz",
                )  # fmt: skip
                save_model(made.model, file)
                note.write_text(json.dumps({"loss": made.held_out_after, "minutes": minutes, "note": made.note}))
                print(made.note, flush=True)
            known = json.loads(note.read_text("utf-8"))
            student, spent = load_model(file), spent + known["minutes"]
            searched = given.integers if part + 1 == given.parts else 0.0
            rows += rows_of(form, spent, known["loss"], judged(work, file, given.openvino_python, searched))
            tell()
    text = (work / "table.md").read_text("utf-8")
    before = given.results.read_text("utf-8") if given.results.is_file() else "# Training\n"
    command = f"`python benchmarks/training/yolox.py --minutes {given.minutes:g} --forms {given.forms}`"
    given.results.write_text(f"{before.rstrip()}\n\n## YOLOX-nano, activations\n\n{command}; {text}", "utf-8")


if __name__ == "__main__":
    main()
