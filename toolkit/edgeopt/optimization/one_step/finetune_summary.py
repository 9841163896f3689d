"""The result of `finetune` as a document."""

from __future__ import annotations

import shlex

from edgeopt.errors import NoteKind
from edgeopt.optimization.one_step.finetune_result import FinetuneResult
from edgeopt.optimization.report.training_charts import loss_curve
from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines
from edgeopt.report.figures import Figure
from edgeopt.system.text import plural


def summarize(result: FinetuneResult) -> Document:
    """Return what a reader sees: losses and agreement with their intervals, the curve, notes, and what came of it."""
    warnings = tuple(note for note in result.notes if note.kind in (NoteKind.WARNING, NoteKind.SKIPPED))
    others = tuple(note for note in result.notes if note not in warnings)
    return Document(
        command="finetune",
        subject=result.model,
        title=f"{result.model} taught by {result.teacher}",
        data=dict(result.as_json()),
        sections=(
            Section("How it was judged", values=_figures(result), is_detail=result.file is not None),
            Section("Loss on held-out pictures", figures=(_curve(result),), is_detail=True),
            Section(notes=warnings),
            Section("What is known beside", notes=others, is_detail=True),
        ),
        verdict=_verdict(result),
    )


def _figures(result: FinetuneResult) -> tuple[Value, ...]:
    taught = f"{plural(result.learned, 'picture')}, {plural(result.features, 'tensor')} compared beside the outputs"
    values = [
        Value("loss", str(result.loss)),
        Value("agreement", str(result.agreement)),
        Value("learned", taught),
        Value("judged", f"on {plural(result.judged, 'held-out picture')}, 95 % intervals over pictures"),
    ]
    if result.labelled:
        text = (
            f"{result.metric} {result.labelled} (teacher {result.of_teacher:.4f}, {plural(result.pictures, 'picture')})"
        )
        values.append(Value("labels", text))
    return tuple(values)


def _curve(result: FinetuneResult) -> Figure:
    return loss_curve(tuple(one.step for one in result.curve), tuple(one.loss for one in result.curve))


def _verdict(result: FinetuneResult) -> VerdictLines:
    if result.file is None:
        return VerdictLines(
            CommandOutcome.FAIL,
            "the given model stays: training gained nothing beyond chance",
            (Value("why", result.reason),),
        )
    return VerdictLines(
        CommandOutcome.DONE,
        f"{result.file} answers more like {result.teacher} than {result.model} does",
        _figures(result),
        next_command=f"edgeopt compare {shlex.quote(result.given or result.model)} {shlex.quote(str(result.file))}",
    )
