"""Long prompts of a language model, ours beside OpenVINO GenAI and llama.cpp: each in a process of its own, in turns.

    pip install edgeopt[cpu,rivals]
    python benchmarks/long_prompts.py NAME=MODEL ... [--rivals openvino-genai:q4_0=FILE.gguf,...] [--lengths 128,512]

A model is a folder that `edgeopt` opens: a form, or two graphs over one cache. In each round every engine answers the
same prompt of random tokens once, in the other order than in the round before. Shown are medians of the time of the
first token and of each next one, and how many times as fast as the first model's, with an interval of 95 %.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from edgeopt.measurement.generation.rivals import OWN, EngineRequest, find
from edgeopt.measurement.generation.rivals._own import RIVAL
from edgeopt.measurement.statistics.ratio import ratio_of_rounds
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import plural

NEXT = 16
_FIRST_TOKEN, _MOST_TOKEN = 5, 1000


def serve(pipe: Connection, name: str, request: EngineRequest) -> None:
    """Open an engine and answer prompts, until the pipe ends."""
    engine = (RIVAL if name == OWN else find(name)).open(request)
    pipe.send(dict(engine.settings))
    while (prompt := pipe.recv()) is not None:
        began_s = time.process_time()
        answer = engine.answer(prompt, NEXT + 1)
        first_ns, last_ns = answer.at_ns[0], answer.at_ns[-1]
        memory = next(line for line in Path("/proc/self/status").read_text("utf-8").splitlines() if "VmHWM" in line)
        pipe.send((first_ns / 1e6, (last_ns - first_ns) / 1e6 / NEXT, time.process_time() - began_s, memory.split()[1]))


class Engine:
    """An engine in its process."""

    def __init__(self, shown: str, name: str, request: EngineRequest) -> None:
        """Start the process and wait until it is open."""
        context = get_context("spawn")
        self.shown, (self._pipe, other) = shown, context.Pipe()
        self._process = context.Process(target=serve, args=(other, name, request), daemon=True)
        self._process.start()
        other.close()  # so that an engine that does not open ends the wait
        self.settings = self._pipe.recv()

    def answer(self, prompt: Sequence[int]) -> tuple[float, float, float, str]:
        """Return the times of an answer in ms, its processor time in s, and the peak of memory in KiB."""
        self._pipe.send(list(prompt))
        times: tuple[float, float, float, str] = self._pipe.recv()
        return times

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join()


def engines_of(models: Sequence[str], rivals: str, threads: int, context: int) -> list[Engine]:
    """Return all engines, open."""
    opened = list[Engine]()
    for model in models:
        name, _, path = model.partition("=")
        opened.append(Engine(name, OWN, EngineRequest(Path(path), threads, context)))
    for rival in filter(None, rivals.split(",")):
        named, _, path = rival.partition("=")
        name, _, form = named.partition(":")
        opened.append(Engine(named, name, EngineRequest(Path(path), threads, context, form, Path(path).parent)))
    return opened


def main() -> None:
    """Print a table for each length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rivals", default="")
    parser.add_argument("--lengths", default="128,512,1900,4000")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--settings", action="store_true")
    given = parser.parse_args()
    lengths = [int(length) for length in given.lengths.split(",")]
    engines = engines_of(given.models, given.rivals, given.threads, max(lengths) + 2 * NEXT)
    print(f"{read_environment().cpu}, {plural(given.threads, 'thread')}", flush=True)
    for engine in engines if given.settings else ():
        print(f"- {engine.shown}: {engine.settings}")
    for length in lengths:
        rows = dict[str, list[tuple[float, float, float, str]]]()
        for number in range(given.rounds + 1):  # the first one warms up
            prompt = np.random.default_rng(number).integers(_FIRST_TOKEN, _MOST_TOKEN, length).tolist()
            for engine in engines[:: 1 if number % 2 else -1]:
                rows.setdefault(engine.shown, []).append(engine.answer(prompt))
        print(f"\n| {length} tokens | TTFT, ms | TPOT, ms | TTFT, speed | TPOT, speed | CPU, s | peak, MiB |")
        print("|---|--:|--:|---|---|--:|--:|")
        base = np.array([row[:2] for row in rows[engines[0].shown][1:]])
        for engine in engines:
            row = rows[engine.shown][1:]
            times = np.array([values[:2] for values in row])
            speeds = [ratio_of_rounds(np.log(base[:, i] / times[:, i]), pairs=len(row)) for i in range(2)]
            cells = [f"{np.median(times[:, 0]):.0f}", f"{np.median(times[:, 1]):.2f}", *map(str, speeds)]
            cells += [f"{np.median([values[2] for values in row]):.2f}", f"{int(row[-1][3]) // 1024}"]
            print(f"| {engine.shown} | {' | '.join(cells)} |", flush=True)
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    main()
