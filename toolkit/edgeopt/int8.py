"""The step `quantize`: the search for an INT8 form, given this run's own judges of agreement and speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgeopt.attention import fuse_attention, joins_attention
from edgeopt.buffer_choice import Buffers
from edgeopt.errors import Note, NoteKind
from edgeopt.evaluate import model_inputs
from edgeopt.judge import TIMED_PICTURES, Judge, own_clock
from edgeopt.model import Model
from edgeopt.outcome import Outcome
from edgeopt.quantization.attempt import Attempt, for_labels, ranked
from edgeopt.quantization.data_types import confirmed_rules
from edgeopt.quantization.found import Found
from edgeopt.quantization.fusion import fusion_notes
from edgeopt.quantization.quantize import Form
from edgeopt.quantization.search import search_int8
from edgeopt.quantization.tensor_table import TENSORS, tensors_json
from edgeopt.tensors import Tensors
from edgeopt.trial import AGREEMENT_PICTURES, CALIBRATION, CALIBRATION_PICTURES, CHECKED_PICTURES, Setting, Trial

_MOST_KEPT = 3
"""Attempts that go on to the labels: the fastest by agreement may still lose too much of the metric."""
_MOST_SECONDS = 180.0
_DRAFT = "best-so-far.onnx"
"""What an interrupt of the search leaves."""
_FASTER = 1.02
"""A ratio below it is the noise of one comparison."""


def make_int8(run: Trial, model: Model, setting: Setting | None = None, most: int = _MOST_KEPT) -> list[Outcome]:
    """Return INT8 forms of a float model, the most promising first.

    Args:
        run: Its pictures calibrate, its original judges agreement, its plan limits the time.
        model: The float model, opset 13 or later.
        setting: Whose rules hold, and where speed is judged against float of the same arithmetic; None: the
            target's own engine.
        most: How many.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite.
    """
    setting = setting or Setting(run.engine, "w8a8")
    rules, measured = confirmed_rules(setting.engine.target)
    pictures = run.frames.spread(CALIBRATION_PICTURES)

    def calibrated(done: int) -> None:
        run.listener.progress("calibrate", done, len(pictures))

    tried, draft = list[Attempt](), f"candidates/{_candidate(run, setting)}/{_DRAFT}"

    def attempted(one: Attempt) -> None:
        run.listener.say(f"  {one.name}: {one.speed_ratio:.2f}x the float model, agreement {one.agreement:.3f}")
        tried.append(one)
        if ranked(tried, run.least_agreement)[0] is one and one.is_valid(run.least_agreement):
            run.workspace.write(draft, one.outcome.model.data)

    buffers = Buffers(setting.engine.target, setting.engine.threads, run.inputs(1, model)[0])
    with_float = _judge(run, model, setting, buffers)

    def speed(candidate: Model) -> float:
        buffers.choose(candidate)
        return with_float.speed(candidate)

    if joins_attention(setting.engine.target):
        joined = fuse_attention(model, run.inputs(CHECKED_PICTURES))
        model = joined.model if joined.changes and with_float.speed(joined.model) > _FASTER else model
    found = search_int8(
        model,
        _inputs(run, model),
        rules,
        agreement=with_float.agreement,
        speed=speed,
        forms=tuple(Form(one) for one in rules.forms),
        threads=run.plan.threads,
        least_agreement=run.least_agreement,
        time_budget_s=min(_MOST_SECONDS, run.search_seconds(setting.engine)),
        progress=calibrated,
        on_attempt=attempted,
        cache=run.workspace.path(CALIBRATION),
        known=run.calibrations.get(model.fingerprint),
    )
    with_float.close()
    run.workspace.path(draft).unlink(missing_ok=True)
    return _told(run, model, setting, replace(found, notes=(*measured, *found.notes)), buffers, most)


def _judge(run: Trial, model: Model, setting: Setting, buffers: Buffers) -> Judge:
    """Return what compares INT8 models with the float one, and with the original's answers."""
    return Judge(
        model,
        lambda one: setting.engine.with_options(buffers.entries).open(one, setting.precision),
        lambda one: run.task(one, evaluating=True),
        run.pictures.spread(AGREEMENT_PICTURES),
        run.inputs(TIMED_PICTURES),
        reference=run.reference,
        clock=own_clock(setting.engine.target, setting.engine.threads),
    )


def _told(run: Trial, model: Model, setting: Setting, found: Found, buffers: Buffers, most: int) -> list[Outcome]:
    """Return the attempts that go on to the labels; keep what is known of tensors, on disk and for the next engine."""
    if found.calibration is not None:
        run.calibrations[model.fingerprint] = found.calibration
    run.workspace.write(f"candidates/{_candidate(run, setting)}/{TENSORS}", tensors_json(found))
    run.notes += found.why_none
    kept = for_labels(found.attempts, most)
    opened = [replace(one, outcome=replace(one.outcome, options=buffers.entries)) for one in kept]
    return [_with_notes(one, found.notes, setting) for one in opened]


def _candidate(run: Trial, setting: Setting) -> str:
    """Return the name of the first candidate that is made of this search."""
    if setting.engine is run.engine:
        return "quantize"
    return f"{setting.engine.target.executor}-{setting.precision.partition('+')[0]}"


def _with_notes(attempt: Attempt, notes: tuple[Note, ...], setting: Setting) -> Outcome:
    """Return the outcome with what the search knows of it, and what the engine made of it."""
    outcome, engine = attempt.outcome, setting.engine
    form = Note(NoteKind.INFO, f"form: {attempt.name}")
    why = (Note(NoteKind.INFO, attempt.reason),) if attempt.reason else ()
    fused = fusion_notes(outcome.model, engine.target, engine.threads, outcome.options)
    return replace(outcome, notes=tuple(dict.fromkeys((form, *why, *notes, *outcome.notes, *fused))))


def _inputs(run: Trial, model: Model) -> Iterator[Tensors]:
    task = run.task(model, evaluating=True)
    return model_inputs(task, run.frames.spread(CALIBRATION_PICTURES))
