"""Is INT8 faster in a browser? Forms of INT8 against float32 in WebAssembly, in turns, by the page's own clock.

    PYTHONPATH=toolkit python benchmarks/browser.py MODEL.onnx [MODEL.onnx ...] [--threads 1] [--seconds 6]

Each model is simplified and fused once. A cell is the time of float32 in WebAssembly over that of the form, with its
interval, and in brackets how far its answers lie from ONNX Runtime's without optimizations (dB). `native` is ONNX
Runtime's float32 outside of the browser, `stored` float32 with weights stored in 8 bits. The last columns are bytes on
the wire in brotli: float32, U8S8 and `stored`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from engines import inputs_of, prepared

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.model import Model
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.steps.convert.precisions import store_weights
from edgeopt.steps.quantize.api import Form, quantize
from edgeopt.system.declared.target import Granularity, Int8Rules, find_target
from edgeopt.system.device_clock import device_clock
from edgeopt.system.text import format_bytes

FIRST, NATIVE, STORED = "wasm fp32", "native", "stored"
_RULES = find_target("browser-wasm").int8
FORMS: Mapping[str, Int8Rules] = {
    "U8S8": _RULES,
    "U8S8, a scale a tensor": replace(_RULES, weight_granularity=Granularity.PER_TENSOR),
    "S8S8": replace(_RULES, activation_dtype="int8"),
}
_CALIBRATED = 8


def row(file: Path, threads: int, seconds: float) -> list[str]:
    """Return the cells of one model."""
    model = prepared(file)
    inputs = inputs_of(model, 1)
    samples = [inputs_of(model, seed) for seed in range(2, 2 + _CALIBRATED)]
    models: dict[str, Model] = {FIRST: model}
    refused = dict[str, str]()
    for name, rules in FORMS.items():
        try:
            models[name] = quantize(model, samples, rules, form=Form.QDQ).model
        except EdgeoptError as error:
            refused[name] = error.problem
    stored = store_weights(model)
    models[STORED] = stored.model
    native, browser = load_executor("onnxruntime"), load_executor("browser")
    with guarded(), ExitStack() as stack:
        right = native.open(model.source, SessionOptions(threads=threads, entries=UNOPTIMIZED))
        expected = right.run(inputs)
        right.close()
        sessions = {
            name: browser.open(
                form.source, SessionOptions(("wasm",), threads, stored.options if name == STORED else {})
            )
            for name, form in models.items()
        }
        sessions[NATIVE] = native.open(model.source, SessionOptions(threads=threads))
        for session in sessions.values():
            stack.callback(session.close)
        drift = {name: measure_drift(expected, session.run(inputs)).sqnr_db for name, session in sessions.items()}
        calls = {name: call_of(session, inputs) for name, session in sessions.items()}
        ratios = compare_calls(calls, baseline=FIRST, seconds=seconds, block=5)
        times_ms = []
        for i in range(15):
            began_ns = device_clock()
            calls[FIRST](i)
            times_ms.append((device_clock() - began_ns) / 1e6)
    cells = [file.stem, f"{sorted(times_ms)[7]:.2f} ms"]
    for name in (NATIVE, *FORMS, STORED):
        ratio = ratios.get(name)
        cells.append(
            f"{ratio.speedup:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] ({drift[name]:.0f})" if ratio else refused[name]
        )
    wires = [models[name] for name in (FIRST, "U8S8", STORED) if name in models]
    return [*cells, *(format_bytes(browser.wire_bytes(form.source) or 0) for form in wires)]


def main(files: Sequence[Path], threads: int, seconds: float) -> None:
    """Print the table."""
    head = ["model", FIRST, NATIVE, *FORMS, STORED, "wire fp32", "wire U8S8", "wire stored"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for file in files:
        try:
            cells = row(file, threads, seconds)
        except EdgeoptError as error:
            cells = [file.stem, f"refused: {error.problem}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    main(arguments.models, arguments.threads, arguments.seconds)
