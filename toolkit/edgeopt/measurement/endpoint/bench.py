"""Measure a server from its client's side: one request at a time, then as many as a load asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from threading import Lock, local
from time import monotonic, perf_counter_ns, sleep
from typing import Final

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.measurement.endpoint.client import Client, Exchange, ServerPlace, parse_place, why
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.measurement.endpoint.result import EndpointResult, EndpointTimes, times_of
from edgeopt.measurement.endpoint.symptoms import symptoms_of
from edgeopt.measurement.generation.diagnosis import find_complaints
from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.models import OpenLoad, parse_load
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.load.open_loop import wait_by
from edgeopt.measurement.resources.cost import cost_per_token
from edgeopt.system.amounts import Tenths
from edgeopt.system.text import plural

LIVE_MS: Mapping[str, float] = {"TTFT": 1000.0, "TPOT": 100.0}
"""Limits of a good answer where nobody says: a reader waits a second, and reads ten tokens a second."""
_LEAST_ANSWERS, _LONGEST = 6, 10
"""Least answers and longest of each kind, though that takes up to so many times the seconds asked for."""
_CONNECTS, _ROUND_TRIPS = 5, 20
_TINY_TOKENS = 16
"""Tokens of the answers to the shortest prompt."""
_PROBE_WORDS = 200
_MANY_LOST, _WHOLE = 0.05, 0.9
"""Shares of requests without an answer, and of the tokens asked for, from which and below which it is told."""
_MOST_AT_ONCE = 256
_WORDS: Final = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work number night point home water room mother area "
    "money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father "
)
Tell = Callable[[str, int, int], None]


class _Asker:
    """Asks one server, with prompts that begin unlike each other: no cache of another prompt helps."""

    def __init__(self, place: ServerPlace, options: EndpointOptions) -> None:
        self._place, self._options = place, options
        self._chance, self._turn = np.random.default_rng(options.seed), Lock()
        self._mine, self._words = local(), _WORDS.split()
        self._clients = list[Client]()
        self.path, self._extra = "/completions", {"ignore_eos": True}
        self.model = options.model
        self.tokens_per_word, self.first_tokens = 1.3, 0.0

    def client(self) -> Client:
        """Return the connection of this thread."""
        if not hasattr(self._mine, "client"):
            self._mine.client = Client(self._place, self._options.timeout_s)
            with self._turn:
                self._clients.append(self._mine.client)
        client: Client = self._mine.client
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def ask(self, words: int, tokens: int, begun_ns: int = 0) -> Exchange:
        with self._turn:
            text = " ".join(self._chance.choice(self._words, max(words, 1)).tolist())
        asked = {"messages": [{"role": "user", "content": text}]} if "chat" in self.path else {"prompt": text}
        body = {
            "model": self.model,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **asked,
            **self._extra,
        }
        return self.client().ask(self.path, body, begun_ns)

    def words_for(self, tokens: int) -> int:
        return max(1, round((tokens - self.first_tokens) / self.tokens_per_word))

    def learn(self) -> Iterator[Note]:
        """Find out what the server takes, and how many tokens a word has.

        Raises:
            UnavailableError: If it answers nothing.
        """
        first = self.ask(1, 2)
        if first.problem.startswith(("status 404", "status 405")) and "model" not in first.problem:
            self.path = "/chat/completions"
            first = self.ask(1, 2)
        if first.problem.startswith(("status 400", "status 422")):
            self._extra = {}
            first = self.ask(1, 2)
            if first.is_whole:
                yield Note(NoteKind.INFO, "answers may be shorter than asked for: this server knows no ignore_eos")
        if not first.is_whole:
            raise UnavailableError(
                f"{self._place} gives no answer: {first.problem}", remedy="correct the address, the model or the key"
            )
        probe = self.ask(_PROBE_WORDS, 2)
        if first.prompt_tokens and probe.prompt_tokens > first.prompt_tokens:
            self.tokens_per_word = (probe.prompt_tokens - first.prompt_tokens) / (_PROBE_WORDS - 1)
            self.first_tokens = first.prompt_tokens - self.tokens_per_word
        elif probe.is_whole:
            yield Note(NoteKind.WARNING, "the server counts no tokens: lengths are guesses, a piece is a token")


def bench_endpoint(options: EndpointOptions, *, tell: Tell = lambda *_: None) -> EndpointResult:
    """Return what a client sees of a server.

    Args:
        options: What is measured.
        tell: Hears what is done, how far, of how much.

    Raises:
        EdgeoptError: If the address or the load is none, or the server gives no answer.
    """
    began_s, place, load = monotonic(), parse_place(options.url, options.key), parse_load(options.load)
    if not isinstance(load, Closed | OpenLoad):
        raise EdgeoptError(f"a server takes no load {options.load}", remedy="write closed:4 or poisson:2")
    asker = _Asker(place, options)
    try:
        connect_ms, round_trip_ms, names = _network(asker.client())
        if options.model and names and options.model not in names:
            raise EdgeoptError(
                f"no model {options.model!r} is at {place}", remedy=f"choose from: {', '.join(names[:9])}"
            )
        asker.model = options.model or next(iter(names), "")
        notes = tuple(asker.learn())
        limits = options.limits_ms or LIVE_MS
        tiny, alone = _alone(asker, options, limits, tell)
        notes += tuple(_told_of_lengths(alone, options.output_tokens))
        workers = load.workers if isinstance(load, Closed) else 0
        loaded = None
        if workers > 1 or isinstance(load, OpenLoad):
            exchanges, seconds = _loaded(asker, options, load, workers, tell)
            loaded = times_of(f"under {load}", exchanges, seconds, limits)
    finally:
        asker.close()
    result = EndpointResult(
        address=str(place),
        model=asker.model,
        connect_ms=connect_ms,
        round_trip_ms=round_trip_ms,
        tiny=tiny,
        alone=alone,
        load=str(load) if loaded else "",
        loaded=loaded,
        limits_ms=dict(limits),
        output_tokens=options.output_tokens,
        seconds=monotonic() - began_s,
        notes=notes,
    )
    rate = (loaded or alone[0]).tokens_per_s
    cost = cost_per_token(options.price_per_s, rate) if options.price_per_s and rate > 0 else None
    return replace(result, findings=find_complaints(symptoms_of(result)), cost=cost)


def _told_of_lengths(alone: Sequence[EndpointTimes], output_tokens: int) -> Iterator[Note]:
    """Yield which lengths the server does not serve, with nobody else asking."""
    for times in alone:
        if times.lost_ratio >= _MANY_LOST:
            text = (
                f"{times.words}: {times.asked - times.answers} of {times.asked} get no answer with nobody else asking"
            )
            yield Note(NoteKind.WARNING, text, "ask for shorter prompts, or see the server's log")
        elif times.output_tokens < _WHOLE * output_tokens:
            text = f"{times.words}: answers have {times.output_tokens:.0f} of the {output_tokens} tokens asked for"
            yield Note(NoteKind.WARNING, text, "the server ends them: at its limit, or at the end of its context")


def _network(client: Client) -> tuple[float, float, list[str]]:
    """Return the medians of connecting and of a round trip, in milliseconds, and the models that are there."""
    names = client.models()
    try:
        connects = [client.connect() for _ in range(_CONNECTS)]
        trips = [client.round_trip_ns() for _ in range(_ROUND_TRIPS)]
    except OSError as error:
        raise UnavailableError(
            f"the server answers once and then no more: {why(error)}", remedy="look at its log, and measure again"
        ) from error
    return float(np.median(connects)) / 1e6, float(np.median(trips)) / 1e6, names


def _alone(
    asker: _Asker, options: EndpointOptions, limits: Mapping[str, float], tell: Tell
) -> tuple[EndpointTimes, tuple[EndpointTimes, ...]]:
    """Ask one request at a time: the shortest prompt and all lengths in turns; the first round is not counted."""
    asked = {
        0: (1, _TINY_TOKENS),
        **{
            prompt_token: (asker.words_for(prompt_token), options.output_tokens)
            for prompt_token in options.prompt_tokens
        },
    }
    rows: dict[int, list[Exchange]] = {number: [] for number in asked}
    rounds, began_s = -1, monotonic()
    while rounds < _LEAST_ANSWERS or monotonic() - began_s < options.seconds:
        for index, (words, tokens) in asked.items():
            exchange = asker.ask(words, tokens)
            if rounds >= 0:
                rows[index].append(exchange)
        began_s = monotonic() if rounds < 0 else began_s
        rounds += 1
        _tell(tell, "ask alone", began_s, options.seconds)
        if rounds >= _LEAST_ANSWERS and not any(other.is_whole for row in rows.values() for other in row):
            break
    times = {
        index: times_of(f"prompt {index}" if index else "one word", row, sum(x.end_ns for x in row) / 1e9, limits)
        for index, row in rows.items()
    }
    for index, found_times in times.items():
        if index and not found_times.answers:
            text = next(iter(found_times.problems), "no answer")
            raise UnavailableError(
                f"no prompt of {plural(index, 'token')} is answered: {text}",
                remedy="ask for shorter prompts or answers",
            )
    return times[0], tuple(times[prompt_token] for prompt_token in options.prompt_tokens)


def _loaded(
    asker: _Asker, options: EndpointOptions, load: Closed | OpenLoad, workers: int, tell: Tell
) -> tuple[list[Exchange], float]:
    """Return what became of the requests of a load, and the seconds until the last answer."""
    words = [asker.words_for(prompt_token) for prompt_token in options.prompt_tokens]
    began_s, exchanges, numbers = monotonic(), list[Exchange](), count()

    def goes_on() -> bool:
        over_s = monotonic() - began_s
        return over_s < options.seconds or (len(exchanges) < _LEAST_ANSWERS and over_s < _LONGEST * options.seconds)

    def one_user(_: int) -> None:
        while goes_on():
            exchanges.append(asker.ask(words[next(numbers) % len(words)], options.output_tokens))
            _tell(tell, f"ask under {load}", began_s, options.seconds)
            if not exchanges[-1].is_whole:
                _wait_a_little(exchanges[-1])

    if isinstance(load, OpenLoad):
        wait, began_ns, sent = wait_by(perf_counter_ns), perf_counter_ns(), []
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            instants = make_arrivals(load, seconds=options.seconds, seed=options.seed).intended_ns.tolist()
            for number, at_ns in enumerate(instants):
                wait(began_ns + at_ns)
                sent.append(
                    pool.submit(asker.ask, words[number % len(words)], options.output_tokens, began_ns + int(at_ns))
                )
                _tell(tell, f"ask under {load}", began_s, options.seconds)
            exchanges = [one.result() for one in sent]
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(one_user, range(workers)))
    return exchanges, monotonic() - began_s


def _wait_a_little(failed: Exchange) -> None:
    """Let a server breathe that refused: a client that asks again at once measures its own speed."""
    sleep(0.1 if failed.end_ns < 1e8 else 0.0)


def _tell(tell: Tell, what: str, began_s: float, seconds: float) -> None:
    tell(what, min(int(10 * (monotonic() - began_s)), int(10 * seconds)), Tenths(10 * seconds))
