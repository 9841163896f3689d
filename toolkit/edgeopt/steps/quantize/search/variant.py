"""The INT8 forms of one model that are worth measuring, made one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from edgeopt.errors import Note
from edgeopt.graph.graph import Graph, Node
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.api import Form, choose_scheme, open_graph, place
from edgeopt.steps.quantize.calibration.findings import Findings, study
from edgeopt.steps.quantize.grids.ranges import Method
from edgeopt.steps.quantize.keep_float.front import fastest_front
from edgeopt.steps.quantize.keep_float.islands import LEAST_DB
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimes, border_time, layer_times, profile_ns
from edgeopt.steps.quantize.keep_float.layers import fastest_float
from edgeopt.steps.quantize.patterns import key
from edgeopt.steps.quantize.repairs._apply import repair_weights
from edgeopt.steps.quantize.scheme import NhwcOptions, Scheme
from edgeopt.system.target import Int8Rules
from edgeopt.system.text import plural

DIRECT_SUMS = 1 << 16
"""Up to here a 1x1 convolution straight to real numbers is as fast as one with a grid and a DequantizeLinear."""
ALL_SUMS = 1 << 40
_ROUNDS = 5
_SUMS = {0: "grid for every sum", DIRECT_SUMS: "", ALL_SUMS: "no grid for sums"}


@dataclass(frozen=True, slots=True)
class Variant:
    """What may differ between two forms made from the same findings."""

    form: Form = Form.QDQ
    options: NhwcOptions = NhwcOptions()  # noqa: RUF009, frozen
    front: frozenset[str] = frozenset()
    """Keys of layers that stay float because they are faster so."""
    least_db: float = LEAST_DB
    rounding: bool = False
    method: Method = Method.MSE
    equalized: bool = False
    """Made of the equalized model; the caller gives that one."""
    smoothing: float = 0.0
    """Alpha of the smoothed model that it is made of, which the caller gives; 0: not smoothed."""
    rescaled: frozenset[str] = frozenset()
    """Tensors whose channels are scaled alike in the model that it is made of, which the caller gives."""
    fitted: frozenset[str] = frozenset()
    """SiLUs that are fitted HardSwishes in the model that it is made of, which the caller gives."""
    kept: frozenset[str] = frozenset()
    """Tensors that stay real whatever their score."""
    forced: frozenset[str] = frozenset()
    """Tensors that are quantized whatever their score: to learn what keeping them real is worth."""

    def __str__(self) -> str:
        words = [f"int8 {self.form}"]
        words += [f"{plural(len(self.front), 'layer')} in float for speed"] if self.front else []
        words += ["integer SiLU"] if self.options.integer_silu else []
        words += [_SUMS[self.options.direct_up_to]] if self.form is Form.NHWC else []
        words += ["rounded with inputs"] if self.rounding else []
        words += [f"islands below {self.least_db:.0f} dB"] if self.least_db != LEAST_DB else []
        words += [f"{self.method} ranges"] if self.method is not Method.MSE else []
        words += ["equalized"] if self.equalized else []
        words += [f"smoothed by {self.smoothing:g}"] if self.smoothing else []
        words += [f"{plural(len(self.rescaled), 'tensor')} rescaled"] if self.rescaled else []
        words += [f"{len(self.fitted)} SiLU as fitted HardSwish"] if self.fitted else []
        words += [f"{plural(len(self.kept), 'sensitive tensor')} real"] if self.kept else []
        return ", ".join(word for word in words if word)


def first_variant(form: Form) -> Variant:
    """Return the variant from which the others of this form differ."""
    return Variant(form, NhwcOptions(direct_up_to=DIRECT_SUMS) if form is Form.NHWC else NhwcOptions())


def make_variant(
    model: Model, findings: Findings, rules: Int8Rules, variant: Variant, ends_at_s: float = math.inf
) -> Outcome:
    """Return one variant; see `make_with_scheme`."""
    return make_with_scheme(model, findings, rules, variant, ends_at_s)[0]


def make_with_scheme(
    model: Model, findings: Findings, rules: Int8Rules, variant: Variant, ends_at_s: float = math.inf
) -> tuple[Outcome, Scheme]:
    """Return one variant, and what of it runs on integers and how.

    Args:
        model: The float model; the equalized one where the variant says so.
        findings: Of this model.
        rules: What INT8 form the target runs.
        variant: What to make.
        ends_at_s: On the monotonic clock; layers after it are not rounded with their inputs.
    """
    graph = open_graph(model)
    scheme, notes = scheme_of(graph, findings, rules, variant)
    known = findings.calibration
    scheme = repair_weights(graph, scheme, known, rounding=variant.rounding, ends_at_s=ends_at_s)
    changes = place(graph, scheme, variant.form)
    return Outcome(graph.to_model(), changes, (*findings.notes, *notes)), scheme


def scheme_of(graph: Graph, findings: Findings, rules: Int8Rules, variant: Variant) -> tuple[Scheme, tuple[Note, ...]]:
    """Return what of a model runs on integers in one variant, and why the rest does not."""
    front = {node for node in graph.nodes() if key(node) in variant.front}
    known = {**findings.scores_db, **dict.fromkeys(variant.forced, math.inf)}
    findings = replace(findings, scores_db=known)
    return choose_scheme(graph, findings, rules, variant.least_db, front, variant.form, variant.options, variant.kept)


def time_layers(model: Model, twin: Model, frame: Tensors, threads: int) -> LayerTimes:
    """Return the time of each layer in float and on integers, and of a border between them.

    Args:
        model: The float model.
        twin: Its first NHWC variant.
        frame: One real input.
        threads: Of the engine.
    """
    graph, seen = open_graph(model), [dict[str, int](), dict[str, int]()]
    rounds: list[LayerTimes] = []
    for _ in range(_ROUNDS):  # in turns, so that a slow minute of the machine hits both
        found = [profile_ns(one, frame, threads=threads) for one in (model, twin)]
        rounds.append(_times_of(graph, *found))
        for known, one in zip(seen, found, strict=True):
            known |= {name: min(took_ns, known.get(name, took_ns)) for name, took_ns in one.items()}
    return replace(_times_of(graph, *seen), rounds=tuple(rounds))


def _times_of(graph: Graph, float_ns: Mapping[str, int], integer_ns: Mapping[str, int]) -> LayerTimes:
    return LayerTimes(layer_times(graph, float_ns, integer_ns), border_time(graph, integer_ns))


def with_front(model: Model, variant: Variant, times: LayerTimes) -> Variant:
    """Return the variant with the layers at the entrance in float that are faster so."""
    graph = open_graph(model)
    return replace(variant, front=_beyond_noise(times, lambda one: fastest_front(graph, one.layers)[0]))


def with_float(model: Model, variant: Variant, times: LayerTimes, weight: float = 1.0) -> Variant:
    """Return the variant with all layers in float that are faster so, wherever they are.

    Args:
        model: The float model.
        variant: What else holds.
        times: Of its layers.
        weight: How much more than one pass over a tensor a border costs.
    """
    graph = open_graph(model)

    def fastest(one: LayerTimes) -> set[Node]:
        border = replace(one.border, call_ns=one.border.call_ns * weight, element_ns=one.border.element_ns * weight)
        return fastest_float(graph, one.layers, border)[0]

    return replace(variant, front=_beyond_noise(times, fastest))


def _beyond_noise(times: LayerTimes, fastest: Callable[[LayerTimes], set[Node]]) -> frozenset[str]:
    """Return the keys of the layers that are faster in float in every round, and not by noise in some."""
    chosen = [frozenset(key(node) for node in fastest(one)) for one in times.rounds or (times,)]
    return frozenset.intersection(*chosen)


def quantized_forms(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    rules: Int8Rules,
    *,
    forms: tuple[Form, ...] = (Form.QDQ,),
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[str, Outcome]]:
    """Yield the forms worth measuring, by name; the model is calibrated once.

    Args:
        model: A float model, opset 13 or later.
        calibration_inputs: Real model inputs, one image each; read once.
        rules: What INT8 form the target runs.
        forms: What the target's engine reads; NHWC only for ONNX Runtime on a CPU.
        threads: With which layers are timed.
        progress: Called with the number of calibration images done.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite, or the opset is too old.
        EdgeoptError: If there are no calibration images.
    """
    kept: list[Tensors] = []
    findings = study(model, open_graph(model), keep_first(calibration_inputs, kept), rules, progress=progress)
    for form in forms:
        variant = first_variant(form)
        outcome = make_variant(model, findings, rules, variant)
        yield str(variant), outcome
        if form is Form.NHWC:
            fronted = with_float(model, variant, time_layers(model, outcome.model, kept[0], threads))
            if fronted != variant:
                yield str(fronted), make_variant(model, findings, rules, fronted)


def keep_first(frames: Iterable[Tensors], kept: list[Tensors], count: int = 1) -> Iterator[Tensors]:
    """Yield all frames and put the first few into `kept`."""
    for frame in frames:
        if len(kept) < count:
            kept.append(frame)
        yield frame
