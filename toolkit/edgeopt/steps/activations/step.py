"""The step `activations`: smooth functions replaced by what an engine computes inside the layer before them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter_ns

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.runtime.devices.availability import is_by_rule, is_compiled
from edgeopt.steps._context import CALIBRATION, Context, Engine, Setting, agreement_on_processor, numbered, out_of_time
from edgeopt.steps.activations.fit import Fitted, fit_all, keep_worst, place
from edgeopt.steps.activations.forms import ActivationForm, all_forms
from edgeopt.steps.activations.sites import Sites, find_sites
from edgeopt.steps.prune.integer_layers import integer_model
from edgeopt.steps.quantize.calibration.calibrate import Observation, calibrate
from edgeopt.steps.quantize.judges import own_clock
from edgeopt.steps.quantize.patterns import name_of
from edgeopt.system.toml import read_json

CHOICE = "activations.json"
"""File beside each candidate, from which another run makes the same."""
_PICTURES = 64
_SHARES = (0.1, 0.2, 0.3, 0.5)
"""Shares of all numbers that activations compute, in a candidate that keeps those that lose most."""
_SECONDS, _BLOCK = 1.5, 3
_QUICK_PICTURES = 4
"""Pictures that calibrate an integer model which is timed and not kept."""
_INTEGERS = "w8a8"
_LEAST = 1.02
"""A ratio below it is no gain."""
_LEAST_LIKE = 0.1
"""Agreement of the model that is changed with the original, below which it is no measure."""
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Replacement:
    """The replacements that one candidate is made of."""

    form: str
    share: float
    """Share of the numbers that stay as they were."""


@dataclass(frozen=True, slots=True)
class _Gain:
    """The time that a form saves where all activations have it."""

    engine: str
    precision: str
    ratio: Ratio


def replace_activations(model: Model, context: Context, setting: Setting) -> list[Outcome]:
    """Return models with cheaper activations, the mildest first; the model itself where there is nothing to gain.

    Args:
        model: The float model, with fixed shapes.
        context: Its pictures fit and judge, its engines time.
        setting: What the candidates are called.
    """
    sites = find_sites(Graph.from_model(model))
    if not sites.sites:
        return [Outcome(model, {}, _refusals(sites))]
    if is_by_rule(context.target) or is_compiled(context.target) or context.target.why_untimed():
        text = f"no activations: {context.target.name} is not here to be timed, and what costs accuracy must be faster"
        context.notes.append(Note(NoteKind.SKIPPED, text))
        return []
    seen = _seen(model, context, sites)
    if context.replay:
        return _made_again(model, context, setting, seen)
    made, notes = list[tuple[float, Outcome, Replacement]](), list(_refusals(sites))
    like_dense = agreement_on_processor(context, model)
    for form in all_forms().values():
        if context.searches_end <= perf_counter_ns() / 1e9:
            context.notes.append(out_of_time("activations"))
            break
        engines = [
            other for other in (context.engine, *context.alternatives) if form.op in other.target.fused_activations
        ]
        if not engines or not _fits(model, form):
            continue
        fitted = fit_all(Graph.from_model(model), seen, form)
        fastest = place(model, fitted, form)
        gains = [gain for engine in engines for gain in _gains(model, fastest, engine, context)]
        best = max(gains, key=lambda other: other.ratio.low, default=None)
        if best is None or best.ratio.low < _LEAST:
            speed = f"; the best: {_spoken(best)}" if best else ""
            notes.append(Note(NoteKind.INFO, f"{form.name} in place of {_kinds(sites)} is no faster{speed}"))
            continue
        made += _candidates(model, context, form, fitted, best, like_dense)
    made.sort(key=lambda entry: entry[0])
    for i, (_, _, choice) in enumerate(made):
        _write(context, setting, i, choice)
    if not made:
        return [Outcome(model, {}, tuple(notes))]
    context.notes += notes
    return [outcome for _, outcome, _ in made]


def _fits(model: Model, form: ActivationForm) -> bool:
    return Graph.from_model(model).opset >= form.opset


def _seen(model: Model, context: Context, found: Sites) -> Mapping[str, Observation]:
    frames = context.frames.spread(_PICTURES)
    task = context.task(model, evaluating=True)
    return calibrate(
        model,
        model_inputs(task, frames),
        {name_of(site.x): site.axis for site in found.sites},
        threads=context.threads,
        seed=context.seed,
        progress=lambda done: context.listener.progress("watch activations", done, len(frames)),
        cache=context.files.path(CALIBRATION),
    ).observations


def _candidates(
    model: Model, context: Context, form: ActivationForm, fitted: Sequence[Fitted], gain: _Gain, like_dense: float
) -> list[tuple[float, Outcome, Replacement]]:
    """Return the model with all of them replaced and, where its answers differ, with as many as it takes to agree.

    What the model itself agrees less than the original, as one for smaller pictures does, is not held against it.
    """
    made = list[tuple[float, Outcome, Replacement]]()
    for share in (0.0, *_SHARES):
        chosen = keep_worst(fitted, share)
        if not chosen:
            break
        changed = place(model, chosen, form)
        agreement = min(agreement_on_processor(context, changed) / max(like_dense, _LEAST_LIKE), 1.0)
        replaced = sum(one.elements for one in chosen) / sum(one.elements for one in fitted)
        speed = 1 / (1 - replaced * (1 - 1 / gain.ratio.speedup))
        text = f"~{speed:.2f}x  agrees {agreement:.3f}  {len(chosen)} of {len(fitted)} activations as {form.name}"
        context.listener.say(f"  {text}")
        is_alike = agreement >= context.least_agreement
        if is_alike or not made:
            notes = (_note(form, chosen, fitted), Note(NoteKind.INFO, f"all of them: {_spoken(gain)}"))
            made.append((speed, Outcome(changed, {form.name: len(chosen)}, notes), Replacement(form.name, share)))
        if (is_alike and len(made) > 1) or agreement > _enough(context):
            break
    return made


def _enough(context: Context) -> float:
    """Return the agreement above which nothing more is kept: half way between what must be and the same answers."""
    return (1 + context.least_agreement) / 2


def _made_again(model: Model, context: Context, setting: Setting, seen: Mapping[str, Observation]) -> list[Outcome]:
    """Return what an earlier run made: nothing is timed."""
    assert context.replay is not None
    made, fits, known = list[Outcome](), dict[str, tuple[Fitted, ...]](), all_forms()
    folder = context.replay.source / "candidates"
    while (path := folder / numbered(setting.name, len(made)) / CHOICE).is_file():
        stored = read_json(path, remedy="leave --replay out")
        if stored.get("form") not in known or not isinstance(stored.get("share"), float):
            raise EdgeoptError(f"{path} does not say what was made", remedy="leave --replay out")
        choice, form = Replacement(stored["form"], stored["share"]), known[stored["form"]]
        if choice.form not in fits:
            fits[choice.form] = fit_all(Graph.from_model(model), seen, form)
        chosen = keep_worst(fits[choice.form], choice.share)
        note = _note(form, chosen, fits[choice.form])
        made.append(Outcome(place(model, chosen, form), {form.name: len(chosen)}, (note,)))
        _write(context, setting, len(made) - 1, choice)
    return made


def _write(context: Context, setting: Setting, position: int, choice: Replacement) -> None:
    context.files.write(f"candidates/{numbered(setting.name, position)}/{CHOICE}", json.dumps(asdict(choice)) + "\n")


def _gains(model: Model, changed: Model, engine: Engine, context: Context) -> list[_Gain]:
    """Time a model against the one it was made of, in each float precision that the engine has here, and in INT8.

    On integers only where a later step makes such models: quick forms are compared, fit to be timed and not to be kept.
    """
    gains, few = list[_Gain](), context.inputs(_QUICK_PICTURES, model)
    known = [other for other in engine.target.precisions if not engine.target.why_no_precision(other)]
    floats = [name for name in known if name.startswith(("fp", "bf"))]
    integers = [name for name in known if name.startswith(_INTEGERS)] if context.quantizes else []
    quick = [integer_model(other, few, engine.target) for other in (model, changed) if integers]
    if quick and (quick[0] is model or quick[1] is changed):  # what cannot be quantized will run in float
        integers = []
    for precision in (*floats, *integers):
        pair = quick if precision in integers else (model, changed)
        sessions = [engine.open(other, precision) for other in pair]
        try:
            runs = dict(zip(("model", "changed"), (call_of(session, few[0]) for session in sessions), strict=True))
            clock = own_clock(engine.target, engine.threads)
            ratio = compare_calls(runs, baseline="model", seconds=_SECONDS, block=_BLOCK, clock=clock)["changed"]
        finally:
            for one in sessions:
                one.close()
        gains.append(_Gain(engine.target.name, precision, ratio))
    return gains


def _spoken(gain: _Gain) -> str:
    return f"{gain.ratio} on {gain.engine} in {gain.precision}"


def _kinds(found: Sites) -> str:
    return " and ".join(dict.fromkeys(site.kind for site in found.sites))


def _note(form: ActivationForm, chosen: Sequence[Fitted], fitted: Sequence[Fitted]) -> Note:
    worst = sorted(chosen, key=lambda other: (-other.noise, other.name))[:_SHOWN]
    coarse = ", ".join(f"{other.name!r} {other.noise:.1%}" for other in worst)
    text = f"{len(chosen)} of {len(fitted)} activations computed as {form.name}, fitted to each channel"
    return Note(NoteKind.CHOICE, text, f"coarsest, error over signal: {coarse}; finetune wins back what it costs")


def _refusals(found: Sites) -> tuple[Note, ...]:
    reasons: dict[str, list[str]] = {}
    for name, reason in found.refused:
        reasons.setdefault(reason, []).append(name)
    return tuple(
        Note(NoteKind.INFO, f"{len(names)} activations stay as they are: {reason}", names=tuple(names))
        for reason, names in sorted(reasons.items())
    )
