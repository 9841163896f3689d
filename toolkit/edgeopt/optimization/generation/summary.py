"""What `optimize` found of a language model, as a document."""

from __future__ import annotations

from collections.abc import Callable

from edgeopt.optimization.generation.result import BASELINE, LanguageForm, LanguageReport
from edgeopt.report.document import Document, Outcome, Section, Table, Value, Verdict, make_table
from edgeopt.system.text import format_bytes, format_ms, plural


def summarize_language(report: LanguageReport) -> Document:
    """Return what a reader sees: what each form costs and gains for these lengths, and which one was written."""
    values = (
        Value("asked for", f"{report.lengths}{f'; {report.budget}' if report.budget else ''}"),
        Value("judged by", report.judge),
        *((Value("calibrated by", report.calibration),) if report.calibration else ()),
        Value("machine", f"{report.cpu}, {plural(report.threads, 'thread')}"),
        *((Value("guesses", report.guessing.told),) if report.guessing else ()),
        *map(Value.of_note, report.notes),
    )
    sections = (
        Section(values=values),
        Section("Speed against the original; what is FASTER is so in fresh processes", _speeds(report)),
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
    kept = [one for one in report.forms if one.times_ms or one.name == BASELINE]
    place = [one.name for one in kept].index(report.chosen)
    return make_table(kept, columns, less=["TTFT ms", "TPOT ms", "proof"], chosen=place)


def _losses(report: LanguageReport) -> Table:
    columns: dict[str, Callable[[LanguageForm], str]] = {
        "form": lambda one: one.name,
        "perplexity": lambda one: "" if one.windows and one.windows < report.windows else f"{one.perplexity:.3f}",
        "rise": lambda one: str(one.rise) if one.rise else "",
        "same tokens": lambda one: f"{one.agreement:.1%}",
        "size": lambda one: format_bytes(one.size_bytes),
        "windows": lambda one: str(one.windows or report.windows),
        "": lambda one: "chosen" if one.name == report.chosen else _why_not(one),
        "what it is": lambda one: one.told,
    }
    place = [one.name for one in report.forms].index(report.chosen)
    return make_table(report.forms, columns, words=["what it is"], less=["what it is", "windows", "size"], chosen=place)


def _why_not(one: LanguageForm) -> str:
    return "refused" if one.unfit else one.out


def _ms(one: LanguageForm, part: str) -> str:
    return format_ms(one.times_ms[part] * 1e6) if one.times_ms else ""


def _verdict(report: LanguageReport) -> Verdict:
    best, written = report.best, str(report.bundle or report.folder)
    command, facts = f"edgeopt run {written} {report.asks}", list[Value]()
    if best.name == BASELINE:
        outcome = Outcome.DONE
        sentence = f"No form of {report.model} is proven faster for these lengths: the original stays"
    else:
        outcome, speed = Outcome.FASTER, best.speed["answer"]
        sentence = (
            f"{best.name} gives whole answers {speed.speedup:.2f}x as fast as the original; its perplexity is "
            f"{best.perplexity:.2f} ({best.rise})"
        )
    if report.judged:
        outcome = Outcome.by_exit(report.exit_code)
        sentence = f"budget {report.judged.sentence}. {sentence}"
        facts = [Value("budget", str(one)) for one in report.judged.limits]
    return Verdict(outcome, sentence, tuple(facts), bundle=written, next_command=command)
