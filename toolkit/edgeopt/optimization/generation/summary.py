"""The result of `optimize` for a language model as a document."""

from __future__ import annotations

import math
from collections.abc import Callable

from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.generation.perplexity import MOST_WINDOWS, Rise
from edgeopt.optimization.generation.result import ORIGINALS, LanguageForm, LanguageReport
from edgeopt.optimization.report.columns import Columns, make_candidates_table, make_document, size_of
from edgeopt.report.document import CommandOutcome, Document, Section, Table, Value, VerdictLines
from edgeopt.system.processes.time_limit import LONGER
from edgeopt.system.text import format_bytes, format_ms, plural


def summarize_language(report: LanguageReport) -> Document:
    """Return what a reader sees: what each form costs and gains for these lengths, and which one was written."""
    values = (
        Value("asked for", f"{report.lengths}{f'; {report.budget}' if report.budget else ''}"),
        Value("judged by", report.judge),
        *((Value("calibrated by", report.calibrated_on),) if report.calibrated_on else ()),
        Value("machine", f"{report.environment.cpu}, {plural(report.threads, 'thread')}"),
        *((Value("guesses", report.guessing.told),) if report.guessing else ()),
        *map(Value.of_note, report.notes),
    )
    sections = (
        Section(values=values),
        Section("Speed against the original; FASTER is proven in fresh processes", _speeds(report)),
        Section(f"Perplexity, {report.max_drop:.1%} more is allowed", _losses(report)),
    )
    return make_document(report, sections, _verdict(report))


def _speeds(report: LanguageReport) -> Table:
    def ratio(part: str) -> Callable[[LanguageForm], str]:
        return lambda form: "1.00x" if form.name in ORIGINALS else str(form.speed[part]) if form.speed else ""

    columns: Columns[LanguageForm] = {
        "form": lambda form: form.name,
        "answer": ratio("answer"),
        "proof": lambda form: str(form.speed["answer"].verdict) if form.speed else "",
        "TTFT": ratio("TTFT"),
        "TPOT": ratio("TPOT"),
        "TTFT ms": lambda form: _ms(form, "TTFT"),
        "TPOT ms": lambda form: _ms(form, "TPOT"),
    }
    kept = [form for form in report.candidates if form.times_ms or form.name in ORIGINALS]
    return make_candidates_table(report, columns, rows=kept, less=["TTFT ms", "TPOT ms", "proof"])


def _losses(report: LanguageReport) -> Table:
    columns: Columns[LanguageForm] = {
        "form": lambda form: form.name,
        "perplexity": lambda form: "" if form.windows and form.windows < report.windows else f"{form.perplexity:.3f}",
        "rise": lambda form: str(form.rise) if form.rise else "",
        "word errors": lambda form: _points(form.words) if form.words else "",
        "accuracy": lambda form: form.word,
        "same tokens": lambda form: f"{form.agreement:.1%}",
        "size": size_of,
        "windows": lambda form: str(form.windows or report.windows),
        "": lambda form: "chosen" if form.name == report.chosen else _why_not(form),
        "what it is": lambda form: form.told,
    }
    return make_candidates_table(report, columns, words=["what it is"], less=["what it is", "windows", "size"])


def _why_not(form: LanguageForm) -> str:
    return "refused" if form.unfit else form.out


def _ms(form: LanguageForm, part: str) -> str:
    return format_ms(form.times_ms[part] * 1e6) if form.times_ms else ""


def _verdict(report: LanguageReport) -> VerdictLines:
    best, written = report.best, str(report.bundle or report.folder)
    command, facts = f"edgeopt run {written} {report.asks}", list[Value]()
    outcome = CommandOutcome.DONE
    if best.name in ORIGINALS:
        why = "is proven faster for these lengths"
        if report.memory_bytes is not None and best.needs_bytes > report.memory_bytes:
            why = f"that may be chosen fits into {format_bytes(report.memory_bytes)}"
        sentence = f"No form of {report.model} {why}: the original stays"
        facts = _memory(report)
    else:
        speed = best.speed["answer"]
        split = f" (prompts by {best.prompts_by}, tokens by {best.tokens_by})" if best.prompts_by else ""
        sentence = (
            f"{best.name}{split} gives whole answers {speed.speedup:.2f}x as fast as the original; its perplexity is "
            f"{best.perplexity:.2f}{f', its word error rate {_points(best.words)}' if best.words else ''}: {best.word}"
        )
        facts = [*_accuracy(report), *_memory(report)]
    if report.image_encoder:
        sentence += f"; its encoder of pictures is in INT8, {report.image_encoder} as fast in turns"
    if report.judged:
        sentence = f"budget {report.judged.sentence}. {sentence}"
        facts += [Value("budget", str(limit)) for limit in report.judged.limits]
    if not report.was_cut and (report.judged or report.exit_code):
        outcome = CommandOutcome.by_exit(report.exit_code)
    return VerdictLines(outcome, sentence, tuple(facts), bundle=written, next_command=command)


def _memory(report: LanguageReport) -> list[Value]:
    if report.memory_bytes is None:
        return []
    draft_bytes = report.guessing.draft_bytes if report.guessing else 0
    needs, most = format_bytes(report.best.needs_bytes + draft_bytes), format_bytes(report.memory_bytes)
    of = "one answer" if report.clients == 1 else plural(report.clients, "answer")
    text = f"{needs} of weights and of the cache of {of}{', its draft too' if draft_bytes else ''}, {most} allowed"
    if report.best.needs_bytes > report.memory_bytes:
        fewer = ", for fewer --clients" if report.clients > 1 else ""
        text += f"; ask for shorter prompts or answers{fewer}, or allow more"
    return [Value("memory", text)]


def _points(rise: Rise) -> str:
    """Return the rise of a rate, which is a difference and no share of the original's."""
    return f"{100 * rise.value:+.1f} [{100 * rise.low:+.1f}, {100 * rise.high:+.1f}] points"


def _accuracy(report: LanguageReport) -> list[Value]:
    """Return what is proven of the chosen form's accuracy, and what would decide it."""
    best = report.best
    assert best.rise is not None
    windows = best.windows or report.windows
    rises = f"perplexity {best.rise}" + (f", word error rate {_points(best.words)}" if best.words else "")
    values = [Value("accuracy", f"{best.word}: {rises}, {report.max_drop:.1%} allowed ({report.judge})")]
    if best.word == Word.NOT_DECIDED:
        undecided = [rise for rise in (best.rise, best.words) if rise and rise.high > report.max_drop]
        wanted = [
            # what is not seen of few sounds shrinks with their number, not with its root
            rise.windows_to_decide(windows, report.max_drop, power=1 if rise is best.words else 2)
            for rise in undecided
        ]
        more = max(wanted) if all(wanted) else 0
        proven = max(rise.high for rise in undecided)
        ways = [f"--max-drop {math.ceil(proven * 1000) / 1000:g} is what this proves"]
        if report.told_judge and more:
            ways.insert(0, f"about {more:,} of them in --eval")
        elif windows < more <= windows + report.left_windows:
            ways.insert(0, f"{LONGER}: {more} of the {windows + report.left_windows} windows may do")
        elif windows < more <= MOST_WINDOWS:
            ways.insert(0, f"a text of about {more} windows of {report.window_tokens} tokens in --eval")
        values.append(Value("to decide", "; or ".join(ways)))
    return values
