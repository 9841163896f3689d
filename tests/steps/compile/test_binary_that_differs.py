"""A binary of Qualcomm's compiler that does not compute what the model does, without the vendor's library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_models import activation

from edgeopt.errors import StepError
from edgeopt.executors import SessionOptions, Source
from edgeopt.executors.onnxruntime import EXECUTOR as CPU
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.compile._numbers import compile_model
from edgeopt.system.declared.target import find_target

MODEL = activation("i = Identity(x) y = Relu(i)")


class Simulated:
    """A session of ONNX Runtime on the processor in the place of the simulator's; what a binary computes is changed."""

    simulated = True

    def __init__(self, source: Source, change: Any) -> None:
        self._session = CPU.open(MODEL.source, SessionOptions())
        self._change = change if isinstance(source, Path) else dict

    def run(self, inputs: Tensors) -> Mapping[str, np.ndarray]:
        return self._change(self._session.run(inputs))

    def placement(self) -> list[str]:
        return ["Relu"]

    def close(self) -> None:
        self._session.close()


class Compiler:
    """Writes the model itself for a binary."""

    def __init__(self, change: Any) -> None:
        self._change = change

    def open(self, source: Source, _options: SessionOptions) -> Simulated:
        return Simulated(source, self._change)

    def compile(self, source: bytes, _options: SessionOptions, out: Path, *, embed: bool) -> list[Path]:
        del embed
        out.parent.mkdir(parents=True)
        out.write_bytes(source)
        return [out]


@pytest.mark.parametrize("socs", [(), ("57",), ("43", "57")])
def test_a_binary_that_computes_or_answers_otherwise_is_refused(tmp_path, socs):
    target, inputs = find_target("qualcomm-htp-v73"), [{"x": np.ones(MODEL.inputs[0].shape, np.float32)}]

    def compiled(folder: str, change: Any) -> Any:
        out = tmp_path / folder / "model.onnx"
        return compile_model(MODEL, target, out, inputs, socs=socs, executor=Compiler(change))

    assert compiled("same", dict).socs == (socs or (target.options["soc_model"],))
    with pytest.raises(StepError, match="differs from the model it was compiled from: output 'y'"):
        compiled("other", lambda outputs: {name: value + 1e-6 for name, value in outputs.items()})
    with pytest.raises(StepError, match="has the outputs z, and the model has y"):
        compiled("renamed", lambda outputs: {"z": outputs["y"]})
