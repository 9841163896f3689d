"""Answers of a language model under a load: many ask at once, or arrive by a timetable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns, sleep

from edgeopt.measurement.generation.answers.answered import Answered
from edgeopt.measurement.load.models import Load, OpenLoad
from edgeopt.measurement.load.requests import Requests, run_requests
from edgeopt.runtime.decoding.batching.batch import BatchWork
from edgeopt.runtime.decoding.batching.request import SharedAnswer
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions

LEAST_ANSWERS = 12
"""Least answers of a run: fewer say little about a median."""
_LONGER, _LONGER_S = 12, 60.0
"""Times the seconds asked for, and seconds: after the longer of both a run ends with fewer answers than wanted."""
_DRAIN_S = 10.0
"""Least seconds in which waiting requests are still answered after the last arrival; a longer timetable gives as many
as it lasts."""
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class LoadRun:
    """All requests of one run, in order of their instants."""

    load: str
    is_open: bool
    """Whether requests come by a timetable, however many wait."""
    slots: int
    is_together: bool
    turns_told: str
    """Why texts take turns; empty: they do not."""
    cache_bytes: int
    window_ns: int
    """Nanoseconds in which requests were sent."""
    requests: tuple[Answered, ...]
    work: BatchWork
    """The engine's runs and tokens in this run."""
    waiting: int
    """Requests without a slot when the last one of a timetable had been sent."""


def planned_s(load: Load, seconds: float, least: int = LEAST_ANSWERS) -> float:
    """Return how long requests of a load come: a timetable brings as many as are wanted, users as fast as they can.

    Args:
        load: When requests come.
        seconds: At least so long.
        least: Answers that are wanted.
    """
    if not isinstance(load, OpenLoad):
        return seconds
    return max(seconds, min((least + load.spare(least)) / load.rate_per_s, max(_LONGER * seconds, _LONGER_S)))


def run_load(
    shared: SharedModel,
    prompts: Callable[[int], Sequence[int]],
    load: Load,
    asked: AnswerOptions,
    *,
    seconds: float,
    seed: int,
    least: int = LEAST_ANSWERS,
    tell: Callable[[float], None] = lambda _: None,
) -> LoadRun:
    """Return what became of the requests of a load; answers that are not over long after the last one are cancelled.

    Args:
        shared: The model in its slots.
        prompts: The tokens of the k-th request.
        load: A closed one is so many users, each asking again when it has its answer; an open one gives instants.
        asked: Of each answer.
        seconds: At least so long.
        seed: Of the arrivals.
        least: Answers that are wanted, where that takes at most a minute, or 12 times as long.
        tell: Hears how many seconds are over.
    """
    before, window_s = shared.work, planned_s(load, seconds, least)
    requests = _SlotRequests(shared, prompts, asked, drain_s=max(_DRAIN_S, window_s))
    run = run_requests(
        load,
        requests,
        seconds=window_s,
        seed=seed,
        least=least,
        longest_s=max(_LONGER * seconds, _LONGER_S),
        tell=tell,
    )
    work = shared.work
    names = ("prompt_runs", "prompt_tokens", "token_runs", "tokens", "reused_tokens", "layouts", "answers")
    return LoadRun(
        load=str(load),
        is_open=isinstance(load, OpenLoad),
        slots=shared.slots,
        is_together=shared.is_together,
        turns_told=shared.turns_told,
        cache_bytes=shared.cache_bytes,
        window_ns=run.window_ns,
        requests=tuple(sorted(run.outcomes, key=lambda request: request.intended_ns)),
        work=BatchWork(**{name: getattr(work, name) - getattr(before, name) for name in names}),
        waiting=requests.waiting,
    )


class _SlotRequests(Requests[Answered]):
    """Requests that wait for slots by themselves; the prompt of the next one is made before its instant."""

    def __init__(
        self, shared: SharedModel, prompts: Callable[[int], Sequence[int]], asked: AnswerOptions, drain_s: float
    ) -> None:
        self._shared, self._prompts, self._asked, self._drain_s = shared, prompts, asked, drain_s
        self._next_number, self._next_prompt = 0, prompts(0)
        self._began_ns, self._limit_ns = 0, 0
        self.waiting = 0
        """Requests without a slot when the last one had been sent."""

    def begun(self, began_ns: int) -> None:
        self._began_ns = began_ns

    def ask(self, number: int, due_ns: int) -> Answered:
        prompt = self._prompts(number)
        due_ns = due_ns or perf_counter_ns()
        late_ns = max(0, perf_counter_ns() - due_ns)
        with self._shared.generate(prompt, self._asked) as answer:
            for _piece in answer:
                pass
        return Answered(answer.account.prompt_tokens, due_ns - self._began_ns, late_ns, answer.account)

    def send(self, number: int, due_ns: int, pool: ThreadPoolExecutor) -> Callable[[], Answered]:
        prompt = self._next_prompt if number == self._next_number else self._prompts(number)
        late_ns = max(0, perf_counter_ns() - due_ns)
        answer = self._shared.generate(prompt, self._asked)
        self._next_number, self._next_prompt = number + 1, self._prompts(number + 1)
        return partial(self._end, answer, due_ns, late_ns)

    def all_sent(self) -> None:
        self.waiting, self._limit_ns = self._shared.work.waiting, perf_counter_ns() + int(self._drain_s * 1e9)

    def _end(self, answer: SharedAnswer, due_ns: int, late_ns: int) -> Answered:
        """Wait for the end of an answer; long after the last request was sent it is given up."""
        while perf_counter_ns() < self._limit_ns and not answer.account.reason:
            sleep(_LOOK_S)
        if not answer.account.reason:
            answer.cancel()
        answer.text()  # raises what went wrong
        answer.close()
        return Answered(answer.account.prompt_tokens, due_ns - self._began_ns, late_ns, answer.account)
