"""The steps of `optimize` up to `prune`: a model in, the fastest pruned one that keeps its accuracy out, one file.

It is a run of `optimize` with these steps alone: measured, proven, with its report in a folder beside the file.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Unpack

from edgeopt.errors import EXIT_MISSED, EXIT_PASS, NoteKind, UnsupportedError
from edgeopt.graph.groups import require_prunable
from edgeopt.graph.model import find_model, fix_inputs, load_model
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import FrameOptimizeWishes, Options
from edgeopt.optimization.plan import PRUNE
from edgeopt.optimization.report.frontier import account_of, cut_of, removed_words
from edgeopt.optimization.report.summary import summarize as summarize_run
from edgeopt.optimization.report.verdict import kept
from edgeopt.optimization.result import ModelReport
from edgeopt.report.document import CommandOutcome, Document, Value, VerdictLines
from edgeopt.report.result import Result
from edgeopt.steps._context import Listener
from edgeopt.steps._pruning import parse_pruning
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.disk.files import require_writable, write_beside
from edgeopt.system.machine.environment import Environment
from edgeopt.system.text import format_bytes, format_score, plural

_STEPS = ("simplify", "fuse", PRUNE)


@dataclass(frozen=True, slots=True)
class PruneResult(Result):
    """The pruned model, and where the rest lies."""

    command: ClassVar[str] = "prune"
    kind: ClassVar[str] = ModelReport.kind

    report: ModelReport
    """Report of the run: all points, measured."""
    written: Candidate | None
    """Candidate whose model the file is; None: the dense model stays, and no file is written."""
    file: Path | None
    given: str
    """The model as it was named: a path, or a shipped name."""

    @property
    def is_chosen(self) -> bool:
        """Whether what was written keeps its accuracy and is proven faster."""
        return self.written is not None and self.written.name == self.report.chosen

    @property
    def exit_code(self) -> int:
        """0 if a pruned model was chosen; 2 if none pays, also where one was written because it was asked for."""
        return EXIT_PASS if self.is_chosen else EXIT_MISSED

    @property
    def environment(self) -> Environment:
        """The machine that measured, and its software."""
        return self.report.environment

    def own_figures(self) -> dict[str, Any]:
        """Return plain values; the report of the run has a head of its own."""
        written, file = self.written.name if self.written else None, str(self.file) if self.file else None
        return {"written": written, "file": file, "report": self.report.as_json()}


@with_options_of(Options)
def prune(
    model: str | Path,
    *,
    target: str = "cpu",
    out: str | Path | None = None,
    recipe: str | None = None,
    options: Options | None = None,
    listener: Listener | None = None,
    **wishes: Unpack[FrameOptimizeWishes],
) -> PruneResult:
    """Write the fastest pruned form of a model that keeps its accuracy and is proven faster.

    Where an amount was asked for (`prune="0.3"` or `"1.5x"`), the file is written whatever it loses.

    Args:
        model: Path of an ONNX file, or the name of a shipped model.
        target: Shipped name, or path of a TOML file.
        out: The file to write; None: `MODEL.pruned.onnx` here. The run's folder lies beside it, without the suffix.
        recipe: Shipped name or path; None: read from the model.
        options: What to do; its steps and what is for other steps is left aside.
        listener: Hears progress.
        **wishes: Fields of `Options` that differ.

    Raises:
        EdgeoptError: On what the user can mend.
        UnsupportedError: If no channels can be taken out of the model.
    """
    asked = replace(replace(options or Options(), **wishes), steps=_STEPS, skip=())
    pruning = parse_pruning(asked.prune, asked.keep_layers)
    if pruning is None:
        raise UnsupportedError("nothing is left to do where --prune is off", remedy="leave --prune out")
    path = find_model(str(model))
    given = load_model(path, "" if path == Path(model) else str(model))
    require_prunable(fix_inputs(given, asked.shapes))
    file = Path(out) if out else Path(f"{given.name}.pruned.onnx")
    require_writable(file)
    report = optimize(model, target=target, out=_folder(file), recipe=recipe, options=asked, listener=listener)
    made = [candidate for candidate in report.candidates if PRUNE in candidate.steps]
    written = report.best if report.best in made else None
    if written is None and not pruning.is_auto:
        written = next(iter(made), None)
    if written is None:
        return PruneResult(report, None, None, str(model))
    write_beside(file, (report.folder / written.file).read_bytes())
    return PruneResult(report, written, file, str(model))


def _folder(file: Path) -> Path:
    """Return where the run of a file lies: `a.pruned` of `a.pruned.onnx`, else the whole name with `.run` behind it."""
    return file.with_suffix("") if file.suffix == ".onnx" else file.with_name(f"{file.name}.run")


# The result of `prune` as a document.


def summarize(result: PruneResult) -> Document:
    """Return what a reader sees: the points, why, and what was written."""
    whole = summarize_run(result.report)
    return Document(
        result,
        subject=result.report.model,
        title=f"{result.report.model} pruned for {result.report.target}",
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


def why_dense(report: ModelReport) -> str:
    """Return why no pruned model was chosen: what pruning itself says, or else what became of its points."""
    refused = "; ".join(f"{candidate.name} {candidate.refused}" for candidate in report.candidates if candidate.refused)
    account = account_of(report)
    parts = [
        note.detail for note in report.notes if note.kind is NoteKind.SKIPPED and note.detail.startswith("no pruning")
    ]
    return refused or (account.why if account else "") or "; ".join(parts) or report.reason


def _accuracy(report: ModelReport, candidate: Candidate) -> str:
    first = report.candidates[0]
    if candidate.drop is not None and candidate.score and first.score:
        figures = f"{candidate.score.short} (was {format_score(first.score.value)})"
        return f"{candidate.word}: {figures}, {candidate.judgement}"
    return (
        f"agrees with the original in {candidate.agreement:.3f}; no labels judge it"
        if candidate.agreement is not None
        else ""
    )
