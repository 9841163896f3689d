"""Peak memory and time of calibration, edgeopt's against ONNX Runtime's, each in a fresh process.

    python benchmarks/calibration_memory.py [--net 32x320] [--net 8x640] [--images 16,128,1000] [--yolox]

A net is CHANNELSxSIZE: ten 3x3 convolutions with Relu, all activations watched. The first number is the largest
memory of all processes together at one time (proportional set size, sampled every 20 ms), the second the sum of their
own peaks (VmHWM), an upper bound. ONNX Runtime's percentile calibrator keeps every activation of every image, so it
runs on few images.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

YOLOX = Path(__file__).parents[2] / "shared" / "data" / "models" / "yolox_nano_416.onnx"


def make_net(channels: int, size: int) -> onnx.ModelProto:
    chance = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for i in range(10):
        fan = 3 if i == 0 else channels
        weight = chance.normal(0, np.sqrt(2 / (9 * fan)), (channels, fan, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [f"c{i}"], name=f"conv{i}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        last = f"r{i}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])]
    outputs = [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, channels, size, size])]
    graph = helper.make_graph(nodes, "ten", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def pictures(model: onnx.ModelProto, count: int) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    tensor = model.graph.input[0]
    shape = [d.dim_value for d in tensor.type.tensor_type.shape.dim]
    chance = np.random.default_rng(1)
    for _ in range(count):
        yield {tensor.name: chance.random(shape, np.float32) * (255 if shape[-1] == 416 else 1)}


def watched(model: onnx.ModelProto) -> dict[str, int]:
    """The inputs and outputs of all convolutions, as both sides watch them."""
    names = [name for node in model.graph.node if node.op_type == "Conv" for name in (node.input[0], node.output[0])]
    return dict.fromkeys(names, 1)


def run_ours(path: str, images: int, processes: int) -> None:
    from edgeopt.graph.model import load_model
    from edgeopt.steps.quantize.calibration.calibrate import calibrate

    model = load_model(Path(path))
    calibrate(model, pictures(model.proto, images), watched(model.proto), processes=processes)


def run_onnxruntime(path: str, images: int, method: str) -> None:
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import CalibrationDataReader, create_calibrator

    stream = pictures(onnx.load(path), images)

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> Any:
            return next(stream, None)

    augmented = f"{path}.augmented.onnx"
    made = create_calibrator(path, ["Conv"], augmented, getattr(CalibrationMethod, method))
    made.collect_data(Reader())
    made.compute_data()


def child(given: list[str]) -> None:
    who, path, images, how = given
    started = time.perf_counter()
    if who == "edgeopt":
        run_ours(path, int(images), int(how))
    else:
        run_onnxruntime(path, int(images), how)
    print(json.dumps({"seconds": time.perf_counter() - started}))


class Watch:
    """The memory of a process and of those that it starts, until it ends."""

    def __init__(self) -> None:
        self.together_kib = 0
        self._peaks_kib: dict[int, int] = {}

    def follow(self, process: subprocess.Popen[str]) -> None:
        """Look until it ends."""
        top = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                self._look([top.pid, *(one.pid for one in top.children(recursive=True))])
            time.sleep(0.02)

    def _look(self, pids: list[int]) -> None:
        sizes = []
        for pid in pids:
            with contextlib.suppress(OSError, KeyError):
                sizes.append(_kib(pid, "smaps_rollup", "Pss"))
                self._peaks_kib[pid] = max(self._peaks_kib.get(pid, 0), _kib(pid, "status", "VmHWM"))
        self.together_kib = max(self.together_kib, sum(sizes))

    def __str__(self) -> str:
        own = sum(self._peaks_kib.values()) / 1024
        return f"{self.together_kib / 1024:6.0f} MiB  {own:6.0f} MiB  {len(self._peaks_kib)} processes"


def _kib(pid: int, file: str, field: str) -> int:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}[field]


def fresh(who: str, path: Path, images: int, how: str) -> str:
    command = [sys.executable, __file__, "--child", who, str(path), str(images), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = Watch()
    watch.follow(process)
    said, complained = process.communicate()
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        reason = complained.strip().splitlines()[-1:] or [f"killed by signal {-process.returncode}"]
        return f"failed: {reason[0][:80]}"
    return f"{watch}  {json.loads(lines[-1])['seconds'] / images:7.3f} s an image"


def compare(name: str, path: Path, counts: list[int], few: int) -> None:
    print(f"\n{name}", flush=True)
    rows = [("edgeopt", count, "0", "edgeopt") for count in counts]
    rows += [("edgeopt", counts[0], str(n), f"edgeopt, {n} asked for") for n in (1, 2)]
    rows += [("onnxruntime", counts[0], "MinMax", "ONNX Runtime MinMax")]
    rows += [("onnxruntime", few, "Percentile", "ONNX Runtime Percentile")]
    for who, images, how, title in rows:
        print(f"{title:<24} {images:>5} images  {fresh(who, path, images, how)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--net", action="append", help="CHANNELSxSIZE; repeatable [32x320]")
    parser.add_argument("--images", default="16,128", help="how many, by commas; the first also for ONNX Runtime")
    parser.add_argument("--few", type=int, default=4, help="images for ONNX Runtime's percentile calibrator")
    parser.add_argument("--yolox", action="store_true", help="also YOLOX-nano, where it is present")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child)
        return
    counts = [int(one) for one in given.images.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for net in given.net or ["32x320"]:
            channels, size = (int(one) for one in net.split("x"))
            path = Path(folder) / f"net{net}.onnx"
            onnx.save(make_net(channels, size), str(path))
            compare(f"10 convolutions, {channels} channels, {size}x{size}", path, counts, given.few)
        if given.yolox and YOLOX.is_file():
            path = Path(folder) / "yolox.onnx"  # the calibrators write beside the model
            path.write_bytes(YOLOX.read_bytes())
            compare("YOLOX-nano 416x416", path, counts, given.few)
        elif given.yolox:
            print(f"\nYOLOX-nano left out: {YOLOX} is absent")


if __name__ == "__main__":
    main()
