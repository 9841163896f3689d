"""What pruning, distillation and INT8 give on four networks, against the original and among each other.

    python benchmarks/pruning/run.py MODEL [--prune auto] [--minutes 5] [--folder FOLDER] [--threads 1] [--seconds 40]

MODEL is `squeezenet`, `yolox`, `resnet` or `vgg`; the last two are trained here first (`nets.py`). Runs `edgeopt
optimize`, then compares the best candidate of each kind that kept its accuracy with the original, whole frames in
turns, and prints Markdown. Nothing but the metric at the end sees labels. What is not there is left out with reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from nets import NETS, make

from edgeopt.measurement.compare.run import compare
from edgeopt.pipeline.candidate import BASELINE, Candidate
from edgeopt.pipeline.optimize import optimize
from edgeopt.pipeline.plan import Options
from edgeopt.pipeline.result import Report
from edgeopt.pipeline.run import Ears
from edgeopt.system.environment import read_environment

DATA = Path(__file__).parents[3] / "shared" / "data"
STEPS = 800
"""Of training a net: about 2 minutes each on one core with bfloat16, 5 without."""
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
        path = make(folder, STEPS)[name]
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


def best_of_kinds(report: Report) -> dict[str, Candidate]:
    """Return the fastest candidate of each kind that may be chosen, in the order in which they were made."""
    found: dict[str, Candidate] = {}
    for one in report.candidates[1:]:
        kind, known = kind_of(one), found.get(kind_of(one))
        if one.refused or one.speed is None:
            continue
        if known is None or known.speed is None or one.speed.speedup > known.speed.speedup:
            found[kind] = one
    return found


def print_rows(name: str, report: Report, bundles: Path, case: Case, seconds: float, threads: int) -> None:
    kinds = best_of_kinds(report)
    folders = [str(bundles / one) for one in (BASELINE, *(one.name for one in kinds.values()))]
    compared = compare(*folders, source=case.calib, threads=threads, seconds=seconds)
    first = report.candidates[0]
    print(f"| {name} | original | 1.00x | | {metric(first)} | | |")
    for (kind, one), row in zip(kinds.items(), compared.rows[1:], strict=True):
        speed = row.ratios["frame"]
        lost = f"{one.drop:+.4f}" if one.drop is not None else ""
        interval = f"{speed.low:.2f} to {speed.high:.2f}"
        mark = " **chosen**" if one.name == report.chosen else ""
        print(f"| {name} | {kind} | {speed.speedup:.2f}x | {interval} | {metric(one)} | {lost} | {one.name}{mark} |")
    for one in report.candidates[1:]:
        if one.refused:
            print(f"\n{one.name}: {one.speed or 'not measured'}, {one.refused}", end="")
    print(f"\n\nWhole frames in turns; null {compared.null.get('frame')}; {compared.trust}")


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
    parser.add_argument("--threads", type=int, default=1)
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
        options=Options(
            calib=str(case.calib), eval=str(case.eval), max_drop=given.max_drop, threads=given.threads, **wishes
        ),
        listener=Ears(lambda text: print(text, file=sys.stderr), None),
        bundle_of=lambda one, _: out / "bundles" / one.name,
    )
    spent = time.perf_counter() - began
    here = read_environment()
    asked = f"--prune {given.prune}" + (f" --finetune {given.minutes:g}m" if given.minutes else "")
    print(
        f"{here.cores} cores, onnxruntime {here.packages.get('onnxruntime')}; {given.threads} thread; {asked}; ", end=""
    )
    print(f"{spent:.0f} s\n\n{HEAD}", flush=True)
    print_rows(given.model, report, out / "bundles", case, given.seconds, given.threads)


if __name__ == "__main__":
    main()
