"""Is a bundle as fast as what was measured? For each engine that is here: optimize, then the bundle against that.

    python benchmarks/deployed.py [MODEL [SECONDS]]

Prints two ratios with their 95 % intervals. In turns: the bundle through `Runtime` over the chosen candidate as
`optimize` opened it, one execution against one; it must hold 1. Alone: the bundle through `bench` over the samples that
`optimize` kept, of the execution and of the frame: on a quiet machine at or below 1, since alone the caches stay warm.
How both are opened is compared too, and is the same or an error.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import edgeopt
from edgeopt.executors import Session
from edgeopt.graph.model import load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.opening.subject import choose_frames
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.ratio import block_medians, ratio_of_series
from edgeopt.measurement.turns.calls import compare_calls
from edgeopt.runtime.devices.availability import why_unavailable
from edgeopt.runtime.opening import opening_for
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import find_target


def caller(session: Session, inputs: Tensors) -> Callable[[int], None]:
    return lambda _: session.run(inputs) and None


def judge(what: str, name: str, seconds: float, out: Path) -> None:
    target = find_target(name)
    if reason := why_unavailable(target):
        print(f"{name}: not here: {reason}")
        return
    report = edgeopt.optimize(what, target=name, out=out, time_limit_s=6 * seconds)
    best, runtime = report.best, Runtime.load(report.bundle)
    profile = find_target(best.profile) if best.profile else target
    measured = opening_for(profile, best.precision, report.threads).with_entries(best.options)
    if measured != runtime.opening:
        raise SystemExit(f"{name}: measured as {measured}, deployed as {runtime.opening}")
    print(f"{name}: {report.chosen}, {best.precision} on {measured.executor}, {measured.options.threads} thread(s)")
    frames, _ = choose_frames(runtime.bundle.recipe, None, runtime.session.inputs)
    inputs = {key: value.copy() for key, value in runtime.task.preprocess(frames.read(0))[0].items()}
    file = out / best.file
    candidate = measured.open(load_model(file).data)
    runs = {"measured": caller(candidate, inputs), "deployed": caller(runtime.session, inputs)}
    print(f"  in turns, execution: {compare_calls(runs, baseline='measured', seconds=seconds)['deployed']}")
    kept = Samples.read(file.with_name("samples.npz"))
    benched = edgeopt.bench(str(report.bundle), seconds=seconds).samples
    for part in ("execute", "frame"):
        ratio = ratio_of_series(block_medians(benched, part), block_medians(kept, part), margin=0.02)
        print(f"  alone, {part}: {f'{ratio} {ratio.verdict}' if ratio else 'too few frames'}")


if __name__ == "__main__":
    asked = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("cpu", "openvino-cpu"):
            judge(
                asked[0] if asked else "digits_detector", engine, float((asked[1:] or ["20"])[0]), Path(folder, engine)
            )
