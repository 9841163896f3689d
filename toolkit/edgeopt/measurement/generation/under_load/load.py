"""Answers of a language model under a load: many ask at once, or arrive by a timetable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from threading import Lock
from time import perf_counter_ns, sleep

import numpy as np

from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.models import Load, OpenLoad
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.open_loop import wait_by
from edgeopt.runtime.decoding.batching.batch import BatchWork
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import Account, AnswerOptions

LEAST_ANSWERS = 12
"""Least answers of a run: fewer say little about a median."""
_LONGER, _LONGER_S = 12, 60.0
"""Times the seconds asked for, and seconds: after the longer of both a run ends with fewer answers than wanted."""
_DRAIN_S = 10.0
"""At least so long, and as long as the timetable, waiting requests are still answered after the last arrival."""
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Answered:
    """One request and what became of it; instants are since the run began."""

    prompt_tokens: int
    intended_ns: int
    """When it should have been asked."""
    late_ns: int
    """How much later it was asked: times count from the intended instant."""
    account: Account

    @property
    def is_whole(self) -> bool:
        """Whether it was answered to its end."""
        return self.account.reason not in ("", "cancelled")

    @property
    def queue_ns(self) -> int:
        """Until it had a slot."""
        return self.late_ns + self.account.queue_ns

    @property
    def ttft_ns(self) -> int:
        """Until the first token."""
        return self.late_ns + self.account.token_at_ns[0]

    @property
    def answer_ns(self) -> int:
        """Until the last token: end to end."""
        return self.late_ns + self.account.token_at_ns[-1]

    @property
    def tpot_ns(self) -> int:
        """Mean time of each token after the first."""
        times = self.account.token_at_ns
        return (times[-1] - times[0]) // max(len(times) - 1, 1)

    @property
    def gaps_ns(self) -> list[int]:
        """Times between its tokens."""
        gaps: list[int] = np.diff(self.account.token_at_ns).tolist()
        return gaps


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
    """In which requests were sent."""
    requests: tuple[Answered, ...]
    work: BatchWork
    """What the engine ran."""
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
    before = shared.work
    if isinstance(load, OpenLoad):
        seconds = planned_s(load, seconds, least)
        requests, waiting = _by_timetable(shared, prompts, load, asked, seconds, seed, tell)
        window_ns = int(seconds * 1e9)
    else:
        users = load.workers if isinstance(load, Closed) else 1
        requests, window_ns = _by_users(shared, prompts, users, asked, seconds, least, tell)
        waiting = 0
    work = shared.work
    names = ("prompt_runs", "prompt_tokens", "token_runs", "tokens", "reused_tokens", "layouts", "answers")
    ran = BatchWork(**{name: getattr(work, name) - getattr(before, name) for name in names})
    ordered = tuple(sorted(requests, key=lambda request: request.intended_ns))
    return LoadRun(
        load=str(load),
        is_open=isinstance(load, OpenLoad),
        slots=shared.slots,
        is_together=shared.is_together,
        turns_told=shared.turns_told,
        cache_bytes=shared.cache_bytes,
        window_ns=window_ns,
        requests=ordered,
        work=ran,
        waiting=waiting,
    )


def _by_users(
    shared: SharedModel,
    prompts: Callable[[int], Sequence[int]],
    users: int,
    asked: AnswerOptions,
    seconds: float,
    least: int,
    tell: Callable[[float], None],
) -> tuple[list[Answered], int]:
    """Return the requests, and in which nanoseconds users asked."""
    numbers, taken, answereds = count(), Lock(), list[Answered]()
    began_ns, last_ns = perf_counter_ns(), 0

    def goes_on() -> bool:
        over_s = (perf_counter_ns() - began_ns) / 1e9
        return over_s < seconds or (len(answereds) < least and over_s < max(_LONGER * seconds, _LONGER_S))

    def user(_: int) -> None:
        nonlocal last_ns
        while goes_on():
            with taken:
                prompt = prompts(next(numbers))
            sent_ns = perf_counter_ns() - began_ns
            with shared.generate(prompt, asked) as answer:
                for _piece in answer:
                    pass
            with taken:
                answereds.append(Answered(answer.account.prompt_tokens, sent_ns, 0, answer.account))
                over_ns = perf_counter_ns() - began_ns
                last_ns = over_ns if goes_on() else last_ns
                tell(over_ns / 1e9)

    with ThreadPoolExecutor(users) as pool:
        list(pool.map(user, range(users)))
    return answereds, max(int(seconds * 1e9), last_ns)


def _by_timetable(
    shared: SharedModel,
    prompts: Callable[[int], Sequence[int]],
    load: OpenLoad,
    asked: AnswerOptions,
    seconds: float,
    seed: int,
    tell: Callable[[float], None],
) -> tuple[list[Answered], int]:
    """Return the requests, and how many waited for a slot when the last one had been sent."""
    instants = make_arrivals(load, seconds=seconds, seed=seed).intended_ns.tolist()
    wait, began_ns, sent = wait_by(perf_counter_ns), perf_counter_ns(), []
    for number, intended_ns in enumerate(instants):
        prompt = prompts(number)
        wait(began_ns + intended_ns)
        late_ns = max(0, perf_counter_ns() - began_ns - intended_ns)
        sent.append((intended_ns, late_ns, shared.generate(prompt, asked)))
        tell(intended_ns / 1e9)
    waiting, limit_ns = shared.work.waiting, perf_counter_ns() + int(max(_DRAIN_S, seconds) * 1e9)
    while perf_counter_ns() < limit_ns and not all(answer.account.reason for _, _, answer in sent):
        sleep(_LOOK_S)
    for _, _, answer in sent:
        if not answer.account.reason:
            answer.cancel()
    for _, _, answer in sent:
        answer.text()  # raises what went wrong
        answer.close()
    return [
        Answered(shared_answer.account.prompt_tokens, at_ns, late_ns, shared_answer.account)
        for at_ns, late_ns, shared_answer in sent
    ], waiting
