"""The clients' view of a server of a language model, as a reader sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgeopt.measurement.bench.columns import FIRST_TOKEN, GAPS, Cell, timed
from edgeopt.measurement.bench.view import BenchView
from edgeopt.measurement.charts import ms
from edgeopt.measurement.endpoint.result import EndpointResult, EndpointTimes
from edgeopt.measurement.resources.prices import CURRENCY
from edgeopt.measurement.statistics.quantile import Summary
from edgeopt.report.document import Section, Value, make_table
from edgeopt.report.figures import Axis, Bar, Bars
from edgeopt.system.text import format_budget, format_ms, plural

PARTS = ("network", "queue", "first token", "next tokens")
_MARKS = ("n", "q", "#", "-")
_COLUMNS = 56


def timeline_of(times: EndpointTimes, result: EndpointResult) -> tuple[float, float, float, float]:
    """Return the parts of a median answer in milliseconds, as `PARTS` has them.

    The first token is what is left of TTFT without network and queue; the next tokens are what follows TTFT.
    """
    ttft, whole = centre_ms(times.ttft), centre_ms(times.answer)
    network = min(result.round_trip_ms, ttft)
    queue = min(times.queue.p50.value_ms or 0.0, ttft - network)
    return network, queue, ttft - network - queue, max(whole - ttft, 0.0)


def centre_ms(summary: Summary) -> float:
    """Return the median in milliseconds, of too few times for one their mean."""
    return summary.p50.value_ms or (summary.mean_ns or 0.0) / 1e6


def text_bar(parts: Sequence[float], longest: float, marks: Sequence[str] = _MARKS) -> str:
    """Return a bar of letters, one for each part; what is there has one at least.

    Args:
        parts: In the order of `marks`; theirs are `n`etwork, `q`ueue, `#` first token, `-` next tokens.
        longest: The sum that fills the line.
        marks: A letter for each part.
    """
    scale = _COLUMNS / longest if longest > 0 else 0.0
    return "".join(mark * max(round(part * scale), part > 0) for mark, part in zip(marks, parts, strict=True))


def draw_answer(result: EndpointResult) -> Bars:
    """Return the bars of answers to each prompt alone, and under load."""
    rows = [times for times in (*result.alone, result.loaded) if times and times.answers]
    bars = tuple(
        Bar(row.name, parts, tuple((name, ms(part)) for name, part in zip(PARTS, parts, strict=True)))
        for row in rows
        for parts in (timeline_of(row, result),)
    )
    return Bars(
        title="Where an answer's time goes",
        text="Network, queue, first token and the tokens after it, of median answers.",
        axis=Axis("time", "ms", from_zero=True),
        parts=PARTS,
        bars=bars,
    )


def view_endpoint(result: EndpointResult) -> BenchView:
    """Return where an answer's time goes, alone and under load."""
    rows = (result.tiny, *result.alone, *((result.loaded,) if result.loaded else ()))
    first: dict[str, Cell] = {
        "asked": lambda times: times.name,
        "prompt tokens": _prompt_tokens,
        "answers": _answers,
        "queue p50": timed("queue.p50"),
        **FIRST_TOKEN,
    }
    following: dict[str, Cell] = {
        "asked": lambda times: times.name,
        "answer tokens": lambda times: f"{times.output_tokens:.0f}",
        "TPOT p50 ms": timed("tpot.p50", interval=True),
        **GAPS,
        "tokens/s": lambda times: f"{times.tokens_per_s:.4g}",
        "goodput": lambda times: f"{times.good_per_s:.3g}/s",
    }
    return BenchView(
        title=f"{result.model} at {result.address}",
        ran=tuple(_values(result)),
        sections=(
            Section("Time to the first piece of text (ms)", make_table(rows, first, is_whole=True)),
            Section(
                "Time for each token after it (ms)",
                make_table(rows, following, less=["answer tokens", *GAPS], is_whole=True),
            ),
            Section(
                "An answer, from its request to its end",
                values=tuple(_timelines(result)),
                figures=(draw_answer(result),),
            ),
            _turns(result),
        ),
        sentence=_sentence(result),
    )


def _prompt_tokens(times: EndpointTimes) -> str:
    return f"{times.prompt_tokens:.0f}" if times.prompt_tokens else "n/a"


def _answers(times: EndpointTimes) -> str:
    return f"{times.answers}{f' of {times.asked}' if times.problems else ''}"


def _turns(result: EndpointResult) -> Section:
    """Return the turns of conversations, and how the first token and the prompt grow from the first to the last."""
    columns: dict[str, Cell] = {
        "turn": lambda times: times.name.removeprefix("turn "),
        "prompt tokens": _prompt_tokens,
        "answers": _answers,
        **FIRST_TOKEN,
        "TPOT p50": timed("tpot.p50"),
    }
    if not result.turns:
        return Section()
    values = [
        Value("no answer", f"{plural(count, 'request')}, {times.name}: {problem}")
        for times in result.turns
        for problem, count in times.problems.items()
    ]
    answered = [times for times in result.turns if times.answers]
    first, last = answered[0] if answered else None, answered[-1] if answered else None
    if first and last and first is not last:
        longer = (
            f", its prompt is {last.prompt_tokens / first.prompt_tokens:.1f}x as long" if first.prompt_tokens else ""
        )
        text = f"the first token takes {centre_ms(last.ttft) / centre_ms(first.ttft):.1f}x as long as in turn 1{longer}"
        values.append(Value(last.name, text))
    table = make_table(result.turns, columns, less=("TTFT p95", "TTFT max", "TPOT p50"))
    return Section("Turns of a conversation, each with all before it", table, values=tuple(values))


def _values(result: EndpointResult) -> Iterator[Value]:
    yield Value("server", f"{result.address}, model {result.model}")
    text = f"{result.round_trip_ms:.3g} ms for a round trip, {result.connect_ms:.3g} ms to connect"
    yield Value("network", text)
    limits = ", ".join(f"{part} {format_budget(limit)} ms" for part, limit in result.limits_ms.items())
    yield Value("goodput", f"answers a second with {limits} or less")
    for value in (result.tiny, *result.alone, *((result.loaded,) if result.loaded else ())):
        for problem, count in value.problems.items():
            yield Value("no answer", f"{plural(count, 'request')}, {value.name}: {problem}")
    if result.cost:
        rate = f"at {result.cost.tokens_per_s:.4g} tokens/s"
        yield Value("cost", f"{result.cost.per_thousand:.3g} per 1000 tokens of answers {rate}, {CURRENCY}")
    yield from map(Value.of_note, result.notes)


def _timelines(result: EndpointResult) -> Iterator[Value]:
    """Yield one bar an answer, and what its parts are."""
    rows = [
        (times.name, timeline_of(times, result)) for times in (*result.alone, result.loaded) if times and times.answers
    ]
    longest = max((sum(parts) for _, parts in rows), default=0.0)
    for words, parts in rows:
        yield Value(words, text_bar(parts, longest))
        text = ", ".join(f"{name} {value:.3g}" for name, value in zip(PARTS, parts, strict=True))
        yield Value("", f"{text}: {sum(parts):.4g} ms")


def _sentence(result: EndpointResult) -> str:
    """Return the worst of what was found; nothing is gated here."""
    long = result.alone[-1]
    rate = f"{(result.loaded or long).tokens_per_s:.3g} tokens/s{f' under {result.load}' if result.load else ''}"
    if not result.findings:
        return f"Nothing stands out: the first piece of text after {format_ms(long.ttft.p50.value_ns)} ms, {rate}"
    return f"{result.findings[0].what}; {rate}"
