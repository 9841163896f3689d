"""Alibaba's MNN on processors, written for those of phones.

A session opens an ONNX model, which is rewritten (`conversion/`) and given to MNN's converter in a child, or the file
that was made of it, for which neither onnx nor the converter is needed. Nothing of `MNN.tools` is imported anywhere:
that package installs another by pip and reports conversions to its maker; the C modules of the wheel do neither.
"""

from __future__ import annotations

import hashlib
import math
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import (
    ELSEWHERE,
    InvalidFileError,
    Missing,
    MissingDependencyError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from edgeopt.executors import Executor, Placement, SessionOptions, Source, Staged, in_one_piece
from edgeopt.executors._conversion.kept import KeptFiles
from edgeopt.executors._guard import FirstRun, active_guard
from edgeopt.executors.mnn.file import ENDS, SUFFIX, MnnFile, is_mnn, read_mnn_file
from edgeopt.graph.tensors import Tensors, require_names
from edgeopt.system.declared.optional import NOT_INSTALLED, require
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.processor import cpu_architecture, cpu_flags
from edgeopt.system.processes.quiet import captured_natives

PROVIDER = "CPU"
_PACKAGE = "MNN"
_PURPOSE = "running a model by MNN"
_REMEDY = "pip install 'edgeopt[mnn]'"
_WORDS: Mapping[str, str] = {"fp32": "normal", "fp16": "low"}
"""Precisions as MNN's sessions are told; by itself it computes as for `normal`."""
_NUMBERS: Mapping[str, int] = {"fp32": 0, "fp16": 2}
"""The same in `MNN::BackendConfig::PrecisionMode`."""
HALF_FLAGS = frozenset({"asimdhp", "fphp"})
"""Flags of processors on which MNN's wheels compute in float16; elsewhere `low` is float32 without a word."""
_CHATTER = (
    "The device supports:",
    "MNN use ",
    "Can't open file",
    "Create interpreter failed",
    "Invalid model file",
    "Invalidate buffer to create MNN Module",
)
"""How lines begin that MNN prints to the standard output when it is imported, makes a session, or refuses a file."""


class MnnSession(Staged):
    """A network of MNN and the words of `Session`."""

    simulated: ClassVar[bool] = False

    def __init__(self, file: MnnFile, threads: int, precision: str) -> None:
        """Load a network.

        Args:
            file: Its contents.
            threads: Of the kernels.
            precision: What floats are computed in: `fp32` or `fp16`.

        Raises:
            MissingDependencyError: If MNN is not installed.
            InvalidFileError: If MNN does not load it, or it reads what the file does not name.
            UnsupportedError: If MNN derives other shapes than the model has.
            UnavailableError: If the disk takes no file.
        """
        self._file, self._threads, self._precision = file, threads, precision
        self.inputs, self.outputs = file.inputs, file.outputs
        self.first_run: FirstRun | None = None
        # an interpreter for each session: those of one take turns
        self._network: Any = _interpreter(file.network)
        self._session: Any = _session(self._network, threads, precision)
        taken = self._network.getSessionInputAll(self._session)
        self._given = {spec.name: taken.get(spec.name) for spec in self.inputs}  # None: nothing reads it
        if unnamed := sorted(taken.keys() - self._given.keys()):
            raise InvalidFileError(
                f"the network reads {unnamed[0]!r}, which its file does not name", remedy="make the bundle anew"
            )
        made = self._network.getSessionOutputAll(self._session)
        for spec in (*self.inputs, *self.outputs):
            tensor = taken.get(spec.name) if spec in self.inputs else made.get(spec.name)
            if tensor is None and spec in self.inputs:
                continue
            if tensor is None or _size(tensor.getShape()) != _size(spec.shape):
                shape = "nothing" if tensor is None else tuple(tensor.getShape())
                raise UnsupportedError(f"MNN makes {shape} of {spec.name!r}, which is {spec}", remedy=ELSEWHERE)
        self._made = {spec.name: made[spec.name] for spec in self.outputs}
        self._shapes = {spec.name: tuple(map(_number, spec.shape)) for spec in self.outputs}

    def upload(self, inputs: Tensors) -> Any:
        """Copy the inputs into MNN's memory, over which a run writes: they are copied before each.

        Raises:
            ValueError: If an input is missing or unknown, or has another type or shape.
            EngineAbortError: If a guard is active, and MNN aborted on them in a child.
        """
        first_run, self.first_run = self.first_run, None
        if first_run is not None:
            first_run(inputs)
        require_names(inputs, self._given)
        for spec in self.inputs:
            value, tensor = inputs[spec.name], self._given[spec.name]
            if value.dtype != np.dtype(spec.dtype) or value.shape != spec.shape:
                raise ValueError(
                    f"input {spec.name!r} is {value.dtype} {value.shape}, not {spec.dtype} {tuple(spec.shape)}"
                )
            if tensor is not None:
                memory = tensor.getNumpyData()
                np.copyto(memory, value.reshape(memory.shape))
        return self._session

    def execute(self, uploaded: Any) -> Any:
        """Run what was uploaded, and wait until it is done.

        Raises:
            UnsupportedError: If MNN cannot run the model on these inputs.
        """
        if code := self._network.runSession(uploaded):
            raise UnsupportedError(f"MNN does not run the model: it ends with {code}", remedy=ELSEWHERE)
        return self._made

    def download(self, results: Any) -> Tensors:
        """Copy the results out of MNN's memory, over which the next run writes."""
        return {
            spec.name: np.array(results[spec.name].getNumpyData(), spec.dtype).reshape(self._shapes[spec.name])
            for spec in self.outputs
        }

    def placement(self) -> tuple[Placement, ...]:
        """Return the operators that MNN made of the network; the reason is what they compute in."""
        layers = list[Placement]()

        def note(_tensors: Any, info: Any) -> bool:
            layers.append(Placement(info.getName(), info.getType(), PROVIDER, self._precision))
            return False  # it is not computed

        self._network.runSessionWithCallBackInfo(self._session, note, lambda _tensors, _info: True)
        return tuple(layers)

    def beside(self, *, reuse: bool = False) -> MnnSession:
        """Return another session over the same file, with memory of its own; its outputs are copies in any case."""
        del reuse
        beside = MnnSession(self._file, self._threads, self._precision)
        beside.first_run = self.first_run
        return beside

    def close(self) -> None:
        """Free the network."""
        self._given, self._made = {}, {}
        self._session = self._network = None


class Mnn(Executor):
    """The executor `mnn`."""

    own_suffix: ClassVar[str] = SUFFIX

    def why_unavailable(self) -> str | None:
        """Return None if the package is installed and can be imported."""
        try:
            _mnn()
        except Exception as error:  # a broken installation fails in the loader, with any class of error
            reason = str(getattr(error, "problem", error)).removesuffix(f": {_PURPOSE} needs it")
            return Missing(reason, _REMEDY if reason.endswith(NOT_INSTALLED) else f"mend it: {_REMEDY}")
        return None

    def why_no_provider(self, providers: tuple[str, ...]) -> str | None:
        """Return None if the processor alone is asked for."""
        others = ", ".join(sorted(set(providers) - {PROVIDER}))
        return (
            Missing(f"the executor mnn runs on the CPU, not on {others}", "write providers = ['CPU']")
            if others
            else None
        )

    def check(self, options: SessionOptions) -> None:
        """Refuse options, of which it has none, before any work. Raises as `open`."""
        for key in options.entries:
            raise NotFoundError("option of MNN that a bundle or a target may set", key, ())

    def converted(self, source: Source) -> Source:
        """Return the file: one child of this process converts, no child of another child. Raises as `open`."""
        return mnn_file(source).to_bytes()

    def own_file(self, source: Source) -> bytes:
        """Return a model as MNN loads it, with its facts: a device that opens it needs no onnx. Raises as `open`."""
        return mnn_file(source).to_bytes()

    def own_files(self, source: Source) -> Mapping[str, bytes]:
        """Return the file, which is what an app's own MNN loads. Raises as `open`."""
        return {f"model{SUFFIX}": mnn_file(source).to_bytes()}

    def own_settings(self, options: SessionOptions, precision: str) -> Mapping[str, bool | int]:
        """Return the fields of `MNN::ScheduleConfig` and `MNN::BackendConfig`."""
        return {"numThread": options.threads or 1, "precision": _NUMBERS[precision]}

    def open(self, source: Source, options: SessionOptions) -> MnnSession:
        """Load a model.

        Args:
            source: An ONNX model with fixed shapes and float32 inputs, or what `own_file` made of one.
            options: `save_optimized_to` names the `.mnn` file; `profile_to` is not known here.

        Raises:
            MissingDependencyError: If MNN is not installed.
            UnsupportedError: If MNN lacks a node, a shape or a type of the model, or its converter fails on it.
            InvalidFileError: If MNN does not load what was made of it.
            UnavailableError: If the processor lacks float16 that was asked for.
            NotFoundError: On an unknown option.
            ValueError: On an unknown precision.
            EngineAbortError: If a guard is active, and MNN aborted on the model in a child, or its converter died.
        """
        precision = options.precision or "fp32"
        if precision not in _WORDS:
            raise ValueError(f"precision is {precision!r}, not one of {', '.join(_WORDS)}")
        if options.profile_to:
            raise ValueError("the executor mnn writes no operator profile")
        if reason := self.why_no_provider(options.providers):
            raise UnavailableError(reason, remedy="write providers = ['CPU'] into the target")
        self.check(options)
        if precision == "fp16" and not computes_halves():
            raise UnavailableError(
                "MNN computes in float16 on Arm with asimdhp only: here it would be float32",
                remedy="run the model in fp32",
            )
        file = mnn_file(source)
        guard = active_guard()
        first_run = guard.try_open("mnn", file.to_bytes(), options) if guard else None
        session = MnnSession(file, options.threads or 1, precision)
        session.first_run = first_run
        if options.save_optimized_to:
            write_beside(Path(options.save_optimized_to), file.to_bytes())
        return session


def computes_halves() -> bool:
    """Return whether MNN computes in float16 here: on Apple silicon, which has no flags to read, or where they say so.

    On Macs with Intel's processors it would be float32.
    """
    return (sys.platform == "darwin" and cpu_architecture() == "arm64") or bool(HALF_FLAGS & cpu_flags())


def mnn_file(source: Source) -> MnnFile:
    """Return a model as MNN loads it; one that is ONNX is converted. Raises as `Mnn.open`."""
    source = in_one_piece(source, "mnn")
    name = "the model" if isinstance(source, bytes) else source.name
    if isinstance(source, Path) and (source.suffix == SUFFIX or is_mnn(_end(source))):
        return read_mnn_file(source.read_bytes(), name)
    if isinstance(source, bytes) and is_mnn(source[-ENDS:]):
        return read_mnn_file(source, name)
    _mnn()  # it is missing more often than its converter alone
    # a device that opens a file of MNN has no onnx
    import onnx
    from google.protobuf.message import DecodeError

    from edgeopt.executors.mnn.conversion import to_mnn
    from edgeopt.graph.model import Model, load_model

    if isinstance(source, Path):
        model = load_model(source)
        return _KEPT.made_of(model.fingerprint, lambda: to_mnn(model))

    def convert() -> MnnFile:
        try:
            return to_mnn(Model(onnx.load_model_from_string(source), name))
        except DecodeError as error:
            raise InvalidFileError("the model is neither ONNX nor MNN's", remedy="copy the file again") from error

    return _KEPT.made_of(hashlib.sha256(source).hexdigest(), convert)


_KEPT = KeptFiles[MnnFile](lambda file: len(file.network))
"""Files that were made in this process."""


def _end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - ENDS, 0))
        return file.read()


@cache
def _mnn() -> Any:
    """Return the package.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    with captured_natives(_CHATTER):
        return require(_PACKAGE, extra="mnn", purpose=_PURPOSE)


def _interpreter(network: bytes) -> Any:
    """Return an interpreter of a network, which MNN reads from files alone.

    Raises:
        InvalidFileError: If MNN does not take it.
        UnavailableError: If the disk takes no file.
    """
    package = _mnn()
    try:
        with tempfile.TemporaryDirectory(prefix="edgeopt-mnn-") as folder, captured_natives(_CHATTER):
            file = Path(folder) / "model.mnn"
            file.write_bytes(network)
            return package.Interpreter(str(file))
    except OSError as error:
        raise UnavailableError(
            f"MNN reads a network from a temporary file, which could not be written: {error.strerror}",
            remedy="free disk space, or name a folder that has some in TMPDIR",
        ) from error
    except MissingDependencyError:
        raise
    except Exception as error:  # its package raises Exception itself
        raise InvalidFileError("MNN does not load the network", remedy=ELSEWHERE) from error


def _session(network: Any, threads: int, precision: str) -> Any:
    """Return a session of an interpreter. Raises as `_interpreter`."""
    settings = {"backend": "CPU", "numThread": threads, "precision": _WORDS[precision]}
    try:
        with captured_natives(_CHATTER):
            return network.createSession(settings)
    except Exception as error:  # its package raises Exception itself
        raise InvalidFileError("MNN makes no session of the network", remedy=ELSEWHERE) from error


def _number(size: int | str | None) -> int:
    assert isinstance(size, int)  # a file holds no other
    return size


def _size(shape: Any) -> int:
    return math.prod(map(int, shape))


EXECUTOR = Mnn()
