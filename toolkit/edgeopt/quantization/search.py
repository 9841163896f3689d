"""Find the fastest INT8 form of a model that still agrees with it. Labels judge afterwards.

The order follows what was learned on real models: islands first (nearly all of a collapse sits in one or two
tensors), then the form, then layers that are faster in float, then rounding. Each attempt is measured; what
gains nothing is not built upon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from edgeopt.errors import Note, NoteKind
from edgeopt.model import Model
from edgeopt.outcome import Outcome
from edgeopt.quantization.attempt import Attempt, ranked
from edgeopt.quantization.findings import Findings, study
from edgeopt.quantization.float_front import fastest_front
from edgeopt.quantization.float_islands import LEAST_DB
from edgeopt.quantization.layer_times import LayerTime, layer_times, profile_ns
from edgeopt.quantization.nhwc import NhwcOptions
from edgeopt.quantization.quantize import Form, choose_scheme, open_graph, place
from edgeopt.quantization.repair import repair_weights
from edgeopt.quantization.structure import is_silu, key
from edgeopt.target import Int8Rules
from edgeopt.tensors import Tensors
from edgeopt.text import plural

LEAST_AGREEMENT = 0.85
_DIRECT_SUMS = 1 << 16
_STRICTER_DB = (13.0, 16.0, 20.0)


@dataclass(frozen=True, slots=True)
class Variant:
    """What may differ between two attempts on the same findings."""

    form: Form = Form.QDQ
    options: NhwcOptions = NhwcOptions()  # noqa: RUF009, frozen
    front: frozenset[str] = frozenset()
    """Keys of layers that stay float because they are faster so."""
    least_db: float = LEAST_DB
    rounding: bool = False

    def __str__(self) -> str:
        words = ["int8", str(self.form)]
        words += [f"float front of {len(self.front)}"] if self.front else []
        words += ["integer SiLU"] if self.options.integer_silu else []
        words += ["rounded with inputs"] if self.rounding else []
        words += [f"islands below {self.least_db:.0f} dB"] if self.least_db != LEAST_DB else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Found:
    """All attempts, best first, and why the first is the best."""

    attempts: tuple[Attempt, ...]
    reason: str
    notes: tuple[Note, ...] = ()


@dataclass(slots=True)
class _Search:
    model: Model
    findings: Findings
    rules: Int8Rules
    agreement: Callable[[Model], float]
    speed: Callable[[Model], float]
    least_agreement: float
    ends_at_s: float
    on_attempt: Callable[[Attempt], None] | None
    attempts: dict[Variant, Attempt] = field(default_factory=dict)
    times: Mapping[str, LayerTime] = field(default_factory=dict)

    def make(self, variant: Variant) -> Outcome:
        """Build one variant."""
        graph = open_graph(self.model)
        front = {node for node in graph.nodes() if key(node) in variant.front}
        scheme, notes = choose_scheme(graph, self.findings, self.rules, variant.least_db, front)
        scheme = repair_weights(graph, scheme, self.findings.calibration, rounding=variant.rounding)
        changes = place(graph, scheme, variant.form, variant.options)
        return Outcome(graph.to_model(), changes, notes)

    def attempt(self, variant: Variant) -> bool:
        """Build and measure one variant, unless the time is over; return whether it is now the best."""
        if variant in self.attempts or (self.attempts and time.monotonic() > self.ends_at_s):
            return False
        outcome = self.make(variant)
        one = Attempt(str(variant), outcome, self.agreement(outcome.model), self.speed(outcome.model))
        self.attempts[variant] = one
        if self.on_attempt:
            self.on_attempt(one)
        return self.best() == variant

    def best(self) -> Variant:
        """Return the variant that leads."""
        first = ranked(self.attempts.values(), self.least_agreement)[0]
        return next(variant for variant, one in self.attempts.items() if one is first)

    def run(self, forms: tuple[Form, ...], frame: Tensors, threads: int) -> None:
        """Try form, float front, ways of writing, rounding and stricter islands, in this order."""
        for form in forms:
            self.attempt(Variant(form, NhwcOptions(direct_up_to=_DIRECT_SUMS) if form is Form.NHWC else NhwcOptions()))
        if Form.NHWC in forms and time.monotonic() < self.ends_at_s:
            self._front(frame, threads)
        for variant in self._ways(self.best()):
            self.attempt(variant)
        self.attempt(replace(self.best(), rounding=True))
        for least_db in _STRICTER_DB:
            if self.attempts[self.best()].is_valid(self.least_agreement):
                break
            self.attempt(replace(self.best(), least_db=least_db))

    def _front(self, frame: Tensors, threads: int) -> None:
        twin = Variant(Form.NHWC, NhwcOptions(direct_up_to=_DIRECT_SUMS))
        graph = open_graph(self.model)
        integer_ns = profile_ns(self.attempts[twin].outcome.model, frame, threads=threads)
        self.times = layer_times(graph, profile_ns(self.model, frame, threads=threads), integer_ns)
        front, _saved_ns = fastest_front(graph, self.times)
        if front:
            self.attempt(replace(twin, front=frozenset(key(node) for node in front)))

    def _ways(self, start: Variant) -> Iterator[Variant]:
        if start.form is not Form.NHWC:
            return
        yield replace(start, options=replace(start.options, direct_up_to=0))
        graph = open_graph(self.model)
        if any(is_silu(graph, node) for node in graph.nodes("Mul")):
            yield replace(start, options=replace(start.options, integer_silu=True))


def search_int8(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    rules: Int8Rules,
    *,
    agreement: Callable[[Model], float],
    speed: Callable[[Model], float],
    forms: tuple[Form, ...] = (Form.QDQ,),
    threads: int = 1,
    least_agreement: float = LEAST_AGREEMENT,
    time_budget_s: float = 180.0,
    progress: Callable[[int], None] | None = None,
    on_attempt: Callable[[Attempt], None] | None = None,
) -> Found:
    """Return the attempts at an INT8 form of `model`, best first.

    Args:
        model: A float model, opset 13 or later.
        calibration_inputs: Real model inputs, one image each; read once.
        rules: What INT8 form the target runs.
        agreement: Of a model with the float one, 0 to 1, without labels.
        speed: Time of the float model over that of a model, measured in turns.
        forms: What the target's engine reads; NHWC only for ONNX Runtime on a CPU.
        threads: With which layers are timed.
        least_agreement: Attempts below it are never ranked above one that reaches it.
        time_budget_s: Seconds for the attempts and the calibration; the first attempt is always made.
        progress: Called with the number of calibration images done.
        on_attempt: Called with each attempt as soon as it is measured, so that the best so far is never lost.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite, or the opset is too old.
        EdgeoptError: If there are no calibration images.
    """
    ends_at_s = time.monotonic() + time_budget_s
    kept: list[Tensors] = []
    findings = study(model, open_graph(model), _keep_first(calibration_inputs, kept), rules, progress=progress)
    search = _Search(model, findings, rules, agreement, speed, least_agreement, ends_at_s, on_attempt)
    search.run(forms, kept[0], threads)
    attempts = ranked(search.attempts.values(), least_agreement)
    return Found(attempts, _reason(search), findings.notes)


def _keep_first(frames: Iterable[Tensors], kept: list[Tensors]) -> Iterator[Tensors]:
    for frame in frames:
        if not kept:
            kept.append(frame)
        yield frame


def _reason(search: _Search) -> str:
    """Say in one paragraph why the first attempt is the best."""
    variant = search.best()
    best = search.attempts[variant]
    said = [f"{best.name}: {best.speed_ratio:.2f}x the float model, agreement {best.agreement:.3f}"]
    if not best.is_valid(search.least_agreement):
        said.append(
            f"not good enough: it must be faster and agree to {search.least_agreement:.2f}, so keep the float model"
        )
    if variant.front:
        saved_ns = sum(one.integer_ns - one.float_ns for name, one in search.times.items() if name in variant.front)
        layers = plural(len(variant.front), "layer")
        said.append(f"{layers} at the entrance in float save {saved_ns / 1e6:.2f} ms against integers")
    said += [note.detail for note in best.outcome.notes if note.kind is NoteKind.CHOICE]
    others = [one for one in search.attempts.values() if one is not best]
    said += [f"{one.name} gave {one.speed_ratio:.2f}x and {one.agreement:.3f}" for one in others]
    return ". ".join(said) + "."
