"""Costs of a model in a fresh process up to its first answers: how one is asked, and its times and peak memory.

The ways to start (warm or cold page cache, original or saved optimized graph) take turns, and so do several models, so
that a drifting machine slows all alike.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.files.outside import PieceLayout, StoredPiece
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.measurement.fresh_process.child import made_up_inputs
from edgeopt.measurement.fresh_process.cold_start import ColdPoint, ColdRun, ColdStart, ColdWay
from edgeopt.measurement.fresh_process.page_cache import PageCache, prepare, why_cannot_drop
from edgeopt.measurement.fresh_process.process import run_child
from edgeopt.recipes.inputs.input_shapes import Shapes
from edgeopt.runtime.opening import Opening
from edgeopt.system.disk.files import require_space
from edgeopt.system.disk.links import pinned
from edgeopt.system.machine.place import current_place

LONGEST_S = 600.0
WITHOUT_COLD = "look at edgeopt bench without --cold; it may be the first run that never ends"

Tell = Callable[[int, int], None]
"""(done, of)"""


def run_cold_start(
    model: Path,
    opening: Opening,
    *,
    repeats: int = 10,
    page_caches: Sequence[PageCache] = (PageCache.WARM, PageCache.COLD),
    with_optimized: bool = True,
    inputs: Path | None = None,
    shapes: Shapes | None = None,
    timeout_s: float = LONGEST_S,
    tell: Callable[[int, int], None] | None = None,
) -> ColdStart:
    """Start a model in fresh processes, `repeats` times each way, and return every time.

    Args:
        model: An ONNX file; the files with its weights count as part of it.
        opening: How sessions are opened; `save_optimized_to` and `profile_to` must be empty.
        repeats: Processes of each way, at least 1; 20 and more for a p90.
        page_caches: Which states of the page cache; one that this system cannot reach is left out with a note.
        with_optimized: Also start from the optimized graph that the engine saves.
        inputs: An .npz file of the model's inputs; None: random ones.
        shapes: Of random inputs, by name; a free dimension that they do not tell is 1.
        timeout_s: The longest that one process may take.
        tell: Called with processes done and of how many.

    Raises:
        EdgeoptError: If a process fails.
        ValueError: If `opening` would save or profile in the measured processes.
    """
    if opening.options.save_optimized_to or opening.options.profile_to:
        raise ValueError("a cold start saves and profiles nothing in the processes it measures")
    with tempfile.TemporaryDirectory(prefix="edgeopt-cold-") as folder:
        start = _Starter(opening, inputs, shapes or {}, timeout_s)
        graphs, notes, weights = {False: model}, [], outside_files(model)
        files = {False: [model, *weights]}
        if with_optimized:
            require_space(Path(folder), 2 * sum(file.stat().st_size for file in files[False]))
            _link(weights, model.parent, Path(folder))
            saved = start.save_optimized(model, Path(folder) / "optimized.onnx")
            if saved:
                graphs[True], files[True] = saved, [saved, *outside_files(saved)]
            notes += [] if saved else [Note(NoteKind.SKIPPED, f"{opening.executor} saved no optimized graph")]
        if PageCache.COLD in page_caches and (reason := why_cannot_drop()):
            page_caches = [page_cache for page_cache in page_caches if page_cache is not PageCache.COLD]
            notes.append(Note(NoteKind.SKIPPED, f"cold page cache not measured: {reason}"))
        ways = [ColdWay(cache, optimized) for cache in page_caches for optimized in graphs]
        runs = ways_in_turns(
            ways, repeats, lambda way: start.run(graphs[way.is_optimized], files[way.is_optimized], way), tell
        )
    return ColdStart(tuple(runs), (*notes, *missing_in(runs)))


def ways_in_turns(
    ways: Sequence[ColdWay], repeats: int, run: Callable[[ColdWay], ColdRun], tell: Tell | None
) -> list[ColdRun]:
    """Return the runs of all ways; each round begins with another one."""
    runs: list[ColdRun] = []
    for turn in range(repeats):
        for way in (*ways[turn % len(ways) :], *ways[: turn % len(ways)]):
            runs.append(run(way))
            if tell:
                tell(len(runs), repeats * len(ways))
    return runs


def missing_in(runs: Sequence[ColdRun]) -> list[Note]:
    """Return what this system did not tell of them."""
    points = [point for run in runs for point in run.points]
    if any(point.major_faults is None for point in points):
        return [Note(NoteKind.INFO, "page faults not measured: this system counts all faults together")]
    return []


@dataclass(frozen=True, slots=True)
class _Starter:
    opening: Opening
    inputs: Path | None
    shapes: Shapes
    timeout_s: float

    def run(self, model: Path, files: Sequence[Path], way: ColdWay) -> ColdRun:
        resident = prepare(files, way.page_cache)
        began_ns = time.perf_counter_ns()
        answer = self._ask(model, self.opening)
        return ColdRun(way, points_of(answer["points"], began_ns), resident)

    def save_optimized(self, model: Path, path: Path) -> Path | None:
        self._ask(model, self.opening.saving_to(path))
        return path if path.is_file() else None

    def _ask(self, model: Path, opening: Opening) -> dict[str, Any]:
        request = fresh_request(model, opening, self.inputs, self.shapes)
        return run_child("fresh_process.child", request, longest_s=self.timeout_s, remedy=WITHOUT_COLD)


def fresh_request(
    model: Path, opening: Opening, inputs: Path | None = None, shapes: Shapes | None = None, *, wants_peak: bool = False
) -> str:
    """Return what `child` is asked: JSON.

    Args:
        model: An ONNX file.
        opening: How it is opened.
        inputs: An .npz file of its inputs; None: random ones.
        shapes: Of random inputs, by name; a free dimension that they do not tell is 1.
        wants_peak: Whether its peak memory is told too.
    """
    fed = str(inputs.resolve()) if inputs else ""
    asked = {"model": str(pinned(model)), "opening": opening.to_json(), "inputs": fed, "wants_peak": wants_peak}
    return json.dumps({**asked, "shapes": shapes or {}})


def points_of(answered: list[dict[str, Any]], began_ns: int) -> tuple[ColdPoint, ...]:
    """Return what a child told.

    The first point began in the parent: `perf_counter_ns` counts from the same instant in every process.
    """
    begun = [began_ns, *(entry["begun_ns"] for entry in answered[1:])]
    return tuple(
        ColdPoint(entry["name"], entry["done_ns"] - begin, entry["rss_bytes"], entry["major_faults"])
        for entry, begin in zip(answered, begun, strict=True)
    )


def _link(files: Sequence[Path], source: Path, folder: Path) -> None:
    """Put files into the same places below `folder` as below `source`: a saved graph names its weights as before."""
    for file in files:
        whole = StoredPiece(file, 0, file.stat().st_size)
        PieceLayout((whole,), (0,), file).write(folder / file.relative_to(source), may_link=True)


@dataclass(frozen=True, slots=True)
class FreshStart:
    """A model and how it is opened."""

    model: Path
    opening: Opening
    shapes: Shapes = field(default_factory=dict)
    """Shapes of its inputs, where the model leaves some free."""


def time_first_answers(
    starts: Mapping[str, FreshStart], repeats: int, tell: Tell | None = None
) -> dict[str, list[int]]:
    """Return nanoseconds from starting a process to its first answer, warm page cache, `repeats` for each.

    Raises:
        EdgeoptError: If a process fails.
    """

    def once(start: FreshStart) -> int:
        if (there := _start_there(start)) is not None:
            return there.first_answer_ns
        cold_start = run_cold_start(
            start.model,
            start.opening,
            repeats=1,
            page_caches=(PageCache.WARM,),
            with_optimized=False,
            shapes=start.shapes,
        )
        return cold_start.runs[0].took_ns("to_first")

    return _in_turns(starts, repeats, once, tell)


def measure_peaks(starts: Mapping[str, FreshStart], repeats: int, tell: Tell | None = None) -> dict[str, list[int]]:
    """Return the peak resident bytes of processes that open the model and run it twice, `repeats` for each.

    Lists are empty where the system keeps no peak.

    Raises:
        EdgeoptError: If a process fails.
    """

    def once(start: FreshStart) -> int:
        if (there := _start_there(start)) is not None:
            return there.peak_bytes or 0
        request = fresh_request(start.model, start.opening, shapes=start.shapes, wants_peak=True)
        remedy = "leave it out with --skip memory; edgeopt bench shows whether the first run ever ends"
        return run_child("fresh_process.child", request, longest_s=LONGEST_S, remedy=remedy)["peak_bytes"] or 0

    peaks = _in_turns(starts, repeats, once, tell)
    return {name: [value for value in values if value] for name, values in peaks.items()}


@dataclass(frozen=True, slots=True)
class StartThere:
    """A fresh process on another machine that opened a model and answered twice."""

    first_answer_ns: int
    """Nanoseconds from the start of the process to its first answer."""
    peak_bytes: int | None
    """Most memory that it held; None: that system does not tell."""


def _start_there(start: FreshStart) -> StartThere | None:
    """Start a model on the machine that computes for this process; None: that is this machine."""
    if (place := current_place()) is None:
        return None
    there: StartThere = place.start(
        start.opening,
        start.model,
        partial(made_up_inputs, shapes={name: [*shape] for name, shape in start.shapes.items()}),
    )
    return there


def _in_turns(
    starts: Mapping[str, FreshStart], repeats: int, once: Callable[[FreshStart], int], tell: Tell | None
) -> dict[str, list[int]]:
    in_turns: dict[str, list[int]] = {name: [] for name in starts}
    for turn in range(repeats):
        for name in list(starts)[:: 1 if turn % 2 == 0 else -1]:
            in_turns[name].append(once(starts[name]))
        if tell:
            tell(turn + 1, repeats)
    return in_turns
