"""INT8 forms by the rules of a target whose toolchain cannot run here: nothing is timed, nothing compiled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.steps._context import Context, agreement_on_processor
from edgeopt.steps.quantize.api import Form
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.steps.quantize.search.search import search_int8

_AS_GOOD_AS_FLOAT = 0.97
"""Below it the search keeps trying: nothing is lost by it where no time is measured."""
_MOST_KEPT, _MOST_SECONDS = 2, 120.0


def quantize_by_rule(context: Context, model: Model) -> list[Outcome]:
    """Return INT8 forms by the target's rules, those first that agree best with the float model.

    No time is measured: this machine's would be another device's.
    """
    rules = context.target.int8
    pictures = context.frames.spread(CALIBRATION_PICTURES)

    def tell(done: int) -> None:
        context.listener.progress("calibrate", done, len(pictures))

    result = search_int8(
        model,
        model_inputs(context.task(model, evaluating=True), pictures),
        rules,
        agreement=partial(agreement_on_processor, context),
        speed=None,
        forms=(Form(rules.forms[0]),),
        least_agreement=_AS_GOOD_AS_FLOAT,
        time_limit_s=min(_MOST_SECONDS, context.search_seconds(context.engine)),
        progress=tell,
        seed=context.seed,
        on_attempt=lambda attempt: context.listener.say(f"  {attempt.name}: agreement {attempt.agreement:.3f}"),
    )
    context.notes += result.why_none
    best = sorted(result.attempts, key=lambda attempt: -attempt.agreement)[:_MOST_KEPT]
    return [
        replace(attempt.outcome, notes=(Note(NoteKind.INFO, f"form: {attempt.name}"), *attempt.outcome.notes))
        for attempt in best
    ]
