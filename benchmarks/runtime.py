"""The cost of `Runtime` over the bare calls, and its gain where threads share it. All in turns.

    python benchmarks/runtime.py [MODEL]

1. Microseconds a frame over preprocess, the engine's own call and postprocess by hand, with the 95 % interval: on an
   executor that does nothing, and on a real detector. The claim is under 30.
2. Frames a second of 1, 2 and 8 threads on one runtime, over the same threads that take turns by a lock, as before.
3. Memory of buffers for 8 frames at once, beside that of the weights.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from edgeopt.executors.null import Script
from edgeopt.graph.model import find_model, load_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.turns.calls import run_blocks
from edgeopt.recipes.inputs.made_up import synthetic_frames
from edgeopt.recipes.recipe import find_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import make_artefact, write_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import find_target

CPU = find_target("cpu-x86-vnni")
SECONDS = 15.0
Call = Callable[[int], Any]


def ratio(logs: NDArray[np.float64]) -> str:
    """Return the geometric mean of the rounds with its 95 % bootstrap interval."""
    means = np.random.default_rng(0).choice(logs, (5000, len(logs))).mean(axis=1)
    middle, low, high = np.exp([logs.mean(), *np.percentile(means, [2.5, 97.5])])
    return f"{middle:.2f}x [{low:.2f}, {high:.2f}]"


def cost_us(bare: Call, wrapped: Call, block: int = 20) -> str:
    """Return what one call costs over the other in processor time of its thread, which others do not disturb.

    The median over rounds of the difference of their medians, with its 95 % bootstrap interval.
    """
    runs = {"bare": bare, "wrapped": wrapped}
    found = run_blocks(runs, seconds=SECONDS, block=block, seed=0, clock=time.thread_time_ns)
    medians = {name: np.median(times, axis=2).mean(axis=1) for name, times in found.items()}
    costs = (medians["wrapped"] - medians["bare"]) / 1e3
    drawn = np.median(np.random.default_rng(0).choice(costs, (2000, len(costs))), axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    whole = np.median(medians["bare"]) / 1e3
    return f"{np.median(costs):+.1f} [{low:+.1f}, {high:+.1f}] us a frame (bare: {whole:.0f} us)"


def null_bundle(folder: Path) -> Path:
    """Write a bundle whose engine answers at once."""
    answers = ({"y": np.zeros((1, 2), np.float32)},)
    script = Script((TensorSpec("x", "float32", (1, 4)),), answers)
    target = replace(CPU, executor="null", options={})
    data = script.to_bytes()
    return write_bundle(
        folder, [(make_artefact("model.json", data, "fp32", target, 1), data)], target, find_recipe("tensors"), {}, {}
    ).folder


def real_bundle(folder: Path, name: str) -> Path:
    """Write a bundle of a model as it is, on one thread."""
    path = find_model(name)
    net = load_model(path)
    recipe = choose_recipe(None, path, net.inputs, net.outputs, net.metadata).recipe
    made = make_artefact("model.onnx", net.data, "fp32", CPU, 1)
    return write_bundle(folder, [(made, net.data)], CPU, recipe, {}, {}).folder


def overhead_of_nothing(folder: Path) -> str:
    with Runtime.load(null_bundle(folder)) as runtime:
        frame = {"x": np.zeros((1, 4), np.float32)}
        task, session = runtime.task, runtime.session

        def bare(_: int) -> Any:
            inputs, geometry = task.preprocess(frame)
            return task.postprocess(session.run(inputs), geometry)

        return cost_us(bare, lambda _: runtime.predict(frame), block=200)


def overhead_of_detector(folder: Path) -> str:
    with Runtime.load(folder) as runtime:
        frames = [*synthetic_frames((480, 640))]
        plain = runtime.session._session  # two sessions of one model differ by more, for their memory does
        names = [one.name for one in plain.get_outputs()]
        with runtime.begin() as work:
            task = work._task  # with the very buffers

        def bare(index: int) -> Any:
            inputs, geometry = task.preprocess(frames[index % len(frames)])
            return task.postprocess(dict(zip(names, plain.run(None, inputs), strict=True)), geometry)

        return cost_us(bare, lambda index: runtime.predict(frames[index % len(frames)]))


def threads_at_once(folder: Path) -> None:
    """Print what buffers for each frame are worth against a lock around the whole frame."""
    with Runtime.load(folder, threads=1) as runtime:
        frames, turn = [*synthetic_frames((480, 640))], Lock()

        def together(index: int) -> None:
            runtime.predict(frames[index % len(frames)])

        def in_turns(index: int) -> None:
            with turn:
                together(index)

        for threads in (1, 2, 8):
            with ThreadPoolExecutor(threads) as workers:

                def block(one: Call, workers: ThreadPoolExecutor = workers) -> Call:
                    return lambda index: [*workers.map(one, range(64))] and None

                runs = {"pool": block(together), "lock": block(in_turns)}
                found = run_blocks(runs, seconds=SECONDS, block=1, seed=0)
            logs = np.log(found["lock"] / found["pool"]).mean(axis=(1, 2))
            rate = 64e9 / np.median(found["pool"])
            print(f"{threads} threads: {ratio(logs)} as many frames as with a lock, {rate:.0f} a second")


def memory(folder: Path) -> None:
    """Print how much 8 frames at once add to what one runtime holds, beside a second and further runtimes."""
    process, frame = psutil.Process(), next(iter(synthetic_frames((480, 640))))

    def used() -> float:
        return process.memory_info().rss / 2**20

    with Runtime.load(folder, threads=1) as runtime:
        for _ in range(50):
            runtime.predict(frame)
        before = used()
        with ThreadPoolExecutor(8) as workers:
            [*workers.map(runtime.predict, [frame] * 800)]
        time.sleep(0.1)
        print(f"8 threads on one runtime: {used() - before:+.1f} MiB", end="; ")
        before = used()
        others = [Runtime.load(folder, threads=1) for _ in range(7)]
        for other in others:
            other.predict(frame)
        print(f"7 more runtimes in place of that: {used() - before:+.1f} MiB", end="; ")
        print(f"the model has {runtime.artefact.size_bytes / 2**20:.1f} MiB")
        for other in others:
            other.close()


def main(model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(f"over the bare calls, null executor: {overhead_of_nothing(Path(folder, 'null'))}")
        detector = real_bundle(Path(folder, "real"), model)
        print(f"over the bare calls, {Path(model).stem}: {overhead_of_detector(detector)}")
        threads_at_once(detector)
        memory(detector)


if __name__ == "__main__":
    main((sys.argv[1:] or ["digits_detector"])[0])
