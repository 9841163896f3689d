"""Whether figures through a real sshd equal those of the same machine without it, and what the way costs.

    python benchmarks/through_sshd.py --on ssh://this-machine MODEL.onnx ...

`bench` runs here and through sshd in turns, A B B A, each time in a process of its own. The ratio of the medians of
execution has a 95 % interval by bootstrap over the pairs; 1 lies in it where the way adds nothing. `optimize` follows
once each way; what `--on` takes longer than the command that runs on the device itself is the cost of the way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

from edgeopt.system.machine.processor import cpu_name


def run(*words: str, folder: Path) -> float:
    """Return how many seconds a command of edgeopt takes; its verdict does not matter."""
    began = perf_counter()
    done = subprocess.run([sys.executable, "-m", "edgeopt", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode not in (0, 2, 3, 4):
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return perf_counter() - began


def p50_ms(folder: Path) -> float:
    """Return the median of execution that `bench` wrote."""
    times = json.loads((folder / "bench.json").read_text("utf-8"))["samples"]["times"]
    return float(times["execute"]["p50"]["value_ns"]) / 1e6


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the geometric mean of ratios."""
    logs, chance = np.log(ratios), np.random.default_rng(0)
    means = chance.choice(logs, (10_000, len(logs))).mean(axis=1)
    return tuple(np.exp(np.quantile(means, [0.025, 0.975])).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--on", required=True)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", default="3")
    parser.add_argument("--optimize", action="store_true")
    options = parser.parse_args()
    print(f"{cpu_name()}, {options.pairs} pairs of {options.seconds} s, one thread")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("doctor", "--on", options.on, folder=folder)  # edgeopt is installed there once
        for model in options.models:
            times = {"here": list[float](), "through sshd": list[float]()}
            costs = {"here": list[float](), "through sshd": list[float]()}
            for pair in range(options.pairs):
                for way in [*times] if pair % 2 == 0 else [*times][::-1]:
                    on = ["--on", options.on] if way != "here" else []
                    words = ["bench", model, "-t", "cpu", "--threads", "1", "--seconds", options.seconds, "-o", "b"]
                    costs[way].append(run(*words, *on, folder=folder))
                    times[way].append(p50_ms(folder / "b"))
            ratios = np.array(times["through sshd"]) / np.array(times["here"])
            low, high = interval(ratios)
            medians = {way: float(np.median(each)) for way, each in times.items()}
            more_s = float(np.median(np.array(costs["through sshd"]) - np.array(costs["here"])))
            ratio = f"ratio {np.exp(np.log(ratios).mean()):.3f} [{low:.3f}, {high:.3f}]"
            p50 = f"execute p50 {medians['here']:.3f} ms here, {medians['through sshd']:.3f} ms through sshd"
            print(f"{Path(model).stem}: {p50}, {ratio}; the command took {more_s:+.1f} s")
            if options.optimize:
                words = ["optimize", model, "-t", "cpu", "--threads", "1", "--skip", "prune", "--time-limit", "2m"]
                own_s = run(*words, "-o", "here", folder=folder)
                there_s = run(*words, "-o", "there", "--on", options.on, folder=folder)
                whole_s = run(*words, "-o", "whole", "--on", options.on, "--search-there", folder=folder)
                print(
                    f"{Path(model).stem}: optimize took {own_s:.0f} s on the device itself, {there_s:.0f} s with --on,"
                    f" {whole_s:.0f} s with --search-there"
                )


if __name__ == "__main__":
    main()
