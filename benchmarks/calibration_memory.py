"""Peak memory and time of calibration, edgeopt's against ONNX Runtime's, each in a fresh process.

    python benchmarks/calibration_memory.py [--net 32x320] [--net 8x640] [--images 16,128,1000] [--yolox]

A net is CHANNELSxSIZE: ten 3x3 convolutions with Relu, all activations watched. Peak is the process's largest resident
size (ru_maxrss); with several processes the sum of their peaks, which is an upper bound. ONNX Runtime's percentile
calibrator keeps every activation of every image, so it runs on few images.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
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
    from edgeopt.model import load_model
    from edgeopt.quantization.calibration import calibrate

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
    took = time.perf_counter() - started
    own, others = (resource.getrusage(one).ru_maxrss / 1024 for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    workers = int(how) - 1 if who == "edgeopt" else 0
    print(json.dumps({"mib": own + workers * others, "seconds": took}))


def fresh(who: str, path: Path, images: int, how: str) -> str:
    command = [sys.executable, __file__, "--child", who, str(path), str(images), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = done.stderr.strip().splitlines()[-1:] or [f"killed by signal {-done.returncode}"]
        return f"failed: {reason[0][:80]}"
    told = json.loads(lines[-1])
    return f"{told['mib']:8.0f} MiB  {told['seconds'] / images:7.3f} s an image"


def compare(name: str, path: Path, counts: list[int], few: int) -> None:
    print(f"\n{name}", flush=True)
    rows = [("edgeopt", count, "1", "edgeopt, 1 process") for count in counts]
    rows.insert(1, ("edgeopt", counts[0], "2", "edgeopt, 2 processes"))
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
