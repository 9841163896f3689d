"""Search an INT8 form of small networks of several families, and tabulate agreement and speed against float.

The networks are those of the tests: residual, MobileNetV2-like, squeeze-and-excite with hard-swish, a detector with
SiLU, a U-Net and a vision transformer, with weights drawn as trained ones are spread, and a transformer encoder of the
size of ViT-tiny with outlying channels. Agreement is the cosine of the
answers on pictures that calibration did not see. Where no form is faster and agrees, the float model is kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))

from encoders import encoder
from small_nets import ALL, frames

from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.measurement.turns.calls import compare_calls
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.api import Form
from edgeopt.steps.quantize.search.search import LEAST_AGREEMENT, search_int8
from edgeopt.steps.simplify import simplify
from edgeopt.system.declared.target import Int8Rules

NETWORKS = {**ALL, "encoder_192": partial(encoder, width=192, heads=3, side=14, depth=4, patch=16)}
Inputs = Mapping[str, np.ndarray[Any, Any]]


def cosine(made: Model, model: Model, seen: list[Inputs]) -> float:
    """Return the mean cosine of all answers."""
    found = []
    sessions = [open_session(one) for one in (made, model)]
    for inputs in seen:
        for one, other in zip(*(session.run(inputs).values() for session in sessions), strict=True):
            a, b = one.ravel(), other.ravel()
            found.append(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-30))
    return float(np.mean(found))


def open_session(model: Model) -> Session:
    return EXECUTOR.open(model.data, SessionOptions(threads=1))


def ratio(made: Model, model: Model, inputs: Inputs, seconds: float) -> Ratio:
    """Return how many times as fast as `model` is `made`, by the time of this thread alone."""

    def caller(session: Session) -> Callable[[int], None]:
        return lambda _index: void(session.run(inputs))

    runs = {"float": caller(open_session(model)), "made": caller(open_session(made))}
    return compare_calls(runs, baseline="float", seconds=seconds, block=50, clock=time.thread_time_ns)["made"]


def void(_value: object) -> None:
    """Drop a value."""


def search(name: str, seconds: float) -> str:
    """Return one row of the table."""
    original = NETWORKS[name]()
    unseen = list(frames(original, 4, seed=9))
    model = fuse(simplify(original, {}, unseen[:1]).model, unseen[:1]).model
    started = time.perf_counter()
    found = search_int8(
        model,
        frames(original, 16),
        Int8Rules(),
        agreement=partial(cosine, model=model, seen=list(frames(original, 4, seed=5))),
        speed=lambda made: ratio(made, model, unseen[0], seconds).speedup,
        forms=(Form.QDQ, Form.NHWC),
        least_agreement=LEAST_AGREEMENT,
    )
    took, best = time.perf_counter() - started, found.attempts[0]
    made = best.outcome.model if best.is_valid(LEAST_AGREEMENT) else model
    speed, agreement = ratio(made, original, unseen[0], 2 * seconds), cosine(made, original, unseen)
    chosen = best.name if made is not model else f"float kept (best: {best.name})"
    interval = f"{speed.speedup:5.2f} [{speed.low:.2f}, {speed.high:.2f}]"
    return f"{name:20} {interval:20} {agreement:9.4f} {len(found.attempts):8} {took:7.1f}  {chosen}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*NETWORKS], help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each comparison in the search")
    given = parser.parse_args()
    print(f"{'network':20} {'times as fast':20} agreement attempts seconds  chosen")
    for name in given.names:
        print(search(name, given.seconds), flush=True)


if __name__ == "__main__":
    main()
