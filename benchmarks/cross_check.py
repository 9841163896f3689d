"""Our closed loop against OpenVINO's benchmark_app: one engine, one model, two tools that share no line of code.

    python -m venv ov && ov/bin/pip install openvino numpy psutil opencv-python-headless
    PYTHONPATH=toolkit ov/bin/python benchmarks/cross_check.py MODEL.onnx [PAIRS]

Both run the model on one thread in fp32, synchronously, in turns (A B B A), each time with a freshly compiled model.
Writes both figures and the reason for their difference to benchmarks/results/cross_check.md and prints them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from edgeopt.executors import Staged
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.load.closed_loop import run_closed
from edgeopt.measurement.statistics.ratio import ratio_of_rounds
from edgeopt.system.machine.processor import cpu_name
from edgeopt.tasks import FrameTask

SECONDS = 2
RESULT = Path(__file__).parent / "results" / "cross_check.md"
APP = (
    *("-hint", "none", "-api", "sync", "-nthreads", "1", "-nstreams", "1"),
    *("-infer_precision", "f32", "-pin", "NO", "-t", str(SECONDS)),
)
CONFIG = {
    "INFERENCE_NUM_THREADS": "1",
    "NUM_STREAMS": "1",
    "INFERENCE_PRECISION_HINT": "f32",
    "ENABLE_CPU_PINNING": "NO",
}
FIGURES = (
    ("engine's own time of a run, median / median latency", "engine", "median"),
    ("engine's own time of a run, least / least latency", "least", "least"),
    ("stage `execute`, median / median latency", "execute", "median"),
    ("whole frame, median / median latency", "frame", "median"),
    ("whole frame, mean / 1 over throughput", "mean", "mean"),
)


class OpenVinoSession(Staged):
    """The engine as our loop sees it: the least that the words of `Session` need."""

    def __init__(self, model: Path) -> None:
        self._request = openvino.Core().compile_model(model, "CPU", CONFIG).create_infer_request()
        self.inputs = tuple(TensorSpec(one.any_name, "float32", tuple(one.shape)) for one in self._request.model_inputs)
        self.outputs: tuple[TensorSpec, ...] = ()
        self.engine_ms: list[float] = []
        self.call_ms: list[float] = []

    def upload(self, inputs: Any) -> Any:
        """Let the request read the inputs where they are."""
        for name, value in inputs.items():
            self._request.set_tensor(name, openvino.Tensor(value, shared_memory=True))
        return inputs

    def execute(self, uploaded: Any) -> Any:
        """Run once; keep the engine's own figure beside ours."""
        begun = time.perf_counter_ns()
        self._request.infer()
        took_ms = (time.perf_counter_ns() - begun) / 1e6
        self.engine_ms.append(self._request.latency)  # what benchmark_app collects
        self.call_ms.append(took_ms - self.engine_ms[-1])
        return self._request

    def download(self, results: Any) -> Any:
        """Name the outputs."""
        return {str(i): one.data for i, one in enumerate(results.output_tensors)}

    def placement(self) -> tuple[()]:
        """Tell nothing."""
        return ()

    def close(self) -> None:
        """Free the request."""
        self._request = None


class RandomInput(FrameTask):
    """No preprocess and no postprocess: what remains is the engine."""

    def __init__(self, session: OpenVinoSession) -> None:
        rng = np.random.default_rng(0)
        self._inputs = {one.name: rng.random(one.shape, np.float32) for one in session.inputs}

    def preprocess(self, frame: Any) -> Any:
        """Return the same random numbers for every frame."""
        return self._inputs, None

    def postprocess(self, outputs: Any, geometry: Any) -> Any:
        """Answer nothing."""
        return ()

    def count(self, answer: Any) -> int:
        """Return 0."""
        return len(answer)


def measure_ours(model: Path) -> dict[str, float]:
    """Measure in a fresh process, as benchmark_app is one: the scheduler treats an old one otherwise."""
    command = [sys.executable, __file__, "--ours", str(model)]
    told: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return told


def run_ours(model: Path) -> dict[str, float]:
    session, frame = OpenVinoSession(model), np.zeros((1, 1, 3), np.uint8)
    samples = run_closed([frame], [(RandomInput(session), session)], seconds=SECONDS, min_frames=20, warmup_s=0.5)
    steady, counted = samples.steady(), ~samples.warmup
    return {
        "engine": float(np.median(np.array(session.engine_ms)[counted])),
        "least": min(session.engine_ms),
        "call": float(np.median(np.array(session.call_ms)[counted])),
        "around": float(np.median(steady.frame_ns - steady.stage("execute"))) / 1e6,
        "execute": float(np.median(steady.stage("execute"))) / 1e6,
        "frame": float(np.median(steady.frame_ns)) / 1e6,
        "mean": float(steady.frame_ns.mean()) / 1e6,
    }


def measure_theirs(model: Path) -> dict[str, float]:
    app = Path(sys.executable).with_name("benchmark_app")
    shown = subprocess.run([app, "-m", model, *APP], capture_output=True, text=True, check=True).stdout
    told = {word: float(value) for word, value in re.findall(r"(Median|Min|Throughput):\s+([0-9.]+)", shown)}
    return {"median": told["Median"], "least": told["Min"], "mean": 1000 / told["Throughput"]}


def main(model: Path, pairs: int) -> None:
    ours, theirs = [], []
    for pair in range(pairs):
        for turn in ("ours", "theirs") if pair % 2 == 0 else ("theirs", "ours"):
            (ours if turn == "ours" else theirs).append((measure_ours if turn == "ours" else measure_theirs)(model))
    text = report(model, ours, theirs)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text, "utf-8")
    print(text, end="")


def report(model: Path, ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    rows = []
    for name, mine, other in FIGURES:
        values, app = (np.array([one[key] for one in found]) for found, key in ((ours, mine), (theirs, other)))
        ratio = ratio_of_rounds(np.log(app) - np.log(values), pairs=len(values))
        medians = f"{np.median(values):.3f} | {np.median(app):.3f}"
        rows.append(f"| {name} | {medians} | {1 / ratio.speedup:.3f} [{1 / ratio.high:.3f}, {1 / ratio.low:.3f}] |")
    call_us, around_us = (1e3 * float(np.median([one[key] for one in ours])) for key in ("call", "around"))
    return f"""# The same model in benchmark_app and in our closed loop

`{model.name}` on OpenVINO {version("openvino")}, {cpu_name()}, 1 thread, fp32; {len(ours)} pairs of {SECONDS} s in
turns: `benchmark_app {" ".join(APP)}`.
The machine was shared and noisy: believe the ratios, not the times.

| figure of our loop / of benchmark_app | ours, ms | benchmark_app, ms | ratio, 95 % |
|---|--:|--:|--:|
{chr(10).join(rows)}

Why they differ:

- benchmark_app collects `request.latency`, which the engine measures inside the call. Our loop reads the same value
  inside its stage `execute`, so the first two rows should be 1 within the interval: same engine, same work.
- Our stage `execute` is the call as an application sees it, from Python and back: {call_us:+.0f} us a frame here.
- Our frame also holds what an application pays around the call: setting the inputs, naming the outputs and the marks,
  {around_us:+.0f} us here. benchmark_app leaves them out of its latency; its throughput holds its own loop too.
- Both are closed loops: they say nothing of frames that wait. That is what `--load` is for.
"""


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        print(json.dumps(run_ours(Path(sys.argv[2]))))
        raise SystemExit
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 20)
