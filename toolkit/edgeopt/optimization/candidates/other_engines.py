"""Candidates of one device's other engines and arithmetics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.model import Model, load_model
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.candidates.failing_part import told_where_it_fails
from edgeopt.optimization.candidates.heavy_engines import is_tried, within_its_time
from edgeopt.optimization.candidates.rival_forms import Rival, like_which, make_alike, rival_name
from edgeopt.optimization.candidates.scoring import add_candidate
from edgeopt.optimization.folder.resume import finished_candidates, made_none, outcome_on_disk
from edgeopt.optimization.plan import all_steps
from edgeopt.optimization.run import Run
from edgeopt.steps._attention import fuse_attention, joins_attention
from edgeopt.steps._context import Context, Engine, Setting, numbered, out_of_time
from edgeopt.steps._in_float import in_float, may_round
from edgeopt.system.declared.target import Target
from edgeopt.system.processes.time_limit import limited

_MOST_KEPT = 2
"""INT8 models of one engine that go on to the labels."""
_ATTENTION, _FLOAT = "attention", "float"
_INTEGERS = "w"
"""Beginning of the schemes whose weights are integers: a step must make such a model."""
_ON_FOUND_GRIDS = ("litert", "executorch")
"""Engines that compute products on grids which are found as the model runs, where their profile names the form."""


def offer_engines(run: Run, dense: Rival, rival: Rival | None = None) -> None:
    """Make and score what the profiles of this device offer beside float32 and INT8 on the target's own engine.

    The forms of every engine that need no search come first, which take seconds, then the searches for INT8; engines
    whose conversions take long come last.

    Args:
        run: Its alternatives, and its own engine's further precisions.
        dense: The last float model of the line that kept its accuracy.
        rival: A model beside it, of which the same is made where that was done for the dense one; None: of that one.
    """
    model = (rival or dense).model
    if rival is None:
        with told_where_it_fails(run, "what runs in float in place of integers"):
            _offer_in_float(run, model, dense.candidate)
    engines = (run.context.engine, *run.context.alternatives)
    light = [engine for engine in engines if engine is run.context.engine or not engine.executor.heavy]
    offers = [(engine, _makers(run, engine)) for engine in light]
    for engine, makers in offers:
        with told_where_it_fails(run, f"what {engine.target.name} runs without a search"):
            _offer_unsearched(run, engine, makers, dense, rival)
    for engine, makers in offers:
        with told_where_it_fails(run, f"INT8 on {engine.target.name}"):
            _offer_integers(run, engine, makers, dense, rival)
    for engine in engines:
        if engine not in light and is_tried(run, engine, model):
            with told_where_it_fails(run, f"what {engine.target.name} runs"), within_its_time(run, engine):
                makers = _makers(run, engine)
                _offer_unsearched(run, engine, makers, dense, rival)
                _offer_integers(run, engine, makers, dense, rival)


def _makers(run: Run, engine: Engine) -> Mapping[str, str]:
    """Return the steps that make what the profile of an engine offers, by precision; empty: it runs any model so."""
    makers = {precision: _maker(precision, engine.target) for precision in _runnable(run, engine)}
    for precision in [name for name, step in makers.items() if not step and name.startswith(_INTEGERS)]:
        del makers[precision]
        why = f"no step makes it for {engine.target.executor}"
        is_unnamed = precision == "w8" and engine.target.executor in _ON_FOUND_GRIDS
        hint = 'forms = ["qdq", "dynamic"] in its profile' if is_unnamed else ""
        run.context.notes.append(Note(NoteKind.SKIPPED, f"no {precision} on {engine.target.name}: {why}", hint))
    if engine is run.context.engine:
        makers = {precision: name for precision, name in makers.items() if precision not in _made_in_line(run.context)}
    return makers


def _offer_unsearched(run: Run, engine: Engine, makers: Mapping[str, str], dense: Rival, rival: Rival | None) -> None:
    """Make and score what one engine offers without a search; steps by precision, empty: it runs any model so."""
    model, parent = (rival or dense).model, (rival or dense).candidate
    converted = {name: step for name, step in makers.items() if step in run.plan.steps}
    converted = {name: step for name, step in converted.items() if not run.plan.steps[step].in_line}
    joined, its_parent = _with_joined_attention(run, engine, model, parent, rival)
    for precision, name in converted.items():
        setting = Setting(engine, precision, _name(run, engine, precision, rival))
        _offer_converted(run, name, setting, joined, its_parent)
    as_it_is = [precision for precision, name in makers.items() if not name]
    _offer(run, engine, as_it_is, [Outcome(model, {})], parent, parent.steps, rival)


def _offer_integers(run: Run, engine: Engine, makers: Mapping[str, str], dense: Rival, rival: Rival | None) -> None:
    """Search and score INT8 forms for one engine, where its profile has any."""
    parent = (rival or dense).candidate
    searched = [name for name, step in makers.items() if step in run.plan.steps and run.plan.steps[step].in_line]
    if searched:
        step = makers[searched[0]]
        outcomes = _searched(run, step, engine, searched, dense, rival)
        _offer(run, engine, searched, outcomes, parent, (*parent.steps, step), rival)


def offer_as_it_is(run: Run, rival: Rival) -> None:
    """Offer a model to the device's other engines in the precisions that they run any model in."""
    for engine in run.context.alternatives:
        if not is_tried(run, engine, rival.model):
            continue
        precisions = [name for name, step in _makers(run, engine).items() if not step]
        with told_where_it_fails(run, f"what {engine.target.name} runs"), within_its_time(run, engine):
            _offer(run, engine, precisions, [Outcome(rival.model, {})], rival.candidate, rival.candidate.steps, rival)


def _offer_in_float(run: Run, model: Model, parent: Candidate) -> None:
    """Offer a model that rounds its activations as it runs without that rounding."""
    if not may_round(model):
        return
    if monotonic() > run.context.candidates_end:
        run.context.notes.append(out_of_time(_FLOAT))
        return
    finished = finished_candidates(run, _FLOAT)
    known, rewrites = finished[0] if finished else None, run.context.target.rewrites
    inputs = [] if known else run.context.checked_inputs(model)
    outcome = outcome_on_disk(run, known) if known else in_float(model, inputs, rewrites=rewrites)
    if outcome.is_unchanged:
        return
    setting = Setting(run.context.engine, parent.precision, _FLOAT)
    made = add_candidate(run, _FLOAT, parent.name, (*parent.steps, _FLOAT), outcome, setting, resumed=known)
    run.workspace.finish(_FLOAT, [made.file])


def _maker(precision: str, profile: Target) -> str:
    """Return the step that makes a model's precision scheme for a profile; empty: its engine runs any model so."""
    return next((name for name, step in all_steps().items() if step.makes(precision, profile)), "")


def _made_in_line(context: Context) -> tuple[str, ...]:
    """Return the schemes that the target's own engine needs nothing more for."""
    return (context.target.float_precision, *(step.precision for step in all_steps().values() if step.precision))


def _offer_converted(run: Run, step: str, setting: Setting, model: Model, parent: Candidate) -> None:
    """Offer what a step makes of a float model for one precision, or what an earlier run left of that."""
    finished = finished_candidates(run, setting.name)
    if not finished and monotonic() > run.context.candidates_end:
        run.context.notes.append(out_of_time(setting.name))
        return
    try:
        with limited(run.context.candidates_end):
            outcomes: Sequence[Outcome] = [outcome_on_disk(run, candidate) for candidate in finished]
            outcomes = outcomes or run.plan.steps[step].make(model, run.context, setting)
    except EdgeoptError as error:
        run.context.notes.append(Note(NoteKind.WARNING, f"no {setting.precision}: {error.problem}", error.remedy))
        return
    _offer(run, setting.engine, [setting.precision], outcomes, parent, (*parent.steps, step), first=setting.name)


def _with_joined_attention(
    run: Run, engine: Engine, model: Model, parent: Candidate, rival: Rival | None
) -> tuple[Model, Candidate]:
    """Return the model with one op for each attention, as a candidate; what came in where there is none."""
    name = rival_name(rival, _ATTENTION)
    is_late = monotonic() > run.context.candidates_end
    if is_late or engine is not run.context.engine or not joins_attention(engine.target):
        return model, parent
    finished = finished_candidates(run, name)
    inputs = [] if finished else run.context.checked_inputs(model)
    outcome = outcome_on_disk(run, finished[0]) if finished else fuse_attention(model, inputs)
    if not outcome.changes:
        run.context.notes.extend(outcome.notes)
        return model, parent
    steps, setting = (*parent.steps, _ATTENTION), Setting(engine, parent.precision, name)
    known = finished[0] if finished else None
    made = add_candidate(run, name, parent.name, steps, outcome, setting, resumed=known)
    run.workspace.finish(name, [made.file])
    return outcome.model, made


def _runnable(run: Run, engine: Engine) -> list[str]:
    """Return the precisions of a profile that the device has; where no device measures them, all."""
    result = []
    for precision in engine.target.precisions:
        if not run.context.target.why_untimed() and (reason := engine.target.why_no_precision(precision)):
            run.context.notes.append(Note(NoteKind.SKIPPED, f"no {precision} on {engine.target.name}: {reason}"))
        else:
            result.append(precision)
    return result


def _name(run: Run, engine: Engine, precision: str, rival: Rival | None = None) -> str:
    """Return what a form is called: by its executor, or by its profile where the target's own engine is of that too."""
    own, target = run.context.engine, engine.target
    is_like_own = engine is not own and target.executor == own.target.executor
    return rival_name(rival, f"{target.name if is_like_own else target.executor}-{precision}")


def _searched(
    run: Run, name: str, engine: Engine, precisions: Sequence[str], dense: Rival, rival: Rival | None
) -> Sequence[Outcome]:
    """Return INT8 models for an engine: those on disk, those made for the target's own, else those of a search."""
    first, step = _name(run, engine, precisions[0], rival), run.plan.steps[name]
    parent = rival or dense
    if finished := finished_candidates(run, first):
        return [outcome_on_disk(run, candidate) for candidate in finished]
    if made_none(run, first):
        return []
    if engine is run.context.engine:
        made = [
            candidate for candidate in run.candidates if candidate.precision == step.precision and not candidate.profile
        ]
        made = [candidate for candidate in made if candidate.parent == parent.candidate.name]
        made = [*made[: _MOST_KEPT - 1], *made[_MOST_KEPT - 1 :][-1:]]  # the last one agrees best
        return [
            Outcome(load_model(run.workspace.path(candidate.file), candidate.name), candidate.changes)
            for candidate in made
        ]
    if monotonic() + run.context.searching_s(engine) > run.context.searches_end:
        what = f"INT8 of {rival.candidate.name}" if rival else "INT8"
        run.context.notes.append(out_of_time(f"{what} on {engine.target.name}"))
        return []
    least_speed = least_int8_speed(run, dense.model, engine, precisions[-1]) if rival is None else 0.0
    setting = Setting(engine, precisions[-1], first, _MOST_KEPT, least_speed)
    try:
        with limited(run.context.candidates_end):
            if rival is None:
                outcomes = step.make(dense.model, run.context, setting)
                run.context.notes.extend(why_cut_short(run, setting))
                return outcomes
            like = like_which(run, _name(run, engine, precisions[0]))
            return make_alike(run, step, rival.model, dense.model, setting, like) if like else []
    except EdgeoptError as error:
        note = Note(NoteKind.WARNING, f"no INT8 on {engine.target.name}: {error.problem}", error.remedy)
        run.context.notes.append(note)
        return []


def _offer(
    run: Run,
    engine: Engine,
    precisions: Sequence[str],
    outcomes: Sequence[Outcome],
    parent: Candidate,
    steps: tuple[str, ...],
    rival: Rival | None = None,
    first: str = "",
) -> None:
    for precision in precisions:
        name = first or _name(run, engine, precision, rival)
        finished, made = finished_candidates(run, name), list[Candidate]()
        for i, outcome in enumerate(outcomes):
            known = finished[i] if i < len(finished) else None
            if known is None and monotonic() > run.context.candidates_end:
                run.context.notes.append(out_of_time(name))
                return
            setting = Setting(engine, precision, name)
            try:
                made.append(add_candidate(run, numbered(name, i), parent.name, steps, outcome, setting, resumed=known))
            except EdgeoptError as error:
                run.context.notes.append(Note(NoteKind.WARNING, f"{name} left out: {error.problem}", error.remedy))
                break
        else:
            run.workspace.finish(name, [candidate.file for candidate in made])


# Which engine's INT8 is worth a search: what it makes first is timed against the best that another engine has.

_SECONDS, _BLOCK = 2.0, 3
"""A look at both float models in turns."""
_LATER = 1.3
"""Times that later forms of a search may be faster than its first ones: with slow layers in float
YOLOX gained 5 to 30 %."""


def least_int8_speed(run: Run, model: Model, engine: Engine, precision: str) -> float:
    """Return how fast the first INT8 forms of an engine must be for a search to go on; 0 where nothing is known.

    Args:
        run: Its context knows what earlier searches found.
        model: The float model.
        engine: Another one than the target's own.
        precision: The scheme whose arithmetic of floats the search compares with.

    Returns:
        The time of the engine's float model over that of the form.
    """
    speeds, own = run.context.int8_speeds, run.context.engine
    if not speeds or run.untimed or model.is_outside:
        return 0.0
    best = max(pace_of(run, name) * speed for name, speed in speeds.items())
    try:
        run.paces[engine.target.name] = _pace(run, model, own, engine, precision)
    except EdgeoptError:  # the search itself tells what is wrong
        return 0.0
    return best / (_LATER * run.paces[engine.target.name])


def pace_of(run: Run, name: str) -> float:
    """Return the time of the float model on the target's own engine over that on another; 1 of its own."""
    return run.paces.get(name, 1.0)


def why_cut_short(run: Run, setting: Setting) -> list[Note]:
    """Return a note where the first forms of a search were too slow to go on."""
    speeds, name = run.context.int8_speeds, setting.engine.target.name
    speed = speeds.get(name, 0.0)
    if not 0 < speed < setting.least_speed:
        return []
    best = max(speeds, key=lambda other: pace_of(run, other) * speeds[other])
    share = pace_of(run, best) * speeds[best] / (pace_of(run, name) * speed)
    slower = f"its fastest form so far takes about {share:.1f} times as long as on {best}"
    detail = f"INT8 on {name} not searched further: {slower}"
    return [Note(NoteKind.SKIPPED, detail)]


def _pace(run: Run, model: Model, own: Engine, engine: Engine, precision: str) -> float:
    inputs = run.context.inputs(1, model)[0]
    sessions = list[Session]()
    try:
        sessions.append(own.open(model, own.target.float_precision))
        sessions.append(engine.open(model, precision))
        runs = {name: call_of(session, inputs) for name, session in zip(("own", "other"), sessions, strict=True)}
        return compare_calls(runs, baseline="own", seconds=_SECONDS, block=_BLOCK)["other"].speedup
    finally:
        for session in sessions:
            session.close()
