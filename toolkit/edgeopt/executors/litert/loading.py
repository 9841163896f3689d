"""LiteRT's two interfaces as one: the interpreter, and the compiled model, which alone takes XNNPACK's flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import ELSEWHERE, InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.system.declared.optional import require
from edgeopt.system.processes.quiet import quiet_natives

PURPOSE = "running a model by LiteRT"
_FORCE_FP16 = 1 << 2
"""`TFLITE_XNNPACK_DELEGATE_FLAG_FORCE_FP16` of XNNPACK's delegate: floats are stored and computed in 16 bits inside."""
_SIGNATURE = "serving_default"
_COPIED = ("float32", "int32", "int8", "uint8", "bool")
"""Types of tensors that the compiled model's buffers are written and read in."""


class LoadedFile(Protocol):
    """A loaded file."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Copy an input into LiteRT's memory."""
        ...

    def run(self) -> None:
        """Run, and wait until it is done. Raises UnsupportedError."""
        ...

    def read(self, name: str) -> NDArray[Any]:
        """Return a copy of an output."""
        ...


class Interpreter:
    """A file in the interpreter: floats in float32."""

    def __init__(self, data: bytes, threads: int) -> None:
        """Load a file.

        Raises:
            MissingDependencyError: If LiteRT is not installed.
            InvalidFileError: If LiteRT does not load it.
        """
        litert = interpreter_module()
        try:
            with quiet_natives():
                self._interpreter = litert.Interpreter(model_content=data, num_threads=threads)
                self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise _unloaded(error) from error
        reads, makes = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        self.inputs, self.outputs = tuple(map(_spec, reads)), tuple(map(_spec, makes))
        self._reads = {facts["name"]: int(facts["index"]) for facts in reads}
        self._makes = {facts["name"]: int(facts["index"]) for facts in makes}

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Copy an input into LiteRT's memory."""
        self._interpreter.set_tensor(self._reads[name], value)

    def run(self) -> None:
        """Run, and wait until it is done. Raises UnsupportedError."""
        _run(self._interpreter.invoke)

    def read(self, name: str) -> NDArray[Any]:
        """Return a copy of an output."""
        value: NDArray[Any] = self._interpreter.get_tensor(self._makes[name])
        return value


class HalfPrecision:
    """A file as a compiled model whose floats are float16 inside; inputs and outputs stay as they are."""

    def __init__(self, data: bytes, threads: int) -> None:
        """Load a file.

        Raises:
            MissingDependencyError: If LiteRT is not installed.
            UnsupportedError: If this LiteRT has no flags of XNNPACK, or the model takes or makes what it cannot copy.
            InvalidFileError: If LiteRT does not load it.
        """
        named = {name: require(f"ai_edge_litert.{name}", extra="litert", purpose=PURPOSE) for name in _MODULES}
        try:
            processor = named["cpu_options"].CpuOptions(num_threads=threads, xnnpack_flags=_FORCE_FP16)
        except (AttributeError, TypeError) as error:
            raise UnsupportedError("this LiteRT has no float16", remedy="pip install -U ai-edge-litert") from error
        options = named["options"].Options(
            hardware_accelerators=named["hardware_accelerator"].HardwareAccelerator.CPU, cpu_options=processor
        )
        try:
            with quiet_natives():
                self._model = named["compiled_model"].CompiledModel.from_buffer(data, options=options)
                self._reads = self._model.create_input_buffers(0)
                self._makes = self._model.create_output_buffers(0)
        except (RuntimeError, ValueError) as error:
            raise _unloaded(error) from error
        signature = self._model.get_signature_by_index(0)
        reads = self._model.get_input_tensor_details(_SIGNATURE)
        makes = self._model.get_output_tensor_details(_SIGNATURE)
        self.inputs = tuple(_spec(reads[name]) for name in signature["inputs"])
        self.outputs = tuple(_spec(makes[name]) for name in signature["outputs"])
        for spec in (*self.inputs, *self.outputs):
            if spec.dtype not in _COPIED:
                raise UnsupportedError(
                    f"LiteRT in float16 does not copy {spec.dtype}, which {spec.name!r} is", remedy=ELSEWHERE
                )
        self._read_at = {spec.name: i for i, spec in enumerate(self.inputs)}
        self._made_at = {spec.name: i for i, spec in enumerate(self.outputs)}

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Copy an input into LiteRT's memory."""
        self._reads[self._read_at[name]].write(value)

    def run(self) -> None:
        """Run, and wait until it is done. Raises UnsupportedError."""
        _run(lambda: self._model.run_by_index(0, self._reads, self._makes))

    def read(self, name: str) -> NDArray[Any]:
        """Return a copy of an output."""
        spec = self.outputs[self._made_at[name]]
        shape = tuple(int(size) for size in spec.shape if isinstance(size, int))
        value = self._makes[self._made_at[name]].read(int(np.prod(shape)), np.dtype(spec.dtype).type)
        return np.asarray(value).reshape(shape)


_MODULES = ("cpu_options", "options", "hardware_accelerator", "compiled_model")


def interpreter_module() -> Any:
    """Return LiteRT's module of the interpreter.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    return require("ai_edge_litert.interpreter", extra="litert", purpose=PURPOSE)


def _run(call: Callable[[], None]) -> None:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"LiteRT does not run the model: {_line(error)}", remedy=ELSEWHERE) from error


def _spec(facts: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(str(facts["name"]), np.dtype(facts["dtype"]).name, tuple(int(size) for size in facts["shape"]))


def _unloaded(error: Exception) -> InvalidFileError:
    return InvalidFileError(f"LiteRT does not load the model: {_line(error)}", remedy=ELSEWHERE)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
