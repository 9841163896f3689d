"""The times of a language model as a document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgeopt.measurement.generation.result import GenerationBench, LengthTimes
from edgeopt.report.document import Document, Section, Value, make_table
from edgeopt.system.text import format_bytes, format_ms, plural


def summarize_generation(result: GenerationBench) -> Document:
    """Return what a reader sees: first token, next tokens, and the memory between."""
    values = (
        Value("model", f"{Path(result.file).name}, {format_bytes(result.size_bytes)}, {result.parameters_told}"),
        Value("machine", f"{result.cpu}, {plural(result.threads, 'thread')}"),
        Value("load", f"{result.load_ms:.0f} ms, once"),
        Value(
            "cache",
            f"{format_bytes(result.token_bytes)} a token, {format_bytes(result.cache_bytes)} for the whole context of "
            f"{result.context} tokens",
        ),
        *map(Value.of_note, result.notes),
    )
    first: dict[str, Callable[[LengthTimes], str]] = {
        "prompt": lambda one: f"{one.prompt_tokens} tokens",
        "answers": lambda one: str(one.answers),
        "TTFT p50 ms": lambda one: str(one.ttft.p50),
        "max": lambda one: format_ms(one.ttft.max_ns),
        "prefill": lambda one: _rate(one.prefill_tokens_per_s),
        "tokenize p50 ms": lambda one: format_ms(one.tokenize.p50.value_ns),
    }
    following: dict[str, Callable[[LengthTimes], str]] = {
        "prompt": lambda one: f"{one.prompt_tokens} tokens",
        "TPOT p50 ms": lambda one: str(one.tpot.p50),
        "decode": lambda one: _rate(one.decode_tokens_per_s),
        "ITL p50 ms": lambda one: format_ms(one.itl.p50.value_ns),
        "p95": lambda one: format_ms(one.itl.p95.value_ns),
        "p99": lambda one: format_ms(one.itl.p99.value_ns),
        "max": lambda one: format_ms(one.itl.max_ns),
    }
    output = plural(result.lengths[0].output_tokens, "token")
    sections = (
        Section(values=values),
        Section("Time to the first token", make_table(result.lengths, first, less=["tokenize p50 ms"])),
        Section(f"Time for each token after it, answers of {output}", make_table(result.lengths, following)),
    )
    return Document(
        "bench",
        result.model,
        f"{result.model}: first token and next",
        result.as_json(),
        sections,
        seconds=result.seconds,
    )


def _rate(per_s: float | None) -> str:
    return "n/a" if per_s is None else f"{per_s:.0f} tokens/s"
