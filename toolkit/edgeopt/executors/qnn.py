"""Qualcomm's NPU (Hexagon Tensor Processor) through ONNX Runtime's QNN plugin, in a process of its own.

On a computer without that NPU the vendor's simulator runs: its numbers count, its time is no latency. A node
that the NPU does not take is an error that names the node and the reason, never a fallback.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import (
    InvalidFileError,
    Missing,
    MissingDependencyError,
    StepError,
    UnavailableError,
    UnsupportedError,
)
from edgeopt.executors import Executor, Placement, SessionOptions, Source, Staged, in_one_piece
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names
from edgeopt.system.disk.links import pinned
from edgeopt.system.processes.messages import Message
from edgeopt.system.processes.worker import Worker, python_worker
from edgeopt.system.text import plural

PROVIDER = "QNNExecutionProvider"
_WHAT = "Qualcomm's library"
_INSTALL = "pip install 'edgeopt[cpu,qnn]'"
_DTYPES = {"float": "float32", "float16": "float16", "double": "float64"}
_FORCED = {"backend_type": "htp", "offload_graph_io_quantization": "0"}
"""Any other backend falls back in silence or returns garbage; quantizing at the edge would be left to the CPU."""

_DIGITS, _SWITCH = r"\d+", "[01]"
_KNOWN_OPTIONS: Mapping[str, str] = {
    "backend_type": "htp",
    "soc_model": r"\d+(,\d+)*",
    "htp_arch": "68|69|73|75|79|81",
    "htp_performance_mode": "|".join(
        (
            *("burst", "balanced", "default", "high_performance", "high_power_saver", "low_balanced"),
            *("extreme_power_saver", "low_power_saver", "power_saver", "sustained_high_performance"),
        )
    ),
    "htp_graph_finalization_optimization_mode": "[0-3]",
    "vtcm_mb": _DIGITS,
    "qnn_context_priority": "low|normal|normal_high|high",
    "enable_htp_fp16_precision": _SWITCH,
    "offload_graph_io_quantization": "0",
}
"""The plugin takes any name and nearly any value in silence, so only these pass."""

_ARCHITECTURES: Mapping[str, str] = dict(
    zip(("30", "36", "43", "57", "60", "69", "87"), ("68", "69", "73", "75", "73", "79", "81"), strict=True)
)
"""SoC -> HTP architecture, where it is known: the library takes any pair in silence."""

_REFUSED = re.compile(
    r"Validation FAILED for .*?\n\s*Operator type: (?P<op>\S*) Node name: (?P<node>.*?) Node index: \d+.*?"
    r"\n\s*REASON : (?P<reason>[^\n]*)",
    re.DOTALL,
)
_LOG_NOISE = re.compile(r"[^.]*? will not be assigned to QNN EP\.?")
_COMPILED_FOR = re.compile(rb"ep_compatibility_info\.QNNExecutionProvider.{1,6}?v\d+(?::[^:]*){4}:([\d,]+):", re.DOTALL)
"""The plugin's entry in a compiled model's metadata: versions, then the SoCs, as seen in plugin 2.7."""


class QnnSession(Staged):
    """A model in Qualcomm's library, in a child process of its own."""

    def __init__(self, worker: Worker, opened: Mapping[str, Any], run_timeout_s: float) -> None:
        self._worker, self._run_timeout_s = worker, run_timeout_s
        self._placement = tuple(Placement(*value) for value in opened["placement"])
        self.inputs = tuple(_spec(*value) for value in opened["inputs"])
        self.outputs = tuple(_spec(*value) for value in opened["outputs"])
        self.simulated: bool = opened["simulated"]
        """True where no NPU is present: numbers are the NPU's, times are not."""

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._worker.pid

    def upload(self, inputs: Tensors) -> Tensors:
        """Return the inputs: they reach the child with `execute`.

        Raises:
            ValueError: If an input is missing or unknown.
        """
        require_names(inputs, (spec.name for spec in self.inputs))
        return inputs

    def execute(self, uploaded: Tensors) -> Tensors:
        """Run once in the child."""
        answer = self._worker.ask(Message({"do": "run"}, uploaded), timeout_s=self._run_timeout_s)
        if error := answer.values.get("error"):
            raise StepError(f"{_WHAT} failed to run the model: {_first_line(error)}", remedy=_REMEDY_RUN)
        return answer.arrays

    def placement(self) -> tuple[Placement, ...]:
        """Return where each node of the optimized graph runs, from the graph assignment API."""
        return self._placement

    def close(self) -> None:
        """End the child."""
        self._worker.close()


_REMEDY_RUN = "check the model with edgeopt inspect MODEL --target T"


@dataclass(frozen=True, slots=True)
class Qnn(Executor):
    """The executor `qnn`."""

    compiled: ClassVar[bool] = True

    open_timeout_s: float = 600.0
    """Compiling a large model takes minutes; more than this is a hang."""
    run_timeout_s: float = 120.0

    def why_unavailable(self) -> str | None:
        """Return None if both packages are installed."""
        missing = [name for name in ("onnxruntime", "onnxruntime_qnn") if find_spec(name) is None]
        if missing:
            what = f"{' and '.join(missing)} not installed"
            return Missing(what, _INSTALL, is_elsewhere=sys.platform == "darwin")
        return None

    def check(self, options: SessionOptions) -> None:
        """Refuse options that the plugin would ignore or misread, before any work. Raises as `open`."""
        _message("open", b"", options, strict=True)
        if "," in options.entries["soc_model"]:
            raise InvalidFileError(
                f"soc_model names several SoCs: {options.entries['soc_model']}",
                remedy="write one into the target; edgeopt.steps.compile.compile_model(socs=...) makes one for several",
            )

    def has_device(self, providers: tuple[str, ...] = (PROVIDER,)) -> bool:
        """Return whether the NPU itself is here, not only its simulator.

        Raises:
            MissingDependencyError: If the plugin is not installed.
            StepError: If the vendor's library dies or hangs.
        """
        del providers
        worker = self._start()
        try:
            return bool(worker.ask(Message({"do": "devices"}), timeout_s=self.open_timeout_s).values.get("present"))
        finally:
            worker.close()

    def open(self, source: Source, options: SessionOptions) -> QnnSession:
        """Load a model onto the NPU, or onto its simulator; all of it or nothing.

        Args:
            source: An ONNX model, or one that `compile_model` made of it.
            options: `entries` are the plugin's options; `soc_model` must be among them.

        Raises:
            MissingDependencyError: If the plugin is not installed.
            InvalidFileError: On an option that the plugin would ignore or misread in silence.
            UnsupportedError: If the NPU refuses a node or the model; the message names node and reason.
            UnavailableError: If the plugin does not load, or a node would run elsewhere.
            StepError: If the vendor's library dies or hangs.
        """
        message = _message("open", source, options, strict=True)
        _require_soc(in_one_piece(source, "the executor qnn"), options.entries["soc_model"])
        worker = self._start()
        try:
            answer = worker.ask(message, timeout_s=self.open_timeout_s)
        except BaseException:
            worker.close()
            raise
        if error := answer.values.get("error"):
            worker.close()
            raise self._refusal(error, source, options)
        session = QnnSession(worker, answer.values, self.run_timeout_s)
        try:
            _require_placement(session)
        except BaseException:
            session.close()
            raise
        return session

    def explain(self, source: Source, options: SessionOptions) -> tuple[Placement, ...]:
        """Return where each node would run with the CPU as the fallback, and why the NPU refuses those it refuses.

        The reasons exist in the plugin's most talkative log only, so it is parsed.

        Raises:
            As `open`, but not for nodes that the NPU refuses.
        """
        message = _message("open", source, options, strict=False, verbose=True)
        worker = self._start()
        try:
            answer = worker.ask(message, timeout_s=self.open_timeout_s)
        finally:
            log = worker.close()
        reasons = refusals(log)
        if error := answer.values.get("error"):
            named = "; ".join(f"{op} {node!r}: {reason}" for (op, node), reason in reasons.items())
            raise UnsupportedError(
                f"{_WHAT} refuses the model: {_first_line(error)}{f' ({named})' if named else ''}",
                remedy="choose another precision or target",
            )
        return tuple(
            Placement(node, op, provider, "" if provider == PROVIDER else reasons.get((op, node), _UNTOLD))
            for node, op, provider in answer.values["placement"]
        )

    def compile(self, source: Source, options: SessionOptions, out: Path, *, embed: bool) -> tuple[Path, ...]:
        """Compile a model ahead of time; return the files that came to be, the ONNX file first.

        Args:
            source: An ONNX model.
            options: As for `open`; several SoCs in `soc_model` make one binary for all of them.
            out: The ONNX file to write; its folder must be empty or absent.
            embed: Write the binary into the ONNX file instead of beside it.

        Raises:
            As `open`.
        """
        message = _message("compile", source, options, strict=True)
        values = {**message.values, "out": str(out.resolve()), "embed": embed}
        out.parent.mkdir(parents=True, exist_ok=True)
        worker = self._start()
        try:
            answer = worker.ask(Message(values, message.arrays), timeout_s=self.open_timeout_s)
        finally:
            worker.close()
        if error := answer.values.get("error"):
            raise self._refusal(error, source, options)
        others = [out.with_name(name) for name in answer.values["files"] if name != out.name]
        return (out, *others)

    def _start(self) -> Worker:
        if reason := self.why_unavailable():
            raise MissingDependencyError(f"Qualcomm's NPU is not here: {reason}", remedy=_INSTALL)
        return python_worker("edgeopt.executors._worker.qnn", _WHAT)

    def _refusal(self, error: str, source: Source, options: SessionOptions) -> UnsupportedError:
        """Return the error that names the refused nodes, where there are any."""
        refused = [placement for placement in self.explain(source, options) if placement.provider != PROVIDER]
        if not refused:
            return UnsupportedError(
                f"{_WHAT} refuses the model: {_first_line(error)}", remedy="choose another precision or target"
            )
        return UnsupportedError(
            f"the NPU refuses {plural(len(refused), 'node')}: {describe_refused(refused)}",
            remedy="edgeopt optimize applies the rewrites it knows; edgeopt inspect MODEL --target T lists all nodes",
        )


_UNTOLD = "the plugin gives no reason"


def describe_refused(refused: Sequence[Placement], most: int = 5) -> str:
    """Return the refused nodes, each with its reason."""
    shown = "; ".join(f"{placement.op} {placement.node!r} ({placement.reason})" for placement in refused[:most])
    return shown if len(refused) <= most else f"{shown}; and {len(refused) - most} more"


def refusals(log: str) -> Mapping[tuple[str, str], str]:
    """Return the reason against each refused node, by op and name, from the plugin's log."""
    result: dict[tuple[str, str], str] = {}
    for match in _REFUSED.finditer(log):
        reason = _LOG_NOISE.sub("", match["reason"]).replace("`", "").strip().rstrip(".")
        result.setdefault((match["op"], match["node"].strip()), reason or match["reason"].strip())
    return result


def check_options(entries: Mapping[str, str]) -> Mapping[str, str]:
    """Return the plugin's options with those that must hold, or refuse what it would ignore or misread.

    Raises:
        InvalidFileError: On an unknown name, a wrong value, or without `soc_model`: the library then takes the
            numbers of whatever target ran before.
    """
    for name, value in entries.items():
        if name not in _KNOWN_OPTIONS:
            close = get_close_matches(name, _KNOWN_OPTIONS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise InvalidFileError(
                f"QNN has no option {name!r}", remedy=f"{hint}known: {', '.join(sorted(_KNOWN_OPTIONS))}"
            )
        if not re.fullmatch(_KNOWN_OPTIONS[name], value):
            raise InvalidFileError(
                f"QNN option {name} is {value!r}", remedy=f"write a value of the form {_KNOWN_OPTIONS[name]}"
            )
    arch = _ARCHITECTURES.get(entries.get("soc_model", ""))
    if arch and entries.get("htp_arch", arch) != arch:
        raise InvalidFileError(
            f"QNN option htp_arch is {entries['htp_arch']!r}, SoC {entries['soc_model']} has {arch}",
            remedy=f"write htp_arch = {arch!r}, or leave it out",
        )
    if "soc_model" not in entries:
        raise InvalidFileError("QNN option soc_model is missing", remedy="name the SoC's number, for example 43")
    return {**entries, **_FORCED}


def _require_placement(session: QnnSession) -> None:
    """The list of providers names one that runs nothing; the graph assignment does not."""
    placed = session.placement()
    elsewhere = [placement for placement in placed if placement.provider != PROVIDER]
    if elsewhere or not placed:
        raise UnavailableError(
            f"{PROVIDER} took {len(placed) - len(elsewhere)} of {plural(len(placed), 'node')}",
            remedy="run edgeopt inspect MODEL --target T for the reasons, or choose --target cpu",
        )


def _require_soc(source: bytes | Path, soc: str) -> None:
    """The simulator runs a binary of any SoC, whatever SoC it was told; a device would not."""
    match = _COMPILED_FOR.search(source if isinstance(source, bytes) else _read(source))
    if match and soc not in match[1].decode().split(","):
        raise InvalidFileError(
            f"the model was compiled for SoC {match[1].decode()}, not {soc}",
            remedy="compile it for this target: edgeopt optimize MODEL --target T",
        )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidFileError(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error


def _message(do: str, source: Source, options: SessionOptions, *, strict: bool, verbose: bool = False) -> Message:
    if set(options.providers) - {PROVIDER}:
        raise UnavailableError(
            f"the executor qnn has no {', '.join(sorted(set(options.providers) - {PROVIDER}))}",
            remedy=f"write providers = [{PROVIDER!r}] into the target",
        )
    if options.precision == "bf16" or options.profile_to or options.save_optimized_to:
        raise UnsupportedError(
            "the NPU computes floats in fp16, and offers neither an operator profile nor its optimized graph",
            remedy="ask for neither bf16, nor a profile, nor the optimized graph; times of a simulator mean nothing",
        )
    values = {
        "do": do,
        "options": dict(check_options(options.entries)),
        "threads": options.threads,
        "strict": strict,
        "verbose": verbose,
    }
    source = in_one_piece(source, "the executor qnn")
    if isinstance(source, bytes):
        return Message(values, {"model": np.frombuffer(source, np.uint8)})
    return Message({**values, "path": str(pinned(source))})


def _spec(name: str, kind: str, shape: list[int | str | None]) -> TensorSpec:
    word = kind.removeprefix("tensor(").removesuffix(")")
    return TensorSpec(name, _DTYPES.get(word, word), tuple(shape))


def _first_line(error: str) -> str:
    return error.strip().splitlines()[0]


EXECUTOR = Qnn()
