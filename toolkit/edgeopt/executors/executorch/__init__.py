"""ExecuTorch on processors, by XNNPACK's kernels: what PyTorch's own apps for phones have.

A session opens an ONNX model, which a child converts with torch's exporter, or such a program (`.pte`), for which onnx
is not needed. ExecuTorch's Python package computes on torch's tensors, so torch is needed in both cases.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
from edgeopt.executors._guard import FirstRun, active_guard
from edgeopt.executors.executorch.file import BEGINS, METHOD, is_program, read_facts
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.tensors import Tensors, require_names
from edgeopt.system.declared.optional import NOT_INSTALLED, how_to_install
from edgeopt.system.disk.files import write_beside
from edgeopt.system.processes.quiet import quiet_natives, quiet_thread

if TYPE_CHECKING:
    from edgeopt.graph.model import Model

PROVIDER = "CPU"
SUFFIX = ".pte"
_PACKAGE, _FOLDER = "executorch", "executorch.extension.pybindings"
_NATIVE = f"{_FOLDER}._C"
"""The package's runtime alone: what lies around it imports its compiler, which takes seconds."""
_REMEDY = "pip install 'edgeopt[executorch]'"


class _Pool:
    """ExecuTorch's threads: one pool for the process, which may only change its size while no model is open."""

    def __init__(self) -> None:
        self._lock, self._threads = threading.Lock(), 0
        self._sessions: weakref.WeakSet[ExecuTorchSession] = weakref.WeakSet()

    def join(self, session: ExecuTorchSession, native: Any, threads: int) -> None:
        """Set the number of threads for a session that is about to load.

        Raises:
            UnsupportedError: If others are open with another number: their kernels would use threads that are gone.
        """
        with self._lock:
            if self._threads != threads:
                if self._sessions:
                    raise UnsupportedError(
                        f"ExecuTorch has one pool of threads in a process: models are open on {self._threads}, "
                        f"so none opens on {threads}",
                        remedy=f"close them first, or pass --threads {self._threads}",
                    )
                native._unsafe_reset_threadpool(threads)
                self._threads = threads
            self._sessions.add(session)

    def leave(self, session: ExecuTorchSession) -> None:
        """Count a session no more."""
        with self._lock:
            self._sessions.discard(session)


_POOL = _Pool()


class ExecuTorchSession(Staged):
    """A program in ExecuTorch and the words of `Session`."""

    simulated: ClassVar[bool] = False

    def __init__(self, data: bytes, threads: int) -> None:
        """Load a program.

        Args:
            data: The file.
            threads: Of the kernels.

        Raises:
            MissingDependencyError: If executorch or torch is not installed.
            InvalidFileError: If ExecuTorch does not load it, or edgeopt did not write it.
            UnsupportedError: If models are open on another number of threads.
        """
        native = _native()
        self._torch = import_module("torch")
        self._data, self._threads = data, threads
        self._module: Any = None
        self.first_run: FirstRun | None = None
        with ExitStack() as undo:
            with quiet_thread(), quiet_natives():
                _POOL.join(self, native, threads)
                undo.callback(_POOL.leave, self)
                try:
                    self._module = native._load_for_executorch_from_buffer(data)
                except (RuntimeError, ValueError) as error:
                    raise _unloaded(error) from error
                facts = read_facts(lambda: self._module.run_method(METHOD, ()))
                try:
                    self._module.method_meta("forward")
                except (RuntimeError, ValueError) as error:
                    raise _unloaded(error) from error
            undo.pop_all()
        self.inputs, self.outputs, self._layers = facts.inputs, facts.outputs, facts.layers

    def upload(self, inputs: Tensors) -> Any:
        """Show the inputs to ExecuTorch, which reads them where they are: leave them alone until `execute` is done.

        Raises:
            ValueError: If an input is missing or unknown, or has another type or shape.
            EngineAbortError: If a guard is active, and ExecuTorch aborted on them in a child.
        """
        first_run, self.first_run = self.first_run, None
        if first_run is not None:
            first_run(inputs)
        require_names(inputs, (spec.name for spec in self.inputs))
        shown = []
        for spec in self.inputs:
            value = inputs[spec.name]
            if value.dtype != np.dtype(spec.dtype) or value.shape != spec.shape:
                raise ValueError(
                    f"input {spec.name!r} is {value.dtype} {value.shape}, not {spec.dtype} {tuple(spec.shape)}"
                )
            # torch warns of arrays that may not be written, though nothing writes them
            shown.append(self._torch.from_numpy(np.require(value, requirements=["C", "W"])))
        return shown

    def execute(self, uploaded: Any) -> Any:
        """Run what was uploaded, and wait until it is done.

        Raises:
            UnsupportedError: If ExecuTorch cannot run the model on these inputs.
        """
        assert self._module is not None
        try:
            return self._module.forward(uploaded, clone_outputs=False)
        except RuntimeError as error:
            raise UnsupportedError(f"executorch does not run the model: {_line(error)}", remedy=ELSEWHERE) from error

    def download(self, results: Any) -> Tensors:
        """Copy the results out of ExecuTorch's memory, over which the next run writes."""
        return {spec.name: value.numpy().copy() for spec, value in zip(self.outputs, results, strict=True)}

    def placement(self) -> tuple[Placement, ...]:
        """Return the operators; the reason is what each computes in, and whether XNNPACK does."""
        return tuple(Placement(name, op, PROVIDER, how) for name, op, how in self._layers)

    def beside(self, *, reuse: bool = False) -> ExecuTorchSession:
        """Return another session over the same program, with memory of its own; its outputs are copies in any case."""
        del reuse
        beside = ExecuTorchSession(self._data, self._threads)
        beside.first_run = self.first_run
        return beside

    def close(self) -> None:
        """Free what was loaded."""
        self._module = None
        _POOL.leave(self)


class ExecuTorch(Executor):
    """The executor `executorch`."""

    own_suffix: ClassVar[str] = SUFFIX
    finds_grids_on: ClassVar[frozenset[str]] = frozenset({"CPU"})
    one_pool: ClassVar[bool] = True
    heavy: ClassVar[bool] = True

    def why_unavailable(self) -> str | None:
        """Return None if the packages are installed; whether they load is seen when a model is opened."""
        for package in ("torch", _PACKAGE):
            if not _is_there(package):
                return Missing(f"{package} {NOT_INSTALLED}", how_to_install("executorch"))
        if not _is_there(_NATIVE):
            return Missing("executorch has no runtime in its package", f"mend it: {_REMEDY}")
        return None

    def why_no_provider(self, providers: tuple[str, ...]) -> str | None:
        """Return None if the processor alone is asked for."""
        others = ", ".join(sorted(set(providers) - {PROVIDER}))
        return (
            Missing(f"the executor executorch runs on the CPU, not on {others}", "write providers = ['CPU']")
            if others
            else None
        )

    def check(self, options: SessionOptions) -> None:
        """Refuse options, of which it has none, before any work. Raises as `open`."""
        for key in options.entries:
            raise NotFoundError("option of ExecuTorch that a bundle or a target may set", key, ())

    def conversion_s(self, source: Source) -> float:
        """Return how long a conversion is expected to take, whether or not it is kept; 0 of a program."""
        model = _onnx_model(source)
        if model is None:
            return 0.0
        from edgeopt.executors.executorch.conversion import expected_s

        return expected_s(model)

    def converted(self, source: Source) -> Source:
        """Return the program: one child of this process converts, no child of another child. Raises as `open`."""
        return program_file(source)

    def own_file(self, source: Source) -> bytes:
        """Return a model as a program: a device that opens it needs no onnx. Raises as `open`."""
        return program_file(source)

    def own_files(self, source: Source) -> Mapping[str, bytes]:
        """Return the program, which is what an app's own ExecuTorch loads. Raises as `open`."""
        return {f"model{SUFFIX}": program_file(source)}

    def open(self, source: Source, options: SessionOptions) -> ExecuTorchSession:
        """Load a model.

        Args:
            source: An ONNX model with fixed shapes, or a program that was made of one.
            options: `save_optimized_to` names the `.pte` file; `profile_to` is not known here.

        Raises:
            MissingDependencyError: If executorch or torch is not installed.
            UnsupportedError: If the model cannot be converted, or models are open on another number of threads.
            InvalidFileError: If ExecuTorch does not load what was made of it.
            NotFoundError: On an unknown option.
            ValueError: On an unknown precision.
            EngineAbortError: If a guard is active, and ExecuTorch aborted on the model in a child.
        """
        if (options.precision or "fp32") != "fp32":
            raise ValueError(f"precision is {options.precision!r}, not fp32")
        if options.profile_to:
            raise ValueError("the executor executorch writes no operator profile")
        if reason := self.why_no_provider(options.providers):
            raise UnavailableError(reason, remedy="write providers = ['CPU'] into the target")
        self.check(options)
        if isinstance(reason := self.why_unavailable(), Missing):
            raise MissingDependencyError(
                f"{reason.reason}: running a model by ExecuTorch needs it", remedy=reason.remedy
            )
        data = program_file(source)
        guard = active_guard()
        first_run = guard.try_open("executorch", data, options) if guard else None
        session = ExecuTorchSession(data, options.threads or 1)
        session.first_run = first_run
        if options.save_optimized_to:
            write_beside(Path(options.save_optimized_to), data)
        return session


def program_file(source: Source) -> bytes:
    """Return a model as a program; one that is ONNX is converted. Raises as `ExecuTorch.open`."""
    model = _onnx_model(source)
    if model is None:
        assert not isinstance(source, Outside)
        return source if isinstance(source, bytes) else _checked(source.read_bytes(), source.name)
    from edgeopt.executors.executorch.conversion import to_program

    return to_program(model)


def _onnx_model(source: Source) -> Model | None:
    """Return a source as an ONNX model; None: it is a program, which a device opens that has no onnx.

    Raises:
        InvalidFileError: If it is neither.
        UnsupportedError: If its weights lie in files of their own.
    """
    source = in_one_piece(source, "executorch")
    if isinstance(source, bytes):
        has_program = is_program(source)
    else:
        has_program = source.suffix == SUFFIX or is_program(_head(source))
    if has_program:
        return None
    import onnx
    from google.protobuf.message import DecodeError

    from edgeopt.graph.model import Model, load_model

    if isinstance(source, Path):
        return load_model(source)
    try:
        return Model(onnx.load_model_from_string(source), "the model")
    except DecodeError as error:
        raise InvalidFileError("the model is neither ONNX nor ExecuTorch's", remedy="copy the file again") from error


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(BEGINS)


def _checked(data: bytes, name: str) -> bytes:
    if not is_program(data):
        raise InvalidFileError(
            f"{name} is no program of ExecuTorch", remedy="copy the file again, or make the bundle anew"
        )
    return data


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _native() -> Any:
    """Return the package's runtime.

    Raises:
        MissingDependencyError: If it does not load, such as beside another torch than it was built for.
    """
    try:
        import_module("torch")  # its libraries must be there before
        if sys.platform == "win32":
            for folder in getattr(find_spec(_FOLDER), "submodule_search_locations", None) or ():
                os.add_dll_directory(folder)
        with quiet_thread(), quiet_natives():
            return import_module(_NATIVE)
    except Exception as error:  # a broken installation fails in the loader, with any class of error
        raise MissingDependencyError(
            f"executorch cannot be imported ({_line(error)}): running a model by ExecuTorch needs it", remedy=_REMEDY
        ) from error


def _unloaded(error: Exception) -> InvalidFileError:
    return InvalidFileError(f"executorch does not load the model: {_line(error)}", remedy=ELSEWHERE)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


EXECUTOR = ExecuTorch()
