"""A server of frames as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from edgeopt.measurement.charts import StagedRun, TimedRun, draw_percentiles, draw_stages
from edgeopt.measurement.endpoint.frames.result import STAGES, EncodedTimes, FrameServerResult
from edgeopt.measurement.endpoint.summary import centre_ms, text_bar
from edgeopt.measurement.finding import show_findings
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.report.document import (
    CommandOutcome,
    Document,
    JudgedCase,
    Section,
    Table,
    Value,
    VerdictLines,
    make_table,
)
from edgeopt.report.figures import Figure, Limit
from edgeopt.system.text import format_budget, format_bytes, format_ms, plural

_MARKS = ("s", "c", "w", "#", "d", "p")
"""Letters of the stages in a bar of text."""
_LEAST_MS = 0.001


def summarize_frames(result: FrameServerResult) -> Document:
    """Return what a reader sees: connections, each encoding, its stages, the load, and what to do about it."""
    rows = [(times.encoding, times) for times in result.alone]
    rows += [(f"{times.encoding}, {result.load}", times) for times in (result.loaded,) if times]
    sections = [
        Section(values=tuple(_values(result))),
        Section("A new connection (ms)", _stage_table(result.once)),
        Section("Frames, one at a time (ms)", _encodings(result)),
    ]
    sections += [
        Section(f"Stages, sent as {words} (ms)", _stage_table(_with_frame(times)))
        for words, times in rows
        if times.answers
    ]
    sections += [
        Section(
            "A frame, from its sample to its answer",
            values=(*_bars(rows), *_server_tells(result)),
            figures=tuple(_figures(result, rows)),
        ),
        *([_under_load(result, result.loaded)] if result.loaded else []),
        Section("How to read the stages", values=tuple(_about_stages(result)), is_detail=True),
        Section("Diagnosis", values=show_findings(result.findings)) if result.findings else Section(),
        Section(text="Everything else: `bench.json`. Raw samples: `samples-*.npz`.", is_detail=True),
    ]
    return Document(
        command="bench",
        subject=result.model,
        title=f"{result.model} at {result.address}",
        data=result.as_json(),
        sections=tuple(sections),
        verdict=_verdict(result),
        judgements=_judgements(result),
        seconds=result.seconds,
    )


def _values(result: FrameServerResult) -> Iterator[Value]:
    yield Value("server", f"{result.address}, {result.interface}, model {result.model}")
    yield Value("sent", result.sent)
    smallest = f"{result.smallest_time.p50} ms for the smallest request ({result.smallest})"
    yield Value("network", f"{result.trip_ms:.3g} ms for a round trip; {smallest}")
    for times in (*result.alone, *((result.loaded,) if result.loaded else ())):
        for problem, count in times.problems.items():
            yield Value("no answer", f"{plural(count, 'frame')}, {times.encoding}: {problem}")
    if result.cost:
        rate = f"at {result.cost.rate_per_s:.4g} frames/s"
        yield Value("cost", f"{result.cost.per_thousand:.3g} per 1000 frames {rate}, {CURRENCY}")
    yield from map(Value.of_note, result.notes)


def _with_frame(times: EncodedTimes) -> dict[str, Summary]:
    return {**times.times, "frame": times.response}


def _stage_table(stages: Mapping[str, Summary]) -> Table:
    """Return a row a stage, with the intervals of its median and its 95th percentile."""
    columns: dict[str, Callable[[tuple[str, Summary]], str]] = {
        "stage": lambda pair: pair[0],
        "p50": lambda pair: str(pair[1].p50),
        "p95": lambda pair: str(pair[1].p95),
        "p99": lambda pair: format_ms(pair[1].p99.value_ns),
        "max": lambda pair: format_ms(pair[1].max_ns),
    }
    return make_table(stages.items(), columns, less=("p99", "max"))


def _encodings(result: FrameServerResult) -> Table:
    first = result.alone[0].encoding
    columns: dict[str, Callable[[EncodedTimes], str]] = {
        "sent as": lambda times: times.encoding,
        "frames": lambda times: f"{times.answers}{f' of {times.asked}' if times.problems else ''}",
        "p50": lambda times: str(times.response.p50),
        "p95": lambda times: format_ms(times.response.p95.value_ns),
        "request": lambda times: format_bytes(round(times.request_bytes)),
        "reply": lambda times: format_bytes(round(times.reply_bytes)),
        f"against {first}": lambda times: str(result.ratios.get(times.encoding, "")),
    }
    return make_table(result.alone, columns, less=("reply", "p95", "frames"), chosen=result.alone.index(result.fastest))


def _bars(rows: list[tuple[str, EncodedTimes]]) -> Iterator[Value]:
    """Yield one bar a row, and what its parts are."""
    parts = {words: _medians(times) for words, times in rows if times.answers}
    longest = max((sum(medians.values()) for medians in parts.values()), default=0.0)
    for words, medians in parts.items():
        yield Value(words, text_bar(tuple(medians.values()), longest, _MARKS))
        text = ", ".join(f"{name} {value:.3g}" for name, value in medians.items() if value)
        yield Value("", f"{text} ms")


def _medians(times: EncodedTimes) -> dict[str, float]:
    """Return the median of each stage in milliseconds, 0 of those that took no time; means of too few frames."""
    stages = times.times
    return {name: centre_ms(stages[name]) if name in stages else 0.0 for name in STAGES}


def _figures(result: FrameServerResult, rows: list[tuple[str, EncodedTimes]]) -> Iterator[Figure]:
    answered = [(words, times) for words, times in rows if times.answers]
    limit = (
        Limit(f"budget {format_budget(result.budget.budget_ms)} ms", result.budget.budget_ms) if result.budget else None
    )
    staged = [
        StagedRun(words, times.response.stage_time, {name: each.stage_time for name, each in times.times.items()})
        for words, times in answered
    ]
    for figure in (
        draw_stages(staged, limit),
        draw_percentiles([TimedRun(words, times.samples) for words, times in answered], limit),
    ):
        if figure is not None:
            yield figure


def _under_load(result: FrameServerResult, times: EncodedTimes) -> Section:
    answers = f"{times.answers} of {times.asked}" if times.problems else str(times.answers)
    response = times.response
    late = times.late
    is_late = bool(late.p50.value_ns or late.max_ns)
    since = ", from when each should have been sent" if is_late else ""
    lines = (
        Value("load", f"{result.load}, sent as {times.encoding}"),
        Value("frames", f"{answers} answered, {times.frames_per_s:.4g} a second"),
        Value("response", f"p50 {response.p50} ms, p95 {response.p95} ms{since}"),
    )
    median, tail = format_ms(late.p50.value_ns), format_ms(late.p95.value_ns)
    sender = f"p50 {median}, p95 {tail}, max {format_ms(late.max_ns)} ms late"
    return Section("Under load", values=(*lines, *([Value("generator", sender)] if is_late else [])))


def _about_stages(result: FrameServerResult) -> Iterator[Value]:
    yield Value("serialize", "until the sample is bytes")
    yield Value("connect", "where a connection had to be made for a frame: DNS, TCP, TLS")
    if result.tells_sending:
        way = (
            f"sending the request, and a round trip of {result.trip_ms:.3g} ms: TCP's handshake, which needs no program"
        )
        yield Value("wire", way)
        yield Value("server", "the rest up to the first byte of the reply, its HTTP and its queues included")
    else:
        yield Value("wire", f"the smallest request, {result.smallest}: the network, and gRPC's own work on both sides")
        yield Value("server", "the rest up to the head of the reply; sending is in it, which gRPC does not tell")
    yield Value("download", "from the first byte of the reply to the last")
    yield Value("parse", "until the bytes are an answer")


def _server_tells(result: FrameServerResult) -> Iterator[Value]:
    """Yield the stages inside the server, where it tells them."""
    for times in (*result.alone, *((result.loaded,) if result.loaded else ())):
        if parts := {name: value for name, value in times.server_ms.items() if name != "total" and value >= _LEAST_MS}:
            text = ", ".join(f"{name} {value:.3g}" for name, value in parts.items())
            yield Value("of server", f"{times.encoding}: {text} ms, as it says")


def _verdict(result: FrameServerResult) -> VerdictLines:
    """Return the budget's verdict where one was given, else the worst of what was found."""
    times = result.judged
    response = times.response
    load = f" under {result.load}" if result.load else ""
    lost = f"{times.asked - times.answers} of {times.asked} frames got no answer{load}" if times.problems else ""
    worst = result.findings[0].what if result.findings and not result.budget else ""
    time = f"A frame takes {response.p50} ms sent as {times.encoding}{load}, {times.frames_per_s:.4g} frames/s"
    sentence = "; ".join(filter(None, (time, lost, worst)))
    if result.budget is None:
        return VerdictLines(CommandOutcome.DONE, sentence)
    outcome = CommandOutcome.by_exit(result.budget.verdict.exit_code)
    return VerdictLines(outcome, sentence, facts=(Value("budget", result.budget.told(" or without an answer")),))


def _judgements(result: FrameServerResult) -> tuple[JudgedCase, ...]:
    if result.budget is None:
        return ()
    return (JudgedCase.by_exit(f"{result.model} at {result.address}", result.exit_code, result.budget.detail),)
