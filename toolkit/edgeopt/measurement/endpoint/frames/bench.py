"""Measure a server of frames from its client's side: connections, then one frame at a time, then under a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Lock, local
from time import monotonic

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnavailableError
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.endpoint.connection import ConnectTimes, ServerPlace, open_socket, unreachable, why
from edgeopt.measurement.endpoint.frames.diagnosis import find_slow_parts
from edgeopt.measurement.endpoint.frames.exchange import FrameClient, FrameEndpoint, FrameExchange, Sample
from edgeopt.measurement.endpoint.frames.result import (
    EncodedTimes,
    FrameServerResult,
    fastest_of,
    times_of_frames,
)
from edgeopt.measurement.endpoint.frames.samples import samples_for
from edgeopt.measurement.endpoint.loading import Tell, ask_under, is_alone, parse_server_load, tell_time
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.measurement.generation.answer_budget import FRAME
from edgeopt.measurement.load.models import OpenLoad
from edgeopt.measurement.load.models.closed import Closed
from edgeopt.measurement.resources.cost import cost_per_inference
from edgeopt.measurement.statistics.budget import judge_budget
from edgeopt.measurement.statistics.quantile import Summary, minimum_n, summarize
from edgeopt.measurement.statistics.ratio import Ratio, ratio_of_rounds
from edgeopt.system.machine.environment import read_environment
from edgeopt.system.text import plural

_CONNECTS, _CONNECTING_S, _ROUND_TRIPS = 9, 1.0, 40
"""Least new connections, the seconds in which there may be as many as a p95 needs, and smallest requests."""
_WARMUP = 3
"""Rounds that are not counted: connections grow their windows, and servers load what they need."""
_LEAST_ROUNDS, _LONGER = minimum_n(0.95), 3
"""Rounds that a p95 needs, though that takes up to so many times the seconds asked for."""
_FEWEST = 6
"""Rounds below which nothing can be said at all."""
_GIVES_UP = 5
"""Rounds in a row without an answer after which a server counts as gone."""
_MOST_RATIO_ROUNDS = 200
_ALIKE = 1e-3


def bench_frames(server: FrameEndpoint, options: EndpointOptions, *, tell: Tell = lambda *_: None) -> FrameServerResult:
    """Return what a client sees of a server of frames.

    Args:
        server: The model that is asked, as its interface shows it.
        options: What is measured.
        tell: Hears what is done, how far, of how much.

    Raises:
        EdgeoptError: If options do not fit the server, or it gives no answer.
    """
    began_s, load = monotonic(), parse_server_load(options.load)
    budget_ms = frame_budget_ms(options)
    samples, sent, notes = samples_for(server, options.source, options.recipe, options.shapes)
    once, trip_ns = _connections(server.place, options.timeout_s)
    client = server.client()
    try:
        encodings, more = _taken(server, client, samples[0], options.encodings)
        smallest = _smallest(client)
        way_ns = trip_ns if server.tells_sending else int(smallest.p50.value_ns or trip_ns)
        alone = _alone(client, samples, encodings, options, way_ns, tell)
        loaded = None
        if not is_alone(load):
            loaded = _under_load(server, samples, fastest_of(alone).encoding, options, load, way_ns, tell)
            _require_alive(client, loaded)
    finally:
        client.close()
    judged = (loaded or fastest_of(alone)).samples.steady()
    result = FrameServerResult(
        address=str(server.place),
        interface=server.interface,
        model=server.model,
        sent=sent,
        once=once,
        trip_ms=trip_ns / 1e6,
        smallest=server.smallest,
        smallest_time=smallest,
        tells_sending=server.tells_sending,
        alone=alone,
        ratios=_ratios(alone),
        load=str(load) if loaded else "",
        loaded=loaded,
        budget=judge_budget(judged.response_ns, budget_ms, lost=judged.lost) if budget_ms else None,
        environment=read_environment(),
        seconds=monotonic() - began_s,
        notes=(*notes, *more, *_about_losses(alone)),
    )
    rate = result.judged_times.frames_per_s
    cost = cost_per_inference(options.price_per_s, rate) if options.price_per_s and rate > 0 else None
    return replace(result, findings=find_slow_parts(result), cost=cost)


def frame_budget_ms(options: EndpointOptions) -> float | None:
    """Return the time that a frame may take; None: nobody says.

    Raises:
        EdgeoptError: If the limits are those of a language model.
    """
    limits = options.limits_ms or {}
    if limits.keys() - {FRAME}:
        raise EdgeoptError(
            f"--budget limits {' and '.join(limits)} of a language model, and this server answers frames",
            remedy="write the time of a frame: --budget 33ms",
        )
    return limits.get(FRAME)


def _connections(place: ServerPlace, timeout_s: float) -> tuple[dict[str, Summary], int]:
    """Return the stages of new connections, and the median of the round trip that one shows.

    Raises:
        UnavailableError: If nobody answers.
    """
    times, began_s = list[ConnectTimes](), monotonic()
    try:
        while len(times) < _CONNECTS or (len(times) < _LEAST_ROUNDS and monotonic() - began_s < _CONNECTING_S):
            opened, each = open_socket(place, timeout_s, ("h2",) if place.is_grpc else ())
            opened.close()
            times.append(each)
    except OSError as error:
        raise unreachable(place, error) from error
    parts = {
        "dns": [each.dns_ns for each in times],
        "connect": [each.connect_ns for each in times],
        **({"tls": [each.tls_ns for each in times]} if place.is_encrypted else {}),
    }
    trip_ns = int(np.median([each.trip_ns for each in times]))
    return {name: summarize(np.array(values, np.int64)) for name, values in parts.items()}, trip_ns


def _smallest(client: FrameClient) -> Summary:
    """Return the times of the smallest request on an open connection.

    Raises:
        UnavailableError: If the server does not answer it.
    """
    try:
        client.round_trip_ns()
        return summarize(np.array([client.round_trip_ns() for _ in range(_ROUND_TRIPS)], np.int64))
    except OSError as error:
        raise UnavailableError(
            f"the server answers once and then no more: {why(error)}", remedy="look at its log, and measure again"
        ) from error


def _taken(
    server: FrameEndpoint, client: FrameClient, sample: Sample, wanted: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Return the encodings that the server takes of those that are wanted, each tried once.

    Raises:
        EdgeoptError: If a wanted one is none of this interface.
        UnavailableError: If it takes none.
    """
    if unknown := [name for name in wanted if name not in server.encodings]:
        raise EdgeoptError(
            f"{server.interface} sends no {unknown[0]!r} to {server.model}",
            remedy=f"choose from: --encodings {','.join(server.encodings)}",
        )
    problems, outputs = dict[str, str](), dict[str, Tensors | None]()
    for encoding in wanted or server.encodings:
        exchange = client.ask(sample, encoding)
        if exchange.is_whole:
            outputs[encoding] = exchange.outputs
        else:
            problems[encoding] = exchange.problem
    if not outputs:
        text = next(iter(problems.values()))
        remedy = "see the server's log; --shape, --source and --model change what is sent"
        raise UnavailableError(f"{server.model} answers no frame: {text}", remedy=remedy)
    notes = [Note(NoteKind.SKIPPED, f"{name}: the server takes it not: {text}") for name, text in problems.items()]
    return tuple(outputs), (*notes, *_about_differences(outputs))


def _about_differences(outputs: Mapping[str, Tensors | None]) -> Iterator[Note]:
    """Yield which encodings do not give the outputs of the first one."""
    (first, expected), *others = outputs.items()
    for name, tensors in others:
        if expected and tensors and not _are_alike(expected, tensors):
            text = f"one sample sent as {name} has other outputs than as {first}"
            yield Note(NoteKind.WARNING, text, "one of them is read wrongly by the server")


def _are_alike(first: Tensors, second: Tensors) -> bool:
    if first.keys() != second.keys():
        return False
    pairs = [(first[name], second[name]) for name in first]
    return all(
        mine.shape == other.shape and np.allclose(mine, other, rtol=_ALIKE, atol=_ALIKE)
        for mine, other in pairs
        if mine.dtype.kind in "fiub" and other.dtype.kind in "fiub"
    )


def _alone(
    client: FrameClient,
    samples: Sequence[Sample],
    encodings: Sequence[str],
    options: EndpointOptions,
    way_ns: int,
    tell: Tell,
) -> tuple[EncodedTimes, ...]:
    """Send one frame at a time, the same sample in each encoding in turns; every second round the other way round.

    Raises:
        UnavailableError: If the server answers no more.
    """
    rows: dict[str, list[FrameExchange]] = {name: [] for name in encodings}
    began_s, number, answers, silent = monotonic(), 0, 0, 0
    while True:
        over_s, rounds = monotonic() - began_s, number - _WARMUP
        wants_more = rounds < _LEAST_ROUNDS and over_s < _LONGER * options.seconds
        if rounds >= _FEWEST and over_s >= options.seconds and not wants_more:
            break
        for name in encodings if number % 2 else tuple(reversed(encodings)):
            exchange = client.ask(samples[number % len(samples)], name)
            rows[name].append(replace(exchange, outputs=None))  # which would fill the memory
        number += 1
        began_s = monotonic() if number == _WARMUP else began_s
        whole = sum(row[-1].is_whole for row in rows.values())
        answers, silent = answers + whole, 0 if whole else silent + 1
        if silent >= _GIVES_UP:
            raise _gone(answers, rows[encodings[0]][-1].problem)
        tell_time(tell, "ask alone", began_s, options.seconds)
    return tuple(
        times_of_frames(name, row, way_ns, sum(x.end_ns for x in row[_WARMUP:]) / 1e9, warmup=_WARMUP)
        for name, row in rows.items()
    )


def _gone(answers: int, problem: str) -> UnavailableError:
    return UnavailableError(
        f"the server answered {plural(answers, 'frame')} and then no more: {problem}",
        remedy="look at its log, start it again, and measure again",
    )


def _require_alive(client: FrameClient, loaded: EncodedTimes) -> None:
    """Raise unless the server still answers after a load.

    Raises:
        UnavailableError: If not, or if it answered nothing.
    """
    try:
        client.round_trip_ns()
    except OSError as error:
        raise _gone(loaded.answers, why(error)) from error
    if not loaded.answers:
        text = next(iter(loaded.problems), "no answer")
        raise UnavailableError(f"no frame of the load is answered: {text}", remedy="ask for a smaller --load")


def _under_load(
    server: FrameEndpoint,
    samples: Sequence[Sample],
    encoding: str,
    options: EndpointOptions,
    load: Closed | OpenLoad,
    way_ns: int,
    tell: Tell,
) -> EncodedTimes:
    """Send the frames of a load in one encoding; each user has a connection of its own."""
    mine, clients, turn = local(), list[FrameClient](), Lock()

    def ask(number: int, begun_ns: int) -> FrameExchange:
        if not hasattr(mine, "client"):
            mine.client = server.client()
            with turn:
                clients.append(mine.client)
        exchange: FrameExchange = mine.client.ask(samples[number % len(samples)], encoding, begun_ns)
        return replace(exchange, outputs=None)  # which would fill the memory

    try:
        run = ask_under(load, ask, seconds=options.seconds, seed=options.seed, tell=tell)
    finally:
        for client in clients:
            client.close()
    return times_of_frames(encoding, sorted(run.outcomes, key=lambda each: each.begun_ns), way_ns, run.seconds)


def _ratios(alone: Sequence[EncodedTimes]) -> dict[str, Ratio]:
    """Return how many times as fast the other encodings are as the first, by rounds in which both were answered."""
    first, *others = [times.samples.steady() for times in alone]
    ratios = {}
    for times, other in zip(alone[1:], others, strict=True):
        both = ~(first.lost | other.lost)
        logs = np.log(first.frame_ns[both] / other.frame_ns[both])
        if len(logs) > 1:
            parts = np.array_split(logs, min(len(logs), _MOST_RATIO_ROUNDS))
            ratios[times.encoding] = ratio_of_rounds(np.array([np.median(part) for part in parts]), pairs=len(logs))
    return ratios


def _about_losses(alone: Sequence[EncodedTimes]) -> Iterator[Note]:
    for times in alone:
        if times.problems:
            text = f"{times.encoding}: {times.asked - times.answers} of {times.asked} frames got no answer"
            yield Note(NoteKind.WARNING, text, next(iter(times.problems)))
