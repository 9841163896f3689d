"""Search the fastest INT8 form of a model that still agrees with it. Labels judge afterwards.

Each proposal is made and measured; a change that gains nothing is not built upon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from edgeopt.errors import MissingDependencyError, UnavailableError
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.calibration.calibrate import Calibration
from edgeopt.steps.quantize.calibration.findings import study
from edgeopt.steps.quantize.forms import Form
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimer, time_layers
from edgeopt.steps.quantize.scheme import open_graph
from edgeopt.steps.quantize.search.attempt import Attempt, KeptTensor, SearchResult
from edgeopt.steps.quantize.search.explain import cut_short, refusals
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.proposals import form_order, proposals, untried_forms
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.state import SearchState
from edgeopt.steps.quantize.search.variant import Variant, first_variant
from edgeopt.system.declared.target import Int8Rules
from edgeopt.system.processes.time_limit import LONGER, OutOfTime

LEAST_AGREEMENT = 0.85
_CALIBRATION_SHARE = 0.4
"""Calibration share of the time limit; what is left pays for at least a few attempts."""
LEAST_IMAGES, _KEPT_IMAGES = 4, 8
"""Images that calibration reads in any case, and those that are kept for what is calibrated again."""


def search_int8(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    rules: Int8Rules,
    *,
    agreement: Callable[[Model], float],
    speed: Callable[[Model], float | None] | None,
    forms: tuple[Form, ...] = (Form.QDQ,),
    threads: int = 1,
    least_agreement: float = LEAST_AGREEMENT,
    time_limit_s: float = 180.0,
    progress: Callable[[int], None] | None = None,
    on_attempt: Callable[[Attempt], None] | None = None,
    cache: Path | None = None,
    known: Calibration | None = None,
    like: Sequence[Variant] = (),
    seed: int = 0,
    least_speed: float = 0.0,
    layer_timer: LayerTimer = time_layers,
    longer: str = LONGER,
) -> SearchResult:
    """Return the attempts at an INT8 form of `model`, best first.

    Args:
        model: A float model, opset 13 or later.
        calibration_inputs: Real model inputs, one image each; read once, and no longer than a part of the time.
        rules: What INT8 form the target runs.
        agreement: Of a model with the float one, 0 to 1, without labels.
        speed: Time of the float model over that of a model, measured in turns; None: no time of this machine counts,
            that of layers neither, and forms are ranked by their agreement. It may return None of a form whose time
            nobody knows, which is ranked as if it were as fast as the float model.
        forms: What the target's engine reads; NHWC only for ONNX Runtime on a CPU, and tried first.
        threads: With which layers are timed.
        least_agreement: Attempts below it are never ranked above one that reaches it.
        time_limit_s: Seconds for calibration and attempts; the first attempt is always made.
        progress: Called with the number of calibration images done.
        on_attempt: Called with each attempt as soon as it is measured, so that the best so far is never lost.
        cache: Folder in which calibration keeps finished chunks for a search after an interrupt; None: nowhere.
        known: `SearchResult.calibration` of a search of this model on these images, for another engine.
        like: What was decided for another model with the same operators: these alone are made, and nothing is searched.
        seed: Decides which positions of each tensor calibration keeps.
        least_speed: Where the first attempt at each form is slower, and with NHWC also those with layers in float for
            speed, these are all: another engine has faster forms.
        layer_timer: Tells the times of layers.
        longer: What to do for a search that ran out of time.

    Raises:
        UnsupportedError: If the weights of a layer are NaN or infinite, or the opset is too old.
        EdgeoptError: If there are no calibration images.
        OutOfTime: At the end of a time limit around it, before the first attempt is made.
    """
    started = time.monotonic()
    kept: list[Tensors] = []
    frames = _in_time(_keep_first(calibration_inputs, kept), started + _CALIBRATION_SHARE * time_limit_s)
    findings = study(model, open_graph(model), frames, rules, progress=progress, cache=cache, known=known, seed=seed)
    few = kept or list(islice(frames, _KEPT_IMAGES))  # where calibration is known, it read none
    sources = Sources(model, findings, rules, few, seed=seed)
    state = SearchState(sources, agreement, speed, least_agreement, started + time_limit_s, layer_timer)
    try:
        proposed = ((variant, None) for variant in like) if like else proposals(state, forms, threads)
        firsts = () if like else tuple(map(first_variant, form_order(model, forms)))
        _try(state, proposed, on_attempt, firsts, least_speed)
    except OutOfTime:
        if not state.attempts:
            raise
    if like:
        return _as_given(state, longer)
    result = _result(state, longer)
    return replace(result, notes=(*result.notes, *untried_forms(model, forms)))


def _try(
    state: SearchState,
    proposed: Iterable[tuple[Variant, Variant | None]],
    on_attempt: Callable[[Attempt], None] | None,
    firsts: Collection[Variant],
    least_speed: float,
) -> None:
    """Make and measure what is proposed, while there is time; the first of each form alone where all are too slow."""
    for variant, twin in proposed:
        state.last = variant
        if variant in state.attempts or variant in state.refused:
            continue
        if state.attempts and not state.has_time(str(variant)):
            continue
        began = time.monotonic()
        _make(state, variant, twin)
        state.longest_s = max(state.longest_s, time.monotonic() - began)
        if state.is_doubtful(variant) and state.finds_off_layers(variant):
            _make(state, variant, twin)
        if on_attempt and variant in state.attempts:
            on_attempt(state.attempts[variant])
        if variant in firsts and _are_too_slow(state, firsts, least_speed):
            return


def _are_too_slow(state: SearchState, firsts: Collection[Variant], least_speed: float) -> bool:
    """Whether the first variants of all forms were tried, and none of them is as fast as it must be."""
    if not {*firsts} <= {*state.attempts, *state.refused}:
        return False
    speeds = [attempt.speed_ratio for attempt in state.attempts.values()]
    return bool(speeds) and all(speed is not None and speed < least_speed for speed in speeds)


def _make(state: SearchState, variant: Variant, twin: Variant | None) -> None:
    try:
        outcome, scheme = make_variant(*state.sources.of(variant), state.rules, variant, state.ends_at_s)
        state.judge(variant, outcome, scheme, twin)
    except (MissingDependencyError, UnavailableError):
        raise
    except Exception as error:  # what one variant cannot do, another may: no attempt so far is lost
        state.refuse(variant, error)


def _as_given(state: SearchState, longer: str) -> SearchResult:
    """Return attempts at given variants: nothing more is learned of them."""
    findings = state.sources.findings
    notes = (*findings.notes, *refusals(state.refused), *cut_short(state.untried, len(state.attempts), longer))
    refused = next(iter(state.refused.values())).problem if state.refused and not state.attempts else ""
    return SearchResult(
        state.ranked, refused, notes, findings.scores_db, findings.plain_db, calibration=findings.calibration
    )


def _keep_first(frames: Iterable[Tensors], kept: list[Tensors]) -> Iterator[Tensors]:
    """Yield all frames and put the first few into `kept`."""
    for frame in frames:
        if len(kept) < _KEPT_IMAGES:
            kept.append(frame)
        yield frame


def _in_time(frames: Iterable[Tensors], ends_at_s: float) -> Iterator[Tensors]:
    """Yield frames until the time is over, but at least a few."""
    for i, frame in enumerate(frames):
        if i >= LEAST_IMAGES and time.monotonic() > ends_at_s:
            return
        yield frame


def _result(state: SearchState, longer: str) -> SearchResult:
    if state.attempts:
        with suppress(OutOfTime):
            state.confirm()
    result = state.sources.findings
    notes = (*result.notes, *refusals(state.refused), *cut_short(state.untried, len(state.attempts), longer))
    if not state.attempts:
        why = next(iter(state.refused.values())).problem
        stays = f"The float model stays: no INT8 form of it could be made: {why}"
        return SearchResult((), stays, notes, calibration=result.calibration)
    best, kept = state.best(), tuple[KeptTensor, ...]()
    with suppress(OutOfTime):
        kept = state.kept()
    _, findings = state.sources.of(best)  # its tensors are the answer's, also where the model was changed before
    with suppress(OutOfTime):
        if not state.is_over:
            state.learn_sensitivities()
        state.explain(kept)
    attempts = state.ranked
    return SearchResult(
        attempts,
        attempts[0].reason,
        notes,
        findings.scores_db,
        findings.plain_db,
        state.sensitivities_db,
        kept,
        state.rounded(),
        result.calibration,
        state.times,
    )
