"""The step `quantize`: the search for an INT8 form, given this run's own judges of agreement and speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model, save_model, weights_beside
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.measurement.opening.buffers import Buffers
from edgeopt.runtime.devices.availability import is_by_rule
from edgeopt.steps._attention import fuse_attention, joins_attention
from edgeopt.steps._context import CALIBRATION, Context, Earlier, Setting, numbered
from edgeopt.steps._device_times.device import form_times_of
from edgeopt.steps._device_times.form_times import FormTimes
from edgeopt.steps.quantize.api import Form
from edgeopt.steps.quantize.by_rule import quantize_by_rule
from edgeopt.steps.quantize.calibration.pictures import CALIBRATION_PICTURES
from edgeopt.steps.quantize.inspection.engine_fusion import fusion_notes
from edgeopt.steps.quantize.inspection.table import TENSORS, tensors_json
from edgeopt.steps.quantize.integer_types import confirmed_rules
from edgeopt.steps.quantize.judges import TIMED_PICTURES, Judge, own_clock
from edgeopt.steps.quantize.keep_float.layer_times import LayerTimes, time_layers
from edgeopt.steps.quantize.search.attempt import Attempt, SearchResult, for_labels, ranked
from edgeopt.steps.quantize.search.decisions_file import DECISIONS, StoredDecisions, read_decisions
from edgeopt.steps.quantize.search.search import LEAST_IMAGES, search_int8
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.amounts import Tenths
from edgeopt.system.machine.environment import package_versions
from edgeopt.system.processes.time_limit import LONGER, paced
from edgeopt.system.text import plural

_MOST_SECONDS = 180.0
_LONGER_ALONE = "edgeopt quantize --time-limit 10m searches longer"
"""Remedy where a search took the most seconds that it may take in this step: more time for the run gives it no more."""
_DRAFT = "best-so-far.onnx"
"""Name of the file that an interrupt of the search leaves."""
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
    search = open_search(model, context, setting, *_seconds(context, setting))
    searched = search.end(search.find())
    result, kept = searched.found, for_labels(searched.found.attempts, setting.most)
    if result.calibration is not None:
        context.calibrations[searched.model.fingerprint] = result.calibration
    speeds = [attempt.speed_ratio or 0.0 for attempt in result.attempts if attempt.is_valid(context.least_agreement)]
    context.int8_speeds[setting.engine.target.name] = max(speeds, default=0.0)
    context.files.write(f"candidates/{setting.name}/{TENSORS}", tensors_json(result))
    context.notes += result.why_none
    return _kept(context, searched, kept, setting)


def make_like(model: Model, context: Context, setting: Setting, like: Sequence[str]) -> list[Outcome]:
    """Return INT8 forms of a float model, made as candidates of another one were that has the same operators.

    Layers, form, repairs and the way to choose ranges are theirs; ranges and weights are this model's own.

    Args:
        model: The float model, opset 13 or later.
        context: See `make_int8`.
        setting: See `make_int8`.
        like: Names of the candidates.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite.
    """
    if is_by_rule(context.target):
        return quantize_by_rule(context, model)
    files = [context.files.path(f"candidates/{name}/{DECISIONS}") for name in like]
    variants = [read_decisions(file).decisions.variant for file in files if file.is_file()]
    if not variants:
        return []
    search = open_search(model, context, setting, *_seconds(context, setting), like=variants)
    searched = search.end(search.find())
    if searched.found.calibration is not None:
        context.calibrations[searched.model.fingerprint] = searched.found.calibration
    return _kept(context, searched, searched.found.attempts, setting, Note(NoteKind.INFO, f"made like {like[0]}"))


def _seconds(context: Context, setting: Setting) -> tuple[float, str]:
    """Return how many seconds a search may take, and what to do for a longer one."""
    seconds = context.search_seconds(setting.engine)
    return (seconds, LONGER) if seconds < _MOST_SECONDS else (_MOST_SECONDS, _LONGER_ALONE)


def _kept(
    context: Context, searched: Searched, kept: Sequence[Attempt], setting: Setting, *more: Note
) -> list[Outcome]:
    """Return attempts as outcomes; what decided each is written beside it."""
    for i, attempt in enumerate(kept):
        if decided := searched.decided(context, attempt):
            context.files.write(_decisions_file(setting, i), decided.to_json())
    return [_with_notes(attempt, (*more, *searched.found.notes), searched.options, setting) for attempt in kept]


@dataclass(frozen=True, slots=True)
class Searched:
    """The result of one search, and how its forms are made and opened."""

    found: SearchResult
    model: Model
    """The float model that was quantized."""
    is_joined: bool
    """Whether attentions were joined in it first, since that was faster."""
    options: Mapping[str, str]
    """Session entries with which forms run fastest, beyond the target's."""

    def decided(self, context: Context, attempt: Attempt) -> StoredDecisions | None:
        """Return what decided an attempt, so that another run can make the same; None where the search tells nothing.

        Args:
            context: Of the run.
            attempt: Of the attempts.
        """
        if attempt.decisions is None:
            return None
        evidence = {
            "attempts": [[attempt.name, attempt.speed_ratio, attempt.agreement] for attempt in self.found.attempts],
            "layer_times": self.found.times,
            "images": self.found.calibration.images if self.found.calibration else 0,
        }
        return StoredDecisions(
            decisions=attempt.decisions,
            original=context.original.fingerprint,
            float_model=self.model.fingerprint,
            calibration=context.calibration_fingerprint,
            made=attempt.outcome.model.fingerprint,
            is_joined=self.is_joined,
            options=dict(self.options),
            packages=package_versions(),
            reason=attempt.reason,
            notes=tuple(dict.fromkeys((*self.found.notes, *attempt.outcome.notes))),
            evidence=evidence,
        )


@dataclass(frozen=True, slots=True)
class OpenSearch:
    """A search that is ready to run: its judges are open."""

    find: Callable[[], SearchResult]
    """Run it."""
    end: Callable[[SearchResult], Searched]
    """Close the judges, and tell what was found and how it is opened."""


def open_search(
    model: Model,
    context: Context,
    setting: Setting,
    time_limit_s: float,
    longer: str = LONGER,
    like: Sequence[Variant] = (),
) -> OpenSearch:
    """Prepare a search for INT8 forms of a float model; the best so far is on disk as soon as it is known.

    Args:
        model: The float model, opset 13 or later.
        context: Its pictures calibrate, its original judges agreement.
        setting: Whose rules hold, and where speed is judged.
        time_limit_s: For calibration and attempts.
        longer: What to do for a search that ran out of time.
        like: The only variants to make; none: those that the search proposes.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite.
    """
    engine = setting.engine
    rules, measured = confirmed_rules(engine.target)
    pictures = context.frames.spread(CALIBRATION_PICTURES)
    tried, draft, began_s = list[Attempt](), f"candidates/{setting.name}/{_DRAFT}", monotonic()

    def attempted(attempt: Attempt) -> None:
        tried.append(attempt)
        leads = ranked(tried, context.least_agreement)[0] is attempt and attempt.is_valid(context.least_agreement)
        if leads:
            save_model(attempt.outcome.model, context.files.path(draft))
        speed = "" if attempt.speed_ratio is None else f"~{attempt.speed_ratio:.2f}x  "
        context.listener.say(f"  {'*' if leads else ' '} {speed}agrees {attempt.agreement:.3f}  {attempt.name}")
        if math.isfinite(time_limit_s):
            spent_s = min(monotonic() - began_s, time_limit_s)
            context.listener.progress("search at most", int(10 * spent_s), Tenths(math.ceil(10 * time_limit_s)))

    away = form_times_of(model, engine.target, setting.precision)
    why = "" if away else context.target.why_untimed()
    if why:
        context.listener.say(f"no form is timed, they are ranked by agreement: {why}")
    buffers = Buffers(engine.target, engine.threads, context.inputs(1, model)[0])
    judge = _judge(context, model, setting, buffers)

    def speed(candidate: Model) -> float:
        buffers.choose(candidate)
        return judge.speed(candidate)

    is_joined = False
    if joins_attention(engine.target) and not why:
        joined = fuse_attention(model, context.checked_inputs(model))
        is_joined = bool(joined.changes) and judge.speed(joined.model) > _FASTER
        model = joined.model if is_joined else model
        away = form_times_of(model, engine.target, setting.precision) if is_joined else away

    def end(result: SearchResult) -> Searched:
        judge.close()
        for file in (context.files.path(draft), weights_beside(context.files.path(draft))):
            file.unlink(missing_ok=True)
        # not among the notes of its decisions: a replay has no time limit
        context.notes.extend(_read_few(result, len(pictures), context, longer))
        return Searched(replace(result, notes=(*measured, *result.notes)), model, is_joined, dict(buffers.entries))

    find = partial(
        search_int8,
        model,
        _inputs(context, model),
        rules,
        agreement=judge.agreement,
        speed=None if why else away.speed if away else speed,
        layer_timer=partial(_predicted_times, away) if away else time_layers,
        forms=tuple(Form(form) for form in rules.forms),
        threads=context.threads,
        least_agreement=context.least_agreement,
        time_limit_s=time_limit_s,
        progress=paced(
            partial(context.listener.progress, "calibrate", of=len(pictures)), min(LEAST_IMAGES, len(pictures))
        ),
        on_attempt=attempted,
        cache=context.files.path(CALIBRATION),
        known=context.calibrations.get(model.fingerprint),
        seed=context.seed,
        like=like,
        least_speed=setting.least_speed,
        longer=longer,
    )
    return OpenSearch(find, end)


def _read_few(result: SearchResult, of: int, context: Context, longer: str) -> list[Note]:
    """Return a note where the time of the search ended calibration before all pictures were read."""
    seen = result.calibration
    if seen is None or seen.images >= of:
        return []
    detail = f"calibrated on {seen.images} of {plural(of, context.frames.kind)}: the time for the search left no more"
    return [Note(NoteKind.INFO, detail, longer)]


def _predicted_times(away: FormTimes, _: Model, form: Model, _frame: Tensors, _threads: int) -> LayerTimes:
    return away.layer_times(form)


def make_again(model: Model, context: Context, decided: StoredDecisions, source: str) -> Outcome:
    """Return the INT8 form that an earlier run decided on, to the last byte: nothing is calibrated, nothing timed.

    Args:
        model: The float model that this run made.
        context: Its pictures check that joined attentions compute the same.
        decided: By the earlier run.
        source: Its report, for notes and errors.

    Raises:
        EdgeoptError: If the float model or what is made of it is another one than it was.
    """
    if decided.is_joined:
        model = fuse_attention(model, context.checked_inputs(model)).model
    outcome = decided.outcome(model, source)
    notes = (Note(NoteKind.INFO, f"as {source} decided"), *decided.notes)
    return replace(outcome, options=decided.options, notes=(*notes, *outcome.notes))


def _made_again(context: Context, model: Model, setting: Setting, replay: Earlier) -> list[Outcome]:
    """Return all INT8 forms of an earlier run's search."""
    made = []
    for i, stored_decisions in enumerate(replay.of(setting.name)):
        outcome = make_again(model, context, stored_decisions, str(replay.source))
        context.files.write(_decisions_file(setting, i), stored_decisions.to_json())
        attempt = Attempt(str(stored_decisions.decisions.variant), outcome, 0.0, 0.0, stored_decisions.reason)
        made.append(_with_notes(attempt, (), stored_decisions.options, setting))
    if not made:
        context.notes.append(
            Note(NoteKind.SKIPPED, f"{replay.source} has no INT8 form for {setting.engine.target.name}")
        )
    return made


def _decisions_file(setting: Setting, position: int) -> str:
    return f"candidates/{numbered(setting.name, position)}/{DECISIONS}"


def _judge(context: Context, model: Model, setting: Setting, buffers: Buffers) -> Judge:
    """Return what compares INT8 models with the float one, and with the original's answers."""
    engine = setting.engine
    return Judge(
        model,
        lambda other: engine.with_options(buffers.entries).open(other, setting.precision),
        lambda other: context.task(other, evaluating=True),
        context.judged_pictures,
        context.inputs(TIMED_PICTURES, model),
        reference=context.reference,
        clock=own_clock(engine.target, engine.threads),
        one_open=model.is_outside,
        pool=context.pool,
        runnable=lambda other: context.runnable(other, engine.with_options(buffers.entries), setting.precision),
    )


def _with_notes(attempt: Attempt, notes: tuple[Note, ...], options: Mapping[str, str], setting: Setting) -> Outcome:
    """Return the outcome with what the search knows of it, and what the engine made of it."""
    outcome, engine = attempt.outcome, setting.engine
    form = Note(NoteKind.INFO, f"form: {attempt.name}")
    why = (Note(NoteKind.INFO, attempt.reason),) if attempt.reason else ()
    fused = fusion_notes(outcome.model, engine.target, engine.threads, options)
    result = tuple(dict.fromkeys((form, *why, *notes, *outcome.notes, *fused)))
    return replace(outcome, notes=result, options=dict(options))


def _inputs(context: Context, model: Model) -> Iterator[Tensors]:
    task = context.task(model, evaluating=True)
    return model_inputs(task, context.frames.spread(CALIBRATION_PICTURES))
