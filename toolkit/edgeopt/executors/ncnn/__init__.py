"""Tencent's ncnn on processors: small, and often the fastest on Arm.

A session opens an ONNX model, which is written as ncnn's layers by `conversion/`, or the file that was made of it
(`file.py`), for which neither onnx nor the model is needed. The arithmetic is pinned: left alone, ncnn stores floats in
16 bits wherever the processor can.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import ELSEWHERE, InvalidFileError, Missing, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import Executor, Placement, SessionOptions, Source, in_one_piece
from edgeopt.executors._conversion.kept import KeptFiles
from edgeopt.executors._guard import FirstRun, active_guard
from edgeopt.executors._held import HeldSession
from edgeopt.executors.ncnn.file import MAGIC, SUFFIX, NcnnFile, layer_lines, read_ncnn_file
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names
from edgeopt.system.declared.optional import NOT_INSTALLED, require
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.affinity import held_processors, held_to
from edgeopt.system.machine.threads import allowed_cores
from edgeopt.system.processes.quiet import quiet_natives

PROVIDER = "CPU"
_PURPOSE = "running a model by ncnn"
_REMEDY = "pip install 'edgeopt[ncnn]'"
_STORED = {"": "fp32", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
_TAKEN: Mapping[str, str] = {
    "use_winograd_convolution": "0 or 1",
    "use_sgemm_convolution": "0 or 1",
    "use_packing_layout": "0 or 1",
    "openmp_blocktime": "milliseconds",
}
"""Fields of `ncnn::Option` that a bundle or a target may set, and what they take."""


_SPINS = "30000"
"""Turns that a thread of libgomp, which the wheels for Linux hold, waits busily for the others; read once, at import.

Left alone, two threads beside two busy programs took 36 to 108 ms a frame of SqueezeNet on two cores (AMD EPYC), with
this 7 to 23 ms; without such programs no difference was seen."""
_LANES = 4
"""Channels that lie side by side in memory at least."""
_WEIGHTED = frozenset({"Convolution", "ConvolutionDepthWise", "InnerProduct"})
"""Layers that compute on integers where their parameter 8 says so."""


_ALL_CORES, _BIG_CORES = 0, 2
"""Words of `ncnn::set_cpu_powersave`."""


class _Team(threading.local):
    """The cores of the threads that compute with this one: OpenMP keeps them from one network to the next."""

    powersave = _ALL_CORES


_team = _Team()


@dataclass(frozen=True, slots=True)
class _Allocators:
    """Memory that runs of one session use again; without it each blob of each frame is allocated anew."""

    blobs: Any
    workspace: Any


class NcnnSession(HeldSession):
    """A network of ncnn and the words of `Session`."""

    simulated: ClassVar[bool] = False

    def __init__(self, ncnn: Any, net: Any, file: NcnnFile, *, precision: str, reuse: bool = False) -> None:
        """Wrap a loaded network.

        Args:
            ncnn: The package.
            net: An `ncnn.Net`.
            file: Its contents.
            precision: What floats are stored in.
            reuse: Outputs lie always in the same memory: the next run writes over them.
        """
        self._ncnn, self._net, self._file, self._reuse = ncnn, net, file, reuse
        self._precision = precision
        self._memory = _Allocators(ncnn.UnlockedPoolAllocator(), ncnn.PoolAllocator())
        self.inputs = tuple(TensorSpec(port.name, port.dtype, port.shape) for port in file.inputs)
        self.outputs = tuple(TensorSpec(port.name, "float32", port.shape) for port in file.outputs)
        self._buffers: dict[str, NDArray[np.float32]] = {}
        self.first_run: FirstRun | None = None

    def upload(self, inputs: Tensors) -> Any:
        """Show the inputs to ncnn, which reads them where they are: leave them alone until `execute` is done.

        Raises:
            ValueError: If an input is missing or unknown, or has another type or shape.
            EngineAbortError: If a guard is active, and ncnn aborted on them in a child.
        """
        first_run, self.first_run = self.first_run, None
        if first_run is not None:
            first_run(inputs)
        require_names(inputs, (port.name for port in self._file.inputs))
        shown = []
        for port in self._file.inputs:
            value = inputs[port.name]
            if value.dtype != np.dtype(port.dtype) or value.shape != port.shape:
                raise ValueError(f"input {port.name!r} is {value.dtype} {value.shape}, not {port.dtype} {port.shape}")
            array = np.ascontiguousarray(value)
            if port.is_picture:
                height, width = port.dims[1:]
                pixels = self._ncnn.Mat.PixelType.PIXEL_BGR  # three planes in their order
                shown.append((port.blob, self._ncnn.Mat.from_pixels(array, pixels, width, height), array))
            else:
                array = array.reshape(port.dims)
                shown.append((port.blob, self._ncnn.Mat(array), array))
        return shown

    def execute(self, uploaded: Any) -> Any:
        """Run what was uploaded, and wait until it is done.

        Raises:
            UnsupportedError: If ncnn cannot run the model on these inputs.
        """
        _place_team(self._ncnn, _BIG_CORES if self.cores and _may_use_all() else _ALL_CORES)
        return super().execute(uploaded)

    def _execute(self, uploaded: Any) -> Any:
        extractor = self._net.create_extractor()
        extractor.set_blob_allocator(self._memory.blobs)
        extractor.set_workspace_allocator(self._memory.workspace)
        for blob, mat, _ in uploaded:
            _require_done(extractor.input(blob, mat), blob)
        results = []
        for port in self._file.outputs:
            code, mat = extractor.extract(port.blob)
            _require_done(code, port.name)
            results.append(mat)
        return results, self._memory  # in this order: a blob goes back to its memory when it is let go

    def download(self, results: Any) -> Tensors:
        """Copy the results out of ncnn's memory; with `reuse` always to the same place."""
        made = {}
        for port, mat in zip(self._file.outputs, results[0], strict=True):
            value = np.asarray(mat).reshape(port.shape)
            if self._reuse:
                buffer = self._buffers.setdefault(port.name, np.empty(port.shape, np.float32))
                np.copyto(buffer, value)
                made[port.name] = buffer
            else:
                made[port.name] = value.copy()
        return made

    def placement(self) -> tuple[Placement, ...]:
        """Return the layers of the network; the reason is what each computes in."""
        made = []
        for line in layer_lines(self._file.param):
            if line.kind in ("Input", "MemoryData", "Split"):
                continue
            is_integer = line.kind in _WEIGHTED and line.number(8, 0) > 0
            made.append(Placement(line.name, line.kind, PROVIDER, "int8" if is_integer else self._precision))
        return tuple(made)

    def beside(self, *, reuse: bool = False) -> NcnnSession:
        """Return another session over the same weights, with memory of its own for what lies between layers."""
        beside = NcnnSession(self._ncnn, self._net, self._file, precision=self._precision, reuse=reuse)
        beside.first_run, beside.cores = self.first_run, self.cores
        return beside

    def close(self) -> None:
        """Free the network, if no session beside this one holds it."""
        self._net = None


class Ncnn(Executor):
    """The executor `ncnn`."""

    sharing: ClassVar[Mapping[str, str]] = {"openmp_blocktime": "0"}
    own_suffix: ClassVar[str] = SUFFIX
    holds_cores: ClassVar[bool] = True

    def why_unavailable(self) -> str | None:
        """Return None if the package is installed and can be imported."""
        try:
            _ncnn()
        except Exception as error:  # a broken installation fails in the loader, with any class of error
            reason = str(getattr(error, "problem", error)).removesuffix(f": {_PURPOSE} needs it")
            return Missing(reason, _REMEDY if reason.endswith(NOT_INSTALLED) else f"mend it: {reason}")
        return None

    def why_no_provider(self, providers: tuple[str, ...]) -> str | None:
        """Return None if the processor alone is asked for."""
        others = ", ".join(sorted(set(providers) - {PROVIDER}))
        return (
            Missing(f"the executor ncnn runs on the CPU, not on {others}", "write providers = ['CPU']")
            if others
            else None
        )

    def check(self, options: SessionOptions) -> None:
        """Refuse an option that no bundle and no target may set, before any work. Raises as `open`."""
        for key, value in options.entries.items():
            if key not in _TAKEN:
                raise NotFoundError("option of ncnn that a bundle or a target may set", key, _TAKEN)
            if not value.isdigit() or (_TAKEN[key] == "0 or 1" and value not in "01"):
                raise InvalidFileError(f"ncnn's {key} is {value!r}", remedy=f"write {_TAKEN[key]}")

    def converted(self, source: Source) -> Source:
        """Return the file: no fresh process of a proof converts the model again. Raises as `open`."""
        return self.own_file(source)

    def own_file(self, source: Source) -> bytes:
        """Return a model as ncnn loads it, in one file: a device that opens it needs no onnx. Raises as `open`."""
        return ncnn_file(source).to_bytes()

    def own_settings(self, options: SessionOptions, precision: str) -> Mapping[str, bool | int]:
        """Return the fields of `ncnn::Option`."""
        return _settings(options, precision)

    def own_files(self, source: Source) -> Mapping[str, bytes]:
        """Return the two files of ncnn's own loaders, and one that names inputs and outputs. Raises as `open`."""
        file = ncnn_file(source)
        facts = json.dumps(file.ports, indent=1)
        return {
            "model.ncnn.param": file.param.encode(),
            "model.ncnn.bin": file.weights,
            "model.ncnn.json": f"{facts}\n".encode(),
        }

    def open(self, source: Source, options: SessionOptions) -> NcnnSession:
        """Load a model.

        Args:
            source: An ONNX model with fixed shapes for one picture, or what `NcnnFile.to_bytes` made of one.
            options: `save_optimized_to` names the file for ncnn's network; `profile_to` is not known here.

        Raises:
            MissingDependencyError: If ncnn is not installed.
            UnsupportedError: If ncnn lacks a node, a shape or a type of the model.
            InvalidFileError: If ncnn does not load what was made of it.
            NotFoundError: On an unknown option.
            ValueError: On an unknown precision.
            EngineAbortError: If a guard is active, and ncnn aborted on the model in a child.
        """
        file = ncnn_file(source)
        guard = active_guard()
        first_run = guard.try_open("ncnn", file.to_bytes(), options) if guard else None
        opened = self._open(file, options)
        opened.first_run = first_run
        return opened

    def _open(self, file: NcnnFile, options: SessionOptions) -> NcnnSession:
        if options.precision not in _STORED:
            raise ValueError(f"precision is {options.precision!r}, not one of {', '.join(_STORED)}")
        if options.profile_to:
            raise ValueError("the executor ncnn writes no operator profile")
        if reason := self.why_no_provider(options.providers):
            raise UnavailableError(reason, remedy="write providers = ['CPU'] into the target")
        self.check(options)
        ncnn = _ncnn()
        precision = _STORED[options.precision]
        if precision == "bf16" and (name := _wrong_in_bfloat16(file)):
            raise UnsupportedError(
                f"ncnn computes {name}, a convolution in groups, wrongly in bfloat16",
                remedy="run the model in fp32; the faults are ncnn's: numbers that change from run to run, and crashes",
            )
        net = ncnn.Net()
        _set(net.opt, options, precision)
        _load(net, file)
        if options.save_optimized_to:
            write_beside(Path(options.save_optimized_to), file.to_bytes())
        session = NcnnSession(ncnn, net, file, precision=precision)
        session.cores = held_processors(options.cores, options.threads or 1)
        return session


def _may_use_all() -> bool:
    """Return whether this thread may use every core: ncnn's setting knows no others, and would leave a container's."""
    return len(allowed_cores()) == os.cpu_count()


def _place_team(ncnn: Any, powersave: int) -> None:
    """Let the threads that compute with this one run on all cores or the big ones; this one stays where it is."""
    if _team.powersave != powersave:
        with held_to(tuple(allowed_cores())):
            ncnn.set_cpu_powersave(powersave)
        _team.powersave = powersave


def _wrong_in_bfloat16(file: NcnnFile) -> str:
    """Return the layer that ncnn 20261020 gets wrong in bfloat16; empty: there is none.

    Right are convolutions of each channel alone where four of them fill a register; of other groups answers change from
    run to run, and transposed ones end the process.
    """
    for line in layer_lines(file.param):
        if line.kind not in ("ConvolutionDepthWise", "DeconvolutionDepthWise"):
            continue
        groups, window = line.number(7, 1), line.number(1, 0) * line.number(11, line.number(1, 0))
        if groups != line.number(0, 0) or line.number(6, 0) != groups * window or groups % _LANES:
            return line.name
    return ""


def _require_done(code: int, name: str) -> None:
    if code:
        raise UnsupportedError(
            f"ncnn does not run the model: it ends with {code} at {name!r}",
            remedy=ELSEWHERE,
        )


def ncnn_file(source: Source) -> NcnnFile:
    """Return a model as ncnn loads it; one that is ONNX is converted. Raises as `Ncnn.open`."""
    source = in_one_piece(source, "ncnn")
    name = "the model" if isinstance(source, bytes) else source.name
    if isinstance(source, Path) and (source.suffix == SUFFIX or _begins_as_ours(source)):
        return read_ncnn_file(source.read_bytes(), name)
    if isinstance(source, bytes) and source.startswith(MAGIC):
        return read_ncnn_file(source, name)
    # a device that opens a file of ncnn has no onnx
    import onnx
    from google.protobuf.message import DecodeError

    from edgeopt.executors.ncnn.conversion import to_ncnn
    from edgeopt.graph.model import Model, load_model

    if isinstance(source, Path):
        model = load_model(source)
        return _KEPT.made_of(model.fingerprint, lambda: to_ncnn(model))

    def convert() -> NcnnFile:
        try:
            return to_ncnn(Model(onnx.load_model_from_string(source), name))
        except DecodeError as error:
            raise InvalidFileError("the model is neither ONNX nor ncnn's", remedy="copy the file again") from error

    return _KEPT.made_of(hashlib.sha256(source).hexdigest(), convert)


_KEPT = KeptFiles[NcnnFile](lambda file: len(file.param) + len(file.weights))
"""Files that were made in this process."""


def _begins_as_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _ncnn() -> Any:
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    return require("ncnn", extra="ncnn", purpose=_PURPOSE)


def _settings(options: SessionOptions, precision: str) -> dict[str, bool | int]:
    """Return the fields of ncnn's options: by themselves they round to float16 on Arm, weights on every processor."""
    halves = dict.fromkeys(("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"), precision == "fp16")
    integers = dict.fromkeys(("use_int8_packed", "use_int8_storage", "use_int8_inference"), True)
    entries = {
        key: bool(int(value)) if _TAKEN[key] == "0 or 1" else int(value) for key, value in options.entries.items()
    }
    return {
        "num_threads": options.threads or 1,
        "use_vulkan_compute": False,
        "use_bf16_storage": precision == "bf16",
        **halves,
        **integers,
        **entries,
    }


def _set(option: Any, options: SessionOptions, precision: str) -> None:
    for name, value in _settings(options, precision).items():
        setattr(option, name, value)


def _load(net: Any, file: NcnnFile) -> None:
    """Hand text and weights to ncnn.

    Weights go by a file: ncnn reads memory without knowing where it ends, and a file of somebody else may lie.

    Raises:
        InvalidFileError: If it does not take them.
        UnavailableError: If the disk takes no file.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="edgeopt-ncnn-") as folder, quiet_natives():
            weights = Path(folder) / "model.bin"
            weights.write_bytes(file.weights)
            code = net.load_param_mem(file.param) or net.load_model(str(weights))
    except OSError as error:
        raise UnavailableError(
            f"ncnn reads weights from a temporary file, which could not be written: {error.strerror}",
            remedy="free disk space, or name a folder that has some in TMPDIR",
        ) from error
    if code:
        raise InvalidFileError(
            f"ncnn does not load the network: it ends with {code}",
            remedy=ELSEWHERE,
        )


EXECUTOR = Ncnn()
