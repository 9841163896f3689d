"""The regression gate: a model or bundle against a baseline in a file, judged by intervals.

Where the baseline's model is still there, both are measured in turns; else this run is compared with the samples in the
file, if machine and software are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Unpack

import numpy as np

from edgeopt.errors import Note, NoteKind, NotFoundError
from edgeopt.executors import TRANSFERS
from edgeopt.measurement.accuracy.evaluate import LabelledFrames, Progress, open_labelled, require_metric
from edgeopt.measurement.bench.stored import show_difference
from edgeopt.measurement.check.accuracy import check_accuracy, note_on_baseline, score_baseline
from edgeopt.measurement.check.baseline import Baseline, path_from, read_baseline, write_baseline
from edgeopt.measurement.check.options import CHECKS, CheckOptions, FrameCheckWishes
from edgeopt.measurement.check.result import (
    CheckReport,
    CheckResult,
    CheckVerdict,
    judge_placement,
    judge_size,
    judge_time,
    skipped,
)
from edgeopt.measurement.fresh_process.start import FreshStart, measure_peaks, time_first_answers
from edgeopt.measurement.load.closed_loop import run_frames
from edgeopt.measurement.opening.subject import choose_frames, shapes_of
from edgeopt.measurement.resources.anchor import measure_anchor
from edgeopt.measurement.resources.readings import take_reading
from edgeopt.measurement.resources.trust import Trust, TrustLevel, judge_trust
from edgeopt.measurement.samples import FRAME, Samples
from edgeopt.measurement.statistics.ratio import Ratio, block_medians, ratio_of_rounds, ratio_of_series
from edgeopt.measurement.turns.side_by_side import (
    Side,
    close,
    labels_of,
    notes_on,
    open_sides,
    require_fed,
    rest,
    run_in_turns,
)
from edgeopt.recipes.allowed import MAX_DROP, Check
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.recipes.inputs.input_shapes import Shapes, fixed_shapes
from edgeopt.recipes.inputs.timed import readers_of
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.disk.files import require_writable
from edgeopt.system.machine.environment import Environment
from edgeopt.system.toml import Within, parse_table, require_measurable

_LEAST_FRAMES = 400


@dataclass(frozen=True)
class _Run:
    """The sides, limits and options that all checks of one run share."""

    now: Side
    then: Side | None
    """The baseline's model, opened; None: it is not there any more."""
    why_gone: str
    frames: Frames
    labelled: LabelledFrames | None
    seconds: float
    seed: int
    starts: int
    skip: Collection[str]
    judge_noisy: bool
    tell: Progress | None

    @property
    def sides(self) -> tuple[Side, ...]:
        """The baseline first, where it is there."""
        return (self.then, self.now) if self.then else (self.now,)

    def say(self, what: str) -> Callable[[int, int], None] | None:
        """Return a listener for one piece of work."""
        return partial(self.tell, what) if self.tell else None


@with_options_of(CheckOptions)
def check(
    subject: str | Path,
    *,
    target: str = "cpu",
    recipe: str | None = None,
    options: CheckOptions | None = None,
    tell: Progress | None = None,
    **wishes: Unpack[FrameCheckWishes],
) -> CheckReport:
    """Check a model or bundle against a baseline, or write the baseline from it.

    Args:
        subject: Path of an ONNX file or a bundle, or a shipped name.
        target: For a model; a bundle brings its own.
        recipe: For a model; a bundle brings its own.
        options: What is checked, against which baseline, and what is allowed; what it does not name is as the recipe's
            `[check]` says. None: all defaults.
        tell: Hears progress.
        **wishes: Fields of `CheckOptions` that differ, such as `baseline="baseline.json"`.

    Raises:
        EdgeoptError: If the baseline is missing or damaged, or the model cannot be used.
    """
    began, check_options = perf_counter(), replace(options or CheckOptions(), **wishes)
    file, skip = Path(check_options.baseline), check_options.skip
    require_measurable(check_options.seconds, check_options.seed, check_options.threads)
    Within(3, 1000).require("starts", check_options.starts)
    if check_options.update:
        require_writable(file)
    for name in skip:
        if name not in CHECKS:
            raise NotFoundError("check", name, CHECKS)
    stored = None if check_options.update else read_baseline(file)
    opened = partial(open_sides, target=target, shapes=shapes_of(check_options.source), sizes=check_options.shapes)
    sides, why_gone = _open(str(subject), stored, file, recipe, check_options.threads, opened)
    now = sides[-1]
    labels = (
        Path(check_options.eval)
        if check_options.eval
        else next(filter(None, (labels_of(side.subject.recipe) for side in sides[::-1])), None)
    )
    frames, notes = choose_frames(now.subject.recipe, check_options.source, now.subject.inputs)
    require_fed(sides, frames)
    require_metric(now.subject.recipe, labels)
    run = _Run(
        now=now,
        then=sides[0] if len(sides) > 1 else None,
        why_gone=why_gone,
        frames=frames,
        labelled=open_labelled(labels, now.subject.recipe, now.subject.inputs)
        if labels and "accuracy" not in skip
        else None,
        seconds=check_options.seconds,
        seed=check_options.seed,
        starts=check_options.starts,
        skip=skip,
        judge_noisy=check_options.judge_noisy,
        tell=tell,
    )
    recipe_of = now.subject.recipe
    limits = thresholds_of(recipe_of.check, check_options.allowed, recipe_of.evaluation.max_drop)
    report = _check(run, stored, limits, file) if stored else _update(run, file, recipe, limits)
    close(sides)
    notes = (*notes_on(sides), *notes, *report.notes)
    return replace(report, notes=tuple(dict.fromkeys(notes)), seconds=perf_counter() - began)


def thresholds_of(recipe: Check, wishes: Mapping[str, float], may_lose: float = MAX_DROP) -> Check:
    """Return what is allowed: the wishes over the recipe's own.

    Args:
        recipe: What the recipe's `[check]` allows.
        wishes: What the user allows, by the names of `Check`.
        may_lose: What `optimize` may lose: that much accuracy is allowed where neither says.

    Raises:
        EdgeoptError: If a wish is unknown or refused.
    """
    known = [field.name for field in fields(Check)]
    for name in wishes:
        if name not in known:
            raise NotFoundError("threshold", name, known)
        Within(0, 1e6).require(name, wishes[name])
    values = {name: value for name, value in asdict(recipe).items() if value is not None}
    return parse_table(Check, {"accuracy_drop": may_lose} | values | dict(wishes), "thresholds")


def _open(
    subject: str,
    stored: Baseline | None,
    file: Path,
    recipe: str | None,
    threads: int,
    opened: Callable[..., tuple[Side, ...]],
) -> tuple[tuple[Side, ...], str]:
    """Open what is checked, and before it the baseline's model if it is still there as it was."""
    if stored is None:
        return opened([subject], recipe=recipe, threads=threads), ""
    threads = threads or stored.threads
    place = stored.locate(file)
    if place is None:
        why = f"the baseline's model, {stored.model}, is not there any more"
        return opened([subject], recipe=recipe, threads=threads), why
    (then,) = opened([place], recipe=recipe or stored.recipe, threads=threads)
    sides = opened([subject], recipe=recipe, threads=threads)
    if then.sha256 != stored.sha256:
        close([then])
        return sides, f"the baseline's model, {stored.model}, is another one now"
    label = "baseline" if sides[0].label != "baseline" else "the baseline"
    return (replace(then, label=label), *sides), ""


def _check(run: _Run, stored: Baseline, limits: Check, file: Path) -> CheckReport:
    environment = run.now.subject.environment()
    why_not = "" if run.then else _why_not_stored(stored, environment, run.why_gone)
    placed, off = _placement(run.now)
    latency, blocked, trust = [skipped("latency")], "", "not judged: latency was skipped"
    if "latency" not in run.skip:
        latency, blocked, trust = _check_latency(run, stored, limits, why_not)
    checks: dict[str, Callable[[], CheckResult]] = {
        "accuracy": lambda: check_accuracy(
            run.now,
            run.then,
            stored.scored,
            run.labelled,
            run.frames,
            MAX_DROP if limits.accuracy_drop is None else limits.accuracy_drop,
            why_gone=run.why_gone,
            tell=run.tell,
        ),
        "size": lambda: judge_size(run.now.size_bytes, stored.size_bytes, limits.size_ratio),
        "memory": lambda: _check_memory(run, stored, limits.memory_ratio, why_not),
        "cold_start": lambda: _check_cold_start(run, stored, limits.cold_start_ratio, blocked, why_not),
        "placement": lambda: judge_placement(
            placed, off, stored.placement, stored.off_device, limits.max_nodes_off_device
        ),
    }
    others = [skipped(name.replace("_", " ")) if name in run.skip else judge() for name, judge in checks.items()]
    results = (*latency, *others)
    notes = [] if run.then else [Note(NoteKind.WARNING, run.why_gone, "keep it to measure both in turns")]
    if all(result.verdict is CheckVerdict.SKIPPED for result in results):
        notes.append(Note(NoteKind.WARNING, "nothing was checked", "leave --skip out, or skip less"))
    name = f"{stored.name} of {file}"
    return CheckReport(run.now.label, name, results, limits, trust, tuple(notes), 0.0)


def _why_not_stored(stored: Baseline, now: Environment, why_gone: str) -> str:
    """Return why this run cannot be compared with the samples in the file; empty: it can."""
    keys = stored.environment.why_not_comparable(now)
    if not keys:
        return ""
    shown = "; ".join(show_difference(stored.environment, now, key) for key in keys[:3])
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{why_gone}, and its figures are of another machine or software: {shown}{more}"


def _check_latency(run: _Run, stored: Baseline, limits: Check, why_not: str) -> tuple[list[CheckResult], str, str]:
    """Return the results, why the machine blocks times (empty: it does not), and its trust in words."""
    if run.then:
        turns = run_in_turns(run.sides, run.frames, seconds=run.seconds, seed=run.seed, tell=run.tell)
        trust, parts = turns.trust, [part for part in _parts(run.now) if part in turns.parts]
        ratios: dict[str, Ratio | None] = {part: turns.ratio(run.now.label, part) for part in parts}
        blocked = "" if run.judge_noisy and trust.level is not TrustLevel.INVALID else _noise(trust)
    else:
        samples, trust = _measure_alone(run)
        parts = [part for part in _parts(run.now) if part in (*stored.samples.stages, FRAME)]
        ratios = {part: None if why_not else _against_stored(samples, stored, part) for part in parts}
        blocked = _noise(trust) or (
            f"so was the baseline's: {'; '.join(stored.trust_reasons)}" if stored.trust != TrustLevel.TRUSTED else ""
        )
    why_none = why_not or "too few frames for an interval; measure longer with --seconds"
    results = [
        judge_time(f"latency {part}", ratio, limits.latency_ratio, blocked, why_none) for part, ratio in ratios.items()
    ]
    return results, blocked, str(trust)


def _parts(side: Side) -> tuple[str, ...]:
    """Return what a change of the model can slow down: the stages in which it computes, and the frame."""
    return (*(name for name, _ in side.subject.session.stages if name not in TRANSFERS), FRAME)


def _noise(trust: Trust) -> str:
    return "" if trust.level is TrustLevel.TRUSTED else ", ".join(reason.name for reason in trust.reasons)


def _against_stored(samples: Samples, stored: Baseline, part: str) -> Ratio | None:
    return ratio_of_series(block_medians(samples, part), block_medians(stored.samples, part), margin=0.0)


def _measure_alone(run: _Run) -> tuple[Samples, Trust]:
    subject = run.now.subject
    readings, anchors = [take_reading()], [measure_anchor()]
    samples = run_frames(
        readers_of(run.frames),
        *subject.pipeline,
        seconds=run.seconds,
        min_frames=_LEAST_FRAMES,
        variant=run.now.label,
    )
    rest([run.now])
    readings.append(take_reading())
    anchors.append(measure_anchor())
    return samples, judge_trust(samples, readings, anchors, workers=subject.threads)


def _check_memory(run: _Run, stored: Baseline, allowed: float, why_not: str) -> CheckResult:
    peaks = measure_peaks(_starts(run.sides), max(3, run.starts // 2), run.say("memory"))
    now = peaks[run.now.label]
    if not now:
        verdict = CheckVerdict.INCONCLUSIVE if stored.peak_bytes else CheckVerdict.SKIPPED
        return CheckResult("memory", verdict, None, allowed, "this system keeps no peak")
    then = peaks[run.then.label] if run.then else list(stored.peak_bytes)
    ratio = _ratio_of_starts(now, then, in_turns=run.then is not None) if run.then or not why_not else None
    judged = judge_time("memory", ratio, allowed, "", why_not or "the baseline has no peak memory", "--starts")
    peak = f"peak {np.median(now) / 2**20:.1f} MiB in a fresh process"
    return replace(judged, detail=f"{peak}; {judged.detail}")


def _check_cold_start(run: _Run, stored: Baseline, allowed: float, blocked: str, why_not: str) -> CheckResult:
    found = time_first_answers(_starts(run.sides), run.starts, run.say("cold start"))
    now = found[run.now.label]
    then = found[run.then.label] if run.then else list(stored.first_answer_ns)
    ratio = _ratio_of_starts(now, then, in_turns=run.then is not None) if run.then or not why_not else None
    judged = judge_time("cold start", ratio, allowed, blocked, why_not or "the baseline has no cold starts", "--starts")
    first = f"first answer after {np.median(now) / 1e6:.0f} ms"
    return replace(judged, detail=f"{first}; {judged.detail}")


def _ratio_of_starts(now: Sequence[int], then: Sequence[int], *, in_turns: bool) -> Ratio | None:
    mine, theirs = (np.array(one, np.float64) for one in (now, then))
    if in_turns and len(mine) == len(theirs) and len(mine) > 1:
        return ratio_of_rounds(np.log(theirs / mine), pairs=len(mine), margin=0.0)
    return ratio_of_series(mine, theirs, margin=0.0, drifts=False) if len(theirs) else None


def _shapes(side: Side) -> Shapes:
    """Return the shapes in which a model is fed: what it leaves free must not become 1."""
    return fixed_shapes(side.subject.recipe, side.subject.inputs)


def _starts(sides: Sequence[Side]) -> dict[str, FreshStart]:
    return {side.label: FreshStart(side.subject.path, side.subject.opening, _shapes(side)) for side in sides}


def _placement(side: Side) -> tuple[dict[str, int], int]:
    """Return nodes by provider, and how many are elsewhere than on the first one."""
    placed = Counter(node.provider for node in side.subject.session.placement())
    first = next(iter(side.subject.options.providers), "")
    return dict(placed), sum(count for provider, count in placed.items() if provider != first)


def _update(run: _Run, file: Path, recipe: str | None, limits: Check) -> CheckReport:
    """Measure alone and write the baseline."""
    scored = score_baseline(run.now, run.labelled, run.tell)
    samples, trust = _measure_alone(run)
    placed, off = _placement(run.now)
    starts = _starts(run.sides)
    peaks = measure_peaks(starts, max(3, run.starts // 2), run.say("memory")) if "memory" not in run.skip else {}
    colds = time_first_answers(starts, run.starts, run.say("cold start")) if "cold_start" not in run.skip else {}
    baseline = Baseline(
        name=run.now.label,
        model=path_from(file, run.now.given),
        recipe=recipe,
        sha256=run.now.sha256,
        threads=run.now.subject.threads,
        source=str(run.frames.source),
        size_bytes=run.now.size_bytes,
        placement=placed,
        off_device=off,
        scored=scored,
        peak_bytes=tuple(peaks.get(run.now.label, ())),
        first_answer_ns=tuple(colds.get(run.now.label, ())),
        trust=str(trust.level),
        trust_reasons=tuple(str(reason) for reason in trust.reasons),
        environment=run.now.subject.environment(),
        samples=samples,
    )
    write_baseline(baseline, file)
    notes = note_on_baseline(run.frames, scored)
    if trust.level is not TrustLevel.TRUSTED:
        hint = "keep the model, or write it again on a quiet machine"
        more = "only a check in turns with the model itself can judge its latency"
        notes += (Note(NoteKind.WARNING, trust.warning, hint, more=more),)
    return CheckReport(run.now.label, str(file), (), limits, str(trust), notes, 0.0, updated=True)
