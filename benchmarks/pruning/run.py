"""Gains of pruning, distillation and INT8 on four networks, against the original and among each other.

    python benchmarks/pruning/run.py MODEL [--prune auto] [--minutes 5] [--folder FOLDER] [--seconds 40]

MODEL is `squeezenet`, `yolox`, `resnet` or `vgg`; the last two are trained here first (`nets.py`). Runs `edgeopt
optimize`, then compares the best candidate of each kind that kept its accuracy with the original, whole frames in
turns, and prints Markdown. Nothing but the metric at the end sees labels. What is not there is left out with reason.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from nets import NETS, make

from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.optimization.candidate import BASELINE, Candidate
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import Options
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Ears
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.machine.environment import read_environment

DATA = Path(__file__).parents[3] / "shared" / "data"
STEPS = 800
"""Steps of training a net: about 2 minutes each on one core with bfloat16, 5 without."""
_FRAMES, _LEAST_ROUNDS = 8, 8
LOSSY = ("resolution", "prune", "activations", "finetune")
HEAD = "| model | kind | speed | 95 % | metric | lost | candidate |\n|---|---|--:|---|--:|--:|---|"


@dataclass(frozen=True)
class Case:
    """A model with its data."""

    model: Path
    recipe: str | None
    calib: Path
    eval: Path


def case_of(name: str, folder: Path) -> Case:
    if name in NETS:
        path = make(folder, STEPS, (name,))[name]
        return Case(path, None, folder / "calib", folder / "eval" / "labels.csv")
    if name == "yolox":
        return Case(DATA / "models/yolox_nano_416.onnx", "yolox", DATA / "coco/calib", DATA / "coco/instances_val.json")
    squeezenet = DATA / "models/squeezenet_224.onnx"
    return Case(squeezenet, "imagenet_caffe", DATA / "imagenet/calib", DATA / "imagenet/val_labels.csv")


def kind_of(one: Candidate) -> str:
    """Return what was done, in which numbers, on which engine."""
    done = [step for step in LOSSY if step in one.steps] or ["dense"]
    numbers = "INT8" if one.precision.startswith("w8a8") else one.precision
    return f"{' + '.join(done)}, {numbers}, {one.executor}"


def processor_ratios(folders: Mapping[str, Path], calib: Path, seconds: float) -> dict[str, Ratio]:
    """Return how many times less processor time whole frames of bundles take than those of the first, in turns.

    Processor time, one thread: other programs on the machine hardly move it.
    """
    runtimes = {name: Runtime.load(folder, threads=1, strict=True) for name, folder in folders.items()}
    pictures = open_frames(calib).spread(_FRAMES)
    frames = [pictures.picture(i) for i in range(len(pictures))]
    logs: dict[str, list[float]] = {name: [] for name in folders}
    order, began = np.random.default_rng(0), time.perf_counter()
    while time.perf_counter() - began < seconds or len(logs[next(iter(logs))]) < _LEAST_ROUNDS:
        taken = {}
        for name in order.permutation([*runtimes]):
            runtimes[name].predict(frames[0])
            started = time.process_time_ns()
            for frame in frames:
                runtimes[name].predict(frame)
            taken[name] = time.process_time_ns() - started
        for name, spent in taken.items():
            logs[name].append(math.log(taken[next(iter(folders))] / spent))
    for runtime in runtimes.values():
        runtime.close()
    return {name: ratio_of_rounds(np.array(found), pairs=len(found)) for name, found in [*logs.items()][1:]}


def print_rows(name: str, report: ModelReport, bundles: Path, case: Case, seconds: float) -> None:
    """Print the fastest candidate of each kind that keeps its accuracy, and what the others lose."""
    kept = [one for one in report.candidates if not _loses(one, report.max_drop)]
    ratios = processor_ratios({one.name: bundles / one.name for one in kept}, case.calib, seconds)
    kinds: dict[str, Candidate] = {}
    for one in kept[1:]:
        known = kinds.setdefault(kind_of(one), one)
        if ratios[one.name].speedup > ratios[known.name].speedup:
            kinds[kind_of(one)] = one
    print(f"| {name} | original | 1.00x | | {metric(report.candidates[0])} | | |")
    for kind, one in kinds.items():
        speed, lost = ratios[one.name], f"{one.drop:+.4f}" if one.drop is not None else ""
        interval = f"{speed.low:.2f} to {speed.high:.2f}"
        mark = ", chosen" if one.name == report.chosen else ""
        print(f"| {name} | {kind} | {speed.speedup:.2f}x | {interval} | {metric(one)} | {lost} | {one.name}{mark} |")
    for one in report.candidates[1:]:
        if one not in kept:
            print(f"\n{one.name} ({kind_of(one)}): {metric(one)}, lost {one.drop:+.4f}", end="")
    print()


def _loses(one: Candidate, most: float) -> bool:
    return one.name != BASELINE and (one.drop is None or one.drop > most)


def metric(one: Candidate) -> str:
    return f"{one.score.metric} {one.score.value:.4f}" if one.score else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", choices=("squeezenet", "yolox", *NETS))
    parser.add_argument("--prune", default="auto", help="as of edgeopt optimize [%(default)s]")
    parser.add_argument("--minutes", type=float, default=0.0, help="of distillation, after pruning [none]")
    parser.add_argument("--steps", default="", help="as of edgeopt optimize, for example default,resolution")
    parser.add_argument("--max-drop", type=float, default=0.010)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "edgeopt-pruning-nets")
    parser.add_argument("--out", type=Path, help="of the run [below --folder]")
    parser.add_argument("--seconds", type=float, default=40.0, help="of the comparison at the end")
    given = parser.parse_args()
    if given.model not in NETS and not DATA.is_dir():
        print(f"left out: {DATA} is absent")
        return
    case, began = case_of(given.model, given.folder), time.perf_counter()
    out = given.out or given.folder / f"run-{given.model}-{time.time_ns()}"
    wishes = {"prune": given.prune} | ({"finetune_s": 60 * given.minutes} if given.minutes else {})
    wishes |= {"steps": tuple(given.steps.split(","))} if given.steps else {}
    report = optimize(
        case.model,
        out=out,
        recipe=case.recipe,
        options=Options(calib=str(case.calib), eval=str(case.eval), max_drop=given.max_drop, threads=1, **wishes),
        listener=Ears(lambda text: print(text, file=sys.stderr), None),
        bundle_of=lambda one, _: out / "bundles" / one.name,
    )
    spent = time.perf_counter() - began
    here = read_environment()
    asked = f"--prune {given.prune}" + (f" --finetune {given.minutes:g}m" if given.minutes else "")
    print(f"{here.cores} cores, onnxruntime {here.packages.get('onnxruntime')}; 1 thread; {asked}; ", end="")
    print(f"{spent:.0f} s\n\n{HEAD}", flush=True)
    print_rows(given.model, report, out / "bundles", case, given.seconds)


if __name__ == "__main__":
    main()
