"""Earlier results of `bench` as sides of a comparison: they ran apart, so nothing is proven of what lay between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.bench.stored import StoredResult, read_stored, require_comparable
from edgeopt.measurement.compare.options import Contest
from edgeopt.measurement.resources.trust import Trust
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.sides import Quality, SideFacts, Tell
from edgeopt.measurement.statistics.ratio import Ratio, block_medians, parts_worth_judging, ratio_of_series
from edgeopt.measurement.turns.side_by_side import distinct_labels

_APART = Note(
    NoteKind.WARNING,
    "these runs were not made in turns: what the machine did between them is not in the intervals",
    "compare the models themselves for a proof",
)


@dataclass(frozen=True)
class StoredRuns:
    """Times of runs that were made apart."""

    samples: Mapping[str, Samples]
    seconds: float = 0.0
    trust: Trust | None = None

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Parts that can be judged, the whole among them."""
        return parts_worth_judging(self.samples)

    def ratio(self, label: str, part: str, *, against: str = "", margin: float = 0.02) -> Ratio | None:
        """Return how many times as fast a run was as another (the first); None: it has too few samples."""
        runs = (self.samples[label], self.samples[against or next(iter(self.samples))])
        mine, theirs = (block_medians(run, part) for run in runs)
        return ratio_of_series(mine, theirs, margin=margin)

    def null(self, part: str, margin: float = 0.02) -> Ratio | None:
        """Return None: no run was made twice."""
        del part, margin
        return None


@dataclass(frozen=True)
class StoredSides:
    """Earlier results, the first of them the standard; nothing runs."""

    facts: tuple[SideFacts, ...]
    notes: tuple[Note, ...]
    source: str
    samples: Mapping[str, Samples]
    """Samples by label."""

    def score(self, tell: Tell | None) -> Mapping[str, Quality]:
        """Return nothing: a result of `bench` holds times."""
        del tell
        return {}

    def run_in_turns(self, seconds: float, tell: Tell | None) -> StoredRuns:
        """Return the times as they are."""
        del seconds, tell
        return StoredRuns(self.samples)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def kind_of_results(sources: Sequence[str]) -> str:
    """Return the kind of workload of earlier results.

    Raises:
        InvalidFileError: If the first cannot be read.
    """
    return read_stored(Path(sources[0])).kind


def open_sides(sources: Sequence[str], options: Contest) -> StoredSides:
    """Read earlier results, of any kind of workload.

    Raises:
        EdgeoptError: If one cannot be read, or they cannot be compared.
    """
    del options
    return _sides_of([read_stored(Path(source)) for source in sources])


def _sides_of(results: Sequence[StoredResult]) -> StoredSides:
    """Return earlier results as sides.

    Raises:
        EdgeoptError: If kind, machine, software or load differ, or one run is invalid; the keys are named.
    """
    first, *others = results
    notes = [_APART, *(note for other in others for note in require_comparable(first, other))]
    labels = distinct_labels([result.name for result in results], [str(result.path) for result in results])
    facts = [
        SideFacts(
            label=label,
            given=str(result.path),
            size_bytes=None,
            sha256="",
            threads=result.threads,
            environment=result.environment,
        )
        for label, result in zip(labels, results, strict=True)
    ]
    samples = {label: result.samples for label, result in zip(labels, results, strict=True)}
    return StoredSides(tuple(facts), tuple(notes), first.source, samples)
