"""Does a cluster score as fast as bare processes?

    python benchmarks/cluster_scoring.py squeezenet_224.onnx imagenet/val_labels.csv --recipe imagenet_caffe

Labelled pictures, repeated under other names up to `--pictures`, are answered in turns by two bare processes, each of
which opens the model with one thread and answers half of them, and by `--cluster` with two workers of one thread each,
which take them in parts. Both kinds of processes run before, so that neither waits for Python; connecting, looking at
the workers, sending and the first frame, which is answered here, count as the cluster's. Prints how fast the cluster
is as a share of the bare processes' speed, with a 95 % interval over rounds; the processor time of both, this process
included, which other work on the machine changes less; and whether all answers are the same to the last bit. Wanted:
0.9 on two cores.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import dask
import distributed
import numpy as np
import psutil

from edgeopt.measurement.accuracy.cluster import pool as pools
from edgeopt.measurement.accuracy.cluster.address import read_cluster_address
from edgeopt.measurement.accuracy.cluster.job import digest_of
from edgeopt.measurement.accuracy.evaluate import answers, open_labelled
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.measurement.opening.given import open_given
from edgeopt.measurement.statistics.ratio import ratio_of_rounds
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.pictures import PictureReader
from edgeopt.runtime.opening import opening_for
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.processor import cpu_name
from edgeopt.tasks import make_task

WORKERS = 2
SETTINGS = {"distributed.worker.profile.enabled": False, "distributed.nanny.pre-spawn-environ": {}}
"""As workers that edgeopt starts have them: no profiler that looks at each thread a hundred times a second, and no
MALLOC_TRIM_THRESHOLD_, with which each large array is given back to the system and asked for anew."""


@dataclass(frozen=True)
class Share:
    """Answers of one bare process."""

    runnable: Runnable
    frames: Frames


def answer(share: Share) -> list[Any]:
    """Open a model, and return its answers."""
    runnable = share.runnable
    session = runnable.opening.open(runnable.source)
    try:
        task = make_task(runnable.recipe, runnable.inputs, runnable.outputs, evaluating=True)
        return answers(session, task, share.frames)
    finally:
        session.close()


def serve() -> None:
    """Answer one share a request, until the input ends."""
    while True:
        try:
            share = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(answer(share), sys.stdout.buffer)
        sys.stdout.buffer.flush()


@contextmanager
def bare_processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, __file__, "--serve"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(WORKERS)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def by_processes(processes: list[subprocess.Popen[bytes]], runnable: Runnable, frames: Frames) -> list[Any]:
    """Return the answers of bare processes, each to a stretch of the frames."""
    borders = np.linspace(0, len(frames), WORKERS + 1).round().astype(int)
    for process, first, last in zip(processes, borders, borders[1:], strict=False):
        pickle.dump(Share(runnable, frames.select(range(first, last))), process.stdin)
        process.stdin.flush()
    return [each for process in processes for each in pickle.load(process.stdout)]


@contextmanager
def cluster() -> Iterator[str]:
    """Yield the address of a scheduler with workers that have the settings of edgeopt's own."""
    dask.config.set(SETTINGS)
    options = {"nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL}
    workers = {i: {"cls": distributed.Nanny, "options": options} for i in range(WORKERS)}
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"dashboard": False, "dashboard_address": "127.0.0.1:0", "port": 0},
    }
    with distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.CRITICAL) as made:
        yield made.scheduler_address


def by_cluster(address: str, runnable: Runnable, frames: Frames) -> list[Any]:
    """Return the answers of a cluster's workers."""
    with pools.ClusterPool(read_cluster_address(address), print) as pool:
        session = runnable.opening.open(runnable.source)
        try:
            task = make_task(runnable.recipe, runnable.inputs, runnable.outputs, evaluating=True)
            return pool.answers(runnable, session, task, frames)
        finally:
            session.close()


def repeated(frames: Frames, folder: Path, count: int) -> Frames:
    """Return so many pictures: copies under names of their own."""
    names = tuple(f"{i:06}{Path(frames.names[i % len(frames)]).suffix}" for i in range(count))
    reader = frames.read
    assert isinstance(reader, PictureReader)
    for i, name in enumerate(names):
        (folder / name).write_bytes(reader.path(i % len(frames)).read_bytes())
    return Frames(names, PictureReader(folder, names, reader.top), folder)


def processor_s() -> float:
    """Return the processor time of this process and all that it started, in seconds."""
    me = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (me, *me.children(recursive=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("labels", type=Path)
    parser.add_argument("--recipe")
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    given = open_given(asked.model, "cpu", asked.recipe)
    opening = opening_for(find_target("cpu"), "fp32", 1)
    model = given.model
    runnable = Runnable(opening, model.source, given.recipe, model.inputs, model.outputs)
    seconds: dict[str, list[float]] = {"bare": [], "cluster": []}
    used: dict[str, list[float]] = {name: [] for name in seconds}
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as cache,
        bare_processes() as processes,
    ):
        os.environ["XDG_CACHE_HOME"] = cache
        frames = repeated(open_labelled(asked.labels).frames, Path(folder), asked.pictures)
        few, digests = frames.select(range(8)), set[str]()
        with cluster() as address:
            by_processes(processes, runnable, few)
            by_cluster(address, runnable, few)
            for i in range(asked.rounds):
                for name in ("bare", "cluster")[:: 1 if i % 2 else -1]:
                    began_s, before_s = perf_counter(), processor_s()
                    made = (
                        by_processes(processes, runnable, frames)
                        if name == "bare"
                        else by_cluster(address, runnable, frames)
                    )
                    seconds[name].append(perf_counter() - began_s)
                    used[name].append(processor_s() - before_s)
                    digests.add(digest_of(made))
                print(f"round {i + 1}: " + ", ".join(f"{name} {times[-1]:.1f} s" for name, times in seconds.items()))
    ratio = ratio_of_rounds(np.log(np.divide(seconds["bare"], seconds["cluster"])), pairs=asked.rounds)
    print(f"{cpu_name()}, {psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f}")
    medians = ", ".join(f"{name} {np.median(times):.2f} s" for name, times in seconds.items())
    print(f"{asked.pictures} pictures, median of {asked.rounds} rounds: {medians}")
    spent = ratio_of_rounds(np.log(np.divide(used["bare"], used["cluster"])), pairs=asked.rounds)
    medians = ", ".join(f"{name} {np.median(times):.2f} s" for name, times in used.items())
    print(f"processor time: {medians}: {spent.speedup:.3f} [{spent.low:.3f}, {spent.high:.3f}]")
    print(f"the cluster has {ratio.speedup:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of the bare processes' speed")
    print("all answers are the same" if len(digests) == 1 else f"ANSWERS DIFFER: {len(digests)} kinds")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
