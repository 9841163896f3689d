"""The step `prune`: fewer channels and blocks where that saves measured time, given this run's own judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.groups import ChannelGroups, require_prunable, trace
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.recipes.inputs.frames import calibration_kind, calibration_wanted
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps._context import CALIBRATION, Context, Engine, Setting, numbered
from edgeopt.steps._device_times.device import predictor_of
from edgeopt.steps._device_times.prediction import Predictor
from edgeopt.steps._keep_layers import groups_of
from edgeopt.steps._pruning import NOT_PRUNED
from edgeopt.steps.prune.account import ACCOUNT, CUT, StoredCut, account_of, kept_numbers, to_json
from edgeopt.steps.prune.costs import Costs
from edgeopt.steps.prune.dense import Dense
from edgeopt.steps.prune.integer_layers import integer_model
from edgeopt.steps.prune.latency_table import LatencyTable, can_time, multiply_adds, predicted_stopwatch, stopwatch_of
from edgeopt.steps.prune.loss import HeldOutLoss, fitting_count, held_out, outputs_of
from edgeopt.steps.prune.memory import Memory
from edgeopt.steps.prune.network.channel_step import ChannelStep, channel_step, predicted_step, told_step
from edgeopt.steps.prune.network.layer_shapes import Layers
from edgeopt.steps.prune.points import Frontier, Goal, Point, PruneSearch, find_points
from edgeopt.steps.prune.ranking import DEFAULT, WITHOUT_PICTURES
from edgeopt.steps.prune.repairs import Repairs
from edgeopt.steps.prune.statistics import Looks, Statistics, collect
from edgeopt.steps.quantize.judges import own_clock
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, limited, paced
from edgeopt.system.text import plural
from edgeopt.tasks._places import places_of

_SECONDS, _BLOCK = 1.5, 5


class WholeModels:
    """The dense model, open, with which pruned ones are compared."""

    def __init__(self, dense: Model, engine: Engine, precision: str, inputs: Sequence[Tensors]) -> None:
        """Open the dense model.

        Args:
            dense: Of float.
            engine: One that runs here.
            precision: In which the model will run; for `w8a8` both are compared as quick INT8 forms.
            inputs: A few real ones.
        """
        self._engine, self._precision, self._inputs = engine, precision, inputs
        self._dense = engine.open(self._form(dense), precision)

    def _form(self, model: Model) -> Model:
        if not self._precision.startswith("w8a8"):
            return model
        return integer_model(model, self._inputs, self._engine.target)

    def ratio(self, pruned: Model) -> Ratio:
        """Return how many times as fast as the dense model another one is."""
        session = self._engine.open(self._form(pruned), self._precision)
        runs = {"dense": call_of(self._dense, self._inputs[0]), "pruned": call_of(session, self._inputs[0])}
        clock = own_clock(self._engine.target, self._engine.threads)
        try:
            return compare_calls(runs, baseline="dense", seconds=_SECONDS, block=_BLOCK, clock=clock)["pruned"]
        finally:
            session.close()

    def close(self) -> None:
        """Free the dense session."""
        self._dense.close()


_MOST_SECONDS = 180.0
_SHARE = 0.5
"""Most of the time that is left for searches: integers need the rest. Unless an amount was asked for, pruning gets no
more than the search for INT8 on each engine."""
_LEAST_S, _LOOKS = 8.0, 4
"""Seconds beside looks at the pictures without which no point is found, and runs of each picture in these looks: with
less time the work is not begun, and integers get it."""
_LOOKING = "prune: look at pictures"
_DRAFT = "best-so-far.onnx"
"""Name of the file that an interrupt of the search leaves."""
_LEAST_MS = 2.0
"""Least milliseconds of one run: below it the search, most of a minute, is made only where an amount was asked for."""
_TIMED_RUNS = 20
_INTEGERS = "w8a8"
_ASKED = "kept as asked"
_NO_PICTURES = "pruned by the size of weights alone (L1): there are no calibration {kind}s"
_RANKS = "--calib {wanted} ranks channels and repairs what is left"


def make_pruned(model: Model, context: Context, setting: Setting) -> list[Outcome]:
    """Return pruned forms of a float model, the mildest first; the model itself, with the reason, where none pays.

    Args:
        model: A float model, simplified.
        context: Its pictures rank, repair and judge; `pruning` says how much is wanted.
        setting: On which engine time is measured.
    """
    try:
        require_prunable(model)
    except EdgeoptError as error:
        return [_stays(model, f"{NOT_PRUNED}: {error.problem}", error.remedy)]
    groups = trace(model)
    pinned = groups_of(context.original, model, groups, context.pruning.keep_layers)
    groups = replace(
        groups, groups=tuple(replace(group, pinned=_ASKED) if group.name in pinned else group for group in groups)
    )
    if not groups.free:
        _tell(
            context,
            setting,
            groups,
            None,
            ChannelStep(1, Note(NoteKind.INFO, "")),
            f"no channel can be removed{_why(groups)}",
        )
        return [_stays(model, f"{NOT_PRUNED}: no channel can be removed{_why(groups)}")]
    ms = run_ms(model, setting, context.inputs(1, model)[0]) if _is_timed_first(context) else None
    if ms is not None and (why := _too_quick(context, ms)):
        _tell(context, setting, groups, None, told_step(context.target), why)
        return [_stays(model, f"{NOT_PRUNED}: {why}", "--prune 1.1x tries all the same")]
    until = _until(context)
    pictures = len(context.frames.spread(context.most_pictures))
    if ms is not None and _LEAST_S + _LOOKS * pictures * ms / 1000 > until.ends_at_s - monotonic():
        return [_stays(model, f"{NOT_PRUNED}: {until.no_look}", until.look_remedy)]
    try:
        with limited(until.ends_at_s):
            work = _Work.begin(model, context, setting, groups)
    except OutOfTime:
        return [_stays(model, f"{NOT_PRUNED}: {until.no_look}", until.look_remedy)]
    try:
        pruned = work.find(until)
    finally:
        work.close()
    context.files.path(f"candidates/{setting.name}/{_DRAFT}").unlink(missing_ok=True)
    points = pruned.points if context.pruning.is_auto else pruned.frontier
    why = _sentence(points, pruned, work)
    _tell(context, setting, groups, work.statistics, work.step, why)
    if not points:
        return [_stays(model, f"{NOT_PRUNED}: {why}", next((note.hint for note in pruned.notes), ""))]
    context.listener.say(f"  prune: {why}")
    twins = [i > 0 and point.is_twin_of(points[i - 1]) for i, point in enumerate(points)]
    return [replace(work.outcome(point, i), is_twin=twins[i]) for i, point in enumerate(points)]


@dataclass(frozen=True, slots=True)
class _Until:
    """When pruning has to end."""

    ends_at_s: float
    """On the monotonic clock."""
    is_own: bool
    """Whether pruning's own most seconds end it, and no time limit of the run."""

    @property
    def no_look(self) -> str:
        """Why the pictures are not looked at."""
        if self.is_own:
            return f"looking at the pictures takes longer than pruning may ({_MOST_SECONDS / 60:g} minutes)"
        return "the time limit leaves no time to look at the pictures"

    @property
    def look_remedy(self) -> str:
        """Help where the pictures are not looked at."""
        return "fewer or smaller pictures in --calib" if self.is_own else LONGER

    @property
    def cut(self) -> Note:
        """A note for a search that it ended."""
        if self.is_own:
            text = f"pruning's {_MOST_SECONDS / 60:g} minutes ended the search"
            return Note(NoteKind.WARNING, text, "--prune 1.3x, or another amount, makes that point alone")
        return Note(NoteKind.WARNING, "the time limit ended the search", LONGER)


def _until(context: Context) -> _Until:
    """Return when work that begins now has to end."""
    now = monotonic()
    half_s = max(_SHARE * (context.searches_end - now), 0.0)
    searching = (context.engine, *context.alternatives) if context.quantizes and context.pruning.is_auto else ()
    left_s = min(half_s, context.share_seconds(searching))
    return _Until(now + min(_MOST_SECONDS, left_s), left_s >= _MOST_SECONDS)


def _is_timed_first(context: Context) -> bool:
    """Whether the time of one run decides if the work is begun."""
    return not context.untimed and (context.pruning.is_auto or context.time_limit_s is not None)


def _too_quick(context: Context, ms: float) -> str:
    """Return why a model that runs in next to no time stays as it is, unless an amount was asked for."""
    if not context.pruning.is_auto:
        return ""
    least = f"below {_LEAST_MS:g} ms a search, most of a minute, is made only if asked for"
    text = f"the shortest run takes {ms:.2f} ms; {least}"
    return text if ms < _LEAST_MS else ""


def _stays(model: Model, detail: str, hint: str = "") -> Outcome:
    return Outcome(model, {}, (Note(NoteKind.SKIPPED, detail, hint),))


def _why(groups: ChannelGroups) -> str:
    reasons = list(dict.fromkeys(one.pinned for one in groups if one.pinned)) or [one.reason for one in groups.pins]
    return f": {reasons[0]}" if reasons else ""


def _sentence(points: Sequence[Point], found: Frontier, work: _Work) -> str:
    if not points:
        return "; ".join(note.detail for note in found.notes) or "nothing that saves time keeps the answers"
    parts = [f"{point.speedup:.2f}x at a loss of {point.loss:.3f}" for point in points]
    counted = plural(len(points), "point")
    return f"{counted} in {work.words}: {', '.join(parts)}{work.basis}"


def _tell(
    context: Context, setting: Setting, groups: ChannelGroups, seen: Statistics | None, step: ChannelStep, why: str
) -> None:
    account = account_of(
        groups,
        ranking=DEFAULT if seen else WITHOUT_PICTURES,
        pictures=seen.pictures if seen else 0,
        channel_step=step.channels,
        step_reason=str(step.note),
        why=why,
        sparsity=_sparsity(context),
    )
    context.files.write(f"candidates/{setting.name}/{ACCOUNT}", to_json(account))


@dataclass
class _Work:
    """One search for pruned models on its way."""

    dense: Dense
    context: Context
    setting: Setting
    precision: str
    """Precision in which the model will run."""
    step: ChannelStep
    memory: Memory
    fitted: list[Tensors]
    judged: list[Tensors]
    """Held out: no repair sees them before it is chosen."""
    looks: Looks
    """Positions of layers' outputs that are looked at, first of the fitted pictures, then of the judged."""
    statistics: Statistics | None
    loss: Callable[[Model], float]
    measures: WholeModels | None
    predictor: Predictor | None
    """Predicts times on a device that is not here; None: there is no prediction."""

    @classmethod
    def begin(cls, model: Model, context: Context, setting: Setting, groups: ChannelGroups) -> _Work:
        """Collect statistics, and open what judges."""
        engine, is_here = setting.engine, not context.untimed
        precision = _precision(context, setting)
        fitted, judged = _split(model, context)
        task = context.task(model, evaluating=True)
        described = {
            "model": model.fingerprint,
            "calibration": context.calibration_fingerprint if context.is_calibrated else "",
            "engine": repr(engine.target),
            "threads": engine.threads,
            "precision": precision,
            "judged": len(judged),
        }
        memory = Memory(context.files.path(CALIBRATION), described)
        probe = partial(channel_step, engine, precision)
        predictor = None if is_here else predictor_of(engine.target, precision)
        away = predicted_step(predictor, engine.target) if predictor else told_step(context.target)
        step = _remembered_step(memory, probe) if is_here else away
        seen, looks = None, Looks()
        if context.is_calibrated:
            looks = Looks(places=places_of(task, outputs_of(model, [*fitted, *judged], context.threads)))
            seen = collect(
                model,
                iter(fitted),
                groups,
                looks=looks,
                progress=paced(partial(context.listener.progress, _LOOKING, of=len(fitted)), len(fitted)),
            )
        whole = WholeModels(model, engine, precision, judged[:4]) if is_here else None
        loss = memory.loss(HeldOutLoss(model, task, judged, context.threads))
        asked = frozenset(group.name for group in groups if group.pinned == _ASKED)
        dense = Dense(model, groups, seen, asked, step.channels)
        return cls(
            dense, context, setting, precision, step, memory, fitted, judged, looks, seen, loss, whole, predictor
        )

    @property
    def basis(self) -> str:
        """The basis of the speeds, where nothing is timed."""
        if self.measures:
            return ""
        if self.predictor:
            return f", predicted from the times of {self.setting.engine.target.machine}"
        return " by multiplications, as nothing is timed here"

    @property
    def words(self) -> str:
        """The precision in which times are judged."""
        return "INT8" if self.precision.startswith(_INTEGERS) else self.precision

    def find(self, until: _Until) -> Frontier:
        """Search until then, on the monotonic clock; the best so far is on disk as soon as it is known."""
        pruning = self.context.pruning
        return find_points(self._search(until), Goal(pruning.ratio, pruning.speedup))

    def _search(self, until: _Until) -> PruneSearch:
        engine, context = self.setting.engine, self.context
        is_timed = self.measures is not None and can_time(engine)
        away = predicted_stopwatch(self.predictor) if self.predictor else multiply_adds
        watch = self.memory.stopwatch(stopwatch_of(engine, self.precision)) if is_timed else away
        layers = Layers(self.dense.model, self.dense.groups, self.dense.kept_of)
        inside = {name: block.nodes for name, block in self.dense.blocks.items()}
        return PruneSearch(
            dense=self.dense,
            costs=Costs(layers, LatencyTable(watch), inside),
            loss=self.loss,
            repair=Repairs(self.dense, self.loss, self.fitted, self.judged, self.looks),
            measure=self.memory.ratio(self.measures.ratio) if self.measures else None,
            progress=lambda what, done, of: context.listener.progress(f"prune: {what}", done, of),
            on_point=self.keep_draft,
            ends_at_s=until.ends_at_s,
            cut=until.cut,
            device="" if self.predictor is None else engine.target.machine,
        )

    def keep_draft(self, point: Point) -> None:
        """Put a point on disk and tell of it: an interrupt leaves the last one."""
        self.context.files.write(f"candidates/{self.setting.name}/{_DRAFT}", point.model.data)
        speed = f"{point.measured or f'~{point.expected_ratio:.2f}x'}"
        self.context.listener.say(f"    {speed}  loss {point.loss:.3f}  {_removed_words(point, self.dense)}")

    def outcome(self, point: Point, position: int) -> Outcome:
        """Return a point as the step's outcome; what was cut is written beside it."""
        removed = {name: self.dense.groups[name].channels - len(left) for name, left in point.kept.items()}
        cut = StoredCut(
            dense=self.dense.model.fingerprint,
            made=point.model.fingerprint,
            kept=kept_numbers(point.kept),
            removed_blocks=tuple(point.removed_blocks),
            repair=point.repair,
            expected_ratio=point.expected_ratio,
            loss=point.loss,
            channels={name: self.dense.groups[name].channels for name in sorted(point.kept)},
        )
        self.context.files.write(f"candidates/{numbered(self.setting.name, position)}/{CUT}", to_json(cut))
        changes = {"channels removed": sum(removed.values()), "blocks removed": len(point.removed_blocks)}
        mended = f", weights fitted again ({point.repair})" if point.repair not in ("", "none") else ""
        text = f"pruned: {_removed_words(point, self.dense)}{mended}"
        notes = (Note(NoteKind.CHOICE, text), *(() if self.statistics else (_no_pictures(self.context.recipe),)))
        return Outcome(point.model, changes, notes)

    def close(self) -> None:
        """Free the dense session."""
        if self.measures:
            self.measures.close()


def _removed_words(point: Point, dense: Dense) -> str:
    whole = sum(group.channels for group in dense.free)
    gone = sum(dense.groups[name].channels - len(left) for name, left in point.kept.items())
    blocks = f", {plural(len(point.removed_blocks), 'block')} gone" if point.removed_blocks else ""
    return f"{gone} of {whole} channels gone{blocks}"


def _sparsity(context: Context) -> str:
    """Return what zeros in single weights would save, where edgeopt takes whole channels."""
    pattern = context.target.sparsity
    if pattern:
        return f"{pattern} zeros in weights are faster there by its maker's word: not run, and edgeopt makes none"
    return "zeros in single weights (2:4, unstructured) would make a packed file smaller, and nothing faster"


def _precision(context: Context, setting: Setting) -> str:
    """Return the precision in which the pruned model will run: INT8 where a later step makes it."""
    target = setting.engine.target
    runs = [
        precision
        for precision in target.precisions
        if precision.startswith(_INTEGERS) and not target.why_no_precision(precision)
    ]
    return runs[0] if context.quantizes and runs else target.float_precision


def _split(model: Model, context: Context) -> tuple[list[Tensors], list[Tensors]]:
    """Return pictures to fit on, and held-out ones."""
    count = fitting_count(context.inputs(1, model)[0])
    taken = context.inputs(count, model)
    return held_out([{name: np.array(value) for name, value in arrays.items()} for arrays in taken])


def run_ms(model: Model, setting: Setting, inputs: Tensors) -> float:
    """Return how long one run takes on the engine, in milliseconds: the shortest of some, as all else only adds."""
    session = setting.engine.open(model, setting.engine.target.float_precision)
    clock = own_clock(setting.engine.target, setting.engine.threads)
    times = []
    for _ in range(_TIMED_RUNS):
        began = clock()
        session.run(inputs)
        times.append(clock() - began)
    session.close()
    return min(times) / 1e6


def _no_pictures(recipe: Recipe) -> Note:
    text = _NO_PICTURES.format(kind=calibration_kind(recipe))
    return Note(NoteKind.WARNING, text, _RANKS.format(wanted=calibration_wanted(recipe)))


def _remembered_step(memory: Memory, find: Callable[[], ChannelStep]) -> ChannelStep:
    """Return the channel step of this machine, probed once a run."""
    probed: list[ChannelStep] = []

    def probe() -> list[object]:
        probed.append(find())
        note = probed[0].note
        return [probed[0].channels, note.kind, note.detail, note.hint]

    channels, kind, detail, hint = memory.value("step", "", probe)
    return ChannelStep(int(channels), Note(NoteKind(kind), str(detail), str(hint)))
