"""A bundle on a source, for a person: answers told, shown and saved, and the budget judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgeopt.errors import EXIT_PASS, EdgeoptError, Note
from edgeopt.measurement.statistics.budget import BudgetResult, judge_budget, require_provable
from edgeopt.recipes.inputs.pictures import VIDEOS
from edgeopt.running.live_drift import watch_frames
from edgeopt.running.live_options import LiveOptions
from edgeopt.running.live_subject import LiveSubject, opened_subject
from edgeopt.runtime.drift.sketch import write_sketch
from edgeopt.runtime.drift.watch import DriftWatch
from edgeopt.runtime.outputs import Output, Shown
from edgeopt.runtime.outputs.pictures import PictureFolder
from edgeopt.runtime.outputs.sounds import DrawAll, SoundFolder
from edgeopt.runtime.outputs.video import Video
from edgeopt.runtime.outputs.view import View
from edgeopt.runtime.stream import Degradation, Event, Stream, StreamResult, StreamStats
from edgeopt.runtime.stream.sources.pictures import Pictures
from edgeopt.system.text import plural

_MOST_JUDGED: Final = 10**6
"""Frames that are judged at most, the last ones: nine hours at 30 a second."""
_FILM_PER_S: Final = 30.0
"""Frames a second of a saved video whose source does not say."""


@dataclass(frozen=True, slots=True)
class LiveResult:
    """How a run went."""

    bundle: str
    code: Path | None
    source: str
    stats: StreamStats
    is_on_demand: bool
    """Whether frames were read when they were wanted, so that none could be lost."""
    budget: BudgetResult | None
    """None: none was asked for. Lost frames are misses."""
    seconds: float
    saved: str
    """What was saved, in a clause; empty: nothing was to be."""
    viewed: str
    """Where it was shown, and how often; empty: nowhere."""
    interrupted: bool
    failure: EdgeoptError | None
    """What ended it after its first answer: the source is gone, or the disk is full."""
    learned: str = ""
    """Where the sketch of the frames was written, in a clause; empty: nowhere."""

    @property
    def exit_code(self) -> int:
        """0 where no budget was asked for."""
        return EXIT_PASS if self.budget is None else self.budget.verdict.exit_code


class LiveListener:
    """Hears of a run; whoever shows more takes its place."""

    def begin(self, subject: LiveSubject, notes: tuple[Note, ...], view: str, *, by_line: bool) -> None:
        """Hear what is to know before.

        Args:
            subject: It tells answers.
            notes: About the bundle and the source.
            view: Address of the page; empty: there is none.
            by_line: Whether the source has few frames, so that each answer is worth a line.
        """

    def hear(self, result: StreamResult, problem: str) -> None:
        """Hear an answer, or why there is none."""

    def tick(self, figures: Callable[[], StreamStats], total: int | None) -> None:
        """Be asked after each frame whether it is time to show figures."""

    def event(self, event: Event) -> None:
        """Hear what happened, in any thread."""

    def end(self) -> None:
        """Hear that it is over."""


class _Judged:
    """Which frames kept the budget, in their order: one byte each, lost ones too."""

    def __init__(self) -> None:
        self._missed = bytearray()
        self._next: int | None = None

    def record(self, result: StreamResult) -> None:
        """Hear of a served frame; what lies between two was lost, what lies before the first was the start."""
        if self._next is not None:
            self._missed += b"\x01" * min(result.index - self._next, _MOST_JUDGED)
        self._missed.append(result.missed)
        self._next = result.index + 1
        if len(self._missed) > 2 * _MOST_JUDGED:
            del self._missed[:-_MOST_JUDGED]

    def judge(self, budget_ms: float, max_miss_ratio: float) -> BudgetResult:
        missed = np.frombuffer(bytes(self._missed[-_MOST_JUDGED:]), np.bool_)
        return judge_budget(np.zeros(len(missed), np.int64), budget_ms, max_miss_ratio, lost=missed)


def run_live(bundle: Path, source: str, options: LiveOptions, listener: LiveListener) -> LiveResult:
    """Run a bundle, or a model as it is, on a source until it ends, the limit is reached or the user interrupts.

    Args:
        bundle: Its folder, of a model or a pipeline; or a model, by path or shipped name.
        source: A camera's number, a path or an address.
        options: What is asked for.
        listener: Hears of it.

    Raises:
        EdgeoptError: If it gives no answer at all; what ends it later is `LiveResult.failure`.
    """
    require_provable(options.max_miss_ratio, "frames")
    with opened_subject(
        bundle, source, options.code, options.threads or None, options.recipe, options.target
    ) as subject:
        budget_ms = options.budget_ms or subject.budget_ms
        watch = watch_frames(subject.served, source, options)
        with Stream(
            subject.served,
            source,
            fps=options.fps or ("own" if options.view else None),
            budget_ms=budget_ms,
            queue=options.queue,
            degrade=Degradation() if options.degrade else None,
            on_event=listener.event,
        ) as stream:
            result = _run(subject, stream, source, bundle, options, listener, budget_ms)
        return _learned(result, watch, options.learn_drift)


def _learned(result: LiveResult, watch: DriftWatch | None, path: Path | None) -> LiveResult:
    """Write down what was usual, where that is wished; what stands against it is the run's failure."""
    if watch is None or path is None:
        return result
    try:
        sketch = watch.learned()
        write_sketch(path, sketch)
    except EdgeoptError as error:
        return replace(result, failure=result.failure or error)
    return replace(result, learned=f"{path}: {plural(sketch.frames, 'frame')}; edgeopt run ... --drift {path}")


def _run(
    subject: LiveSubject,
    stream: Stream,
    source: str,
    bundle: Path,
    options: LiveOptions,
    listener: LiveListener,
    budget_ms: float,
) -> LiveResult:
    judged, began_s, count, interrupted = _Judged(), time.monotonic(), 0, False
    failure: EdgeoptError | None = None
    with _outputs(subject, stream, source, bundle, options) as outputs:
        view = next((other.address for other in outputs if isinstance(other, View)), "")
        listener.begin(
            subject, (*subject.notes, *stream.source.notes), view, by_line=isinstance(stream.source, Pictures)
        )
        try:
            for count, result in enumerate(stream, start=1):
                judged.record(result)
                shown = Shown(result, subject.draw)
                for output in outputs:
                    output.put(shown)
                listener.hear(result, subject.why_no_answer(result.frame, result.answer) if stream.is_on_demand else "")
                listener.tick(stream.stats, stream.source.count)
                if count == options.limit:
                    break
        except KeyboardInterrupt:
            interrupted = True
        except EdgeoptError as error:
            if not count:
                raise
            failure = error
        stream.stop()
        seconds = time.monotonic() - began_s
        saved = "".join(other.close() for other in outputs if not isinstance(other, View))
        viewed = "".join(other.close() for other in outputs if isinstance(other, View))
    return LiveResult(
        bundle=str(bundle),
        code=options.code,
        source=stream.source.name,
        stats=stream.stats(),
        is_on_demand=stream.is_on_demand,
        budget=judged.judge(budget_ms, options.max_miss_ratio) if options.budget_ms else None,
        seconds=seconds,
        saved=saved,
        viewed=viewed,
        interrupted=interrupted,
        failure=failure,
    )


@contextmanager
def _outputs(
    subject: LiveSubject, stream: Stream, source: str, bundle: Path, options: LiveOptions
) -> Iterator[tuple[Output, ...]]:
    """Open what was asked for, and close it whatever happens: what was saved stays."""
    if options.save or options.view:
        subject.require_drawable(stream.source.holds, source)
    opened: list[Output] = []
    try:
        if options.save:
            opened.append(_saver(stream, source, options.save, options.fps, subject.draw_windows))
        if options.view:
            opened.append(View(lambda: _figures(stream, bundle)))
        yield tuple(opened)
    finally:
        for output in opened:
            output.close()


def _saver(stream: Stream, source: str, path: Path, fps: float | None, draw_windows: DrawAll | None) -> Output:
    if path.suffix.lower() in VIDEOS:
        return Video(path, fps or stream.source.fps or _FILM_PER_S)
    if isinstance(stream.source, Pictures) and stream.source.frames.parts and draw_windows:
        return SoundFolder(path, stream.source.frames, draw_windows)
    if isinstance(stream.source, Pictures):
        return PictureFolder(path, stream.source.frames.names, Path(source))
    return PictureFolder(path)


def _figures(stream: Stream, bundle: Path) -> dict[str, Any]:
    stats = stream.stats()
    events = [str(event) for event in stats.events]
    values = stats.to_json() | {
        "bundle": bundle.name,
        "source": stream.source.name,
        "note": events[-1] if events else "",
    }
    return {name: value for name, value in values.items() if name != "events"}
