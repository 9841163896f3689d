"""The result of `quantize` as a document."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from edgeopt.errors import Note, NoteKind
from edgeopt.optimization.one_step.quantize_result import QuantizeResult, Tried
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines, make_table
from edgeopt.system.declared.target import find_target, target_names


def summarize(result: QuantizeResult) -> Document:
    """Return what a reader sees: every form that was tried, notes, and the choice with its reason."""
    columns: dict[str, Callable[[Tried], str]] = {
        "form": lambda tried: tried.name,
        "estimated speed": lambda tried: f"{tried.speed_ratio:.2f}x",
        "agreement": lambda tried: f"{tried.agreement:.3f}",
        result.metric or "metric": lambda tried: "" if tried.score is None else f"{tried.score:.4f}",
        "drop": lambda tried: (
            f"{tried.judgement.drop:+.4f}" if tried.judgement and tried.judgement.drop is not None else ""
        ),
        "at most": lambda tried: f"{tried.judgement.risk:+.4f}" if tried.judgement else "",
        "accuracy": lambda tried: str(tried.judgement.word) if tried.judgement else "",
    }
    chosen = result.tried.index(result.chosen) if result.chosen else None
    return Document(
        command="quantize",
        subject=result.model,
        title=f"{result.model} in INT8 for {result.target}",
        data=result.as_json(),
        sections=(
            Section("Forms that were tried", make_table(result.tried, columns, chosen=chosen), is_detail=True),
            Section(notes=_notes(result, NoteKind.WARNING, NoteKind.SKIPPED)),
            Section("Why", values=(Value("why", result.reason),), is_detail=True),
            Section("What was decided", notes=_notes(result, NoteKind.CHOICE, NoteKind.INFO), is_detail=True),
        ),
        verdict=_verdict(result),
    )


def _verdict(result: QuantizeResult) -> VerdictLines:
    chosen = result.chosen
    if chosen is None:
        why = (Value("why", result.reason),)
        return VerdictLines(CommandOutcome.FAIL, "the float model stays: no INT8 form is fast and accurate enough", why)
    facts = [Value("form", chosen.name)]
    agrees = f"agrees with the float model in {chosen.agreement:.3f}"
    if chosen.score is None:
        facts.append(Value("accuracy", f"{agrees}; no labels judge it"))
    else:
        figures = f"{result.metric} {chosen.score:.4f} (was {result.baseline:.4f})"
        word = f"{chosen.judgement.word}: " if chosen.judgement else ""
        facts.append(Value("accuracy", f"{word}{figures}, {chosen.judgement}", more=agrees))
    return VerdictLines(
        CommandOutcome.DONE,
        f"{result.file} is estimated {chosen.speed_ratio:.2f}x as fast as the float model",
        tuple(facts),
        next_command=_compared(result),
    )


def _compared(result: QuantizeResult) -> str:
    """Return the command that proves the estimate, on the engine that it was made for."""
    target = find_target(result.target) if result.target in target_names() else None
    is_other = target is not None and target.device == "cpu" and target.executor != "onnxruntime"
    on = f" --target {result.target}" if is_other else ""
    return f"edgeopt compare {shlex.quote(result.given or result.model)} {shlex.quote(str(result.file))}{on}"


def _notes(result: QuantizeResult, *kinds: NoteKind) -> tuple[Note, ...]:
    return tuple(note for note in result.notes if note.kind in kinds)
