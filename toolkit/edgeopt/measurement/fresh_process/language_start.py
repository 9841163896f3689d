"""The cost of a language model in a fresh process, up to its second token."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.fresh_process.cold_start import ColdRun, ColdStart, ColdWay
from edgeopt.measurement.fresh_process.page_cache import PageCache, prepare, why_cannot_drop
from edgeopt.measurement.fresh_process.process import run_child
from edgeopt.measurement.fresh_process.start import (
    LONGEST_S,
    WITHOUT_COLD,
    missing_in,
    points_of,
    ways_in_turns,
)
from edgeopt.system.disk.links import pinned


def run_cold_language(
    model: Path,
    files: Sequence[Path],
    prompt: Sequence[int],
    threads: int,
    entries: Mapping[str, str],
    *,
    repeats: int = 10,
    tell: Callable[[int, int], None] | None = None,
) -> ColdStart:
    """Start a language model in fresh processes, with a warm and a cold page cache in turns, and return every time.

    `session` is opening it with its tokenizer, `first` the first token of an answer, `second` the next one.

    Args:
        model: A bundle, or its ONNX file; the folder of an encoder with a decoder.
        files: That it reads: the page cache is asked for them.
        prompt: Tokens; none: a window of noise, of what hears sounds.
        threads: Of the engine.
        entries: Of its session.
        repeats: Processes of each kind.
        tell: Called with processes done and of how many.

    Raises:
        EdgeoptError: If a process fails.
    """
    reason = why_cannot_drop()
    ways = [
        ColdWay(page_cache, is_optimized=False)
        for page_cache in PageCache
        if page_cache is PageCache.WARM or not reason
    ]
    notes = [Note(NoteKind.SKIPPED, f"cold page cache not measured: {reason}")] if reason else []
    how = {"threads": threads, "entries": dict(entries), "wants_peak": False}
    request = json.dumps({"model": str(pinned(model)), "prompt": [*prompt], **how})

    def run(way: ColdWay) -> ColdRun:
        resident = prepare(files, way.page_cache)
        began_ns = time.perf_counter_ns()
        answer = run_child("fresh_process.child", request, longest_s=LONGEST_S, remedy=WITHOUT_COLD)
        return ColdRun(way, points_of(answer["points"], began_ns), resident)

    runs = ways_in_turns(ways, repeats, run, tell)
    return ColdStart(tuple(runs), (*notes, *missing_in(runs)))
