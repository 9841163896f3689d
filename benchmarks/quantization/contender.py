"""One contender in a process of its own: quantize, tell seconds and peak memory, run in turns, answer the inputs.

    python contender.py onnxruntime|nncf|edgeopt|edgeopt-openvino WORK_FOLDER

It is started by run.py, for OpenVINO with another interpreter, so it imports nothing that all do not have.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

Run = Callable[[dict[str, Any]], list[Any]]


def onnxruntime_default(folder: Path, given: dict[str, Any]) -> Path:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left: Iterator[Any] = iter(np.load(folder / "calib.npy", mmap_mode="r"))

        def get_next(self) -> Any:
            one = next(self.left, None)
            return None if one is None else {given["input"]: np.ascontiguousarray(one[None])}

    made = folder / "onnxruntime.onnx"
    quantize_static(given["model"], str(made), Reader())
    return made


def nncf_default(folder: Path, given: dict[str, Any]) -> Path:
    import nncf
    import openvino

    model = openvino.Core().read_model(given["model"])
    images = np.load(folder / "calib.npy", mmap_mode="r")
    dataset = nncf.Dataset(images, lambda one: {given["input"]: np.ascontiguousarray(one[None])})
    made = folder / "nncf.xml"
    openvino.save_model(nncf.quantize(model, dataset, subset_size=len(images)), str(made))
    return made


def edgeopt_on_openvino(folder: Path, given: dict[str, Any]) -> Path:
    return edgeopt_search(folder, given, "openvino-cpu")


def edgeopt_search(folder: Path, given: dict[str, Any], target: str = "cpu") -> Path:
    import edgeopt

    asked = {"calib": given["calib"], "recipe": given["recipe"], "threads": 1, "time_limit_s": given["time_limit_s"]}
    found = edgeopt.quantize(given["model"], target=target, out=folder / "edgeopt.onnx", **asked)
    print(found.reason, file=sys.stderr)
    (folder / "options.json").write_text(json.dumps(dict(found.options)), "utf-8")
    return found.file or Path(given["model"])


def open_onnxruntime(path: Path, chosen: Mapping[str, str] | None = None) -> Run:
    """Open a model under ONNX Runtime's defaults, or with the session options that edgeopt chose."""
    options = ort.SessionOptions()
    options.enable_mem_reuse = (chosen or {}).get("enable_mem_reuse", "1") == "1"
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def open_openvino(path: Path) -> Run:
    import openvino

    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1})
    return lambda inputs: list(compiled(inputs).values())


def in_turns(first: Run, second: Run, inputs: dict[str, Any], rounds: int, calls: int = 5) -> list[float]:
    """Return the median over rounds of the ratio first/second, and the ends of its 95 % interval by ranks.

    The times are the process's CPU time: with one thread it is the wall time of a quiet machine, and on a busy one it
    leaves out the waits, which hit long runs more than short ones.
    """
    ratios = []
    for number in range(-2, rounds):
        times = {}
        for run in (first, second) if number % 2 else (second, first):
            taken = []
            for _ in range(calls):
                started = time.process_time_ns()
                run(inputs)
                taken.append(time.process_time_ns() - started)
            times[run] = min(taken)
        if number >= 0:
            ratios.append(times[first] / times[second])
    half = min(0.5, 0.98 / len(ratios) ** 0.5)
    return [float(one) for one in np.quantile(ratios, [0.5, 0.5 - half, 0.5 + half])]


def peak_mib() -> float:
    import resource  # not on Windows

    own, children = (resource.getrusage(one).ru_maxrss for one in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + children) / 1024


ON_OPENVINO = ("nncf", "edgeopt-openvino")
WAYS = {
    "onnxruntime": onnxruntime_default,
    "nncf": nncf_default,
    "edgeopt": edgeopt_search,
    "edgeopt-openvino": edgeopt_on_openvino,
}


def main() -> None:
    who, folder = sys.argv[1], Path(sys.argv[2])
    given = json.loads((folder / "given.json").read_text("utf-8"))
    started = time.perf_counter()
    made = WAYS[who](folder, given)
    told = {
        "seconds": time.perf_counter() - started,
        "peak_mib": peak_mib(),
        "float_stays": made == Path(given["model"]),
    }
    original = open_onnxruntime(Path(given["model"]))
    chosen = folder / "options.json"
    entries = json.loads(chosen.read_text("utf-8")) if who == "edgeopt" and chosen.is_file() else {}
    variant = open_openvino(made) if who in ON_OPENVINO else open_onnxruntime(made, entries)
    images = np.load(folder / "eval.npy", mmap_mode="r")
    inputs = {given["input"]: np.ascontiguousarray(images[0][None])}
    told["speed"] = in_turns(original, variant, inputs, given["rounds"])
    answers = [variant({given["input"]: np.ascontiguousarray(one[None])}) for one in images]
    np.savez(folder / f"{who}.npz", *(np.stack(rows) for rows in zip(*answers, strict=True)))
    print("told " + json.dumps(told))


if __name__ == "__main__":
    main()
