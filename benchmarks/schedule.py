"""The gain of a scheduler where two real models share two cores.

    python benchmarks/schedule.py FIRST.onnx SECOND.onnx [--recipe imagenet] [--fps 15] [--second-fps 15]

The first model has the priority and the frames of a camera; both have two threads. In rounds of short blocks it runs
alone, beside the second without a scheduler, beside it by `Scheduler`, and alone once more. Prints its p99 in each, and
how many times as fast that is as alone, with a 95 % interval over the rounds. The claim: within 10 % of alone by the
scheduler, and not without.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil

from edgeopt.graph.model import find_model, load_model
from edgeopt.measurement.load.beside import is_kept
from edgeopt.measurement.statistics.ratio import ratio_of_rounds
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import make_artefact, write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.schedule import ScheduledModel, Scheduler, Terms
from edgeopt.system.declared.target import find_target
from edgeopt.system.order_statistic import order_statistic

THREADS, WARMUP_S = 2, 1.0
BLOCKS = ("alone", "beside", "scheduled", "alone again")


def bundle_of(model: Path, recipe_name: str | None, folder: Path) -> Path:
    net, target = load_model(model), find_target("cpu")
    recipe = choose_recipe(recipe_name, model, net.inputs, net.outputs, net.metadata).recipe
    data = model.read_bytes()
    made = make_artefact("model.onnx", data, "fp32", target, THREADS)
    return write_bundle(folder, [(made, data)], target, recipe, {}, {}).folder


def camera(predict: Callable[[np.ndarray], object], fps: float, seconds: float) -> np.ndarray:
    """Return (n,) from capture to answer, nanoseconds, after warm-up; the newest frame wins."""
    frames = [*synthetic_frames((480, 640))]
    begun, found, i = time.perf_counter_ns(), [], 0
    while i < seconds * fps:
        due = begun + int(i * 1e9 / fps)
        while (ahead := due - time.perf_counter_ns()) > 0:
            time.sleep(ahead / 1e9)
        predict(frames[i % len(frames)])
        done = time.perf_counter_ns()
        if i / fps >= WARMUP_S:
            found.append(done - due)
        i = max(i + 1, int((done - begun) * fps / 1e9))
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs=2)
    parser.add_argument("--recipe", help="of the second")
    parser.add_argument("--fps", type=float, default=15)
    parser.add_argument("--second-fps", type=float, default=15)
    parser.add_argument("--seconds", type=float, default=160)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    first, second = map(find_model, asked.models)
    rounds = asked.rounds
    block_s = WARMUP_S + asked.seconds / len(BLOCKS) / rounds
    with tempfile.TemporaryDirectory() as folder:
        paths = [bundle_of(first, None, Path(folder) / "1"), bundle_of(second, asked.recipe, Path(folder) / "2")]
        models = {
            "first": ScheduledModel(paths[0], Terms(priority=1, fps=asked.fps), threads=THREADS),
            "second": ScheduledModel(paths[1], threads=THREADS),
        }
        with Runtime.load(paths[0]) as one, Runtime.load(paths[1]) as two, Scheduler(models) as scheduler:
            ways = {
                "alone": (one.predict, None),
                "beside": (one.predict, two.predict),
                "scheduled": (lambda f: scheduler.predict("first", f), lambda f: scheduler.predict("second", f)),
                "alone again": (one.predict, None),
            }
            times: dict[str, list[np.ndarray]] = {name: [] for name in BLOCKS}
            others: dict[str, list[np.ndarray]] = {name: [] for name in BLOCKS}
            for number in range(rounds):
                for name in BLOCKS if number % 2 == 0 else BLOCKS[::-1]:
                    mine, theirs = ways[name]
                    beside = threading.Thread(
                        target=lambda: others[name].append(camera(theirs, asked.second_fps, block_s))  # noqa: B023
                    )
                    if theirs:
                        beside.start()
                    times[name].append(camera(mine, asked.fps, block_s))
                    if theirs:
                        beside.join()
    tails = {name: np.array([order_statistic(np.sort(one), 0.99) for one in found]) for name, found in times.items()}
    print(f"{first.name} at {asked.fps:g} fps with the priority, {second.name} at {asked.second_fps:g} fps,", end=" ")
    print(f"{THREADS} threads each on {os.cpu_count()} cores, load of the machine {psutil.getloadavg()[0]:.1f}")
    for name, found in times.items():
        whole, theirs = np.sort(np.concatenate(found)), others[name]
        p50, p99 = (order_statistic(whole, p) / 1e6 for p in (0.5, 0.99))
        ratio = ratio_of_rounds(np.log(tails["alone"] / tails[name]), pairs=rounds)
        kept = {True: "kept", False: "LOST", None: "not decided"}[is_kept(ratio)]
        told = "" if name == "alone" else f", p99 {ratio} of alone: {kept}"
        beside = np.sort(np.concatenate(theirs)) if theirs else whole[:0]
        other = f"; second p50 {order_statistic(beside, 0.5) / 1e6:.1f} ms" if len(beside) else ""
        print(f"{name:12} p50 {p50:6.1f}, p99 {p99:6.1f} ms, {len(whole)} frames{told}{other}")


if __name__ == "__main__":
    main()
