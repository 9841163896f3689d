"""Apple's Core ML: packages (`.mlpackage`) are written on any system that has coremltools, and run on Apple's alone.

A session computes the numbers of a package from its program, read back from the file op by op (`reading/`), with ONNX
Runtime. That checks the file; it is no Core ML, and its time is no latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import Missing, UnavailableError
from edgeopt.executors import Executor, Placement, Session, SessionOptions, Source, Staged, in_one_piece
from edgeopt.executors.coreml.loading import why_absent
from edgeopt.executors.coreml.package import SUFFIX, read_package
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names

PROVIDER = "Core ML"
RUNTIME = "Core ML (macOS, iOS)"
_REMEDY = "pip install 'edgeopt[coreml]' (x86-64 Linux and macOS, Python up to 3.13)"


class CoreMLSession(Staged):
    """The numbers of a package, computed by ONNX Runtime from its program."""

    simulated: ClassVar[bool] = True

    def __init__(self, folder: Path, threads: int) -> None:
        """Read a package.

        Raises:
            InvalidFileError: If it is none, or damaged.
            UnsupportedError: If it holds an op whose numbers are not computed here.
        """
        from edgeopt.executors.coreml.reading import translated
        from edgeopt.executors.onnxruntime import EXECUTOR as ONNXRUNTIME
        from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED

        package = read_package(folder)
        translation = translated(package)
        self._lines = translation.lines
        self._session: Session = ONNXRUNTIME.open(
            translation.model, SessionOptions(("CPUExecutionProvider",), threads, UNOPTIMIZED)
        )
        self._names = {spec.name: _known(spec.name, package.names) for spec in self._specs}

    @property
    def _specs(self) -> tuple[TensorSpec, ...]:
        return (*self._session.inputs, *self._session.outputs)

    def _renamed(self, specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(self._names[spec.name], spec.dtype, spec.shape) for spec in specs)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs, called as in the ONNX model; whole numbers have 32 bits."""
        return self._renamed(self._session.inputs)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, called as in the ONNX model; whole numbers and truths are 32-bit integers."""
        return self._renamed(self._session.outputs)

    def upload(self, inputs: Tensors) -> Any:
        """Return the inputs in the package's types.

        Raises:
            ValueError: If an input is missing or unknown.
        """
        require_names(inputs, (spec.name for spec in self.inputs))
        return {
            spec.name: np.asarray(inputs[self._names[spec.name]]).astype(spec.dtype, copy=False)
            for spec in self._session.inputs
        }

    def execute(self, uploaded: Any) -> Any:
        """Compute the numbers."""
        return self._session.run(uploaded)

    def download(self, results: Any) -> Tensors:
        """Return the results by the ONNX model's names."""
        return {self._names[name]: value for name, value in results.items()}

    def placement(self) -> tuple[Placement, ...]:
        """Return the program's ops; the reason is the type of what each makes."""
        return tuple(Placement(line.name, line.op, PROVIDER, line.arithmetic) for line in self._lines)

    def close(self) -> None:
        """Free what was read."""
        self._session.close()


class CoreML(Executor):
    """The executor `coreml`."""

    own_suffix: ClassVar[str] = SUFFIX
    takes_onnx: ClassVar[bool] = False
    foreign_runtime: ClassVar[str] = RUNTIME
    own_check: ClassVar[str] = "ONNX Runtime from the file's program"

    def why_unavailable(self) -> str | None:
        """Return None if coremltools is installed: files are written then."""
        return Missing(reason, _REMEDY) if (reason := why_absent()) else None

    def has_device(self, providers: tuple[str, ...]) -> bool:
        """Return False: no Core ML runs here, wherever here is."""
        del providers
        return False

    def own_files(self, source: Source) -> Mapping[str, bytes]:
        """Return the packages of a model, file by file. Raises as `to_package`."""
        import onnx

        from edgeopt.executors.coreml.conversion import forms_of, to_package
        from edgeopt.graph.model import Model, load_model

        source = in_one_piece(source, "coreml")
        if isinstance(source, Path):
            model = load_model(source)
        else:
            model = Model(onnx.load_model_from_string(source), "the model")
        packages = {form.file: to_package(model, form) for form in forms_of(model)}
        return {f"{name}/{path}": data for name, package in packages.items() for path, data in package.files.items()}

    def own_facts(self, file: str) -> Mapping[str, str]:
        """Return what a package stores and computes in, and the oldest systems that open it."""
        from edgeopt.executors.coreml.conversion import facts_of

        return facts_of(file)

    def open(self, source: Source, options: SessionOptions) -> CoreMLSession:
        """Read a package back; its numbers are computed by ONNX Runtime.

        Args:
            source: The folder of a package.
            options: The threads count.

        Raises:
            UnavailableError: If it is no package: models are run by Core ML, which is not here.
            InvalidFileError: If it is damaged.
            UnsupportedError: If it holds an op whose numbers are not computed here.
        """
        if not isinstance(source, Path) or source.suffix != SUFFIX:
            raise UnavailableError(
                f"no model is run by {RUNTIME}, from here", remedy="write its file with edgeopt optimize --emit coreml"
            )
        return CoreMLSession(source, options.threads or 1)


def _known(name: str, names: Mapping[str, str]) -> str:
    plain = name.partition(":")[2]
    return names.get(plain, plain)


EXECUTOR = CoreML()
