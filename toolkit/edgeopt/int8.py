"""The step `quantize`: the search for an INT8 form, given this run's own judges of agreement and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, perf_counter_ns, thread_time_ns

from edgeopt.benchmarking.clock import Clock
from edgeopt.benchmarking.comparison import compare
from edgeopt.errors import Note, NoteKind
from edgeopt.evaluate import model_inputs
from edgeopt.executors import Session
from edgeopt.model import Model
from edgeopt.outcome import Outcome
from edgeopt.quantization.attempt import Attempt
from edgeopt.quantization.quantize import Form
from edgeopt.quantization.search import search_int8
from edgeopt.search import LEAST_AGREEMENT
from edgeopt.tensors import Tensors
from edgeopt.trial import CALIBRATION_PICTURES, Setting, Trial, reference_answers

_MOST_KEPT = 3
"""Attempts that go on to the labels: the fastest by agreement may still lose too much of the metric."""
_MOST_SECONDS = 180.0
_SECONDS_A_COMPARISON = 1.5


def make_int8(run: Trial, model: Model, setting: Setting | None = None) -> list[Outcome]:
    """Return INT8 forms of a float model, the most promising first, at most three.

    Args:
        run: Its pictures calibrate, its original judges agreement, its plan limits the time.
        model: The float model, opset 13 or later.
        setting: Whose rules hold, and where speed is judged against float of the same arithmetic; None: the
            target's own engine.

    Raises:
        UnsupportedError: If weights or activations are NaN or infinite.
    """
    setting = setting or Setting(run.engine, "w8a8")
    rules = setting.engine.target.int8
    pictures = run.frames.spread(CALIBRATION_PICTURES)
    attempts = 0

    def calibrated(done: int) -> None:
        run.listener.progress("calibrate", done, len(pictures))

    def attempted(one: Attempt) -> None:
        nonlocal attempts
        attempts += 1
        run.listener.say(f"  {one.name}: {one.speed_ratio:.2f}x the float model, agreement {one.agreement:.3f}")

    with_float = _Judge(run, model, setting)
    found = search_int8(
        model,
        _inputs(run, model),
        rules,
        agreement=with_float.agreement,
        speed=with_float.speed,
        forms=tuple(Form(one) for one in rules.forms),
        threads=run.plan.threads,
        least_agreement=LEAST_AGREEMENT,
        time_budget_s=max(min(_MOST_SECONDS, run.deadline - monotonic()), 0.0),
        progress=calibrated,
        on_attempt=attempted,
    )
    with_float.close()
    kept = [one for one in found.attempts if _has_integers(one.outcome.model)][:_MOST_KEPT]
    return [_told(one, found.reason if i == 0 else "", found.notes) for i, one in enumerate(kept)]


def _has_integers(model: Model) -> bool:
    """Whether anything is left of INT8: where every layer is faster in float, the form is the float model again."""
    return any("Linear" in op or "Integer" in op for op in model.op_counts)


def _told(attempt: Attempt, reason: str, notes: tuple[Note, ...]) -> Outcome:
    """Return the outcome with what the search knows of it."""
    form = Note(NoteKind.INFO, f"form: {attempt.name}")
    why = (Note(NoteKind.INFO, reason),) if reason else ()
    outcome = attempt.outcome
    return Outcome(outcome.model, outcome.changes, (form, *why, *notes, *outcome.notes))


def _inputs(run: Trial, model: Model) -> Iterator[Tensors]:
    task = run.task(model, evaluating=True)
    return model_inputs(task, run.frames.spread(CALIBRATION_PICTURES))


class _Judge:
    """Compares INT8 models with the float one: the same pictures, in turns."""

    def __init__(self, run: Trial, model: Model, setting: Setting) -> None:
        self._run, self._model, self._setting = run, model, setting
        self._float: Session = self._open(model)
        self._inputs = run.inputs(8)

    def agreement(self, candidate: Model) -> float:
        """Return how far its answers are the original's."""
        session = self._open(candidate)
        found = reference_answers(self._run, session, candidate)
        session.close()
        return self._run.task(candidate, evaluating=True).agreement(found, self._run.reference)

    def speed(self, candidate: Model) -> float:
        """Return the float model's time over the candidate's, one run against one run."""
        session = self._open(candidate)
        runs = {"float": self._caller(self._float), "candidate": self._caller(session)}
        ratio = compare(runs, baseline="float", seconds=_SECONDS_A_COMPARISON, block=5, clock=self._clock)["candidate"]
        session.close()
        return ratio.speedup

    @property
    def _clock(self) -> Clock:
        """A session of one thread computes in the caller's; its own time leaves out what others do to the machine."""
        target = self._setting.engine.target
        alone = self._setting.engine.threads == 1 and (target.device, target.executor) == ("cpu", "onnxruntime")
        return thread_time_ns if alone else perf_counter_ns

    def _open(self, model: Model) -> Session:
        return self._setting.engine.open(model, self._setting.precision)

    def _caller(self, session: Session) -> Callable[[int], None]:
        inputs = self._inputs

        def call(index: int) -> None:
            session.run(inputs[index % len(inputs)])

        return call

    def close(self) -> None:
        """Free the float session."""
        self._float.close()
