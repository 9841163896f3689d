"""Rockchip's NPU through rknn-toolkit2, whose old pins live in a Python environment of their own.

The package compiles for a chip and simulates it on this computer: the numbers count, the time is no latency, and the
cycles in its table are the vendor's estimate. What it leaves to the chip's processor is named, layer by layer.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import (
    EdgeoptError,
    InvalidFileError,
    Missing,
    MissingDependencyError,
    NotFoundError,
    StepError,
    UnavailableError,
    UnsupportedError,
)
from edgeopt.executors import Executor, Placement, SessionOptions, Source, Staged, in_one_piece
from edgeopt.executors.rknn.table import TableLayer, plain, read_layers
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names
from edgeopt.system.disk.links import pinned
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.worker import Worker
from edgeopt.system.text import plural

PROVIDER, CPU = "NPU", "CPU"
VARIABLE = "EDGEOPT_RKNN_PYTHON"
ESTIMATE = "the vendor's estimate, not measured"
_WHAT = "Rockchip's library"
_INSTALL = (
    "python3.11 -m venv rknn; rknn/bin/pip install rknn-toolkit2 (Linux, 5.5 GB); "
    f"export {VARIABLE}=$PWD/rknn/bin/python"
)
_LEFT_TO_CPU = "Rockchip's compiler leaves it to the chip's processor and gives no reason"
_INTEGERS_ONLY = ("rv1103", "rv1106")
_KNOWN_OPTIONS: Mapping[str, str] = {
    "target_platform": r"r[kv]\d+b?",
    "quantized_dtype": "w8a8|w8a16|w16a16i_dfp|w4a16",
    "quantized_algorithm": "normal|mmse|kl_divergence|gdq",
    "quantized_method": r"layer|channel|group\d+",
    "optimization_level": "[0-3]",
}
"""Options of `rknn.config` that a profile may set, with the form of their values; pictures arrive normalized, so mean
and std are not among them."""

_SEARCH = (
    "import importlib.metadata as m, importlib.util as u; "
    "print(m.version('rknn-toolkit2') if u.find_spec('rknn') else '')"
)
_START = (
    "import sys, types; sys.path[:] = [one for one in sys.path if one]; "
    "ours = types.ModuleType('edgeopt'); ours.__path__ = [sys.argv[1]]; sys.modules['edgeopt'] = ours; "
    "from edgeopt.executors._worker.rknn import main; main()"
)
"""Only our folder `workers` is shown to the other environment: PYTHONPATH would bring all packages beside edgeopt,
and they would hide its own."""

_SAID = re.compile(r"^E (?P<told>(?!RKNN:|rknn-toolkit2 version|\w+: Traceback).+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Built:
    """A model as the compiler made it."""

    file: Path
    """The `.rknn` file."""
    platform: str
    layers: tuple[TableLayer, ...]
    size_bytes: int
    sha256: str
    """SHA-256 of this file: every build writes another one."""
    version: str
    """Version of rknn-toolkit2."""

    @property
    def total_cycles(self) -> int:
        """Sum over the layers, as the vendor's compiler estimates it; layers that it does not estimate count 0."""
        return sum(layer.total_cycles for layer in self.layers)

    @property
    def placement(self) -> tuple[Placement, ...]:
        """Where each layer runs; its provider is `NPU` or `CPU`."""
        return tuple(
            Placement(layer.name or layer.op, layer.op, layer.unit, "" if layer.unit == PROVIDER else _LEFT_TO_CPU)
            for layer in self.layers
        )

    @property
    def summary(self) -> str:
        """One line: layers, what runs on the processor, and the estimate by its name."""
        left = Counter(layer.op for layer in self.layers if layer.unit != PROVIDER)
        text = f", on the CPU {', '.join(f'{op} x{count}' for op, count in left.items())}" if left else ""
        cycles = f"{self.total_cycles:,} cycles ({ESTIMATE})"
        return f"{self.platform}: {plural(len(self.layers), 'layer')}{text}; {cycles}"


class RknnSession(Staged):
    """A model in Rockchip's simulator, in a child process of the other environment."""

    simulated = True
    """Numbers are the NPU's, times are not."""

    def __init__(
        self,
        worker: Worker,
        folder: tempfile.TemporaryDirectory[str],
        built: Built,
        answer: Mapping[str, Any],
        run_timeout_s: float,
    ) -> None:
        self._worker, self._folder, self._run_timeout_s = worker, folder, run_timeout_s
        self.built = built
        """Its file lives as long as the session; see `export`."""
        self.inputs = tuple(_spec(*value) for value in answer["inputs"])
        self.outputs = tuple(_spec(*value) for value in answer["outputs"])

    def upload(self, inputs: Tensors) -> Tensors:
        """Return the inputs: they reach the child with `execute`.

        Raises:
            ValueError: If an input is missing or unknown.
        """
        require_names(inputs, (spec.name for spec in self.inputs))
        return inputs

    def execute(self, uploaded: Tensors) -> Tensors:
        """Run once in the child; a failure ends the session."""
        answer = self._worker.ask(Message({"do": "run"}, uploaded), timeout_s=self._run_timeout_s)
        if error := answer.values.get("error"):
            said = self._worker.close()
            self.close()
            raise refusal(error, said)
        return answer.arrays

    def placement(self) -> tuple[Placement, ...]:
        """Return where each layer runs, from the compiler's table."""
        return self.built.placement

    def export(self, out: Path) -> Built:
        """Write the very binary that this session simulates; return it with its new place."""
        out.parent.mkdir(parents=True, exist_ok=True)
        return _moved(self.built, Path(shutil.copyfile(self.built.file, out)))

    def close(self) -> None:
        """End the child."""
        self._worker.close()
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class Rknn(Executor):
    """The executor `rknn`."""

    compiled: ClassVar[bool] = True
    takes_onnx: ClassVar[bool] = False

    foreign_runtime: ClassVar[str] = "Rockchip's rknn-toolkit-lite2"
    """Rockchip's software that runs a compiled model on the chip, where edgeopt does not."""
    calibration: Sequence[Tensors] = ()
    """Real model inputs: the compiler quantizes a float model to W8A8 with them. Without them a float model is
    compiled in fp16, and a model with pairs of Q and DQ on its own grids."""
    open_timeout_s: float = 1800.0
    run_timeout_s: float = 120.0

    def why_unavailable(self) -> str | None:
        """Return None if the environment is named, is there, and has the package."""
        python = os.environ.get(VARIABLE, "")
        if not python:
            return Missing(f"{VARIABLE} is not set: rknn-toolkit2 needs an environment of its own", _INSTALL)
        if not Path(python).is_file():
            return Missing(f"{VARIABLE} names {python}, which is no file", _INSTALL)
        return None if _version_in(python) else Missing(f"{python} ({VARIABLE}) has no package rknn-toolkit2", _INSTALL)

    def check(self, options: SessionOptions) -> None:
        """Refuse options that the compiler does not know, before any work. Raises as `open`."""
        check_options(options)

    def has_device(self, providers: tuple[str, ...] = ()) -> bool:
        """Return False: models are compiled on a computer, and only simulated there."""
        del providers
        return False

    def open(self, source: Source, options: SessionOptions) -> RknnSession:
        """Compile a model for the chip and load it into the simulator; layers left to the CPU are in `placement`.

        Args:
            source: An ONNX model, opset 19 at most, with fixed shapes.
            options: `entries` are options of `rknn.config`; `target_platform` must be among them.

        Raises:
            MissingDependencyError: If the package is not here.
            InvalidFileError: On an option's wrong value, or without `target_platform`.
            NotFoundError: On an unknown option.
            UnsupportedError: If the compiler refuses the model.
            StepError: If the vendor's library fails, dies or hangs.
        """
        if isinstance(source, Path) and source.suffix == ".rknn":
            raise UnavailableError(
                f"{source.name} runs on a {options.entries.get('target_platform', 'Rockchip')} chip only",
                remedy="load it there with Rockchip's own runtime, rknn-toolkit-lite2; edgeopt does not drive it",
            )
        return self._build(source, options, simulate=True)

    def explain(self, source: Source, options: SessionOptions) -> tuple[Placement, ...]:
        """Return where each layer would run. Raises as `open`.

        A chip that computes integers only is asked with made-up inputs, where there are none: scales move no layer.
        """
        session = self._build(source, options, simulate=False)
        session.close()
        return session.placement()

    def _build(self, source: Source, options: SessionOptions, *, simulate: bool) -> RknnSession:
        config = check_options(options)
        if reason := self.why_unavailable():
            raise MissingDependencyError(f"Rockchip's compiler is not here: {reason}", remedy=_INSTALL)
        folder = tempfile.TemporaryDirectory(prefix="edgeopt-rknn-")
        worker = _start_worker()
        try:
            message = self._message(source, config, Path(folder.name), simulate)
            answer = worker.ask(message, timeout_s=self.open_timeout_s).values
            if error := answer.get("error"):
                raise refusal(error, worker.close())
            built = _built(Path(folder.name), config["target_platform"], answer["version"])
        except BaseException:
            worker.close()
            folder.cleanup()
            raise
        return RknnSession(worker, folder, built, answer, self.run_timeout_s)

    def _message(self, source: Source, config: Mapping[str, Any], folder: Path, simulate: bool) -> Message:
        source = in_one_piece(source, "the executor rknn")
        model = pinned(source) if isinstance(source, Path) else folder / "model.onnx"
        if isinstance(source, bytes):
            model.write_bytes(source)
        elif not model.is_file():
            raise InvalidFileError(f"{model} is no file", remedy="check the path")
        dataset = _write_dataset(self.calibration, folder)
        made_up = not simulate and not dataset and config["target_platform"].startswith(_INTEGERS_ONLY)
        values = {"do": "build", "folder": str(folder), "model": str(model), "config": dict(config)}
        return Message({**values, "dataset": dataset, "made_up": made_up, "simulate": simulate})


def check_options(options: SessionOptions) -> Mapping[str, Any]:
    """Return the arguments of `rknn.config`, or refuse what the engine does not offer.

    Raises:
        As `Rknn.open`.
    """
    if set(options.providers) - {PROVIDER}:
        raise UnavailableError(
            f"the executor rknn has no {', '.join(sorted(set(options.providers) - {PROVIDER}))}",
            remedy=f"write providers = [{PROVIDER!r}] into the target",
        )
    if options.precision not in ("", "fp16", "fp32") or options.profile_to or options.save_optimized_to:
        raise UnsupportedError(
            "Rockchip's NPU computes floats in fp16, and its simulator offers neither an operator profile nor "
            "an optimized graph",
            remedy="ask for neither bf16, nor a profile, nor the optimized graph",
        )
    for name, value in options.entries.items():
        if name not in _KNOWN_OPTIONS:
            raise NotFoundError("option of Rockchip's compiler", name, _KNOWN_OPTIONS)
        if not re.fullmatch(_KNOWN_OPTIONS[name], value):
            raise InvalidFileError(
                f"RKNN option {name} is {value!r}", remedy=f"write a value of the form {_KNOWN_OPTIONS[name]}"
            )
    if "target_platform" not in options.entries:
        raise InvalidFileError("RKNN option target_platform is missing", remedy="name the chip, for example rk3588")
    return {name: int(value) if value.isdigit() else value for name, value in options.entries.items()}


_REFUSALS: Sequence[tuple[str, str, str]] = (
    (
        r"Unsupport onnx opset (\d+), need <= (\d+)",
        "Rockchip's compiler takes opset {1} at most, the model has {0}",
        "export the model with an older opset",
    ),
    (
        r"The input shape (\[.*?\]) of '(.*?)' is not support",
        "Rockchip's compiler wants fixed shapes, input {1!r} has {0}",
        "export the model with fixed shapes; edgeopt optimize fixes those that the recipe names",
    ),
    (
        r"need to be constant|will cause the graph to be a dynamic graph",
        "Rockchip's compiler refuses what makes shapes that depend on data: {told}",
        "cut the model before that node",
    ),
    (
        r"target_platform\((\w+)\) not support do_quantization = False",
        "{0} computes integers only, and the model holds floats",
        "compile in w8a8: give calibration pictures",
    ),
    (
        r"KeyError: '(\w+)'",
        "Rockchip's compiler does not know {0}",
        "write it out in older ops: export the model with an opset that lacks it",
    ),
    (
        r"Invalid target_platform '(.*?)'",
        "rknn-toolkit2 knows no chip {0!r}",
        "write a chip that it knows into target_platform, or update the package",
    ),
    (
        r"The (\w+) = '(.*?)' not support in '(.*?)'|Unsupport inputs\[\d+\]\.dtype: (\w+)",
        "Rockchip's compiler refuses: {told}",
        "choose another precision",
    ),
)
"""(pattern of the library's sentence, meaning, remedy); `{told}` is that sentence."""


def refusal(error: str, log: str) -> EdgeoptError:
    """Return our error for one of the library's; where a call just returned -1, the reason is in the log."""
    if error.startswith(("ModuleNotFoundError", "ImportError")):
        return MissingDependencyError(f"rknn-toolkit2 cannot be imported: {error}", remedy=_INSTALL)
    said = [match["told"] for match in _SAID.finditer(plain(log))]
    result = said[-1].partition(": ")[2] if said else error.strip().splitlines()[-1]
    for pattern, meaning, remedy in _REFUSALS:
        if match := re.search(pattern, result):
            return UnsupportedError(meaning.format(*match.groups(), told=result.rstrip("!")), remedy=remedy)
    return StepError(
        f"{_WHAT} failed: {result}",
        remedy="update rknn-toolkit2, change the model, or leave the step out with --skip compile",
    )


@cache
def _version_in(python: str) -> str:
    """Return the version of rknn-toolkit2 in another environment; empty if it is not there, or that is no Python."""
    try:
        done = subprocess.run([python, "-E", "-c", _SEARCH], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _start_worker() -> Worker:
    ours = str(Path(__file__).parents[2])
    return Worker([os.environ[VARIABLE], "-E", "-X", "utf8", "-c", _START, ours], _WHAT)


def _write_dataset(frames: Iterable[Tensors], folder: Path) -> str:
    """Write the calibration inputs as the compiler reads them; return the list's path, empty if there are none."""
    lines = []
    for i, frame in enumerate(frames):
        files = [folder / f"calibration_{i}_{j}.npy" for j in range(len(frame))]
        for file, value in zip(files, frame.values(), strict=True):
            np.save(file, value)
        lines.append(" ".join(map(str, files)))
    if not lines:
        return ""
    (folder / "calibration.txt").write_text("\n".join(lines), "utf-8")
    return str(folder / "calibration.txt")


def _built(folder: Path, platform: str, version: str) -> Built:
    layers = read_layers((folder / "log.txt").read_text("utf-8", "replace"))
    return _moved(Built(folder, platform, layers, 0, "", version), folder / "model.rknn")


def _moved(built: Built, file: Path) -> Built:
    data = file.read_bytes()
    return replace(built, file=file, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _spec(name: str, dtype: str, shape: list[int | str | None]) -> TensorSpec:
    return TensorSpec(name, dtype, tuple(shape))


EXECUTOR = Rknn()
