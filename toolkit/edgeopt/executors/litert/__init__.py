"""Google's LiteRT (TensorFlow Lite) on processors: what Android has, with XNNPACK's kernels.

A session opens an ONNX model, which `conversion/` writes as a `.tflite` file, or such a file, for which neither onnx
nor the model is needed. Inputs and outputs keep the names and the order of axes that the model has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Missing, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import Executor, Placement, SessionOptions, Source, Staged, in_one_piece
from edgeopt.executors._guard import FirstRun, active_guard
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names
from edgeopt.system.declared.optional import NOT_INSTALLED, require
from edgeopt.system.disk.files import write_beside
from edgeopt.system.processes.quiet import quiet_natives

PROVIDER = "CPU"
SUFFIX = ".tflite"
_PURPOSE = "running a model by LiteRT"
_REMEDY = "pip install 'edgeopt[litert]'"
_IDENTIFIER, _AT = b"TFL3", 4
"""What every `.tflite` file holds behind its first four bytes."""
_ELSEWHERE = "choose a target of another engine, such as --target cpu"


class LiteRTSession(Staged):
    """An interpreter of LiteRT and the words of `Session`."""

    simulated: ClassVar[bool] = False

    def __init__(self, litert: Any, data: bytes, threads: int, *, reuse: bool = False) -> None:
        """Load a file.

        Args:
            litert: The module `ai_edge_litert.interpreter`.
            data: The file.
            threads: Of the kernels.
            reuse: Outputs lie always in the same memory: the next run writes over them.

        Raises:
            InvalidFileError: If LiteRT does not load it.
        """
        self._litert, self._data, self._threads, self._reuse = litert, data, threads, reuse
        self._interpreter = _interpreter(litert, data, threads)
        reads, makes = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        self.inputs = tuple(_spec(facts) for facts in reads)
        self.outputs = tuple(_spec(facts) for facts in makes)
        self._reads = {facts["name"]: int(facts["index"]) for facts in reads}
        self._makes = {facts["name"]: int(facts["index"]) for facts in makes}
        self._buffers: dict[str, NDArray[Any]] = {}
        self.first_run: FirstRun | None = None

    def upload(self, inputs: Tensors) -> Any:
        """Copy the inputs into LiteRT's memory.

        Raises:
            ValueError: If an input is missing or unknown, or has another type or shape.
            EngineAbortError: If a guard is active, and LiteRT aborted on them in a child.
        """
        first_run, self.first_run = self.first_run, None
        if first_run is not None:
            first_run(inputs)
        require_names(inputs, (spec.name for spec in self.inputs))
        for spec in self.inputs:
            value = inputs[spec.name]
            if value.dtype != np.dtype(spec.dtype) or value.shape != spec.shape:
                raise ValueError(
                    f"input {spec.name!r} is {value.dtype} {value.shape}, not {spec.dtype} {tuple(spec.shape)}"
                )
            self._interpreter.set_tensor(self._reads[spec.name], np.ascontiguousarray(value))
        return self._interpreter

    def execute(self, uploaded: Any) -> Any:
        """Run what was uploaded, and wait until it is done.

        Raises:
            UnsupportedError: If LiteRT cannot run the model on these inputs.
        """
        try:
            uploaded.invoke()
        except (RuntimeError, ValueError) as error:
            raise UnsupportedError(f"LiteRT does not run the model: {_line(error)}", remedy=_ELSEWHERE) from error
        return uploaded

    def download(self, results: Any) -> Tensors:
        """Copy the results out of LiteRT's memory, which no array may show in a run; with `reuse` to the same place."""
        if not self._reuse:
            return {name: results.get_tensor(index) for name, index in self._makes.items()}
        for spec in self.outputs:
            value = results.tensor(self._makes[spec.name])()
            np.copyto(self._buffers.setdefault(spec.name, np.empty_like(value)), value)
            del value
        return dict(self._buffers)

    def placement(self) -> tuple[Placement, ...]:
        """Return the operators; the reason is what each computes in."""
        from edgeopt.executors.litert.file import operators_of

        return tuple(
            Placement(operator.name, operator.code, PROVIDER, operator.arithmetic)
            for operator in operators_of(self._data)
        )

    def beside(self, *, reuse: bool = False) -> LiteRTSession:
        """Return another session over the same file, with memory of its own."""
        beside = LiteRTSession(self._litert, self._data, self._threads, reuse=reuse)
        beside.first_run = self.first_run
        return beside

    def close(self) -> None:
        """Free the interpreter."""
        self._interpreter = None


def _spec(facts: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(str(facts["name"]), np.dtype(facts["dtype"]).name, tuple(int(size) for size in facts["shape"]))


class LiteRT(Executor):
    """The executor `litert`."""

    own_suffix: ClassVar[str] = SUFFIX

    def why_unavailable(self) -> str | None:
        """Return None if the package is installed and can be imported."""
        try:
            _litert()
        except Exception as error:  # a broken installation fails in the loader, with any class of error
            reason = str(getattr(error, "problem", error)).removesuffix(f": {_PURPOSE} needs it")
            return Missing(reason, _REMEDY if reason.endswith(NOT_INSTALLED) else f"mend it: {reason}")
        return None

    def why_no_provider(self, providers: tuple[str, ...]) -> str | None:
        """Return None if the processor alone is asked for."""
        others = ", ".join(sorted(set(providers) - {PROVIDER}))
        return (
            Missing(f"the executor litert runs on the CPU, not on {others}", "write providers = ['CPU']")
            if others
            else None
        )

    def check(self, options: SessionOptions) -> None:
        """Refuse options, of which it has none, before any work. Raises as `open`."""
        for key in options.entries:
            raise NotFoundError("option of LiteRT that a bundle or a target may set", key, ())

    def own_file(self, source: Source) -> bytes:
        """Return a model as a `.tflite` file: a device that opens it needs no onnx. Raises as `open`."""
        return tflite_file(source)

    def own_files(self, source: Source) -> Mapping[str, bytes]:
        """Return a `.tflite` file whose pictures have their channels last, as apps have them. Raises as `open`."""
        return {"model.tflite": tflite_file(source, pictures_last=True)}

    def open(self, source: Source, options: SessionOptions) -> LiteRTSession:
        """Load a model.

        Args:
            source: An ONNX model with fixed shapes, or a `.tflite` file.
            options: `save_optimized_to` names the `.tflite` file; `profile_to` is not known here.

        Raises:
            MissingDependencyError: If LiteRT is not installed.
            UnsupportedError: If LiteRT lacks a node, a shape or a type of the model.
            InvalidFileError: If LiteRT does not load what was made of it.
            NotFoundError: On an unknown option.
            ValueError: On an unknown precision.
            EngineAbortError: If a guard is active, and LiteRT aborted on the model in a child.
        """
        data = tflite_file(source)
        guard = active_guard()
        first_run = guard.try_open("litert", data, options) if guard else None
        if options.precision not in ("", "fp32"):
            raise ValueError(f"precision is {options.precision!r}, not fp32")
        if options.profile_to:
            raise ValueError("the executor litert writes no operator profile")
        if reason := self.why_no_provider(options.providers):
            raise UnavailableError(reason, remedy="write providers = ['CPU'] into the target")
        self.check(options)
        session = LiteRTSession(_litert(), data, options.threads or 1)
        session.first_run = first_run
        if options.save_optimized_to:
            write_beside(Path(options.save_optimized_to), data)
        return session


def tflite_file(source: Source, *, pictures_last: bool = False) -> bytes:
    """Return a model as a `.tflite` file; one that is ONNX is converted. Raises as `LiteRT.open`."""
    source = in_one_piece(source, "litert")
    if isinstance(source, Path) and (source.suffix == SUFFIX or _is_tflite(_head(source))):
        return _checked(source.read_bytes(), source.name)
    if isinstance(source, bytes) and _is_tflite(source):
        return _checked(source, "the model")
    # a device that opens a .tflite file has no onnx
    import onnx
    from google.protobuf.message import DecodeError

    from edgeopt.executors.litert.conversion import to_tflite
    from edgeopt.graph.model import Model, load_model

    if isinstance(source, bytes):
        try:
            return to_tflite(Model(onnx.load_model_from_string(source), "the model"), pictures_last=pictures_last)
        except DecodeError as error:
            raise InvalidFileError("the model is neither ONNX nor LiteRT's", remedy="copy the file again") from error
    return to_tflite(load_model(source), pictures_last=pictures_last)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_AT + len(_IDENTIFIER))


def _is_tflite(data: bytes) -> bool:
    return data[_AT : _AT + len(_IDENTIFIER)] == _IDENTIFIER


def _checked(data: bytes, name: str) -> bytes:
    if not _is_tflite(data):
        raise InvalidFileError(f"{name} is no .tflite file", remedy="copy the file again, or make the bundle anew")
    return data


def _litert() -> Any:
    return require("ai_edge_litert.interpreter", extra="litert", purpose=_PURPOSE)


def _interpreter(litert: Any, data: bytes, threads: int) -> Any:
    try:
        with quiet_natives():
            made = litert.Interpreter(model_content=data, num_threads=threads)
            made.allocate_tensors()
            return made
    except (RuntimeError, ValueError) as error:
        raise InvalidFileError(f"LiteRT does not load the model: {_line(error)}", remedy=_ELSEWHERE) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


EXECUTOR = LiteRT()
