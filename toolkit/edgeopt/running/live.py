"""A bundle on a source, for a person: answers told, shown and saved, and the budget judged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgeopt.errors import EXIT_INTERRUPTED, EXIT_PASS, EdgeoptError
from edgeopt.measurement.statistics.budget import BudgetResult, judge_budget, require_provable
from edgeopt.recipes.inputs.pictures import VIDEOS
from edgeopt.running.answers import RunListener, RunResult, TaskAnswer
from edgeopt.running.live_options import LiveOptions
from edgeopt.running.live_subject import LiveSubject, Teller, opened_subject
from edgeopt.running.plain import plain
from edgeopt.runtime.drift.of_bundle import NONE
from edgeopt.runtime.drift.sketch import write_sketch
from edgeopt.runtime.drift.watch import DriftWatch
from edgeopt.runtime.outputs import Output, Shown
from edgeopt.runtime.outputs.pictures import PictureFolder
from edgeopt.runtime.outputs.sounds import DrawAll, SoundFolder
from edgeopt.runtime.outputs.video import Video
from edgeopt.runtime.outputs.view import View
from edgeopt.runtime.pipelines.pipeline import Answer, Pipeline
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.stream import Degradation, Stream, StreamResult, StreamStats
from edgeopt.runtime.stream.sources.pictures import Pictures
from edgeopt.system.text import plural

_MOST_JUDGED: Final = 10**6
"""Frames that are judged at most, the last ones: nine hours at 30 a second."""
_FILM_PER_S: Final = 30.0
"""Frames a second of a saved video whose source does not say."""
_USUAL_FPS: Final = 30.0
"""Frames a second that a watch for drift takes for granted."""


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """The answer for one frame; the frame itself is not held."""

    name: str
    """Name of the frame in its source: a file, or `source#12`."""
    index: int
    """Index of the frame among all that came in."""
    answer: TaskAnswer | Any
    """As `predict` returns it; of a pipeline on another device its plain values."""
    problem: str
    """Why there is no answer; empty: there is one, or nobody knows."""
    age_ms: float
    """Time from the capture of the frame to the answer, waiting included."""
    latency_ms: float
    """Time from the beginning of the first stage to the answer."""
    missed: bool
    """Whether the age passed the budget."""
    artefact: str
    """File of the model that answered."""
    teller: Teller = field(repr=False, compare=False)
    """Makes plain values and words of the answer."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values, the figures first; those of the answer are named by its task."""
        figures = {
            "frame": self.name,
            "index": self.index,
            "age_ms": self.age_ms,
            "latency_ms": self.latency_ms,
            "missed": self.missed,
            "artefact": self.artefact,
        }
        return {**figures, **({"problem": self.problem} if self.problem else self.teller.as_json(self.answer))}

    def as_text(self) -> str:
        """Return the frame's name and its answer in a line."""
        return f"{self.name}: {f'no answer: {self.problem}' if self.problem else self.teller.as_text(self.answer)}"

    def told(self) -> FrameAnswer:
        """Return the answer without the model, with the words that it would say."""
        return replace(self, teller=AnswerWords(self.teller.as_json(self.answer), self.teller.as_text(self.answer)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the model behind: another process gets the words that it would say."""
        alone = self.told()
        return FrameAnswer, tuple(getattr(alone, each.name) for each in fields(self))


@dataclass(frozen=True, slots=True)
class AnswerWords:
    """Values and words of one answer, in place of what tells answers."""

    values: dict[str, Any]
    line: str

    def as_text(self, answer: Any) -> str:
        """Return the line."""
        del answer
        return self.line

    def as_json(self, answer: Any) -> dict[str, Any]:
        """Return the values."""
        del answer
        return self.values


def _answer_of(result: StreamResult, subject: LiveSubject, *, is_on_demand: bool) -> FrameAnswer:
    return FrameAnswer(
        name=result.name,
        index=result.index,
        answer=result.answer,
        problem=subject.why_no_answer(result.frame, result.answer) if is_on_demand else "",
        age_ms=result.age_ns / 1e6,
        latency_ms=result.latency_ns / 1e6,
        missed=result.missed,
        artefact=result.artefact,
        teller=subject.teller,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResult(RunResult):
    """How a run on frames went."""

    bundle: str
    """The bundle or model, as it was named."""
    code: Path | None
    """Folder of the functions that a pipeline called."""
    source: str
    """Name of the source."""
    stats: StreamStats
    """Counts of frames, and their times by stage."""
    is_on_demand: bool
    """Whether frames were read when they were wanted, so that none could be lost."""
    budget: BudgetResult | None
    """None: none was asked for. Lost frames are misses."""
    seconds: float
    """How long it took."""
    saved: str
    """The saved files, in a clause; empty: nothing was to be saved."""
    viewed: str
    """Where it was shown, and how often; empty: nowhere."""
    learned: str = ""
    """Where the sketch of the frames was written, in a clause; empty: nowhere."""

    @property
    def exit_code(self) -> int:
        """0 where no budget was asked for; 130 if an interrupt left pictures unanswered."""
        if self.is_cut:
            return EXIT_INTERRUPTED
        return EXIT_PASS if self.budget is None else self.budget.verdict.exit_code

    @property
    def verdict_word(self) -> str:
        """The verdict on the budget; empty where none was asked for."""
        return self.budget.verdict.upper() if self.budget else ""

    def told(self) -> LiveResult:
        """Return the result for another process: without the model, of a pipeline with plain values as answers."""
        answers = (answer.told() for answer in self.answers if isinstance(answer, FrameAnswer))
        told = tuple(
            replace(answer, answer=plain(answer.answer)) if isinstance(answer.answer, Answer) else answer
            for answer in answers
        )
        return replace(self, answers=told)

    def own_figures(self) -> dict[str, Any]:
        """Return what became of the frames, and their times."""
        return {
            "bundle": self.bundle,
            "source": self.source,
            "seconds": self.seconds,
            "stats": self.stats.to_json(),
            "budget": None if self.budget is None else asdict(self.budget),
            "saved": self.saved,
            "learned": self.learned,
        }


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


def run_live(bundle: Path, source: str, options: LiveOptions, listener: RunListener) -> LiveResult:
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
        watch = _watch_frames(subject.served, source, options)
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
    listener: RunListener,
    budget_ms: float,
) -> LiveResult:
    judged, began_s, count, interrupted = _Judged(), time.monotonic(), 0, False
    failure: EdgeoptError | None = None
    with _outputs(subject, stream, source, bundle, options) as outputs:
        view = next((other.address for other in outputs if isinstance(other, View)), "")
        notes = (*subject.notes, *stream.source.notes)
        is_endless = stream.source.is_live and stream.source.count is None and options.limit is None
        listener.begin(notes, view, by_line=isinstance(stream.source, Pictures), is_endless=is_endless)
        try:
            for count, result in enumerate(stream, start=1):
                judged.record(result)
                shown = Shown(result, subject.draw)
                for output in outputs:
                    output.put(shown)
                listener.hear(_answer_of(result, subject, is_on_demand=stream.is_on_demand))
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
        notes=notes,
        interrupted=interrupted,
        is_stream=not isinstance(stream.source, Pictures),
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


def _watch_frames(served: Runtime | Pipeline, source: str, options: LiveOptions) -> DriftWatch | None:
    """Begin to watch the frames of a run; None where nobody wishes that.

    Pictures of a folder are no stream: each is looked at.

    Raises:
        EdgeoptError: If there is nothing to compare with, or several models run.
    """
    if not options.drift and options.false_alarms != LiveOptions.false_alarms:
        raise EdgeoptError("--false-alarms is for --drift", remedy="add --drift bundle, or leave it out")
    if not options.drift and options.learn_drift is None:
        return None
    if isinstance(served, Pipeline):
        raise EdgeoptError(
            "--drift and --learn-drift watch the frames of one model, and a pipeline has several",
            remedy="run the bundle of one of them, or call watch_drift on a model of edgeopt.Pipeline.load(...)",
        )
    every = 1 if Path(source).is_dir() else None
    fps, most = options.fps or _USUAL_FPS, options.false_alarms
    return served.watch_drift(options.drift or NONE, fps=fps, false_alarms_per_week=most, every=every)
