"""Say why the first attempt is the best: what stayed real, what that costs and what it saves. It chooses nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgeopt.errors import NoteKind
from edgeopt.model import Model
from edgeopt.quantization.attempt import Attempt
from edgeopt.quantization.layer_times import LayerTime, LayerTimes
from edgeopt.quantization.quantize import island_of, open_graph
from edgeopt.quantization.scheme import candidates
from edgeopt.quantization.sources import Sources
from edgeopt.quantization.structure import head_tail, key
from edgeopt.quantization.variants import Variant, make_variant, scheme_of
from edgeopt.target import Int8Rules
from edgeopt.text import plural

_MOST_EXPLAINED = 3


@dataclass(frozen=True, slots=True)
class Kept:
    """One tensor that stayed real."""

    name: str
    score_db: float
    cost_ms: float | None
    """Of its layers in float against integers, below zero where float is faster; None where none was timed."""
    saved_agreement: float
    """What agreement loses when it is quantized after all."""

    def __str__(self) -> str:
        cost = "" if self.cost_ms is None else f", costs {self.cost_ms:.2f} ms"
        if self.cost_ms is not None and self.cost_ms <= 0:
            cost = f", is {-self.cost_ms:.2f} ms faster so"
        return f"{self.name!r} ({self.score_db:.1f} dB) stays real{cost} and saves {self.saved_agreement:.3f} agreement"


def kept_tensors(
    sources: Sources,
    best: Variant,
    attempt: Attempt,
    rules: Int8Rules,
    agreement: Callable[[Model], float],
    times: LayerTimes | None,
    ends_at_s: float = math.inf,
) -> tuple[Kept, ...]:
    """Return the worst tensors that stayed real, each quantized after all once to learn what that would cost.

    Args:
        sources: What variants are made of.
        best: The chosen variant.
        attempt: Its measurements.
        rules: What INT8 form the target runs.
        agreement: Of a model with the float one.
        times: Of layers, where they were measured.
        ends_at_s: On the monotonic clock; what is not explained by then stays so.
    """
    model, findings = sources.of(best)
    graph = open_graph(model)
    outside, layers = head_tail(graph), candidates(graph, rules)
    scheme, _ = scheme_of(graph, findings, rules, replace(best, front=frozenset()))  # speed may hide a bad tensor
    plain = replace(best, rounding=False)  # quick to make, and the difference is what counts
    measured: float | None = None
    found: list[Kept] = []
    for name in scheme.bad_db:
        island = {node for node in island_of(graph, {name}, best.form) if node in layers and node not in outside}
        if not island or len(found) == _MOST_EXPLAINED or time.monotonic() > ends_at_s:
            continue
        keys = {key(node) for node in island}
        if measured is None:
            measured = (
                agreement(make_variant(model, findings, rules, plain).model) if best.rounding else attempt.agreement
            )
        forced = replace(plain, forced=best.forced | {name}, kept=best.kept - {name}, front=best.front - keys)
        lost = measured - agreement(make_variant(model, findings, rules, forced).model)
        found.append(Kept(name, findings.scores_db[name], _cost_ms(keys, times), lost))
    return tuple(found)


def _cost_ms(keys: set[str], times: LayerTimes | None) -> float | None:
    timed = [times.layers[one] for one in keys if one in times.layers] if times is not None else []
    return sum(one.float_ns - one.integer_ns for one in timed) / 1e6 if timed else None


def reason(
    variant: Variant,
    attempts: Sequence[Attempt],
    least_agreement: float,
    times: LayerTimes | None,
    kept: Sequence[Kept],
) -> str:
    """Return one paragraph.

    Args:
        variant: The best.
        attempts: All, best first.
        least_agreement: What was asked.
        times: Of layers, where they were measured.
        kept: Tensors that stayed real.
    """
    best, *others = attempts
    said = [f"{best.name}: {best.speed_ratio:.2f}x the float model, agreement {best.agreement:.3f}"]
    if not best.is_valid(least_agreement):
        wanted = f"faster than float with an agreement of {least_agreement:.2f}"
        said.append(f"not good enough, it must be {wanted}: keep the float model")
    if variant.front and times is not None:
        layers = plural(len(variant.front), "layer")
        said.append(f"{layers} in float save {_saved_ms(variant, times.layers):.2f} ms against integers, borders apart")
    said += [str(one) for one in kept]
    said += [note.detail for note in best.outcome.notes if note.kind is NoteKind.CHOICE]
    said += [f"{one.name} gave {one.speed_ratio:.2f}x and {one.agreement:.3f}" for one in others]
    return ". ".join(said) + "."


def _saved_ms(variant: Variant, layers: Mapping[str, LayerTime]) -> float:
    chosen = [one for name, one in layers.items() if name in variant.front]
    return sum(one.integer_ns - one.float_ns for one in chosen) / 1e6
