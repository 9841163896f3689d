"""Measure what `simplify`, `fuse` and weights in 8 bits hold in memory for a model above 2 GB.

A chain of matrices whose weights lie in a file beside the graph goes through the steps one by one; with --commands
through the commands, each in a process of its own: inspect, optimize, bench, bench --cold, compare, check, run.
Anonymous memory is what is really held; resident memory counts the pages of the mapped file too, which the system
takes back when it needs them. Of a command both are of the process, and the processes that it starts, together.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
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


def run_commands(model: Path, folder: Path, time_limit: str) -> None:
    """Run the commands on a model, and print one row of Markdown each."""
    inputs, bundle = folder / "inputs.npz", folder / "run" / "bundle"
    np.savez(inputs, x=np.random.default_rng(1).random((8, _WIDTH), np.float32))
    given, made, gate = ["--threads", "1"], ["-t", "cpu", "--calib", str(inputs)], folder / "gate.json"
    check = ["-s", str(inputs), "-r", "tensors", "--seconds", "10", "--starts", "3", *given]
    print("| command | ends with | GiB held at most | GiB resident at most | s |")
    print("|---|--:|--:|--:|--:|", flush=True)
    for words in (
        ["inspect", str(model)],
        ["optimize", str(model), *made, "--time-limit", time_limit, *given, "-o", str(folder / "run")],
        ["bench", str(model), "-s", str(inputs), "--seconds", "10", *given, "-o", str(folder / "bench")],
        ["bench", str(bundle), "-s", str(inputs), "--seconds", "10", *given, "-o", str(folder / "benched")],
        ["bench", str(model), "-s", str(inputs), "--seconds", "5", "--cold", *given, "-o", str(folder / "cold")],
        ["compare", str(model), str(bundle), "-s", str(inputs), "-r", "tensors", "--seconds", "10", *given],
        ["check", str(model), "--baseline", str(gate), "--update", *check],
        ["check", str(model), "--baseline", str(gate), *check],
        ["run", str(bundle), str(inputs), "--json"],
    ):
        began_s = time.monotonic()
        log = folder / f"{words[0]}-{len(list(folder.glob('*.txt')))}.txt"
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen([sys.executable, "-m", "edgeopt", *words], stdout=file, stderr=file)
            held = resident = 0
            while process.poll() is None:
                both = [_memory_of(one) for one in _family(process.pid)]
                held = max(held, sum(one for one, _ in both))
                resident = max(resident, sum(one for _, one in both))
                time.sleep(0.05)
        told = " ".join(Path(one).name if "/" in one else one for one in words)
        seconds = time.monotonic() - began_s
        print(f"| `{told}` | {process.returncode} | {held / 2**20:.2f} | {resident / 2**20:.2f} | {seconds:.0f} |")
        if process.returncode:
            print(log.read_text("utf-8")[-1500:])
        sys.stdout.flush()


def _family(pid: int) -> list[int]:
    """Return a process and all that it started and that still run."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (thread / "children").read_text("utf-8").split()]
    return found


def _memory_of(pid: int) -> tuple[int, int]:
    """Return anonymous and resident memory of a process in KiB; nothing of one that has ended."""
    with contextlib.suppress(OSError, KeyError):
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        told = dict(line.split(":", 1) for line in lines)
        return int(told["RssAnon"].split()[0]), int(told["VmRSS"].split()[0])
    return 0, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.25, help="of weights [2.25]")
    parser.add_argument("--folder", type=Path, default=Path("out/large"), help="needs twice as much room")
    parser.add_argument("--commands", action="store_true", help="the commands in place of the steps")
    parser.add_argument("--time-limit", default="3m", help="of optimize [3m]")
    given = parser.parse_args()
    if sys.platform != "linux":
        parser.error("memory is read from /proc, which Linux has")
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / "large.onnx"
    if not path.is_file():
        make(path, given.gigabytes)
    if given.commands:
        run_commands(path, given.folder, given.time_limit)
        return
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
