"""The child that converts models to MNN; `executors/mnn/conversion/converter.py` is its parent's side.

It loads `_tools`, the C module of MNN's wheel, and nothing of the package `MNN.tools` around it, which installs a
package by pip and reports each conversion to its maker. What the converter wrote is run here at once, beside ONNX
Runtime: it says "success" whatever it wrote, and on a busy machine it left weights out every few times (3.6.1).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR as ONNXRUNTIME
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.system.processes.messages import Message, replies_apart, serve_messages
from edgeopt.system.processes.quiet import captured_natives

_WORDS = ("converter", "-f", "ONNX")
_TRIALS = 4
"""Conversions of a model: while three converted at once on two cores, up to half of a network's were wrong."""


def _convert(message: Message) -> Message:
    """Write MNN's file of an ONNX file, until its numbers are right; the answer holds what the converter printed."""
    values = message.values
    model, out = Path(values["model"]), Path(values["out"])
    expected, inputs = _expected(model)
    share, printed = 0.0, list[str]()
    for _ in range(_TRIALS):
        printed = _written(model, out)
        if not out.is_file() or not out.stat().st_size:
            return Message({"is_written": False, "printed": printed})
        actual = _answers(out, inputs)
        share = max((_error(actual.get(name), value) for name, value in expected.items()), default=0.0)
        if share <= values["tolerance"]:
            break
    return Message({"is_written": True, "printed": printed, "share": share})


def _compare(message: Message) -> Message:
    """Return the first output that MNN changes, of a model whose inner tensors are outputs."""
    model, out = Path(message.values["model"]), Path(message.values["out"])
    expected, inputs = _expected(model)
    _written(model, out)
    actual = _answers(out, inputs) if out.is_file() else {}
    differing = (
        name
        for name, value in expected.items()
        if name in actual and _error(actual[name], value) > message.values["tolerance"]
    )
    return Message({"first": next(differing, "")})


def _written(model: Path, out: Path) -> list[str]:
    out.unlink(missing_ok=True)
    with captured_natives() as printed:
        import_module("_tools").mnnconvert([*_WORDS, "--modelFile", str(model), "--MNNModel", str(out)])
    return printed


def _expected(model: Path) -> tuple[Mapping[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return what ONNX Runtime makes of made-up inputs, and these."""
    session = ONNXRUNTIME.open(model, SessionOptions(entries=UNOPTIMIZED))
    chance = np.random.default_rng(0)
    inputs = {spec.name: chance.standard_normal(spec.shape).astype(np.float32) for spec in session.inputs}  # type: ignore[arg-type]
    outputs = session.run(inputs)
    session.close()
    return outputs, inputs


def _answers(file: Path, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    with captured_natives():
        network = import_module("MNN").Interpreter(str(file))
        session = network.createSession({"backend": "CPU", "numThread": 1, "precision": "normal"})
        for name, tensor in network.getSessionInputAll(session).items():
            memory = tensor.getNumpyData()
            np.copyto(memory, inputs[name].reshape(memory.shape))
        network.runSession(session)
        outputs = network.getSessionOutputAll(session)
        return {name: np.array(tensor.getNumpyData()) for name, tensor in outputs.items()}


def _error(actual: NDArray[Any] | None, expected: NDArray[Any]) -> float:
    """Return the error over the signal; places, which ties exchange, have none."""
    if actual is None or actual.size != expected.size:
        return 1.0
    if expected.dtype.kind != "f":
        return 0.0
    x, y = expected.astype(np.float64).reshape(-1), actual.astype(np.float64).reshape(-1)
    is_number = np.isfinite(x)
    if not np.isfinite(y[is_number]).all():
        return 1.0
    return float(np.linalg.norm((x - y)[is_number]) / (np.linalg.norm(x[is_number]) + 1e-6 * x.size**0.5))


def _failed(error: Exception) -> Message:
    if isinstance(error, EdgeoptError):
        return Message({"refusal": error.problem, "remedy": error.remedy})
    line = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, ImportError):
        return Message({"missing": f"MNN's converter cannot be imported ({line}): converting a model for MNN needs it"})
    return Message({"error": line})


def main() -> None:
    """Serve until the input closes; an interrupt is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_messages(replies_apart(), {"convert": _convert, "compare": _compare}, _failed)


if __name__ == "__main__":
    main()
