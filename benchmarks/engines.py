"""Which engine runs which model fastest: ONNX Runtime, OpenVINO, ncnn, LiteRT, MNN, ExecuTorch; in turns, one thread.

    PYTHONPATH=toolkit python benchmarks/engines.py MODEL.onnx [MODEL.onnx ...] [--threads 1] [--seconds 6] [--int8]

Each model is simplified and fused once and handed to every engine that is installed, in float32 and, where the engine
has it, in bfloat16; what an engine refuses is told in its cell. A cell is the time of ONNX Runtime's float32 over that
of the form, with its interval, and in brackets how far its answers lie from ONNX Runtime's without optimizations (dB).
Last column: the form that is proven fastest, or those that are not proven slower.

With `--int8` the columns are the engines' INT8 instead: the first form that `edgeopt optimize` makes for the engine's
profile (its rules, no search, no repair), calibrated on made-up inputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from edgeopt.errors import EdgeoptError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import Model, fix_inputs, load_model
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.steps.simplify import simplify
from edgeopt.system.declared.target import find_target

FIRST = "onnxruntime fp32"
FORMS: Mapping[str, tuple[str, str, str]] = {
    FIRST: ("onnxruntime", "CPUExecutionProvider", "fp32"),
    "openvino fp32": ("openvino", "CPU", "fp32"),
    "openvino bf16": ("openvino", "CPU", "bf16"),
    "ncnn fp32": ("ncnn", "CPU", "fp32"),
    "ncnn bf16": ("ncnn", "CPU", "bf16"),
    "litert fp32": ("litert", "CPU", "fp32"),
    "mnn fp32": ("mnn", "CPU", "fp32"),
    "executorch fp32": ("executorch", "CPU", "fp32"),
}
"""Executor, provider and precision of each column."""
INT8: Mapping[str, tuple[str, Form]] = {
    "onnxruntime pairs": ("cpu", Form.QDQ),
    "onnxruntime own ops": ("cpu", Form.NHWC),
    "openvino": ("openvino-cpu", Form.INPUTS),
    "ncnn": ("ncnn-cpu", Form.INPUTS),
    "litert": ("litert-cpu", Form.QDQ),
    "executorch": ("executorch-cpu", Form.QDQ),
}
"""Profile and form of each column of INT8."""
_CALIBRATED = 8
"""Made-up inputs that a grid is chosen from."""


def prepared(file: Path) -> Model:
    """Return a model with fixed shapes, simplified and fused."""
    model = load_model(file)
    shapes = {spec.name: tuple(size if isinstance(size, int) else 1 for size in spec.shape) for spec in model.inputs}
    sample = inputs_of(fix_inputs(model, shapes), 0)
    return fuse(simplify(model, shapes, [sample]).model, [sample]).model


def inputs_of(model: Model | Session, seed: int) -> dict[str, np.ndarray]:
    """Return made-up inputs: numbers of pictures after normalisation; a free dimension is 1."""
    chance = np.random.default_rng(seed)
    shapes = {spec.name: [size if isinstance(size, int) else 1 for size in spec.shape] for spec in model.inputs}
    return {name: chance.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def opened(model: Model, stack: ExitStack, threads: int) -> tuple[dict[str, Session], dict[str, str]]:
    """Return the sessions of the forms, and why the others do not open."""
    sessions, refused = dict[str, Session](), dict[str, str]()
    for name, (executor, provider, precision) in FORMS.items():
        entries = find_target("openvino-cpu").options if executor == "openvino" else {}
        options = SessionOptions((provider,), threads, entries, precision=precision)
        try:
            session = load_executor(executor).open(model.source, options)
        except EdgeoptError as error:
            refused[name] = error.problem
            continue
        stack.callback(session.close)
        sessions[name] = session
    return sessions, refused


def opened_in_int8(model: Model, stack: ExitStack, threads: int) -> tuple[dict[str, Session], dict[str, str]]:
    """Return the sessions of the engines' INT8 and of ONNX Runtime's float32, and why the others do not open."""
    samples = [inputs_of(model, seed) for seed in range(2, 2 + _CALIBRATED)]
    float_options = SessionOptions(threads=threads)
    sessions = {FIRST: load_executor("onnxruntime").open(model.source, float_options)}
    stack.callback(sessions[FIRST].close)
    refused = dict[str, str]()
    for name, (profile, form) in INT8.items():
        target = find_target(profile)
        options = SessionOptions(target.providers, threads, target.options, precision="fp32")
        try:
            made = quantize(model, samples, target.int8, form=form).model
            session = load_executor(target.executor).open(made.source, options)
        except EdgeoptError as error:
            refused[name] = error.problem
            continue
        stack.callback(session.close)
        sessions[name] = session
    return sessions, refused


def row(file: Path, threads: int, seconds: float, names: Sequence[str]) -> list[str]:
    """Return the cells of one model."""
    model = prepared(file)
    inputs = inputs_of(model, 1)
    with guarded(), ExitStack() as stack:
        right = load_executor("onnxruntime").open(model.source, SessionOptions(threads=threads, entries=UNOPTIMIZED))
        expected = right.run(inputs)
        right.close()
        sessions, refused = (opened_in_int8 if names[0] in INT8 else opened)(model, stack, threads)
        drift = {name: measure_drift(expected, session.run(inputs)).sqnr_db for name, session in sessions.items()}
        calls = {name: call_of(session, inputs) for name, session in sessions.items()}
        ratios = compare_calls(calls, baseline=FIRST, seconds=seconds, block=5) if len(calls) > 1 else {}
        times_ms = _p50_ms(calls[FIRST])
    cells = [file.stem, f"{times_ms:.2f} ms"]
    cells += [_cell(ratios[name], drift[name]) if name in ratios else f"- {refused[name][:60]}" for name in names]
    return [*cells, ", ".join(_fastest(ratios))]


def _p50_ms(call: Callable[[int], None]) -> float:
    times = []
    for i in range(31):
        began = perf_counter_ns()
        call(i)
        times.append(perf_counter_ns() - began)
    return float(np.median(times)) / 1e6


def _cell(ratio: Ratio, drift_db: float) -> str:
    return f"{ratio.speedup:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] ({drift_db:.0f})"


def _fastest(ratios: Mapping[str, Ratio]) -> Sequence[str]:
    """Return the forms whose interval reaches that of the fastest."""
    best = max([1.0, *(ratio.speedup for ratio in ratios.values())])
    least = max([1.0, *(ratio.low for ratio in ratios.values() if ratio.speedup == best)])
    forms = [name for name, ratio in ratios.items() if ratio.high >= least]
    return [*([FIRST] if least <= 1 else []), *forms]


def main(files: Sequence[Path], threads: int, seconds: float, *, is_int8: bool) -> None:
    """Print the table."""
    names = [*INT8] if is_int8 else [name for name in FORMS if name != FIRST]
    head = ["model", FIRST, *names, "fastest"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for file in files:
        try:
            cells = row(file, threads, seconds, names)
        except EdgeoptError as error:
            cells = [file.stem, f"refused: {error.problem}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--int8", action="store_true")
    arguments = parser.parse_args()
    main(arguments.models, arguments.threads, arguments.seconds, is_int8=arguments.int8)
