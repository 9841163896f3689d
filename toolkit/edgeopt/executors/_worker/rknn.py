"""The child process that holds Rockchip's compiler and simulator: one model, then it ends.

It runs in the user's other environment, which has rknn-toolkit2 and an old NumPy, and nothing of ours but this package,
so with Python 3.11 or later. Standard output is the channel, so what the library prints there goes into a file instead.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

from edgeopt.system.processes.messages import Message, replies_apart, serve_messages

_OK = 0


class _Worker:
    """The child's memory between two messages."""

    def __init__(self) -> None:
        self._rknn: Any = None
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def build(self, message: Message) -> Message:
        """Compile a model and, if asked, make the simulator ready; answer with its tensors."""
        values = message.values
        _settle(values["folder"])
        self._inputs, self._outputs = _tensors(values["model"])
        self._rknn = import_module("rknn.api").RKNN(verbose=True)  # the table of layers is in the talkative log only
        self._must("config", self._rknn.config(**values["config"]))
        self._must("load_onnx", self._rknn.load_onnx(model=values["model"]))
        data = _write_made_up(self._inputs) if values["made_up"] else values["dataset"]
        self._must("build", self._rknn.build(do_quantization=bool(data), dataset=data or None))
        self._must("export_rknn", self._rknn.export_rknn("model.rknn"))
        if values["simulate"]:
            self._must("init_runtime", self._rknn.init_runtime())
        return Message({"inputs": self._inputs, "outputs": self._outputs, "version": version("rknn-toolkit2")})

    def run(self, message: Message) -> Message:
        """Run once in the simulator."""
        inputs = [message.arrays[name] for name, _, _ in self._inputs]
        formats = ["nchw"] * len(inputs)
        results = self._rknn.inference(inputs=inputs, data_format=formats)
        if results is None:
            raise RuntimeError("inference returned nothing")
        return Message({}, {name: result for (name, _, _), result in zip(self._outputs, results, strict=True)})

    def _must(self, what: str, code: int) -> None:
        if code != _OK:
            raise RuntimeError(f"{what} returned {code}")


def _tensors(path: str) -> tuple[list[Any], list[Any]]:
    """Return name, element type and shape of what a model takes and gives."""
    onnx = import_module("onnx")
    graph = onnx.load(path, load_external_data=False).graph
    stored = {constant.name for constant in graph.initializer}
    return [_spec(onnx, value_info) for value_info in graph.input if value_info.name not in stored], [
        _spec(onnx, value_info) for value_info in graph.output
    ]


def _spec(onnx: Any, value: Any) -> list[Any]:
    tensor = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return [value.name, dtype, [size.dim_value or size.dim_param or None for size in tensor.shape.dim]]


def _write_made_up(inputs: list[Any]) -> str:
    """Write one calibration input of numbers from 0 to 1; return the list's path."""
    for i, (_, dtype, shape) in enumerate(inputs):
        np.save(f"made_up_{i}.npy", np.linspace(0, 1, math.prod(shape)).reshape(shape).astype(dtype))
    with open("made_up.txt", "w") as file:
        file.write(" ".join(f"made_up_{i}.npy" for i in range(len(inputs))))
    return "made_up.txt"


def _settle(folder: str) -> None:
    """Work in a folder: the library leaves models there, and the compiler's table goes into its `log.txt`.

    Apart from standard error, since the C library breaks its lines where its buffer ends.
    """
    os.chdir(folder)
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.close(log)


def _flush() -> None:
    """Bring out what Python and the C library hold back, so that the log is whole when the answer is."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)


def main() -> None:
    """Serve until the input closes."""
    replies = replies_apart()
    worker = _Worker()
    serve_messages(replies, {"build": worker.build, "run": worker.run}, settle=_flush)
