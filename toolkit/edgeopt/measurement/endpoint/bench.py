"""Measure a server from its client's side: one request at a time, then as many as a load asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock, local
from time import monotonic
from typing import Any, Final

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.measurement.endpoint.client import Client, Exchange
from edgeopt.measurement.endpoint.connection import ServerPlace, parse_place, why
from edgeopt.measurement.endpoint.loading import (
    LEAST_ANSWERS,
    Tell,
    ask_under,
    is_alone,
    parse_server_load,
    tell_time,
)
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.measurement.endpoint.result import EndpointResult, EndpointTimes, times_of
from edgeopt.measurement.endpoint.symptoms import symptoms_of
from edgeopt.measurement.generation.answer_budget import FRAME
from edgeopt.measurement.generation.answers.series import samples_of_answers
from edgeopt.measurement.generation.diagnosis import find_complaints
from edgeopt.measurement.load.models import OpenLoad
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.resources.cost import cost_per_token
from edgeopt.measurement.samples import Samples
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import format_budget, plural

LIVE_MS: Mapping[str, float] = {"TTFT": 1000.0, "TPOT": 100.0}
"""Limits of a good answer where nobody says: a reader waits a second, and reads ten tokens a second."""
_CONNECTS, _ROUND_TRIPS = 5, 20
_TINY_TOKENS = 16
"""Tokens of the answers to the shortest prompt."""
_PROBE_WORDS = 200
_LEAST_RATIO, _MOST_RATIO = 0.1, 50.0
"""Tokens of one of our words: no tokenizer counts fewer, or more."""
_MANY_LOST, _WHOLE = 0.05, 0.9
"""Shares of requests without an answer, and of the tokens asked for, from which and below which it is told."""
_WORDS: Final = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work number night point home water room mother area "
    "money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father "
)


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
        return self.ask_after((("user", self.text(words)),), tokens, begun_ns)

    def text(self, words: int) -> str:
        with self._turn:
            return " ".join(self._chance.choice(self._words, max(words, 1)).tolist())

    def ask_after(self, history: Sequence[tuple[str, str]], tokens: int, begun_ns: int = 0) -> Exchange:
        """Ask with all that was said before, each time by whom; a server without chats gets it as one text."""
        if "chat" in self.path:
            said: dict[str, Any] = {"messages": [{"role": role, "content": text} for role, text in history]}
        else:
            said = {"prompt": "\n".join(text for _, text in history)}
        body = {
            "model": self.model,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **said,
            **self._extra,
        }
        return self.client().ask(self.path, body, begun_ns)

    def take_chats(self) -> None:
        """Ask by chats from here on, where the server takes them."""
        before, self.path = self.path, "/chat/completions"
        if not self.ask(1, 2).is_whole:
            self.path = before

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
        ratio = (probe.prompt_tokens - first.prompt_tokens) / (_PROBE_WORDS - 1)
        if first.prompt_tokens and _LEAST_RATIO <= ratio <= _MOST_RATIO:
            self.tokens_per_word = ratio
            self.first_tokens = first.prompt_tokens - self.tokens_per_word
        elif probe.is_whole and first.prompt_tokens:
            yield Note(NoteKind.WARNING, f"the server counts {ratio:.3g} tokens a word: lengths of prompts are guesses")
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
    began_s, place, load = monotonic(), parse_place(options.url, options.key), parse_server_load(options.load)
    limits = options.limits_ms or LIVE_MS
    if FRAME in limits:
        raise EdgeoptError(
            f"--budget {format_budget(limits[FRAME])}ms is the time of a frame, and {place} writes answers",
            remedy="limit theirs: --budget ttft:200ms,tpot:20ms",
        )
    asker = _Asker(place, options)
    try:
        connect_ms, round_trip_ms, names = _network(asker.client())
        if options.model and names and options.model not in names:
            raise EdgeoptError(
                f"no model {options.model!r} is at {place}", remedy=f"choose from: {', '.join(names[:9])}"
            )
        asker.model = options.model or next(iter(names), "")
        notes = tuple(asker.learn())
        tiny, alone, samples = _alone(asker, options, limits, tell)
        notes += tuple(_told_of_lengths(alone, options.output_tokens))
        loaded = None if is_alone(load) else _under_load(asker, options, load, limits, tell)
        turns = _conversations(asker, options, limits, tell) if options.turns > 1 else ()
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
        samples=samples,
        turns=turns,
        limits_ms=dict(limits),
        output_tokens=options.output_tokens,
        environment=read_environment(),
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
            text = f"{times.name}: {times.asked - times.answers} of {times.asked} get no answer with nobody else asking"
            yield Note(NoteKind.WARNING, text, "ask for shorter prompts, or see the server's log")
        elif times.output_tokens < _WHOLE * output_tokens:
            text = f"{times.name}: answers have {times.output_tokens:.0f} of the {output_tokens} tokens asked for"
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
) -> tuple[EndpointTimes, tuple[EndpointTimes, ...], Samples]:
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
    while rounds < LEAST_ANSWERS or monotonic() - began_s < options.seconds:
        for index, (words, tokens) in asked.items():
            exchange = asker.ask(words, tokens)
            if rounds >= 0:
                rows[index].append(exchange)
        began_s = monotonic() if rounds < 0 else began_s
        rounds += 1
        tell_time(tell, "ask alone", began_s, options.seconds)
        if rounds >= LEAST_ANSWERS and not any(other.is_whole for row in rows.values() for other in row):
            break
    times = {
        index: times_of(f"prompt {index}" if index else "one word", row, sum(x.end_ns for x in row) / 1e9, limits)
        for index, row in rows.items()
    }
    for index, of_prompt in times.items():
        if index and not of_prompt.answers:
            text = next(iter(of_prompt.problems), "no answer")
            raise UnavailableError(
                f"no prompt of {plural(index, 'token')} is answered: {text}",
                remedy="ask for shorter prompts or answers",
            )
    in_rounds = zip(*(rows[prompt_token] for prompt_token in options.prompt_tokens), strict=True)
    whole = [exchange for row in in_rounds if all(other.is_whole for other in row) for exchange in row]
    samples = samples_of_answers(whole, len(options.prompt_tokens), asker.model)
    return times[0], tuple(times[prompt_token] for prompt_token in options.prompt_tokens), samples


def _under_load(
    asker: _Asker, options: EndpointOptions, load: Closed | OpenLoad, limits: Mapping[str, float], tell: Tell
) -> EndpointTimes:
    """Return what became of the requests of a load, all lengths in turns."""
    words = [asker.words_for(prompt_token) for prompt_token in options.prompt_tokens]

    def ask(number: int, begun_ns: int) -> Exchange:
        recorded = load.tokens_of(number) if isinstance(load, OpenLoad) else None
        if recorded is not None:
            return asker.ask(asker.words_for(recorded[0]), recorded[1], begun_ns)
        return asker.ask(words[number % len(words)], options.output_tokens, begun_ns)

    run = ask_under(load, ask, seconds=options.seconds, seed=options.seed, tell=tell)
    return times_of(f"under {load}", run.outcomes, run.seconds, limits)


def _conversations(
    asker: _Asker, options: EndpointOptions, limits: Mapping[str, float], tell: Tell
) -> tuple[EndpointTimes, ...]:
    """Hold one conversation after the other, each turn with all before it; the first conversation is not counted."""
    asker.take_chats()
    words, rows = asker.words_for(options.prompt_tokens[0]), [list[Exchange]() for _ in range(options.turns)]
    number, began_s = -1, monotonic()
    while number < LEAST_ANSWERS or monotonic() - began_s < options.seconds:
        history = list[tuple[str, str]]()
        for row in rows:
            history.append(("user", asker.text(words)))
            exchange = asker.ask_after(history, options.output_tokens)
            if number >= 0:
                row.append(exchange)
            if not exchange.is_whole:
                break
            history.append(("assistant", exchange.text))
        began_s = monotonic() if number < 0 else began_s
        number += 1
        tell_time(tell, "hold conversations", began_s, options.seconds)
        if number >= LEAST_ANSWERS and not rows[0][-1].is_whole:
            break
    return tuple(
        times_of(f"turn {turn}", row, sum(exchange.end_ns for exchange in row) / 1e9, limits)
        for turn, row in enumerate(rows, 1)
        if row
    )
