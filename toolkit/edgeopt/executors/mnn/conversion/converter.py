"""The parent's side of the conversion: one child runs MNN's converter, which ends the process on some graphs.

Both files lie in a temporary folder of this process, so that nothing stays behind when the child is killed.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import onnx

from edgeopt.errors import ELSEWHERE, UnavailableError, UnsupportedError
from edgeopt.executors._conversion.child import ConversionChild
from edgeopt.graph.model import Model
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.worker import close_at_exit

_TITLE = "MNN"
_MODULE = "edgeopt.executors._worker.mnn"
_LONGEST_S = 300.0
"""A network of 100 MB takes seconds; what takes longer hangs."""
TOLERANCE = 0.02
"""Error over signal of made-up inputs, root mean square: float32 stays below 1e-3."""
_TELLING = ("not support", "error", "failed", "invalid", "can't", "check ")
"""Words of a line in which the converter says why it wrote nothing."""


class _Converter:
    """Safe in threads: conversions take turns."""

    def __init__(self) -> None:
        self._child = ConversionChild(_MODULE, _TITLE, "mnn")
        self._turn = threading.Lock()

    def convert(self, model: Model) -> bytes:
        """Return what MNN's converter makes of a model that is written for it. Raises as `converted_network`."""
        try:
            with self._turn, tempfile.TemporaryDirectory(prefix="edgeopt-mnn-") as folder:
                source, out = Path(folder) / "model.onnx", Path(folder) / "model.mnn"
                source.write_bytes(model.data)
                message = Message({"do": "convert", "model": str(source), "out": str(out), "tolerance": TOLERANCE})
                values = self._child.ask(message, longest_s=_LONGEST_S).values
                if not values["is_written"]:
                    why = _why(values["printed"])
                    raise UnsupportedError(f"MNN does not convert the model{why}", remedy=ELSEWHERE)
                if values["share"] > TOLERANCE:
                    where = self._first_difference(model, source, out)
                    raise UnsupportedError(
                        f"MNN changes what the model answers, by {values['share']:.0%}{where}", remedy=ELSEWHERE
                    )
                return out.read_bytes()
        except OSError as error:
            raise UnavailableError(
                f"MNN's converter works on temporary files, which could not be written: {error.strerror}",
                remedy="free disk space, or name a folder that has some in TMPDIR",
            ) from error

    def _first_difference(self, model: Model, source: Path, out: Path) -> str:
        """Return words for the first node whose result differs, as the end of a sentence; empty: it cannot be told."""
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        known = {value.name for value in proto.graph.output}
        inner = [
            value for value in proto.graph.value_info if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        ]
        makers = {name: node for node in proto.graph.node for name in node.output}
        outputs = [*(value for value in inner if value.name in makers and value.name not in known), *proto.graph.output]
        places = {name: place for place, name in enumerate(makers)}
        outputs.sort(key=lambda value: places[value.name])
        del proto.graph.output[:]
        proto.graph.output.extend(outputs)
        source.write_bytes(proto.SerializeToString())
        message = Message({"do": "compare", "model": str(source), "out": str(out), "tolerance": TOLERANCE})
        try:
            first = self._child.ask(message, longest_s=_LONGEST_S).values["first"]
        except UnsupportedError:
            return ""
        return f", first at {makers[first].op_type} node {makers[first].name!r}" if first else ""

    def close(self) -> None:
        """End the child."""
        with self._turn:
            self._child.end()


def _why(printed: Sequence[str]) -> str:
    """Return what the converter said against a model, as the end of a sentence."""
    telling = [line for line in printed if any(word in line.lower() for word in _TELLING)]
    return f": {' '.join(telling[0].split())}"[:300] if telling else ""


_CONVERTER = _Converter()
"""The one of this process."""
close_at_exit(_CONVERTER.close)


def converted_network(model: Model) -> bytes:
    """Return MNN's own file of a model, made in a child.

    Raises:
        UnsupportedError: If MNN does not convert it; an `EngineAbortError` if its converter died of it.
        MissingDependencyError: If MNN is not installed.
        UnavailableError: If the disk takes no file.
    """
    return _CONVERTER.convert(model)
