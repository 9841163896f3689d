"""How soon does a watch see drift, how often is it wrong, and what does it cost?

    PYTHONPATH=toolkit python benchmarks/drift.py MODEL_OR_BUNDLE --calib CALIB --field FIELD [FIELD ...] [--weeks 10]

A sketch of the pictures in CALIB is compared with pictures in FIELD as they are, and after shifts that follow
ImageNet-C (Hendrycks and Dietterich 2019) at severity 3, in `shifts.py`. A picture stands for the 15 frames between two
looks. Runs draw pictures at random: 20 of them are 300 frames. False alarms are counted over weeks at 30 frames a
second, 1.2 million looks each: each week draws a sketch and the field from all pictures together, with replacement, so
that both are of one distribution. The field comes in blocks of neighbours in their folder (10 looks, 5 s), as a moving
camera's do; `--held` looks at each of them so many times, as a camera that stands still does, which breaks what the
rate of false alarms rests on.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from shifts import SHIFTS

from edgeopt.recipes.inputs.frames import Frames, open_frames
from edgeopt.running.live_subject import opened_subject
from edgeopt.runtime.drift.figures import Figures, of_answer
from edgeopt.runtime.drift.sketch import MOST_FRAMES, Sketch, sketch_of
from edgeopt.runtime.drift.state import DriftKind, FieldDrift
from edgeopt.runtime.drift.watch import EVERY, DriftWatch
from edgeopt.runtime.runtime import Runtime

_WITHIN = 300 // EVERY
_MOST_LOOKS = 200
_WEEK = 30 * 7 * 24 * 3600 // EVERY
_BLOCK = 10
_COST_LOOKS = 300
_RESAMPLES = 400
Look = tuple[Figures, tuple[int, ...]]


def looks_at(runtime: Runtime, watch: DriftWatch, frames: Frames, shift: str) -> list[Look]:
    """Return the figures of each picture after a shift, and the classes of its answer."""
    looks, generator = list[Look](), np.random.default_rng(0)
    for i in range(len(frames)):
        inputs, geometry = runtime.feed(runtime.task, SHIFTS[shift](frames.read(i), generator))
        figures = watch.look(inputs, runtime.session.inputs)
        answer = runtime.task.postprocess(runtime.session.run(inputs), geometry)
        looks.append((figures | of_answer(runtime.task, answer), tuple(runtime.task.classes_in(answer))))
    return looks


def first_drift(sketch: Sketch, looks: Sequence[Look], seed: int, most: int) -> tuple[int, FieldDrift] | None:
    """Return after how many looks at pictures drawn at random a drift was seen, and the drift; None: in none."""
    seen = list[FieldDrift]()
    watch = DriftWatch(sketch, on_drift=seen.append)
    for count, place in enumerate(np.random.default_rng(seed).integers(0, len(looks), most), 1):
        watch.compare(*looks[place])
        if seen:
            return count, seen[0]
    return None


def detection(sketch: Sketch, looks: Sequence[Look], runs: int) -> str:
    """Return the row of one shift."""
    firsts = [first_drift(sketch, looks, seed, _MOST_LOOKS) for seed in range(runs)]
    counts = sorted(first[0] if first else _MOST_LOOKS + 1 for first in firsts)
    soon = sum(count <= _WITHIN for count in counts) / runs
    words = Counter(first[1].figure + ("+" if first[1].is_rise else "-") for first in firsts if first)
    median, late = counts[runs // 2] * EVERY, counts[int(0.95 * runs)] * EVERY
    most = _MOST_LOOKS * EVERY
    shown = [str(value) if value <= most else f"> {most}" for value in (median, late)]
    return f"{100 * soon:.0f} % | {shown[0]} | {shown[1]} | {', '.join(name for name, _ in words.most_common(2))}"


def false_alarms(looks: Sequence[Look], sketch: Sketch, weeks: int, held: int) -> tuple[Counter[str], list[int]]:
    """Return by kind the drifts that began in so many weeks of pictures as those of the sketch.

    Beside them of each week the looks until the first that is no darkness; all looks where there was none.
    """
    began, lengths = Counter[str](), list[int]()
    for week in range(weeks):
        generator = np.random.default_rng(week)
        of_sketch = [looks[place] for place in generator.integers(0, len(looks), sketch.frames)]
        other = sketch_of(sketch.artefact, "field", sketch.reader, of_sketch)
        assert other is not None
        alarms = list[FieldDrift]()
        watch = DriftWatch(other, on_drift=alarms.append)
        starts = generator.integers(0, len(looks), -(-_WEEK // (_BLOCK * held)))
        places = np.repeat((starts[:, None] + np.arange(_BLOCK)).reshape(-1) % len(looks), held)[:_WEEK]
        for place in places:
            watch.compare(*looks[place])
        began.update(watch.state().began)
        others = [drift.frame // EVERY for drift in alarms if drift.kind is not DriftKind.DARKNESS]
        lengths.append(min(others, default=_WEEK))
    return +began, lengths


def cost(runtime: Runtime, frames: Frames) -> str:
    """Return the row of what a look costs: frames that are looked at against the fourteen between them, in one run."""
    pictures = [frames.read(i) for i in range(min(len(frames), 30))]
    runtime.watch_drift("none", every=EVERY)
    times_us = np.empty(_COST_LOOKS * EVERY)
    for i in range(len(times_us)):
        began = time.perf_counter()
        runtime.predict(pictures[i % len(pictures)])
        times_us[i] = (time.perf_counter() - began) * 1e6
    looked = np.arange(len(times_us)) % EVERY == 0
    generator = np.random.default_rng(0)
    looks, shares = [np.median(times_us[looked]) - np.median(times_us[~looked])], list[float]()
    for _ in range(_RESAMPLES):
        drawn = [generator.choice(each, len(each)) for each in (times_us[looked], times_us[~looked])]
        looks.append(np.median(drawn[0]) - np.median(drawn[1]))
        shares.append(100 * looks[-1] / (EVERY * np.median(drawn[1])))
    frame_us = np.median(times_us[~looked])
    low, high = np.quantile(looks[1:], (0.025, 0.975))
    least, most = np.quantile(shares, (0.025, 0.975))
    share = f"{100 * looks[0] / (EVERY * frame_us):.2f} % [{least:.2f}, {most:.2f}]"
    return f"{frame_us / 1e3:.1f} ms | {looks[0]:.0f} us [{low:.0f}, {high:.0f}] | {share}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calib", type=Path, required=True)
    parser.add_argument("--field", type=Path, nargs="+", required=True)
    parser.add_argument("--recipe")
    parser.add_argument("--weeks", type=int, default=10)
    parser.add_argument("--held", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1000)
    asked = parser.parse_args()
    with opened_subject(asked.model, str(asked.calib), None, None, asked.recipe, None) as subject:
        runtime = subject.served
        assert isinstance(runtime, Runtime)
        calib, field = open_frames(asked.calib), [open_frames(folder) for folder in asked.field]
        watch = runtime.watch_drift("none")
        usual = looks_at(runtime, watch, calib, "none")[:MOST_FRAMES]
        assert watch.reader is not None
        sketch = sketch_of(runtime.artefact.file, "calibration", watch.reader, usual)
        assert sketch is not None
        print(f"{asked.model.name}: sketch of {sketch.frames} pictures, {sum(map(len, field))} in the field\n")
        print("| shift | within 300 frames | median | 95 % within | figure |\n|---|---|---|---|---|")
        of_field = list[Look]()
        for shift in SHIFTS:
            looks = [look for frames in field for look in looks_at(runtime, watch, frames, shift)]
            of_field = of_field or looks
            print(f"| {shift} | {detection(sketch, looks, asked.runs)} |", flush=True)
        pool = [*usual, *of_field]
        began, lengths = false_alarms(pool, sketch, asked.weeks, asked.held)
        at_night = began.pop(str(DriftKind.DARKNESS), 0)
        rest = ", ".join(f"{kind} {number}" for kind, number in began.items()) or "none"
        weeks = f"{asked.weeks} weeks, drawn from {len(pool)} pictures"
        print(f"\nfalse alarms in {weeks}: {began.total()} ({rest}); darkness, counted apart: {at_night}")
        print(f"looks until the first of a week (of {_WEEK}): {sorted(lengths)}")
        print("\n| a frame | a look | share of the time |\n|---|---|---|")
        print(f"| {cost(runtime, field[0])} |")


if __name__ == "__main__":
    main()
