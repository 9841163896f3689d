"""Google's LiteRT (TensorFlow Lite) on processors: what Android has, with XNNPACK's kernels.

A session opens an ONNX model, which `conversion/` writes as a `.tflite` file, or such a file, for which neither onnx
nor the model is needed. Inputs and outputs keep the names and the order of axes that the model has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import InvalidFileError, Missing, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import Executor, Placement, SessionOptions, Source, in_one_piece
from edgeopt.executors._conversion.kept import KeptFiles
from edgeopt.executors._guard import FirstRun, active_guard
from edgeopt.executors._held import HeldSession
from edgeopt.executors.litert.loading import PURPOSE, HalfPrecision, Interpreter, LoadedFile, interpreter_module
from edgeopt.graph.tensors import Tensors, require_names
from edgeopt.system.declared.optional import NOT_INSTALLED
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.affinity import held_processors, held_to
from edgeopt.system.machine.processor import cpu_flags

PROVIDER = "CPU"
SUFFIX = ".tflite"
_REMEDY = "pip install 'edgeopt[litert]'"
_IDENTIFIER, _AT = b"TFL3", 4
"""Identifier of every `.tflite` file, and its offset in bytes."""
_LOADERS: Mapping[str, Callable[[bytes, int], LoadedFile]] = {"fp32": Interpreter, "fp16": HalfPrecision}
"""Interfaces by what floats are computed in."""
_ARM_HALF = frozenset({"asimdhp", "atomics"})
"""Features that the compiled model needs of an Arm processor, in Linux words; a Cortex-A72 (Raspberry Pi 4) has
neither."""


class LiteRTSession(HeldSession):
    """A file in LiteRT and the words of `Session`."""

    simulated: ClassVar[bool] = False

    def __init__(self, data: bytes, threads: int, precision: str, cores: tuple[int, ...] = ()) -> None:
        """Load a file.

        Args:
            data: The file.
            threads: Of the kernels.
            precision: What floats are computed in: `fp32` or `fp16`.
            cores: Numbers of logical cores to be held to; empty: wherever the system likes.

        Raises:
            InvalidFileError: If LiteRT does not load it.
            UnsupportedError: If this LiteRT lacks the precision.
        """
        self._data, self._threads, self._precision, self.cores = data, threads, precision, cores
        with held_to(cores):  # LiteRT has no setting for it: its threads keep to the cores of the one that starts them
            self._loaded: LoadedFile | None = _LOADERS[precision](data, threads)
        self.inputs, self.outputs = self._loaded.inputs, self._loaded.outputs
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
        assert self._loaded is not None
        require_names(inputs, (spec.name for spec in self.inputs))
        for spec in self.inputs:
            value = inputs[spec.name]
            if value.dtype != np.dtype(spec.dtype) or value.shape != spec.shape:
                raise ValueError(
                    f"input {spec.name!r} is {value.dtype} {value.shape}, not {spec.dtype} {tuple(spec.shape)}"
                )
            self._loaded.write(spec.name, np.require(value, requirements="C"))  # a scalar stays one
        return self._loaded

    def _execute(self, uploaded: Any) -> Any:
        """Run what was uploaded, and wait until it is done.

        Raises:
            UnsupportedError: If LiteRT cannot run the model on these inputs.
        """
        uploaded.run()
        return uploaded

    def download(self, results: Any) -> Tensors:
        """Copy the results out of LiteRT's memory, which no array may show while it runs."""
        return {spec.name: results.read(spec.name) for spec in self.outputs}

    def placement(self) -> tuple[Placement, ...]:
        """Return the operators; the reason is what each computes in."""
        from edgeopt.executors.litert.file import operators_of

        return tuple(
            Placement(line.name, line.code, PROVIDER, self._precision if line.arithmetic == "fp32" else line.arithmetic)
            for line in operators_of(self._data)
        )

    def beside(self, *, reuse: bool = False) -> LiteRTSession:
        """Return another session over the same file, with memory of its own; its outputs are copies in any case."""
        del reuse
        beside = LiteRTSession(self._data, self._threads, self._precision, self.cores)
        beside.first_run = self.first_run
        return beside

    def close(self) -> None:
        """Free what was loaded."""
        self._loaded = None


class LiteRT(Executor):
    """The executor `litert`."""

    own_suffix: ClassVar[str] = SUFFIX
    holds_cores: ClassVar[bool] = True
    finds_grids_on: ClassVar[frozenset[str]] = frozenset({"CPU"})

    def why_unavailable(self) -> str | None:
        """Return None if the package is installed and can be imported."""
        try:
            interpreter_module()
        except Exception as error:  # a broken installation fails in the loader, with any class of error
            reason = str(getattr(error, "problem", error)).removesuffix(f": {PURPOSE} needs it")
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

    def converted(self, source: Source) -> Source:
        """Return the file: no fresh process of a proof converts the model again. Raises as `open`."""
        return self.own_file(source)

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
        precision = options.precision or "fp32"
        if precision not in _LOADERS:
            raise ValueError(f"precision is {precision!r}, not one of {', '.join(_LOADERS)}")
        if precision == "fp16":
            _require_half(cpu_flags())
        if options.profile_to:
            raise ValueError("the executor litert writes no operator profile")
        if reason := self.why_no_provider(options.providers):
            raise UnavailableError(reason, remedy="write providers = ['CPU'] into the target")
        self.check(options)
        threads = options.threads or 1
        session = LiteRTSession(data, threads, precision, held_processors(options.cores, threads))
        session.first_run = first_run
        if options.save_optimized_to:
            write_beside(Path(options.save_optimized_to), data)
        return session


def _require_half(flags: frozenset[str]) -> None:
    """Refuse float16 where LiteRT ends the process in place of an error: its compiled model is built with `atomics`.

    Raises:
        UnsupportedError: If Linux names an Arm processor's features, and these are not among them.
    """
    lacking = sorted(_ARM_HALF - flags)
    if "fp" in flags and lacking:
        raise UnsupportedError(
            f"LiteRT's float16 needs {' and '.join(lacking)}, which this processor lacks",
            remedy="run the model in fp32, as a bundle's other models are",
        )


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

    how = " pictures last" if pictures_last else ""
    if isinstance(source, Path):
        model = load_model(source)
        return _KEPT.made_of(f"{model.fingerprint}{how}", lambda: to_tflite(model, pictures_last=pictures_last))

    def convert() -> bytes:
        try:
            return to_tflite(Model(onnx.load_model_from_string(source), "the model"), pictures_last=pictures_last)
        except DecodeError as error:
            raise InvalidFileError("the model is neither ONNX nor LiteRT's", remedy="copy the file again") from error

    return _KEPT.made_of(f"{hashlib.sha256(source).hexdigest()}{how}", convert)


_KEPT = KeptFiles[bytes](len)
"""Files that were made in this process."""


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_AT + len(_IDENTIFIER))


def _is_tflite(data: bytes) -> bool:
    return data[_AT : _AT + len(_IDENTIFIER)] == _IDENTIFIER


def _checked(data: bytes, name: str) -> bytes:
    if not _is_tflite(data):
        raise InvalidFileError(f"{name} is no .tflite file", remedy="copy the file again, or make the bundle anew")
    return data


EXECUTOR = LiteRT()
