"""A decoder of another exporter, in the ops that ONNX Runtime has for decoders; kept only when logits are equal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import LOGITS, cache_parts, shares_cache
from edgeopt.executors.onnxruntime.stateful import decoder_of
from edgeopt.graph.drift import TOTAL, Drift, measure_drift
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.passes import Phase, passes_of
from edgeopt.passes._decoder import CONTEXT_KEY
from edgeopt.steps._checked import apply_checked
from edgeopt.steps.convert.last_logits import keep_last_logits

TOLERANCE = 1e-3
"""Error over signal; equal graphs stay below 1e-5."""
_RUNS = ((9, 0), (1, 0), (1, 0), (4, 3), (1, 0), (3, 0))
"""Tokens of each run, and how many of them are forgotten after it."""
_SPARE = 7
"""Tokens that the cache may hold more than come: its length must not be taken for that of the past."""


def fuse_decoder(model: Model, context: int, vocabulary: int) -> Outcome:
    """Return the model with fused attention, rotary positions and norms.

    Args:
        model: A decoder with a cache.
        context: Tokens that its positions reach.
        vocabulary: Tokens that it knows.
    """
    given = _noted(model, context)
    functions = {**_tidying(), **passes_of(Phase.DECODER)}
    outcome = apply_checked(given, functions, DecoderExpectation(model, context, vocabulary))
    decoders = {name: count for name, count in outcome.changes.items() if name in passes_of(Phase.DECODER)}
    return outcome if decoders else Outcome(model, {}, outcome.notes)


def _tidying() -> dict[str, Callable[[Graph], int]]:
    """Return what takes out nodes that change nothing, so that passes see what stands behind them."""
    known = passes_of(Phase.SIMPLIFY)
    return {name: known[name] for name in ("remove_identity", "make_shape_static", "fold_constants")}


def _noted(model: Model, context: int) -> Model:
    graph = Graph.from_model(model)
    graph.metadata[CONTEXT_KEY] = str(context)
    return graph.to_model()


class DecoderExpectation:
    """The logits of a decoder behind each token of a text that comes in parts, some of them taken back."""

    def __init__(self, model: Model, context: int, vocabulary: int) -> None:
        """Run the model; see `fuse_decoder`."""
        self._context, self._vocabulary = context, vocabulary
        self._expected = np.concatenate(_logits(model, context, vocabulary))

    def why_not(self, model: Model) -> str | None:
        """Return None if `model` gives the same logits, otherwise the reason against it."""
        try:
            drift = self._drift(model)
        except Exception as error:  # of a rewritten model, any refusal counts, at opening or at running
            return " ".join(str(error).split())
        return (
            None if drift.is_within(TOLERANCE) else f"it changes the logits ({drift.worst_db:.0f} dB signal to noise)"
        )

    def _drift(self, model: Model) -> Drift:
        array = np.concatenate(_logits(model, self._context, self._vocabulary))
        return measure_drift({LOGITS: self._expected}, {LOGITS: array}) if array.size else TOTAL


def answers_last(model: Model, context: int, vocabulary: int) -> bool:
    """Return whether a decoder of floats gives the same logits where only the last ones are asked for.

    Args:
        model: Forms of it may differ in how matrices are stored.
        context: Tokens that its positions reach.
        vocabulary: Tokens that it knows.
    """
    made = keep_last_logits(model)
    if not made.changes:
        return False
    expected = np.concatenate([logit[-2:] for logit in _logits(model, context, vocabulary)])
    try:
        array = np.concatenate(_logits(made.model, context, vocabulary, last=2))
    except Exception:  # of a rewritten model, any refusal counts, at opening or at running
        return False
    return array.shape == expected.shape and measure_drift({LOGITS: expected}, {LOGITS: array}).is_within(TOLERANCE)


def _logits(model: Model, context: int, vocabulary: int, last: int = 0) -> list[NDArray[np.float32]]:
    """Return the logits of each run of a text, all or so many."""
    session = EXECUTOR.open(model.source, SessionOptions(threads=1))
    try:
        parts = cache_parts(session.inputs, session.outputs)
        capacity = min(sum(count for count, _ in _RUNS) + _SPARE, context)
        decoder = decoder_of(session.engine, parts, capacity, shares=shares_cache(session, parts))
        chance, arrays = np.random.default_rng(0), list[NDArray[np.float32]]()
        for count, forgotten in _RUNS:
            if decoder.past + count > capacity:
                break
            arrays.append(decoder.run(chance.integers(0, vocabulary, count).tolist(), last))
            kept = decoder.past - forgotten
            decoder.rewind(kept if decoder.reusable(kept) else decoder.past)
        return arrays
    finally:
        session.close()
