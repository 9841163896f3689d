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
from edgeopt.quantization.attempt import Attempt, ranked
from edgeopt.quantization.findings import Findings, study
from edgeopt.quantization.layer_times import LayerTime
from edgeopt.quantization.quantize import Form, open_graph
from edgeopt.quantization.structure import is_silu
from edgeopt.quantization.variants import Variant, first_variant, keep_first, make_variant, time_layers, with_front
from edgeopt.target import Int8Rules
from edgeopt.tensors import Tensors
from edgeopt.text import plural

LEAST_AGREEMENT = 0.85
_STRICTER_DB = (13.0, 16.0, 20.0)


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

    def attempt(self, variant: Variant) -> None:
        """Build and measure one variant, unless it is known or the time is over."""
        if variant in self.attempts or (self.attempts and self.is_over):
            return
        outcome = make_variant(self.model, self.findings, self.rules, variant)
        one = Attempt(str(variant), outcome, self.agreement(outcome.model), self.speed(outcome.model))
        self.attempts[variant] = one
        if self.on_attempt:
            self.on_attempt(one)

    @property
    def is_over(self) -> bool:
        """Whether the time budget is spent."""
        return time.monotonic() > self.ends_at_s

    def best(self) -> Variant:
        """Return the variant that leads."""
        first = ranked(self.attempts.values(), self.least_agreement)[0]
        return next(variant for variant, one in self.attempts.items() if one is first)

    def run(self, forms: tuple[Form, ...], frame: Tensors, threads: int) -> None:
        """Try form, float front, ways of writing, rounding and stricter islands, in this order."""
        for form in reversed(forms):
            self.attempt(first_variant(form))
        if Form.NHWC in forms and not self.is_over:
            twin = first_variant(Form.NHWC)
            self.times = time_layers(self.model, self.attempts[twin].outcome.model, frame, threads)
            self.attempt(with_front(self.model, twin, self.times))
        for variant in self._ways(self.best()):
            self.attempt(variant)
        self.attempt(replace(self.best(), rounding=True))
        for least_db in _STRICTER_DB:
            if self.attempts[self.best()].is_valid(self.least_agreement):
                break
            self.attempt(replace(self.best(), least_db=least_db))

    def _ways(self, start: Variant) -> Iterator[Variant]:
        graph = open_graph(self.model)
        if start.form is Form.NHWC and any(is_silu(graph, node) for node in graph.nodes("Mul")):
            yield replace(start, options=replace(start.options, direct_up_to=0))
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
        forms: What the target's engine reads; NHWC only for ONNX Runtime on a CPU. The last is tried first.
        threads: With which layers are timed.
        least_agreement: Attempts below it are never ranked above one that reaches it.
        time_budget_s: Seconds for calibration and attempts; the first attempt is always made.
        progress: Called with the number of calibration images done.
        on_attempt: Called with each attempt as soon as it is measured, so that the best so far is never lost.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite, or the opset is too old.
        EdgeoptError: If there are no calibration images.
    """
    ends_at_s = time.monotonic() + time_budget_s
    kept: list[Tensors] = []
    findings = study(model, open_graph(model), keep_first(calibration_inputs, kept), rules, progress=progress)
    search = _Search(model, findings, rules, agreement, speed, least_agreement, ends_at_s, on_attempt)
    search.run(forms, kept[0], threads)
    return Found(ranked(search.attempts.values(), least_agreement), _reason(search), findings.notes)


def _reason(search: _Search) -> str:
    """Say in one paragraph why the first attempt is the best."""
    variant = search.best()
    best = search.attempts[variant]
    said = [f"{best.name}: {best.speed_ratio:.2f}x the float model, agreement {best.agreement:.3f}"]
    if not best.is_valid(search.least_agreement):
        wanted = f"faster than float with an agreement of {search.least_agreement:.2f}"
        said.append(f"not good enough, it must be {wanted}: keep the float model")
    if variant.front:
        saved_ns = sum(one.integer_ns - one.float_ns for name, one in search.times.items() if name in variant.front)
        layers = plural(len(variant.front), "layer")
        said.append(f"{layers} at the entrance in float save {saved_ns / 1e6:.2f} ms against integers")
    said += [note.detail for note in best.outcome.notes if note.kind is NoteKind.CHOICE]
    others = [one for one in search.attempts.values() if one is not best]
    said += [f"{one.name} gave {one.speed_ratio:.2f}x and {one.agreement:.3f}" for one in others]
    return ". ".join(said) + "."
