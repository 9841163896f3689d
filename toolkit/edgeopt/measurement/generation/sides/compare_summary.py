"""The comparison of language models as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.measurement.generation.perplexity import WINDOW_TOKENS
from edgeopt.measurement.generation.sides.compare import ComparedWriter, WriterComparison
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.report.document import CommandOutcome, Document, Section, Table, Value, VerdictLines, make_table
from edgeopt.system.text import format_bytes, plural

_OUTCOMES = {
    Change.FASTER: CommandOutcome.FASTER,
    Change.SLOWER: CommandOutcome.SLOWER,
    Change.EQUIVALENT: CommandOutcome.EQUIVALENT,
}


def summarize_comparison(result: WriterComparison) -> Document:
    """Return what a reader sees: speed of whole answers, first and next tokens, perplexity, memory."""
    first = result.rows[0]
    asked = f"prompts of {plural(result.prompt_tokens, 'token')}, answers of {result.output_tokens}"
    null = "; ".join(f"{part} {ratio}" for part, ratio in result.null.items())
    values = [
        Value("asked for", result.told_lengths or asked),
        Value("machine", f"{result.cpu}, {plural(first.threads, 'thread')}"),
        Value("null", f"{first.label} against itself: {null}"),
        *map(Value.of_note, result.notes),
    ]
    sections = [
        Section(values=tuple(values)),
        Section(f"Speed as a multiple of {first.label}'s, in turns in one process", _speeds(result)),
    ]
    title = "Memory"
    if result.text:
        of = f" of up to {WINDOW_TOKENS} tokens" if not result.told_lengths else ""
        title = f"Perplexity on {plural(result.windows, 'window')}{of} of {result.text}"
    sections.append(Section(title, _losses(result)))
    return Document(
        "compare",
        first.label,
        f"Compared with {first.label}",
        result.as_json(),
        tuple(sections),
        _verdict(result),
        seconds=result.seconds,
    )


def _speeds(result: WriterComparison) -> Table:
    def ratio(part: str) -> Callable[[ComparedWriter], str]:
        return lambda writer: str(writer.ratios[part]) if writer.ratios else "1.00x"

    columns: dict[str, Callable[[ComparedWriter], str]] = {
        "model": lambda writer: writer.label,
        "answer": ratio("answer"),
        "proof": lambda writer: str(writer.ratios["answer"].verdict) if writer.ratios else "",
        "TTFT": ratio("TTFT"),
        "TPOT": ratio("TPOT"),
        "TTFT ms": lambda writer: f"{writer.times_ms['TTFT']:.3g}",
        "TPOT ms": lambda writer: f"{writer.times_ms['TPOT']:.3g}",
    }
    return make_table(result.rows, columns, words=["proof"], less=["TTFT ms", "TPOT ms", "proof"])


def _losses(result: WriterComparison) -> Table:
    columns: dict[str, Callable[[ComparedWriter], str]] = {"model": lambda writer: writer.label}
    if result.text and result.windows:
        columns |= {
            "perplexity": lambda value: "" if value.perplexity is None else f"{value.perplexity:.3f}",
            "rise": lambda value: str(value.rise) if value.rise else "",
            "same tokens": lambda value: "" if value.agreement is None else f"{value.agreement:.1%}",
        }
    columns |= {
        "size": lambda value: format_bytes(value.size_bytes),
        "cache a token": lambda value: format_bytes(value.token_bytes),
    }
    return make_table(result.rows, columns, less=["cache a token", "size"])


def _verdict(result: WriterComparison) -> VerdictLines:
    first, *others = result.rows
    best = max(others, key=lambda other: other.ratios["answer"].speedup)
    ratio = best.ratios["answer"]
    outcome = _OUTCOMES.get(ratio.verdict, CommandOutcome.NOT_DECIDED)
    facts = [Value("perplexity", f"that of {best.label} is {best.perplexity:.2f} ({best.rise})")] if best.rise else []
    return VerdictLines(outcome, f"{best.label} is {ratio} as fast as {first.label}, whole answers", tuple(facts))
