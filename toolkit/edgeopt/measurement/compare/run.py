"""Several models, bundles or earlier results against the first of them.

Models and bundles are opened together and run in turns, so that a busy machine slows all alike, and the first one runs
twice: what the machine makes of no difference widens the margin. Earlier results are compared as they are, and only
where machine and software were the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.measurement.accuracy.bootstrap import Scored, drop_between
from edgeopt.measurement.accuracy.evaluate import Progress, open_labelled, require_metric
from edgeopt.measurement.bench.stored import StoredResult, is_stored, read_stored, require_comparable
from edgeopt.measurement.compare.options import CompareOptions, FrameCompareWishes
from edgeopt.measurement.compare.result import Compared, Comparison
from edgeopt.measurement.compare.summary import summarize as summarize_comparison
from edgeopt.measurement.opening.subject import choose_frames, shapes_of
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.statistics.quantile import StageTime, summarize
from edgeopt.measurement.statistics.ratio import Change, Ratio, block_medians, parts_worth_judging, ratio_of_series
from edgeopt.measurement.turns.interleaved import AGAIN, Turns
from edgeopt.measurement.turns.side_by_side import (
    Side,
    close,
    distinct_labels,
    label_notes,
    notes_on,
    open_sides,
    require_fed,
    run_in_turns,
    score_side,
)
from edgeopt.report.formats import write_pages
from edgeopt.runtime.bundle import is_bundle
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.disk.files import require_writable
from edgeopt.system.toml import Within, require_measurable

_APART = Note(
    NoteKind.WARNING,
    "these runs were not made in turns: what the machine did between them is not in the intervals",
    "compare the models themselves for a proof",
)


@with_options_of(CompareOptions)
def compare(
    *subjects: str | Path,
    target: str = "cpu",
    recipe: str | None = None,
    options: CompareOptions | None = None,
    out: Path | None = None,
    tell: Progress | None = None,
    **wishes: Unpack[FrameCompareWishes],
) -> Comparison:
    """Compare models, bundles or earlier results with the first of them.

    Args:
        *subjects: Two or more paths or shipped names; or two or more results of `bench`, not mixed with models.
        target: For models; a bundle brings its own.
        recipe: For models; a bundle brings its own.
        options: What to measure; None: all defaults.
        out: Where `compare.json`, `compare.md` and the raw samples go; None: nowhere.
        tell: Hears progress.
        **wishes: Fields of `CompareOptions` that differ, such as `seconds=60`.

    Raises:
        EdgeoptError: If fewer than two are given, models and results are mixed, one cannot be opened, or results come
            from different machines.
    """
    compare_options = replace(options or CompareOptions(), **wishes)
    require_measurable(compare_options.seconds, compare_options.seed, compare_options.threads)
    Within(0, 1).require("margin", compare_options.margin)
    if out:
        require_writable(out / "compare.json")
    given = [str(subject) for subject in subjects]
    if len(given) < 2:
        raise EdgeoptError(
            f"a comparison needs two, {len(given)} given",
            remedy="name the model to compare with first, then the others; edgeopt bench measures one",
        )
    stored = [is_stored(Path(name)) and not is_bundle(Path(name)) for name in given]
    if all(stored):
        result = _compare_stored([read_stored(Path(name)) for name in given], compare_options.margin)
    elif any(stored):
        raise EdgeoptError(
            f"{given[stored.index(True)]} is an earlier result and {given[stored.index(False)]} is a model",
            remedy="name models only, so that they run in turns, or results only",
        )
    else:
        sides = open_sides(
            given,
            target=target,
            recipe=recipe,
            threads=compare_options.threads,
            shapes=shapes_of(compare_options.source),
            sizes=compare_options.shapes,
        )
        for side in sides:
            require_metric(side.subject.recipe, compare_options.eval)
        first = sides[0].subject
        labelled = (
            open_labelled(Path(compare_options.eval), first.recipe, first.inputs) if compare_options.eval else None
        )
        frames, notes = choose_frames(first.recipe, compare_options.source, first.inputs)
        require_fed(sides, frames)
        scored = {side.label: score_side(side, labelled, tell) for side in sides} if labelled else {}
        turns = run_in_turns(sides, frames, seconds=compare_options.seconds, seed=compare_options.seed, tell=tell)
        notes = (*notes_on(sides), *notes, *label_notes(labelled, scored))
        result = _compare_turns(sides, turns, scored, compare_options.margin, str(frames.source), notes)
        close(sides)
    if out:
        _write(result, out)
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
        environments={side.label: side.subject.environment() for side in sides},
        samples=turns.samples,
    )


def _times(samples: Samples, parts: Sequence[str]) -> dict[str, StageTime]:
    rows = samples.steady().served()
    return {part: summarize(rows.part(part)).stage_time for part in parts}


def _compare_stored(results: Sequence[StoredResult], margin: float) -> Comparison:
    first, *others = results
    notes = [_APART, *(note for other in others for note in require_comparable(first, other))]
    labels = distinct_labels([one.name for one in results], [str(one.path) for one in results])
    samples = {label: result.samples for label, result in zip(labels, results, strict=True)}
    parts = parts_worth_judging(samples)
    medians = {label: {part: block_medians(run, part) for part in parts} for label, run in samples.items()}

    def judge(label: str, against: str, part: str) -> Ratio | None:
        return ratio_of_series(medians[label][part], medians[against][part], margin=margin)

    rows = [
        Compared(
            label=label,
            given=str(stored_result.path),
            size_bytes=None,
            times=_times(stored_result.samples, parts),
            ratios={part: ratio for part in parts if (ratio := judge(label, labels[0], part))} if i else {},
            scored=None,
            drop=None,
            on_front=False,
        )
        for i, (label, stored_result) in enumerate(zip(labels, results, strict=True))
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
        environments={label: result.environment for label, result in zip(labels, results, strict=True)},
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

    def beats(compared: Compared, other: Compared) -> bool:
        verdict, (mine, theirs) = faster.get((compared.label, other.label)), (_worth(compared), _worth(other))
        if verdict is Change.FASTER:
            return mine >= theirs
        return verdict is Change.EQUIVALENT and mine > theirs

    return tuple(
        dataclasses.replace(row, on_front=not any(beats(other, row) for other in rows if other is not row))
        for row in rows
    )


def _worth(row: Compared) -> float:
    return row.scored.accuracy.value if row.scored else -float(row.size_bytes or 0)


def _write(result: Comparison, folder: Path) -> None:
    """Write one .npz of raw samples for each, then the comparison."""
    for number, (label, samples) in enumerate(result.samples.items()):
        name = "again" if label.endswith(AGAIN) and number == len(result.rows) else str(number + 1)
        samples.save(folder / f"samples-{name}.npz")
    write_pages(summarize_comparison(result), folder, "compare")
