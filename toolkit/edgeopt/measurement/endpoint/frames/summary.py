"""The clients' view of a server of frames, as a reader sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgeopt.measurement.bench.columns import Cell, stage_table, timed
from edgeopt.measurement.bench.view import BenchView
from edgeopt.measurement.charts import StagedRun, TimedRun, budget_line, draw_percentiles, draw_stages
from edgeopt.measurement.endpoint.frames.result import STAGES, EncodedTimes, FrameServerResult
from edgeopt.measurement.endpoint.summary import centre_ms, text_bar
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.report.document import Section, Table, Value, make_table
from edgeopt.report.figures import Figure
from edgeopt.system.text import format_bytes, format_ms, plural

_MARKS = ("s", "c", "w", "#", "d", "p")
"""Letters of the stages in a bar of text."""
_LEAST_MS = 0.001


def view_server(result: FrameServerResult) -> BenchView:
    """Return connections, each encoding, its stages, and the load."""
    rows = [(times.encoding, times) for times in result.alone]
    rows += [(f"{times.encoding}, {result.load}", times) for times in (result.loaded,) if times]
    staged = [
        Section(f"Stages, sent as {words} (ms)", _stages({**times.times, "frame": times.response}))
        for words, times in rows
        if times.answers
    ]
    return BenchView(
        title=f"{result.model} at {result.address}",
        ran=tuple(_values(result)),
        sections=(
            Section("A new connection (ms)", _stages(result.once)),
            Section("Frames, one at a time (ms)", _encodings(result)),
            *staged,
            Section(
                "A frame, from its sample to its answer",
                values=(*_bars(rows), *_server_tells(result)),
                figures=tuple(_figures(result, rows)),
            ),
            *([_under_load(result, result.loaded)] if result.loaded else []),
            Section("How to read the stages", values=tuple(_about_stages(result)), is_detail=True),
        ),
        sentence=_sentence(result),
        facts=tuple(Value("budget", limit.detail) for limit in result.judged),
    )


def _stages(times: Mapping[str, Summary]) -> Table:
    """Return a row a stage, with the intervals of its median and its 95th percentile."""
    return stage_table(times, intervals=("p50", "p95"))


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


def _encodings(result: FrameServerResult) -> Table:
    first = result.alone[0].encoding
    columns: dict[str, Cell] = {
        "sent as": lambda times: times.encoding,
        "frames": lambda times: f"{times.answers}{f' of {times.asked}' if times.problems else ''}",
        "p50": timed("response.p50", interval=True),
        "p95": timed("response.p95"),
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
    limit = budget_line(result.budget.budget_ms) if result.budget else None
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


def _sentence(result: FrameServerResult) -> str:
    """Return what a frame takes, what was lost, and without a budget the worst of what was found."""
    times = result.judged_times
    load = f" under {result.load}" if result.load else ""
    lost = f"{times.asked - times.answers} of {times.asked} frames got no answer{load}" if times.problems else ""
    worst = result.findings[0].what if result.findings and not result.budget else ""
    rate = f"{times.frames_per_s:.4g} frames/s"
    time = f"A frame takes {times.response.p50} ms sent as {times.encoding}{load}, {rate}"
    return "; ".join(filter(None, (time, lost, worst)))
