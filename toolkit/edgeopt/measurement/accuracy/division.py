"""One labelled set divided: a part that the search may look at, and a part that proves, opened at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.accuracy.evaluate import LabelledFrames
from edgeopt.measurement.accuracy.judgement import LEVEL
from edgeopt.measurement.accuracy.paired_shares import least_samples
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.system.text import plural

_SHARE = 4
"""One sample of so many goes to the search."""
_LEAST, _MOST = 16, 128
"""Samples that the search gets: as many as agreement is judged on, and as many as calibrate."""
_SEED = 20


@dataclass(frozen=True)
class Division:
    """Labelled samples divided into those that the search may look at and those that prove."""

    search: Frames
    proving: LabelledFrames
    is_apart: bool
    """Whether no sample is in both: else the labels prove nothing."""
    notes: tuple[Note, ...] = ()


def divide(labelled: LabelledFrames) -> Division:
    """Divide one labelled set at random, always alike: whole streams where samples follow each other.

    Args:
        labelled: All labelled samples.
    """
    labels, count = labelled.labels, len(labelled.frames)
    groups = np.asarray(labels.groups or range(count))
    order = np.random.default_rng(_SEED).permutation(np.unique(groups))
    wanted = min(max(count // _SHARE, _LEAST), _MOST)
    if len(order) < 2 or count < 2 * _LEAST:
        return _undivided(labelled)
    sizes = np.cumsum([np.count_nonzero(groups == group) for group in order])
    taken = order[: max(1, min(int(np.searchsorted(sizes, wanted)) + 1, len(order) - 1))]
    is_search = np.isin(groups, taken)
    search, proving = np.flatnonzero(is_search).tolist(), np.flatnonzero(~is_search).tolist()
    kind = labelled.frames.kind
    text = f"{len(search)} of {plural(count, f'labelled {kind}')} steer the search, the other {len(proving)} prove"
    note = Note(NoteKind.INFO, text, f"pass --calib with other {kind}s, and all labels prove")
    return Division(labelled.frames.select(search), _selected(labelled, proving), True, (note,))


def _undivided(labelled: LabelledFrames) -> Division:
    """Return a set that is too small to be divided: all of it steers the search, and it proves nothing."""
    text = f"{plural(len(labelled.frames), f'labelled {labelled.frames.kind}')}, too few to divide, steer the search"
    note = Note(NoteKind.WARNING, f"{text}: they prove nothing", f"pass --calib with other {labelled.frames.kind}s")
    return Division(labelled.frames, labelled, False, (note,))


def without(frames: Frames, labelled: LabelledFrames) -> Frames | None:
    """Return the frames that are not among the labelled ones; None where all of them are.

    Args:
        frames: That calibrate.
        labelled: That prove.
    """
    proving = {path.resolve() for path in labelled.frames.paths}
    if len(frames.paths) != len(frames) or not proving:
        return frames
    kept = [i for i, path in enumerate(frames.paths) if path.resolve() not in proving]
    return frames.select(kept) if kept else None


def why_too_few(samples: int, allowed: float, level: float = LEVEL) -> str:
    """Return why so many samples cannot prove a drop, even where not one answer changes; empty where they can."""
    least = least_samples(allowed, level)
    if not least:
        return "no number of labelled samples proves that nothing at all is lost"
    if samples >= least:
        return ""
    return (
        f"{plural(samples, 'labelled sample')} cannot prove a drop of at most {allowed:g}: it takes {least:,} at least"
    )


def _selected(labelled: LabelledFrames, kept: Sequence[int]) -> LabelledFrames:
    return replace(labelled, frames=labelled.frames.select(kept), labels=labelled.labels.select(kept))
