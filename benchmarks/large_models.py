"""Measure what `simplify`, `fuse` and weights in 8 bits hold in memory for a model above 2 GB.

A chain of matrices whose weights lie in a file beside the graph goes through the steps one by one. Anonymous memory is
what is really held; resident memory counts the pages of the mapped file too, which the system takes back when it needs
them.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.fuse import fuse
from edgeopt.steps.simplify import simplify

_WIDTH = 4096


def make(path: Path, gigabytes: float) -> None:
    """Write a chain of matrices, a scale by one and a Relu behind each."""
    count = max(1, int(gigabytes * 1e9 / (4 * _WIDTH**2)))
    body = " ".join(
        f"m{i} = MatMul({f'r{i - 1}' if i else 'x'}, w{i}) s{i} = Mul(m{i}, one) r{i} = Relu(s{i})"
        for i in range(count)
    )
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 13]> large (float[n, {_WIDTH}] x) => (float[n, {_WIDTH}] y) '
        f"<float one = {{1.0}}> {{ {body} y = Identity(r{count - 1}) }}"
    )
    drawn = np.random.default_rng(0).normal(0, np.sqrt(2 / _WIDTH), (_WIDTH, _WIDTH)).astype(np.float32)
    with path.with_suffix(".bin").open("wb") as file:
        for i in range(count):
            weights = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=drawn.shape)
            weights.data_location = TensorProto.EXTERNAL
            place = {"location": f"{path.stem}.bin", "offset": str(file.tell()), "length": str(drawn.nbytes)}
            for key, value in place.items():
                weights.external_data.add(key=key, value=value)
            proto.graph.initializer.append(weights)
            file.write(np.roll(drawn, 17 * i, axis=0).tobytes())
    path.write_bytes(proto.SerializeToString())


class Peaks:
    """The most memory since it was asked last, read twenty times a second."""

    def __init__(self) -> None:
        self._anonymous = self._resident = 0
        self._began_s = time.process_time()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
            self._anonymous = max(self._anonymous, int(told["RssAnon"].split()[0]))
            self._resident = max(self._resident, int(told["VmRSS"].split()[0]))
            time.sleep(0.05)

    def tell(self, what: str, made: Model) -> None:
        """Print one row of Markdown, and begin again."""
        held, resident, spent_s = self._anonymous / 2**20, self._resident / 2**20, time.process_time() - self._began_s
        print(f"| {what} | {made.size_bytes / 1e9:.2f} | {held:.2f} | {resident:.2f} | {spent_s:.0f} |", flush=True)
        self._anonymous = self._resident = 0
        self._began_s = time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.25, help="of weights [2.25]")
    parser.add_argument("--folder", type=Path, default=Path("out/large"), help="needs twice as much room")
    given = parser.parse_args()
    if sys.platform != "linux":
        parser.error("memory is read from /proc, which Linux has")
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / "large.onnx"
    if not path.is_file():
        make(path, given.gigabytes)
    inputs = [{"x": np.random.default_rng(0).random((1, _WIDTH), np.float32)}]
    print("| step | GB of the model | GiB held at most | GiB resident at most | s of processor |")
    print("|---|--:|--:|--:|--:|")
    peaks = Peaks()
    model = load_model(path)
    peaks.tell("load", model)
    model = simplify(model, {"x": (1, _WIDTH)}, inputs).model
    peaks.tell("simplify", model)
    model = fuse(model, inputs).model
    peaks.tell("fuse", model)
    save_model(model, given.folder / "made" / "model.onnx")
    peaks.tell("save", model)
    made = make_weight_only(model, 8).model.gathered()
    peaks.tell("weights in 8 bits", made)


if __name__ == "__main__":
    main()
