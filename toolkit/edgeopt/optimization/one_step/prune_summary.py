"""The result of `prune` as a document."""

from __future__ import annotations

import shlex

from edgeopt.errors import NoteKind
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.one_step.prune import PruneResult
from edgeopt.optimization.report.frontier import account_of, cut_of, removed_words
from edgeopt.optimization.report.summary import summarize as summarize_run
from edgeopt.optimization.report.verdict import kept
from edgeopt.optimization.result import Report
from edgeopt.report.document import CommandOutcome, Document, Value, VerdictLines
from edgeopt.system.text import format_bytes, plural


def summarize(result: PruneResult) -> Document:
    """Return what a reader sees: the points, why, and what was written."""
    whole = summarize_run(result.report)
    return Document(
        command="prune",
        subject=result.report.model,
        title=f"{result.report.model} pruned for {result.report.target}",
        data=result.as_json(),
        sections=whole.sections,
        verdict=_verdict(result),
        key_figures=whole.key_figures,
    )


def _verdict(result: PruneResult) -> VerdictLines:
    report, written = result.report, result.written
    page = Value("report", str(report.folder / "report.html"), is_command=True)
    if written is None or result.file is None:
        why = (Value("why", why_dense(report)), page)
        return VerdictLines(CommandOutcome.FAIL, "the dense model stays: no pruned one pays", why)
    first, cut = report.candidates[0], cut_of(report, written)
    gone = [f"{removed_words(report, written)} of those that can be removed"] if cut else []
    gone += [f"-{plural(len(cut.removed_blocks), 'block')}"] if cut and cut.removed_blocks else []
    known = (
        Value("why", "" if result.is_chosen else written.refused or "it is not proven faster than the original"),
        Value("channels", ", ".join(gone)),
        Value("accuracy", _accuracy(report, written)),
        Value("size", f"{format_bytes(written.size_bytes)}, was {format_bytes(first.size_bytes)}"),
        page,
    )
    facts = tuple(value for value in known if value.text)
    file, dense = shlex.quote(str(result.file)), shlex.quote(result.given)
    if result.is_chosen:
        fast = f"{written.speed} as fast as the original{kept(written)}"
        sentence = f"{result.file} is {fast}" if written.speed else f"{result.file} is made; its speed is not measured"
        return VerdictLines(CommandOutcome.DONE, sentence, facts, next_command=f"edgeopt compare {dense} {file}")
    sentence = f"{result.file} is what was asked for, and does not pay as it is"
    following = f"edgeopt finetune {file} --teacher {dense} --data PICTURES"
    return VerdictLines(CommandOutcome.FAIL, sentence, facts, next_command=following)


def why_dense(report: Report) -> str:
    """Return why no pruned model was chosen: what pruning itself says, or else what became of its points."""
    refused = "; ".join(f"{candidate.name} {candidate.refused}" for candidate in report.candidates if candidate.refused)
    account = account_of(report)
    parts = [
        note.detail for note in report.notes if note.kind is NoteKind.SKIPPED and note.detail.startswith("no pruning")
    ]
    return refused or (account.why if account else "") or "; ".join(parts) or report.reason


def _accuracy(report: Report, candidate: Candidate) -> str:
    first = report.candidates[0]
    if candidate.drop is not None and candidate.score and first.score:
        figures = f"{candidate.score.metric} {candidate.score.value:.4f} (was {first.score.value:.4f})"
        return f"{candidate.word}: {figures}, {candidate.judgement}"
    return (
        f"agrees with the original in {candidate.agreement:.3f}; no labels judge it"
        if candidate.agreement is not None
        else ""
    )
