"""Say why an attempt is what it is: what stays in float, what that costs and what it saves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from edgeopt.errors import Note, NoteKind
from edgeopt.steps.quantize.calibration.findings import NO_GRID_DB
from edgeopt.steps.quantize.forms import WRITERS
from edgeopt.steps.quantize.keep_float.layer_times import LayerTime, LayerTimes
from edgeopt.steps.quantize.patterns import head_tail, key
from edgeopt.steps.quantize.scheme import candidates, open_graph
from edgeopt.steps.quantize.search.attempt import Attempt, KeptTensor, Refusal
from edgeopt.steps.quantize.search.choose import choose_scheme, scales_in_words
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.text import plural

_MOST_EXPLAINED, _MOST_UNTRIED = 3, 4


def kept_tensors(
    sources: Sources,
    variant: Variant,
    times: LayerTimes | None,
    lost: Callable[[Variant], float | None] | None = None,
    ends_at_s: float = math.inf,
) -> tuple[KeptTensor, ...]:
    """Return the worst tensors that stay in float in a variant, and what that costs and saves.

    Args:
        sources: What variants are made of.
        variant: Whose tensors.
        times: Of layers, where they were measured.
        lost: The agreement that a variant with one of them forced to integers loses, None where it does not run;
            None: it is not tried.
        ends_at_s: On the monotonic clock; tensors after it are left out.
    """
    model, findings = sources.of(variant)
    graph = open_graph(model)
    outside, layers = head_tail(graph), candidates(graph, sources.rules)
    slow = replace(variant, front=frozenset())  # layers in float for speed may hide a bad tensor
    scheme = choose_scheme(graph, findings, sources.rules, slow)
    kept: list[KeptTensor] = []
    for name in (name for name, score_db in scheme.bad_db.items() if score_db > NO_GRID_DB):
        nodes = WRITERS[variant.form].island(graph, {name})
        island = {node for node in nodes if node in layers and node not in outside}
        if not island or len(kept) == _MOST_EXPLAINED or time.monotonic() > ends_at_s:
            continue
        keys = {key(node) for node in island}
        forced = replace(
            variant, forced=variant.forced | {name}, kept=variant.kept - {name}, front=variant.front - keys
        )
        saved = lost(forced) if lost is not None else None
        scales = scales_in_words(sources.rules, variant)
        kept.append(KeptTensor(name, scheme.bad_db[name], _cost_ms(keys, times), saved, scales))
    return tuple(kept)


def _cost_ms(keys: set[str], times: LayerTimes | None) -> float | None:
    timed = [times.layers[other] for other in keys if other in times.layers] if times is not None else []
    return sum(layer_time.float_ns - layer_time.integer_ns for layer_time in timed) / 1e6 if timed else None


def reason(
    variant: Variant,
    attempt: Attempt,
    others: Iterable[Attempt],
    least_agreement: float,
    times: LayerTimes | None,
    kept: Sequence[KeptTensor],
) -> str:
    """Return one paragraph.

    Args:
        variant: What was made.
        attempt: Its measurements.
        others: The other attempts, best first.
        least_agreement: What was asked for.
        times: Of layers, where they were measured.
        kept: Tensors that stay in float.
    """
    said = [f"{attempt.name}: its agreement is {attempt.agreement:.3f}"]
    if attempt.speed_ratio is not None:
        said = [f"{attempt.name}: about {attempt.speed_ratio:.2f} times as fast as the float model"]
        said.append(f"Its agreement is {attempt.agreement:.3f}")
    if not attempt.is_valid(least_agreement):
        faster = "" if attempt.speed_ratio is None else "faster than float, with "
        said.append(f"That is not good enough: it must be {faster}an agreement of {least_agreement:.2f} or more")
    if variant.front and times is not None:
        layers, saved_ms = plural(len(variant.front), "layer"), _saved_ms(variant, times.layers)
        said.append(f"Float saves {saved_ms:.2f} ms in {layers}")
        said.append("What conversions at the borders cost is not counted")
    said += [sentence for kept_tensor in kept for sentence in kept_tensor.sentences]
    said += [_capital(note.detail) for note in attempt.outcome.notes if note.kind is NoteKind.CHOICE]
    compared = [f"{other.name} ({_told_speed(other)}agreement {other.agreement:.3f})" for other in others]
    said += [f"Other forms: {'; '.join(compared)}"] if compared else []
    return ". ".join(said) + "."


def _told_speed(attempt: Attempt) -> str:
    return "" if attempt.speed_ratio is None else f"{attempt.speed_ratio:.2f} times as fast, "


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _saved_ms(variant: Variant, layers: Mapping[str, LayerTime]) -> float:
    chosen = [layer for name, layer in layers.items() if name in variant.front]
    return sum(layer_time.integer_ns - layer_time.float_ns for layer_time in chosen) / 1e6


def refusals(refused: Mapping[Variant, Refusal]) -> Iterator[Note]:
    """Yield what to say of variants that are no attempts, each with its problem; nothing of models tried before."""
    failed = {
        variant: refusal.problem
        for variant, refusal in refused.items()
        if not refusal.is_float and not refusal.is_known
    }
    for problem in dict.fromkeys(failed.values()):
        names = [str(variant) for variant, name in failed.items() if name == problem]
        detail = f"{names[0]} could not be made: {problem}"
        yield Note(NoteKind.WARNING, detail, f"and {plural(len(names) - 1, 'form')} like it" if names[1:] else "")
    if left := [refusal.problem for refusal in refused.values() if refusal.is_float]:
        yield Note(NoteKind.INFO, f"{plural(len(left), 'form')} left aside: {left[0]}")


def cut_short(untried: Iterable[str], attempts: int, longer: str) -> Iterator[Note]:
    """Yield what a search says that ran out of time: how many attempts it made, what it did not try, and what would."""
    left = tuple(untried)
    if left:
        more = f" and {len(left) - _MOST_UNTRIED} more" if len(left) > _MOST_UNTRIED else ""
        detail = f"the search ran out of time after {plural(attempts, 'form')}"
        yield Note(NoteKind.WARNING, detail, longer, left, f"untried: {'; '.join(left[:_MOST_UNTRIED])}{more}")
