"""The canary: a new bundle beside the running one, on the device itself, before it takes its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from edgeopt.errors import EdgeoptError
from edgeopt.graph.tensors import Sample
from edgeopt.measurement.common_options import MAX_MISS_RATIO
from edgeopt.measurement.compare.result import Compared, Comparison
from edgeopt.measurement.samples import FRAME
from edgeopt.measurement.statistics.budget import Verdict, judge_budget
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.runtime.bundle import parse_bundle
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.selftest import read_stored
from edgeopt.system.text import format_ms, format_score, plural
from edgeopt.verbs._once import compared
from edgeopt.verbs.rollout.recording import is_live, record

Tell = Callable[[str, int, int], None]
_MOST_FRAMES: Final = 64
"""Frames whose answers are compared."""
SLOWER: Final = 1.25
"""So many times as slow as the running bundle may be a new one where no budget was named: a session's place in memory
alone moves it by up to 20 %."""

_NOT_COMPARED: Final = "not compared"


@dataclass(frozen=True, slots=True)
class CanaryOptions:
    """The demands on a new bundle."""

    frames: str | None = None
    """Recorded frames, by path, or a camera or address whose frames are recorded now; None: the inputs that the running
    bundle stores, and the frames of its recipe."""
    labels: Path | None = None
    """Labels that judge both bundles; None: their answers are compared."""
    budget_ms: float | None = None
    """Time that a frame may take; None: at most 1.25 times as long as with the running bundle."""
    max_miss_ratio: float = MAX_MISS_RATIO
    least_agreement: float | None = None
    """Agreement with the running bundle's answers; None: as much as the recipe asks of a candidate."""
    max_drop: float | None = None
    """Accuracy that it may lose on the labels; None: as much as the recipe allows."""
    seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Canary:
    """The proof of a new bundle, or what speaks against it."""

    refused: str
    """Why it must not run, in a clause; empty: it may."""
    facts: tuple[tuple[str, str], ...]
    """Name and text of each thing that was measured."""


def prove(new: Path, running: Path | None, options: CanaryOptions, tell: Tell | None = None) -> Canary:
    """Open a new bundle, compare its answers and its times with the running one's, in turns.

    Args:
        new: Its folder.
        running: Folder of the bundle that runs; None: none does, and only the new one's own test and its budget judge.
        options: The demands.
        tell: Hears progress.

    Raises:
        EdgeoptError: If the running bundle, the frames or the labels cannot be used.
    """
    if options.frames is not None and is_live(options.frames):
        with TemporaryDirectory(prefix="edgeopt-push-") as folder, Runtime.load(running or new) as runtime:
            record(runtime, options.frames, Path(folder), tell)
            return prove(new, running, replace(options, frames=folder), tell)
    facts = list[tuple[str, str]]()
    try:
        Runtime.load(new, strict=True).close()
    except EdgeoptError as error:
        return Canary(f"it does not run here: {error.problem}", ())
    facts.append(("test", "it opens here, and its numbers are those of its maker"))
    refused = ""
    if running is not None and options.labels is None:
        refused, text = _agreement(new, running, options)
        facts.append(("answers", text))
    if refused:
        return Canary(refused, tuple(facts))
    wishes: dict[str, object] = {"seconds": options.seconds}
    wishes |= {"source": options.frames} if options.frames else {}
    wishes |= {"eval": options.labels} if options.labels else {}
    result: Any = compared((str(running or new), str(new)), None, wishes, tell).result
    refused, more = _judge(result, options, new, has_running=running is not None)
    return Canary(refused, (*facts, *more))


def _agreement(new: Path, running: Path, options: CanaryOptions) -> tuple[str, str]:
    """Return why answers differ too much, empty where they do not, and how much they agree or why nobody knows."""
    with Runtime.load(running) as before, Runtime.load(new, strict=True) as after:
        recipe = after.bundle.recipe
        if not (before.answers_frames and after.answers_frames):
            return "", f"{_NOT_COMPARED}: --eval judges texts and sounds"
        if recipe.task != before.bundle.recipe.task:
            other = before.bundle.recipe.task
            return f"its task is {recipe.task}, and that of the running bundle {other}", _NOT_COMPARED
        samples = _samples(before, options.frames, before)
        if not samples:
            return "", f"{_NOT_COMPARED}: no frames were passed, and the running bundle stores none"
        try:
            expected = [before.predict(sample) for sample in samples]
        except ValueError as error:
            raise EdgeoptError(f"the running bundle does not take the frames: {error}", remedy="pass others") from error
        try:
            answers = [after.predict(sample) for sample in _samples(before, options.frames, after)]
        except ValueError as error:
            return f"it does not take what the running bundle takes: {error}", _NOT_COMPARED
        agreement = after.task.agreement(answers, expected)
        least = recipe.least_agreement if options.least_agreement is None else options.least_agreement
        text = f"{agreement:.3f} agree with the running bundle's on {plural(len(samples), 'frame')}, {least:g} wanted"
        return ("" if agreement >= least else f"its answers differ: {text}"), text


def _samples(before: Runtime, frames: str | None, runtime: Runtime) -> Sequence[Sample]:
    """Return the frames as a runtime of the two has files decoded; those that the running bundle stores lie decoded."""
    if frames is not None:
        opened = open_frames(Path(frames)).spread(_MOST_FRAMES).decoded_by(runtime.task.decoding)
        return [opened.read(i) for i in range(len(opened))]
    stored = read_stored(before.bundle)
    return stored.samples if stored else ()


def _judge(
    result: Comparison, options: CanaryOptions, new: Path, *, has_running: bool
) -> tuple[str, list[tuple[str, str]]]:
    """Return why times or accuracy forbid it, and the facts."""
    row, facts = result.rows[-1], list[tuple[str, str]]()
    refused = ""
    if row.quality is not None and row.quality.loss is not None:
        refused, text = _accuracy(row, options, new)
        facts.append(("accuracy", text))
    if options.budget_ms is not None:
        if result.whole != FRAME:
            problem = f"a budget of a frame is for bundles that answer frames, and this one gives {result.whole}s"
            raise EdgeoptError(problem, remedy="leave --budget out: it is compared with the running one")
        times = result.samples[row.label].steady().frame_ns
        budget = judge_budget(times, options.budget_ms, options.max_miss_ratio)
        facts.append(("budget", str(budget)))
        if budget.verdict is Verdict.FAIL:
            refused = refused or f"it misses the budget: {budget.detail}"
    elif has_running and (ratio := row.ratios.get(result.whole)) is not None and ratio.high < 1 / SLOWER:
        refused = refused or f"it is proven more than {SLOWER:g} times as slow as the running bundle: {ratio}"
    if has_running and (ratio := row.ratios.get(result.whole)) is not None:
        facts.append(("speed", f"{ratio} as fast as the running bundle, {ratio.verdict}"))
    else:
        facts.append((result.whole, f"p50 {format_ms(1e6 * (row.times[result.whole].p50_ms or 0.0))} ms"))
    if result.trust is not None:
        facts.append(("machine", str(result.trust)))
    return refused, facts


def _accuracy(row: Compared, options: CanaryOptions, new: Path) -> tuple[str, str]:
    quality = row.quality
    assert quality is not None
    assert quality.loss is not None
    allowed = parse_bundle(new).recipe.evaluation.max_drop if options.max_drop is None else options.max_drop
    text = f"{quality.metric} {format_score(quality.value)}, {quality.loss_name} {quality.loss}, {allowed:g} allowed"
    return (f"it loses accuracy, proven: {text}" if quality.loss.low > allowed else ""), text
