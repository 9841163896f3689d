"""Search which tensors of a model need 16 bits on Qualcomm's HTP.

From cheap to dear: U8 everywhere but in the decoding tail, U16 around the tensors that U8 spoils most, then
around more of them, U16 everywhere, fp16. The first attempt that agrees well enough with the float model leads; the
dearer ones follow, as labels may prefer them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.formats.htp import place_htp, study_htp, wide_nodes
from edgeopt.steps.quantize.search.attempt import Attempt
from edgeopt.system.declared.target import Target
from edgeopt.system.text import plural

LEAST_AGREEMENT = 0.85
_THRESHOLDS_DB = (float("-inf"), 10.0, 16.0, 22.0)
"""Tensors below it get U16; the decoding tail always does: there 8 bits make ties of scores."""


def search_htp(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    target: Target,
    *,
    agreement: Callable[[Model], float],
    least_agreement: float = LEAST_AGREEMENT,
    progress: Callable[[int], None] | None = None,
    on_attempt: Callable[[Attempt], None] | None = None,
) -> tuple[Attempt, ...]:
    """Return the attempts worth simulating: the cheapest that agrees, then the dearer ones, dearest last.

    Args:
        model: The float model, adapted to the target.
        calibration_inputs: Real model inputs, one image each; read once.
        target: Its precisions say which forms there are.
        agreement: Of a model with the float one, 0 to 1, without labels.
        least_agreement: What an attempt must reach to lead.
        progress: Called with the number of calibration images done.
        on_attempt: Called with each attempt as soon as it is judged.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite.
        EdgeoptError: If there are no calibration images.
    """
    findings = study_htp(model, calibration_inputs, target, progress=progress)
    attempts: list[Attempt] = []

    def add(attempt: Attempt) -> None:
        attempts.append(attempt)
        if on_attempt:
            on_attempt(attempt)

    if "w8a8" in target.precisions:
        for least_db in _THRESHOLDS_DB:
            outcome = place_htp(model, findings, target, wide_nodes(model, findings, target, least_db))
            add(_attempt(outcome, agreement(outcome.model), findings.notes))
            if attempts[-1].agreement >= least_agreement:
                break
    if "w8a16" in target.precisions:
        outcome = place_htp(model, findings, target, None)
        add(_attempt(outcome, agreement(outcome.model), findings.notes))
    if "fp16" in target.precisions:
        add(Attempt("fp16", Outcome(model, {}), 1.0, precision="fp16"))
    agreeing = [other for other in attempts if other.agreement >= least_agreement]
    return tuple(agreeing or sorted(attempts, key=lambda other: -other.agreement))


def _attempt(outcome: Outcome, agreement: float, notes: tuple[Note, ...]) -> Attempt:
    narrow, wide = (outcome.changes.get(f"nodes on {word}", 0) for word in ("U8", "U16"))
    share = wide / max(narrow + wide, 1)
    name = "w8a16" if not narrow else f"w8a8 with {plural(wide, 'node')} on U16" if wide else "w8a8"
    result = outcome.noted(Note(NoteKind.INFO, f"form: {name}"), *notes)
    return Attempt(name, result, agreement, precision="w8a8" if share <= 0.5 else "w8a16")
