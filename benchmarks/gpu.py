"""Models on an NVIDIA GPU: right answers frame after frame, and times, by layout, precision and recording.

    pip install 'edgeopt[gpu]' 'onnxruntime-gpu[cuda,cudnn]'
    python benchmarks/gpu.py MODEL.onnx [MODEL.onnx ...] [--frames 300] [--rounds 3]

Each form runs six frames of random numbers before it is timed; the error is that of the worst of them against the
processor without a GPU: a recorded graph that reads an old frame is seen in it. Forms are timed in turns.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import numpy as np

from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.providers import CPU, CUDA
from edgeopt.graph.model import load_model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.convert.float16 import make_float16

FORMS = {
    "plain": {},
    "tf32": {"use_tf32": "1"},
    "nhwc": {"prefer_nhwc": "1"},
    "heuristic": {"cudnn_conv_algo_search": "HEURISTIC"},
    "graph": {"enable_cuda_graph": "1"},
    "graph, nhwc": {"enable_cuda_graph": "1", "prefer_nhwc": "1"},
}
FRAMES, SCALE = 6, 100.0


def stages_ms(session: Session, frames: list[Tensors], count: int) -> np.ndarray:
    """Return (count, 3) milliseconds of upload, execute and download."""
    times = np.zeros((count, 3))
    for i in range(count):
        began_s = perf_counter()
        uploaded = session.upload(frames[i % len(frames)])
        uploaded_s = perf_counter()
        results = session.execute(uploaded)
        executed_s = perf_counter()
        session.download(results)
        times[i] = uploaded_s - began_s, executed_s - uploaded_s, perf_counter() - executed_s
    return 1000 * times


def worst_error(session: Session, frames: list[Tensors], expected: list[Tensors]) -> float:
    """Return the largest relative error of an output, of all frames."""
    errors = []
    for inputs, right in zip(frames, expected, strict=True):
        outputs = session.run(inputs)
        errors += [float(np.linalg.norm(outputs[name] - right[name]) / np.linalg.norm(right[name])) for name in right]
    return max(errors)


def main() -> None:
    """Print one table a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    wishes = parser.parse_args()
    for path in wishes.models:
        processor, random = EXECUTOR.open(path, SessionOptions()), np.random.default_rng(0)
        shapes = {spec.name: [int(str(size)) for size in spec.shape] for spec in processor.inputs}
        frames = [
            {name: (SCALE * random.random(shape)).astype(np.float32) for name, shape in shapes.items()}
            for _ in range(FRAMES)
        ]
        expected, model = [processor.run(inputs) for inputs in frames], load_model(path)
        precisions = {"fp32": model.source, "fp16": make_float16(model, frames[:2]).model.source}
        print(f"\n{path.stem}\n\n| form | first run ms | upload | execute | download | worst error |")
        print("|---|--:|--:|--:|--:|--:|")
        opened, facts = dict[str, Session](), dict[str, tuple[float, float]]()
        for precision, source in precisions.items():
            for form, entries in FORMS.items():
                name = f"{precision}, {form}"
                session = EXECUTOR.open(source, SessionOptions((CUDA, CPU), entries={"use_tf32": "0", **entries}))
                began_s = perf_counter()
                session.run(frames[0])
                facts[name] = 1000 * (perf_counter() - began_s), worst_error(session, frames, expected)
                opened[name] = session
        times = {name: list[np.ndarray]() for name in opened}
        for turn in range(wishes.rounds):
            for name in list(opened)[:: 1 if turn % 2 == 0 else -1]:
                times[name].append(stages_ms(opened[name], frames, wishes.frames)[FRAMES:])
        for name, (first_ms, error) in facts.items():
            medians = np.median(np.concatenate(times[name]), 0)
            print(f"| {name} | {first_ms:.0f} | " + " | ".join(f"{ms:.3f}" for ms in medians) + f" | {error:.1e} |")


if __name__ == "__main__":
    main()
