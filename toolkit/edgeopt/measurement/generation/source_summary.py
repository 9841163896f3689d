"""The times of an encoder with a decoder as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.measurement.bench.passes_summary import cold_section
from edgeopt.measurement.generation.sources import SourceBench, SourceTimes
from edgeopt.measurement.generation.verdict import verdict_of
from edgeopt.report.document import Document, Section, Value, VerdictLines, make_table
from edgeopt.system.text import format_bytes, format_ms, plural


def summarize_sources(result: SourceBench) -> Document:
    """Return what a reader sees: encoder, first token, next tokens."""
    values = (
        Value("model", f"{result.kind}, {format_bytes(result.size_bytes)}"),
        Value("machine", f"{result.cpu}, {plural(result.threads, 'thread')}"),
        Value("load", f"{result.load_ms:.0f} ms, once"),
        Value(
            "cache",
            f"{format_bytes(result.token_bytes)} a token of the answer, {format_bytes(result.heard_bytes)} a row of "
            "what was heard",
        ),
        *map(Value.of_note, result.notes),
    )
    first: dict[str, Callable[[SourceTimes], str]] = {
        "source": lambda times: times.source,
        "answers": lambda times: str(times.answers),
        "TTFT p50 ms": lambda times: str(times.ttft.p50),
        "features or tokens": lambda times: format_ms(times.feed.p50.value_ns),
        "encoder": lambda times: format_ms(times.encode.p50.value_ns),
        "prefill": lambda times: format_ms(times.prefill.p50.value_ns),
    }
    following: dict[str, Callable[[SourceTimes], str]] = {
        "source": lambda times: times.source,
        "TPOT p50 ms": lambda times: str(times.tpot.p50),
        "p99": lambda times: format_ms(times.tpot.p99.value_ns),
        "decode": lambda times: (
            "n/a" if not times.tpot.p50.value_ns else f"{1e9 / times.tpot.p50.value_ns:.0f} tokens/s"
        ),
    }
    sections: tuple[Section, ...] = (
        Section(values=values),
        Section("Time to the first token, and its parts", make_table(result.sources, first, words=["source"])),
        Section(
            f"Time for each token after it, answers of {plural(result.output_tokens, 'token')}",
            make_table(result.sources, following, words=["source"]),
        ),
    )
    if result.cold:
        first_token = f"first token behind {result.sources[0].source}"
        text = f"session: both models and the tokenizer; first: {first_token}; second: the next"
        cold_notes = map(Value.of_note, result.cold.notes)
        sections = (*sections, cold_section(result.cold, Value("of it", text), *cold_notes))
    text = f"{result.model}: encoder, first token and next"
    return Document("bench", result.model, text, result.as_json(), sections, _verdict(result), seconds=result.seconds)


def _verdict(result: SourceBench) -> VerdictLines | None:
    judged = [(source.source, source.judged) for source in result.sources if source.judged]
    return verdict_of(judged, judged, result.exit_code)
