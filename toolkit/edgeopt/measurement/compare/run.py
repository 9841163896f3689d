"""Several workloads of one kind against the first of them.

They are opened together and run in turns, so that a busy machine slows all alike, and the first one runs twice: what
the machine makes of no difference widens the margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.compare.options import Contest
from edgeopt.measurement.compare.result import Compared, Comparison
from edgeopt.measurement.compare.summary import summarize as summarize_comparison
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Quality, Sides, SidesOpener, Tell, Timed
from edgeopt.measurement.statistics.quantile import StageTime, summarize
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.measurement.turns.interleaved import AGAIN
from edgeopt.report.formats import write_pages
from edgeopt.system.disk.files import require_writable
from edgeopt.system.toml import Within, require_measurable


def compare(
    opener: SidesOpener, sources: Sequence[str], options: Contest, tell: Tell | None = None, *, kind: str
) -> Comparison:
    """Compare workloads of one kind with the first of them.

    Args:
        opener: Opens them.
        sources: Two or more, as the user named them.
        options: What to measure, the kind's own dataclass.
        tell: Hears progress.
        kind: Name of their kind of workload.

    Raises:
        EdgeoptError: If one cannot be opened, or they cannot be compared.
    """
    require_measurable(options.seconds, options.seed, options.threads)
    Within(0, 1).require("margin", options.margin)
    if options.out:
        require_writable(options.out / "compare.json")
    with closing(opener.open_sides(sources, options)) as sides:
        qualities = sides.score(tell)
        timed = sides.run_in_turns(options.seconds, tell)
        result = replace(_result(sides, timed, qualities, options.margin), kind=kind)
    if options.out:
        _write(result, options.out)
    return result


def _result(sides: Sides, timed: Timed, qualities: Mapping[str, Quality], margin: float) -> Comparison:
    labels, parts = [facts.label for facts in sides.facts], timed.parts
    whole = next(iter(timed.samples.values())).whole
    rows = [
        Compared(
            facts=facts,
            times=_times(timed.samples[facts.label], parts),
            ratios=_ratios(timed, facts.label, margin) if facts.label != labels[0] else {},
            quality=qualities.get(facts.label),
        )
        for facts in sides.facts
    ]
    notes = sides.notes
    if short := [row.label for row in rows[1:] if whole not in row.ratios]:
        detail = f"too few {whole}s to compare {', '.join(short)}"
        notes = (*notes, Note(NoteKind.WARNING, detail, "bench with more --seconds"))
    pairs = [(a, b) for a in labels for b in labels if a != b]
    ratios = {(a, b): timed.ratio(a, whole, against=b, margin=margin) for a, b in pairs}
    nulls = {part: timed.null(part, margin) for part in parts}
    return Comparison(
        rows=mark_front(rows, {pair: ratio.verdict for pair, ratio in ratios.items() if ratio}),
        parts=parts,
        whole=whole,
        margin=margin,
        null={part: ratio for part, ratio in nulls.items() if ratio},
        seconds=timed.seconds,
        source=sides.source,
        trust=timed.trust,
        notes=tuple(dict.fromkeys(notes)),
        samples=timed.samples,
    )


def _ratios(timed: Timed, label: str, margin: float) -> dict[str, Ratio]:
    ratios = {part: timed.ratio(label, part, margin=margin) for part in timed.parts}
    return {part: ratio for part, ratio in ratios.items() if ratio}


def _times(samples: Samples, parts: Sequence[str]) -> dict[str, StageTime]:
    rows = samples.steady().served()
    return {part: summarize(rows.part(part)).stage_time for part in parts}


def mark_front(rows: Sequence[Compared], faster: Mapping[tuple[str, str], Change]) -> tuple[Compared, ...]:
    """Return the rows with the front marked: those that no other is proven to beat.

    Another beats a row if it is FASTER and no worse in accuracy (in size, where accuracy is unknown), or EQUIVALENT in
    time and better there. What is INCONCLUSIVE beats nothing.

    Args:
        rows: All of them.
        faster: Verdict on the whole of the first of a pair against the second.
    """

    def beats(compared: Compared, other: Compared) -> bool:
        verdict, (mine, theirs) = faster.get((compared.label, other.label)), (_worth(compared), _worth(other))
        if verdict is Change.FASTER:
            return mine >= theirs
        return verdict is Change.EQUIVALENT and mine > theirs

    return tuple(
        replace(row, on_front=not any(beats(other, row) for other in rows if other is not row)) for row in rows
    )


def _worth(row: Compared) -> float:
    return row.quality.worth if row.quality else -float(row.size_bytes or 0)


def _write(result: Comparison, folder: Path) -> None:
    """Write one .npz of raw samples for each, then the comparison."""
    for number, (label, samples) in enumerate(result.samples.items()):
        name = "again" if label.endswith(AGAIN) and number == len(result.rows) else str(number + 1)
        samples.save(folder / f"samples-{name}.npz")
    write_pages(summarize_comparison(result), folder, "compare")
