"""What `optimize` found of a language model, as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.pipeline.generation.result import BASELINE, LanguageForm, LanguageReport
from edgeopt.report.document import Document, Outcome, Section, Table, Value, Verdict, make_table
from edgeopt.system.text import format_bytes, plural


def summarize_language(report: LanguageReport) -> Document:
    """Return what a reader sees: what each form costs and gains for these lengths, and which one was written."""
    lengths = f"prompts of {plural(report.prompt_tokens, 'token')}, answers of {report.output_tokens}"
    values = (
        Value("asked for", lengths),
        Value("text", f"{report.text}, {plural(report.windows, 'window')} of {report.window_tokens} tokens"),
        Value("machine", f"{report.cpu}, {plural(report.threads, 'thread')}"),
        Value("null", f"the original against itself {report.null}"),
        *map(Value.of_note, report.notes),
    )
    sections = (
        Section(values=values),
        Section("Speed against the original, in turns in one process", _speeds(report)),
        Section(f"Perplexity, {report.max_rise:.1%} more is allowed", _losses(report)),
    )
    title = f"{report.model} on {report.target}"
    return Document(
        "optimize", report.model, title, report.as_json(), sections, _verdict(report), seconds=report.seconds
    )


def _speeds(report: LanguageReport) -> Table:
    def ratio(part: str) -> Callable[[LanguageForm], str]:
        return lambda one: "1.00x" if one.name == BASELINE else str(one.speed[part]) if one.speed else ""

    columns: dict[str, Callable[[LanguageForm], str]] = {
        "form": lambda one: one.name,
        "answer": ratio("answer"),
        "proof": lambda one: str(one.speed["answer"].verdict) if one.speed else "",
        "TTFT": ratio("TTFT"),
        "TPOT": ratio("TPOT"),
        "TTFT ms": lambda one: _ms(one, "TTFT"),
        "TPOT ms": lambda one: _ms(one, "TPOT"),
    }
    kept = [one for one in report.forms if one.times_ms]
    place = [one.name for one in kept].index(report.chosen)
    return make_table(kept, columns, less=["TTFT ms", "TPOT ms", "proof"], chosen=place)


def _losses(report: LanguageReport) -> Table:
    columns: dict[str, Callable[[LanguageForm], str]] = {
        "form": lambda one: one.name,
        "perplexity": lambda one: f"{one.perplexity:.3f}",
        "rise": lambda one: str(one.rise) if one.rise else "",
        "same tokens": lambda one: f"{one.agreement:.1%}",
        "size": lambda one: format_bytes(one.size_bytes),
        "": lambda one: "chosen" if one.name == report.chosen else "refused" if one.unfit else "",
        "what it is": lambda one: one.told,
    }
    place = [one.name for one in report.forms].index(report.chosen)
    return make_table(report.forms, columns, words=["what it is"], less=["what it is", "size"], chosen=place)


def _ms(one: LanguageForm, part: str) -> str:
    return f"{one.times_ms[part]:.3g}" if one.times_ms else ""


def _verdict(report: LanguageReport) -> Verdict:
    best, written = report.best, str(report.folder)
    command = f"edgeopt run {written} --prompt TEXT"
    if best.name == BASELINE:
        sentence = f"No form of {report.model} is proven faster for these lengths: the original stays"
        return Verdict(Outcome.DONE, sentence, bundle=written, next_command=command)
    speed = best.speed["answer"]
    sentence = (
        f"{best.name} gives whole answers {speed.speedup:.2f}x as fast as the original; its perplexity is "
        f"{best.perplexity:.2f} ({best.rise})"
    )
    return Verdict(Outcome.FASTER, sentence, bundle=written, next_command=command)
