"""The step `quantize`: the search for an INT8 form, given this run's own judges of agreement and speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.measurement.session_tuning import Buffers
from edgeopt.runtime.availability import is_by_rule
from edgeopt.steps._attention import fuse_attention, joins_attention
from edgeopt.steps._context import (
    AGREEMENT_PICTURES,
    CALIBRATION,
    CALIBRATION_PICTURES,
    CHECKED_PICTURES,
    Context,
    Earlier,
    Setting,
    numbered,
)
from edgeopt.steps.compile._without_toolchain import quantize_by_rule
from edgeopt.steps.quantize.api import Form
from edgeopt.steps.quantize.inspection.engine_fusion import fusion_notes
from edgeopt.steps.quantize.inspection.table import TENSORS, tensors_json
from edgeopt.steps.quantize.integer_types import confirmed_rules
from edgeopt.steps.quantize.judges import TIMED_PICTURES, Judge, own_clock
from edgeopt.steps.quantize.search.attempt import Attempt, SearchResult, for_labels, ranked
from edgeopt.steps.quantize.search.decided import DECISIONS, Decided
from edgeopt.steps.quantize.search.search import search_int8
from edgeopt.system.environment import package_versions

_MOST_SECONDS = 180.0
_DRAFT = "best-so-far.onnx"
"""What an interrupt of the search leaves."""
_FASTER = 1.02
"""A ratio below it is the noise of one comparison."""


def make_int8(model: Model, context: Context, setting: Setting) -> list[Outcome]:
    """Return INT8 forms of a float model, the most promising first.

    Args:
        model: The float model, opset 13 or later.
        context: Its pictures calibrate, its original judges agreement, its plan limits the time.
        setting: Whose rules hold, and where speed is judged against float of the same arithmetic.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite.
    """
    if is_by_rule(context.target):
        return quantize_by_rule(context, model)
    if context.replay:
        return _made_again(context, model, setting, context.replay)
    rules, measured = confirmed_rules(setting.engine.target)
    pictures = context.frames.spread(CALIBRATION_PICTURES)

    def calibrated(done: int) -> None:
        context.listener.progress("calibrate", done, len(pictures))

    tried, draft = list[Attempt](), f"candidates/{setting.name}/{_DRAFT}"

    def attempted(one: Attempt) -> None:
        told = f"estimated {one.speed_ratio:.2f}x the float model, agreement {one.agreement:.3f}"
        context.listener.say(f"  {one.name}: {told}")
        tried.append(one)
        if ranked(tried, context.least_agreement)[0] is one and one.is_valid(context.least_agreement):
            context.files.write(draft, one.outcome.model.data)

    buffers = Buffers(setting.engine.target, setting.engine.threads, context.inputs(1, model)[0])
    with_float = _judge(context, model, setting, buffers)

    def speed(candidate: Model) -> float:
        buffers.choose(candidate)
        return with_float.speed(candidate)

    is_joined = False
    if joins_attention(setting.engine.target):
        joined = fuse_attention(model, context.inputs(CHECKED_PICTURES))
        model = joined.model if joined.changes and with_float.speed(joined.model) > _FASTER else model
        is_joined = model is joined.model
    found = search_int8(
        model,
        _inputs(context, model),
        rules,
        agreement=with_float.agreement,
        speed=speed,
        forms=tuple(Form(one) for one in rules.forms),
        threads=context.threads,
        least_agreement=context.least_agreement,
        time_budget_s=min(_MOST_SECONDS, context.search_seconds(setting.engine)),
        progress=calibrated,
        on_attempt=attempted,
        cache=context.files.path(CALIBRATION),
        known=context.calibrations.get(model.fingerprint),
    )
    with_float.close()
    context.files.path(draft).unlink(missing_ok=True)
    found = replace(found, notes=(*measured, *found.notes))
    _keep_decisions(
        context, model, setting, found, buffers, for_labels(found.attempts, setting.most), is_joined=is_joined
    )
    return _told(context, model, setting, found, buffers)


def _keep_decisions(
    context: Context,
    model: Model,
    setting: Setting,
    found: SearchResult,
    buffers: Buffers,
    kept: Sequence[Attempt],
    *,
    is_joined: bool,
) -> None:
    """Write what decided each candidate beside it, so that another run can make the same."""
    evidence = {
        "attempts": [[one.name, one.speed_ratio, one.agreement] for one in found.attempts],
        "layer_times": found.times,
        "images": found.calibration.images if found.calibration else 0,
        "notes": [note.detail for note in found.notes],
    }
    for i, one in enumerate(kept):
        if one.decisions is not None:
            decided = Decided(
                decisions=one.decisions,
                original=context.original.fingerprint,
                float_model=model.fingerprint,
                calibration=context.calibration_fingerprint,
                made=one.outcome.model.fingerprint,
                is_joined=is_joined,
                options=dict(buffers.entries),
                packages=package_versions(),
                evidence=evidence,
            )
            context.files.write(_decisions_file(setting, i), decided.to_json())


def _decisions_file(setting: Setting, position: int) -> str:
    return f"candidates/{numbered(setting.name, position)}/{DECISIONS}"


def _made_again(context: Context, model: Model, setting: Setting, replay: Earlier) -> list[Outcome]:
    """Return the INT8 forms of an earlier run, to the last byte: nothing is calibrated, nothing timed."""
    made = []
    for i, one in enumerate(replay.of(setting.name)):
        source = fuse_attention(model, context.inputs(CHECKED_PICTURES)).model if one.is_joined else model
        outcome = one.outcome(source, str(replay.source))
        context.files.write(_decisions_file(setting, i), one.to_json())
        told = Attempt(str(one.decisions.variant), replace(outcome, options=one.options), 0.0, 0.0)
        made.append(_with_notes(told, (Note(NoteKind.INFO, f"as {replay.source} decided"),), setting))
    if not made:
        context.notes.append(
            Note(NoteKind.SKIPPED, f"{replay.source} has no INT8 form for {setting.engine.target.name}")
        )
    return made


def _judge(context: Context, model: Model, setting: Setting, buffers: Buffers) -> Judge:
    """Return what compares INT8 models with the float one, and with the original's answers."""
    return Judge(
        model,
        lambda one: setting.engine.with_options(buffers.entries).open(one, setting.precision),
        lambda one: context.task(one, evaluating=True),
        context.pictures.judged(AGREEMENT_PICTURES),
        context.inputs(TIMED_PICTURES),
        reference=context.reference,
        clock=own_clock(setting.engine.target, setting.engine.threads),
    )


def _told(context: Context, model: Model, setting: Setting, found: SearchResult, buffers: Buffers) -> list[Outcome]:
    """Return the attempts that go on to the labels; keep what is known of tensors, on disk and for the next engine."""
    if found.calibration is not None:
        context.calibrations[model.fingerprint] = found.calibration
    context.files.write(f"candidates/{setting.name}/{TENSORS}", tensors_json(found))
    context.notes += found.why_none
    kept = for_labels(found.attempts, setting.most)
    opened = [replace(one, outcome=replace(one.outcome, options=buffers.entries)) for one in kept]
    return [_with_notes(one, found.notes, setting) for one in opened]


def _with_notes(attempt: Attempt, notes: tuple[Note, ...], setting: Setting) -> Outcome:
    """Return the outcome with what the search knows of it, and what the engine made of it."""
    outcome, engine = attempt.outcome, setting.engine
    form = Note(NoteKind.INFO, f"form: {attempt.name}")
    why = (Note(NoteKind.INFO, attempt.reason),) if attempt.reason else ()
    fused = fusion_notes(outcome.model, engine.target, engine.threads, outcome.options)
    return replace(outcome, notes=tuple(dict.fromkeys((form, *why, *notes, *outcome.notes, *fused))))


def _inputs(context: Context, model: Model) -> Iterator[Tensors]:
    task = context.task(model, evaluating=True)
    return model_inputs(task, context.frames.spread(CALIBRATION_PICTURES))
