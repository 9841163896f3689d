"""Several models, bundles or earlier results against the first of them.

Models and bundles are opened together and run in turns, so that a busy machine slows all alike, and the first one runs
twice: what the machine makes of no difference widens the margin. Earlier results are compared as they are, and only
where machine and software were the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_PASS, EdgeoptError, Note, NoteKind
from edgeopt.measurement.accuracy.bootstrap import Drop, Scored, drop_between
from edgeopt.measurement.accuracy.evaluate import Progress, open_labelled, require_metric
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.side_by_side import (
    Side,
    close,
    distinct_labels,
    environment_of,
    label_notes,
    notes_on,
    open_sides,
    require_fed,
    run_in_turns,
    score_side,
)
from edgeopt.measurement.stage_time import StageTime
from edgeopt.measurement.statistics.quantile import summarize
from edgeopt.measurement.statistics.ratio import Change, Ratio, block_medians, parts_worth_judging, ratio_of_series
from edgeopt.measurement.stored import StoredResult, is_stored, read_stored, require_comparable
from edgeopt.measurement.subject import choose_frames, shapes_of
from edgeopt.measurement.turns import AGAIN, Turns
from edgeopt.report.page import render
from edgeopt.runtime.bundle import is_bundle
from edgeopt.system.environment import Environment
from edgeopt.system.files import require_writable, write_beside
from edgeopt.system.text import format_bytes
from edgeopt.system.toml import Within, require_measurable

SCHEMA = 2
SECONDS = 20.0
_APART = Note(
    NoteKind.WARNING,
    "these runs were not made in turns: what the machine did between them is not in the intervals",
    "compare the models themselves for a proof",
)


@dataclass(frozen=True)
class Compared:
    """One of them."""

    label: str
    given: str
    size_bytes: int | None
    """None: not known, it is an earlier result."""
    times: Mapping[str, StageTime]
    """`execute`, `frame` and the stages worth judging."""
    ratios: Mapping[str, Ratio]
    """To the first, by part; empty for the first itself."""
    scored: Scored | None
    drop: Drop | None
    """Against the first."""
    on_front: bool


@dataclass(frozen=True)
class Comparison:
    """What ran, and what it proves; the first row is what the others are compared with."""

    rows: tuple[Compared, ...]
    parts: tuple[str, ...]
    margin: float
    null: Mapping[str, Ratio]
    """The first against itself, by part; empty for earlier results."""
    seconds: float
    source: str
    trust: Trust | None
    notes: tuple[Note, ...]
    environments: Mapping[str, Environment]
    samples: Mapping[str, Samples]

    @property
    def exit_code(self) -> int:
        """0: a comparison informs; `edgeopt check` is the gate."""
        return EXIT_PASS

    @property
    def front_axes(self) -> str:
        """What the front is over."""
        if self.rows[0].scored:
            return "frame time and accuracy"
        return "frame time and size" if self.rows[0].size_bytes is not None else "frame time"

    def more_seconds(self, ratio: Ratio) -> float | None:
        """Return how much longer would decide; 0: decided; None: no run would, or the runs are over."""
        if not ratio.pairs_needed:
            return None if ratio.pairs_needed is None else 0.0
        return self.seconds * ratio.pairs_needed / ratio.pairs if self.null else None

    def as_json(self) -> dict[str, Any]:
        """Return plain values; raw samples are in the .npz files beside them."""
        rows = [
            {
                "label": row.label,
                "given": row.given,
                "size_bytes": row.size_bytes,
                "times": {part: dataclasses.asdict(time) for part, time in row.times.items()},
                "ratios": {
                    part: dataclasses.asdict(ratio) | {"more_seconds": self.more_seconds(ratio)}
                    for part, ratio in row.ratios.items()
                },
                "accuracy": row.scored.to_json() if row.scored else None,
                "drop": dataclasses.asdict(row.drop) if row.drop else None,
                "on_front": row.on_front,
            }
            for row in self.rows
        ]
        return {
            "schema": SCHEMA,
            "margin": self.margin,
            "seconds": self.seconds,
            "source": self.source,
            "in_turns": bool(self.null),
            "parts": list(self.parts),
            "rows": rows,
            "null": {part: dataclasses.asdict(ratio) for part, ratio in self.null.items()},
            "front_axes": self.front_axes,
            "trust": dataclasses.asdict(self.trust) if self.trust else None,
            "notes": [dataclasses.asdict(note) for note in self.notes],
            "environments": {label: one.to_json() for label, one in self.environments.items()},
        }


def compare(
    *subjects: str | Path,
    target: str = "cpu",
    recipe: str | None = None,
    source: str | Path | None = None,
    eval: str | Path | None = None,  # noqa: A002  (the option's name)
    threads: int = 0,
    seconds: float = SECONDS,
    margin: float = 0.02,
    seed: int = 0,
    out: Path | None = None,
    tell: Progress | None = None,
) -> Comparison:
    """Compare models, bundles or earlier results with the first of them.

    Args:
        *subjects: Two or more paths or shipped names; or two or more results of `bench`, not mixed with models.
        target: For models; a bundle brings its own.
        recipe: For models; a bundle brings its own.
        source: Pictures; None: the first one's own, or synthetic ones.
        eval: Labels, to compare the accuracy too.
        threads: 0: the target's, or one per physical core.
        seconds: How long to run, all together; five rounds run whatever it says.
        margin: Ratios within 1 / (1 + margin) to 1 + margin count as equal.
        seed: Of the order of turns.
        out: Where `compare.json`, `compare.md` and the raw samples go; None: nowhere.
        tell: Called while accuracy is measured.

    Raises:
        EdgeoptError: If fewer than two are given, models and results are mixed, one cannot be opened, or results come
            from different machines.
    """
    require_measurable(seconds, seed, threads)
    Within(0, 1).require("margin", margin)
    if out:
        require_writable(out / "compare.json")
    given = [str(one) for one in subjects]
    if len(given) < 2:
        raise EdgeoptError(
            f"a comparison needs two, {len(given)} given",
            remedy="name the model to compare with first, then the others; edgeopt bench measures one",
        )
    stored = [is_stored(Path(one)) and not is_bundle(Path(one)) for one in given]
    if all(stored):
        result = _compare_stored([read_stored(Path(one)) for one in given], margin)
    elif any(stored):
        raise EdgeoptError(
            f"{given[stored.index(True)]} is an earlier result and {given[stored.index(False)]} is a model",
            remedy="name models only, so that they run in turns, or results only",
        )
    else:
        labelled = open_labelled(Path(eval)) if eval else None
        sides = open_sides(given, target=target, recipe=recipe, threads=threads, shapes=shapes_of(source))
        for side in sides:
            require_metric(side.subject.recipe, eval)
        frames, notes = choose_frames(sides[0].subject.recipe, source, sides[0].subject.inputs)
        require_fed(sides, frames)
        scored = {side.label: score_side(side, labelled, tell) for side in sides} if labelled else {}
        turns = run_in_turns(sides, frames, seconds=seconds, seed=seed)
        notes = (*notes_on(sides), *notes, *label_notes(labelled, scored))
        result = _compare_turns(sides, turns, scored, margin, str(frames.source), notes)
        close(sides)
    if out:
        write_comparison(result, out)
    return result


def _compare_turns(
    sides: Sequence[Side],
    turns: Turns,
    scored: Mapping[str, Scored],
    margin: float,
    source: str,
    notes: tuple[Note, ...],
) -> Comparison:
    first, parts = sides[0].label, turns.parts
    rows = [
        Compared(
            label=side.label,
            given=side.given,
            size_bytes=side.size_bytes,
            times=_times(turns.samples[side.label], parts),
            ratios={} if side.label == first else {p: turns.ratio(side.label, p, margin=margin) for p in parts},
            scored=scored.get(side.label),
            drop=drop_between(scored[first], scored[side.label]) if scored and side.label != first else None,
            on_front=False,
        )
        for side in sides
    ]
    faster = {
        (a.label, b.label): turns.ratio(a.label, "frame", against=b.label, margin=margin).verdict
        for a in sides
        for b in sides
        if a is not b
    }
    return Comparison(
        rows=mark_front(rows, faster),
        parts=parts,
        margin=margin,
        null={part: turns.null(part, margin) for part in parts},
        seconds=turns.seconds,
        source=source,
        trust=turns.trust,
        notes=notes,
        environments={side.label: environment_of(side) for side in sides},
        samples=turns.samples,
    )


def _times(samples: Samples, parts: Sequence[str]) -> dict[str, StageTime]:
    rows = samples.steady().served()
    found = {part: summarize(rows.frame_ns if part == "frame" else rows.stage(part)) for part in parts}
    return {
        part: StageTime(
            mean_ms=None if one.mean_ns is None else one.mean_ns / 1e6,
            p50_ms=one.p50.value_ms,
            p99_ms=one.p99.value_ms,
        )
        for part, one in found.items()
    }


def _compare_stored(results: Sequence[StoredResult], margin: float) -> Comparison:
    first, *others = results
    notes = [_APART, *(note for other in others for note in require_comparable(first, other))]
    labels = distinct_labels([one.name for one in results], [str(one.path) for one in results])
    samples = {label: one.samples for label, one in zip(labels, results, strict=True)}
    parts = parts_worth_judging(samples)
    medians = {label: {part: block_medians(run, part) for part in parts} for label, run in samples.items()}

    def judge(label: str, against: str, part: str) -> Ratio | None:
        return ratio_of_series(medians[label][part], medians[against][part], margin=margin)

    rows = [
        Compared(
            label=label,
            given=str(one.path),
            size_bytes=None,
            times=_times(one.samples, parts),
            ratios={part: ratio for part in parts if (ratio := judge(label, labels[0], part))} if i else {},
            scored=None,
            drop=None,
            on_front=False,
        )
        for i, (label, one) in enumerate(zip(labels, results, strict=True))
    ]
    short = [row.label for row in rows[1:] if "frame" not in row.ratios]
    if short:
        notes.append(
            Note(NoteKind.WARNING, f"too few frames to compare {', '.join(short)}", "bench with more --seconds")
        )
    faster = {(a, b): r.verdict for a in labels for b in labels if a != b and (r := judge(a, b, "frame"))}
    return Comparison(
        rows=mark_front(rows, faster),
        parts=parts,
        margin=margin,
        null={},
        seconds=0.0,
        source=first.source,
        trust=None,
        notes=tuple(dict.fromkeys(notes)),
        environments={label: one.environment for label, one in zip(labels, results, strict=True)},
        samples=samples,
    )


def mark_front(rows: Sequence[Compared], faster: Mapping[tuple[str, str], Change]) -> tuple[Compared, ...]:
    """Return the rows with the front marked: those that no other is proven to beat.

    Another beats a row if it is FASTER and no worse in accuracy (in size, where accuracy is unknown), or EQUIVALENT in
    time and better there. What is INCONCLUSIVE beats nothing.

    Args:
        rows: All of them.
        faster: Verdict on the frame time of the first of a pair against the second.
    """

    def beats(one: Compared, other: Compared) -> bool:
        verdict, (mine, theirs) = faster.get((one.label, other.label)), (_worth(one), _worth(other))
        if verdict is Change.FASTER:
            return mine >= theirs
        return verdict is Change.EQUIVALENT and mine > theirs

    return tuple(
        dataclasses.replace(row, on_front=not any(beats(other, row) for other in rows if other is not row))
        for row in rows
    )


def _worth(row: Compared) -> float:
    return row.scored.accuracy.value if row.scored else -float(row.size_bytes or 0)


def write_comparison(result: Comparison, folder: Path) -> None:
    """Write `compare.json`, `compare.md` and one .npz of raw samples for each.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    for number, (label, samples) in enumerate(result.samples.items()):
        name = "again" if label.endswith(AGAIN) and number == len(result.rows) else str(number + 1)
        samples.save(folder / f"samples-{name}.npz")
    write_beside(folder / "compare.json", json.dumps(result.as_json(), indent=2, allow_nan=False) + "\n")
    write_beside(folder / "compare.md", render_comparison(result))


def render_comparison(result: Comparison) -> str:
    """Return the comparison as Markdown."""
    return render(
        "compare.md.jinja",
        result=result,
        heads=subject_heads(result),
        subjects=subject_rows(result),
        ratios=ratio_rows(result),
    )


def subject_heads(result: Comparison) -> tuple[str, ...]:
    """Return the heads of the table of what was compared."""
    first = result.rows[0]
    size = ("size",) if first.size_bytes is not None else ()
    accuracy = (first.scored.accuracy.metric, "drop") if first.scored else ()
    return ("", *size, *accuracy, *(f"{part} p50/p99" for part in result.parts), "front")


def subject_rows(result: Comparison) -> list[tuple[str, ...]]:
    """Return one row for each of what was compared, as text."""
    return [
        (
            row.label,
            *((format_bytes(row.size_bytes),) if row.size_bytes is not None else ()),
            *((f"{row.scored.accuracy.value:.4f}", str(row.drop) if row.drop else "") if row.scored else ()),
            *(_time(row.times[part]) for part in result.parts),
            "front" if row.on_front else "",
        )
        for row in result.rows
    ]


def _time(time: StageTime) -> str:
    return " / ".join("n/a" if value is None else f"{value:.3f}" for value in (time.p50_ms, time.p99_ms))


RATIO_HEADS = ("", "part", "speed", "95 % interval", "verdict", "faster or slower beyond", "to decide")


def ratio_rows(result: Comparison) -> list[tuple[str, ...]]:
    """Return one row for each ratio, as text."""
    return [
        (
            row.label,
            part,
            f"{ratio.speedup:.3f}x",
            f"[{ratio.low:.3f}, {ratio.high:.3f}]",
            str(ratio.verdict),
            f"{ratio.margin:.1%}",
            _to_decide(result, ratio),
        )
        for row in result.rows
        for part, ratio in row.ratios.items()
    ]


def _to_decide(result: Comparison, ratio: Ratio) -> str:
    more = result.more_seconds(ratio)
    if more == 0:
        return ""
    if more is None:
        return "no run would: it sits on the margin" if result.null else "measure in turns"
    return f"about {more:.0f} s more"
