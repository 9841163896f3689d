"""The step `compile`: ahead of time, for one SoC or several, and only what computes the right numbers leaves.

Being taken by the NPU proves nothing: Qualcomm's library accepts encodings it cannot honour and returns garbage
without an error. So the model runs on the NPU, or on its simulator, and is compared with the CPU.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from edgeopt.errors import Note, NoteKind, StepError, UnsupportedError
from edgeopt.executors import Session, SessionOptions, Source
from edgeopt.executors.onnxruntime import EXECUTOR as CPU
from edgeopt.executors.onnxruntime import UNFUSED
from edgeopt.executors.qnn import EXECUTOR, Qnn
from edgeopt.graph.drift import Drift, measure_drift
from edgeopt.graph.graph import Graph, Node, Value
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.system.declared.target import Target

LEAST_DB = 12.0
"""A device that rounds otherwise than the CPU reached 15 to 59 dB on a detector and a classifier in 8 bits, 16 bits
and fp16; encodings that it does not honour gave -29 dB."""
MORE_THAN_ROUNDING_DB = 6.0
"""Where quantization itself lost more than LEAST_DB, a device may add up to four times that error."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The device's numbers against the CPU's, over all inputs together."""

    device: Drift
    """The device against the CPU, both on this model."""
    quantization: Drift | None
    """This model against the float one, both on the CPU; None where no float model was given."""
    nodes: int
    """All of them were placed on the device."""
    simulated: bool
    outputs: Tensors = field(repr=False, compare=False)
    """Outputs of the device for all inputs, stacked."""

    @property
    def least_db(self) -> float:
        """Signal to noise that the device must reach."""
        lost = self.quantization.sqnr_db if self.quantization else np.inf
        return min(LEAST_DB, lost - MORE_THAN_ROUNDING_DB)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A context binary that was loaded again and computes what the model computes."""

    file: Path
    """An ONNX file that holds the binary, or stands for the one beside it."""
    binary: Path | None
    """The binary where it is a file of its own."""
    socs: tuple[str, ...]
    size_bytes: int
    sha256: str
    numbers: Numbers
    notes: tuple[Note, ...] = ()


class Simulating(Session, Protocol):
    """A session on a device or on its simulator."""

    @property
    def simulated(self) -> bool:
        """True where the device is absent: its numbers count, its times do not."""
        ...


def options_for(target: Target, soc: str = "") -> SessionOptions:
    """Return how a model is opened for a target, or for another SoC with otherwise the same options."""
    entries = dict(target.options)
    if soc:
        entries |= {"soc_model": soc}
        entries.pop("htp_arch", None)  # it belongs to the target's own SoC
    return SessionOptions(target.providers, target.threads or 1, entries)


def check_numbers(
    model: Model,
    target: Target,
    inputs: Sequence[Tensors],
    original: Model | None = None,
    *,
    executor: Qnn = EXECUTOR,
) -> Numbers:
    """Run the model on the device and on the CPU and compare.

    Args:
        model: What the device runs.
        target: The device.
        inputs: Real inputs, one or more.
        original: The float model that `model` was quantized from.
        executor: Of the device.

    Raises:
        UnsupportedError: If the device refuses a node, or computes something else than the CPU.
        StepError: If the vendor's library dies or hangs.
    """
    require_precision(model, target)
    session = executor.open(model.source, options_for(target))
    try:
        return compare_numbers(session, model, target, inputs, original)
    finally:
        session.close()


def compare_numbers(
    session: Simulating,
    model: Model,
    target: Target,
    inputs: Sequence[Tensors],
    original: Model | None = None,
    *,
    remedy: str = "choose another precision; the device takes these scales but does not honour them",
) -> Numbers:
    """As `check_numbers`, in a session that is open."""
    actual = _together([session.run(input_) for input_ in inputs])
    expected = run_on_cpu(model, inputs)
    lost = measure_drift(run_on_cpu(original, inputs), expected) if original is not None else None
    numbers = Numbers(measure_drift(expected, actual), lost, len(session.placement()), session.simulated, actual)
    if numbers.device.sqnr_db < numbers.least_db:
        raise UnsupportedError(
            f"{target.name} takes {model.name} and returns other numbers than the CPU: "
            f"{worst_output(expected, actual)}; it must reach {numbers.least_db:.0f} dB",
            remedy=remedy,
        )
    return numbers


def require_precision(model: Model, target: Target) -> None:
    """Refuse real numbers on a target without fp16: its simulator computes them in fp32, its silicon cannot.

    Raises:
        UnsupportedError: If a node computes with real numbers that are on no grid.
    """
    if "fp16" in target.precisions:
        return
    graph = Graph.from_model(model)
    graph.infer_shapes()
    real = [node for node in graph.nodes() if _is_float(graph, node)]
    if real:
        named = ", ".join(f"{node.op_type} {node.name!r}" for node in real[:5])
        raise UnsupportedError(
            f"{target.name} has no fp16, and {len(real)} of the nodes compute in float: {named}",
            remedy="quantize the whole model, or choose a newer target",
        )


def _is_float(graph: Graph, node: Node) -> bool:
    """Whether a node reads a real tensor that does not come from DequantizeLinear."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return False
    read = [input_ for input_ in node.inputs if graph.dtype(input_) == np.float32 and graph.constant(input_) is None]
    return any(value is not None and _op_before(graph, value) != "DequantizeLinear" for value in read)


def _op_before(graph: Graph, value: Value) -> str:
    node = graph.producer(value)
    return node.op_type if node is not None else ""


def worst_output(expected: Tensors, actual: Tensors) -> str:
    """Return the output that differs most, and by how much."""
    drifts = {name: measure_drift({name: value}, actual) for name, value in expected.items()}
    name = min(drifts, key=lambda drift: drifts[drift].sqnr_db)
    return f"output {name!r} {drifts[name].sqnr_db:.1f} dB signal to noise, cosine {drifts[name].cosine:.3f}"


def run_on_cpu(model: Model, inputs: Sequence[Tensors]) -> Tensors:
    """Return the outputs for all inputs, stacked, as any processor computes them."""
    session = CPU.open(model.source, SessionOptions(entries=UNFUSED))
    try:
        return _together([session.run(input_) for input_ in inputs])
    finally:
        session.close()


def _together(outputs: Sequence[Tensors]) -> Tensors:
    """Stack the outputs of several runs, so that a nearly silent one does not count as noise."""
    return {name: np.stack([output[name] for output in outputs]) for name in outputs[0]}


def compile_model(
    model: Model,
    target: Target,
    out: Path,
    inputs: Sequence[Tensors],
    *,
    original: Model | None = None,
    socs: Sequence[str] = (),
    embed: bool = True,
    executor: Qnn = EXECUTOR,
) -> Compiled:
    """Compile for the target, prove that all is on the device and right, and load the result again.

    Args:
        model: With fixed shapes and, for integers, on the target's grids.
        target: The device.
        out: The ONNX file to write; nothing else may be in its folder.
        inputs: Real inputs, one or more.
        original: The float model that `model` was quantized from.
        socs: Compile for these instead of the target's own SoC, all in one file.
        embed: Put the binary into the ONNX file.
        executor: Of the device.

    Raises:
        UnsupportedError: If the device refuses a node, or computes something else than the CPU.
        StepError: If the binary does not compute bit for bit what the model does, or the library dies or hangs.
    """
    chosen = tuple(socs) or (target.options["soc_model"],)
    numbers = check_numbers(model, target, inputs, original, executor=executor)
    notes: tuple[Note, ...] = ()
    if len(chosen) == 1:
        options = options_for(target, *socs)
        files = executor.compile(model.data, options, out, embed=embed)
        # the target's own SoC ran the model just now, compiled in the same way
        expected = _run(executor, model.data, options, inputs) if socs else numbers.outputs
        _require_same(executor, expected, files[0], options, inputs)
    else:
        for soc in chosen:
            _check_alone(executor, model, options_for(target, soc), inputs)
        files = executor.compile(model.data, options_for(target, ",".join(chosen)), out, embed=embed)
        detail = "the binary for several SoCs was not loaded: only devices read it; each SoC's own binary was"
        notes = (Note(NoteKind.INFO, detail),)
    binary = files[1] if len(files) > 1 else None
    data = (binary or files[0]).read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    return Compiled(files[0], binary, chosen, len(data), sha256, numbers, notes)


def _check_alone(executor: Qnn, model: Model, options: SessionOptions, inputs: Sequence[Tensors]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = executor.compile(model.data, options, Path(folder) / "out" / "model.onnx", embed=True)[0]
        expected = _run(executor, model.data, options, inputs)
        _require_same(executor, expected, file, options, inputs)


def _require_same(
    executor: Qnn, expected: Tensors, file: Path, options: SessionOptions, inputs: Sequence[Tensors]
) -> None:
    """The binary, loaded again, must compute bit for bit what the model does when it is compiled at opening."""
    actual = _run(executor, file, options, inputs)
    if not expected or expected.keys() != actual.keys():
        raise StepError(
            f"the binary for SoC {options.entries['soc_model']} has the outputs {', '.join(actual)}, and the model has "
            f"{', '.join(expected)}",
            remedy="report it to the vendor; ship the model instead of the binary",
        )
    for name, value in expected.items():
        if not np.array_equal(value, actual[name], equal_nan=True):
            raise StepError(
                f"the binary for SoC {options.entries['soc_model']} differs from the model it was compiled from: "
                f"{worst_output(expected, actual)}",
                remedy="report it to the vendor; ship the model instead of the binary",
            )


def _run(executor: Qnn, source: Source, options: SessionOptions, inputs: Sequence[Tensors]) -> Tensors:
    session = executor.open(source, options)
    try:
        return _together([session.run(input_) for input_ in inputs])
    finally:
        session.close()
