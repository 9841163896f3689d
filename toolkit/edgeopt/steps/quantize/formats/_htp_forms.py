"""Which tensors of a model get 16 bits on Qualcomm's HTP.

From cheap to dear: U8 everywhere but in the decoding tail, U16 around the tensors that U8 spoils most, then
around more of them, U16 everywhere, fp16. The first that agrees well enough with the float model leads; the
dearer ones stay as what the labels may prefer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.quantize.formats.htp import place_htp, study_htp, wide_nodes
from edgeopt.system.target import Target
from edgeopt.system.text import plural

LEAST_AGREEMENT = 0.85
_THRESHOLDS_DB = (float("-inf"), 10.0, 16.0, 22.0)
"""Tensors below it get U16; the decoding tail always does: there 8 bits make ties of scores."""


@dataclass(frozen=True, slots=True)
class HtpForm:
    """One way of writing the model for the NPU."""

    name: str
    precision: str
    """`w8a8` while most nodes have U8 activations, else `w8a16`; `fp16` for the float model itself."""
    outcome: Outcome
    agreement: float
    """With the float model, without labels, on the CPU: 1 is identical."""
    wide_ratio: float
    """Share of the nodes with U16 activations."""


def find_htp_forms(
    model: Model,
    calibration_inputs: Iterable[Tensors],
    target: Target,
    *,
    agreement: Callable[[Model], float],
    least_agreement: float = LEAST_AGREEMENT,
    progress: Callable[[int], None] | None = None,
    on_form: Callable[[HtpForm], None] | None = None,
) -> tuple[HtpForm, ...]:
    """Return the forms worth simulating: the cheapest that agrees, then the dearer ones, dearest last.

    Args:
        model: The float model, adapted to the target.
        calibration_inputs: Real model inputs, one image each; read once.
        target: Its precisions say which forms there are.
        agreement: Of a model with the float one, 0 to 1, without labels.
        least_agreement: What a form must reach to lead.
        progress: Called with the number of calibration images done.
        on_form: Called with each form as soon as it is judged.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite.
        EdgeoptError: If there are no calibration images.
    """
    findings = study_htp(model, calibration_inputs, target, progress=progress)
    found: list[HtpForm] = []

    def add(form: HtpForm) -> None:
        found.append(form)
        if on_form:
            on_form(form)

    if "w8a8" in target.precisions:
        for least_db in _THRESHOLDS_DB:
            outcome = place_htp(model, findings, target, wide_nodes(model, findings, target, least_db))
            add(_form(outcome, agreement(outcome.model), findings.notes))
            if found[-1].agreement >= least_agreement:
                break
    if "w8a16" in target.precisions:
        outcome = place_htp(model, findings, target, None)
        add(_form(outcome, agreement(outcome.model), findings.notes))
    if "fp16" in target.precisions:
        add(HtpForm("fp16", "fp16", Outcome(model, {}), 1.0, 0.0))
    agreeing = [one for one in found if one.agreement >= least_agreement]
    return tuple(agreeing or sorted(found, key=lambda one: -one.agreement))


def _form(outcome: Outcome, agreement: float, notes: tuple[Note, ...]) -> HtpForm:
    narrow, wide = (outcome.changes.get(f"nodes on {word}", 0) for word in ("U8", "U16"))
    share = wide / max(narrow + wide, 1)
    name = "w8a16" if not narrow else f"w8a8 with {plural(wide, 'node')} on U16" if wide else "w8a8"
    told = Outcome(outcome.model, outcome.changes, (Note(NoteKind.INFO, f"form: {name}"), *notes))
    return HtpForm(name, "w8a8" if share <= 0.5 else "w8a16", told, agreement, share)
