"""The head of a result's JSON says what the last lines of a terminal say, and no figure is lost on the way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from screens import DOCUMENTS, bench_result, kept_original, optimized, pruned, quantized

import edgeopt
from edgeopt.errors import EXIT_INTERRUPTED, EXIT_OF, EXIT_PASS
from edgeopt.measurement.accuracy.bootstrap import Drop
from edgeopt.measurement.accuracy.judgement import Judgement, Word
from edgeopt.measurement.bench.summary import summarize as summarize_bench
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.resources.trust import Trust, TrustLevel
from edgeopt.measurement.statistics.budget import Verdict, judge_budget
from edgeopt.optimization.one_step.finetune import FigureChange, FinetuneResult
from edgeopt.optimization.one_step.finetune import summarize as summarize_finetune
from edgeopt.optimization.one_step.prune import summarize as summarize_prune
from edgeopt.optimization.one_step.quantize import summarize as summarize_quantize
from edgeopt.optimization.report.summary import summarize as summarize_optimize
from edgeopt.report.document import CommandOutcome, Document
from edgeopt.report.result import PlainResult, Result, fields_as_json
from edgeopt.running.live import LiveResult
from edgeopt.running.live_summary import summarize as summarize_live
from edgeopt.running.writing import WrittenResult
from edgeopt.runtime.decoding.generation import Account
from edgeopt.steps.finetune.standing import HeldOutCheck
from edgeopt.system.machine.environment import Environment
from edgeopt.verbs.fleet.result import CellResult, FleetResult
from edgeopt.verbs.fleet.summary import summarize as summarize_fleet
from edgeopt.verbs.fleet.work import CellRun
from edgeopt.verbs.report import read_stored_report
from edgeopt.workloads.frames import bench as frames_bench

REPORTS = Path(__file__).parents[1] / "optimization" / "reports"
PICTURES = Path(__file__).parents[2] / "models" / "digits_detector" / "calib"
HEADS = {
    CommandOutcome.PASS: {"PASS"},
    CommandOutcome.FAIL: {"FAIL"},
    CommandOutcome.NOT_DECIDED: {"INCONCLUSIVE"},
    CommandOutcome.NOISY: {"NOISY", "INVALID"},
    CommandOutcome.DONE: {"DONE"},
    CommandOutcome.FASTER: {"FASTER"},
    CommandOutcome.SLOWER: {"SLOWER"},
    CommandOutcome.EQUIVALENT: {"EQUIVALENT"},
    None: {"DONE"},
}
"""The head's words beside each word of a terminal; None: a command without last lines, as `targets`."""
CURVE = (HeldOutCheck(0, 0.0, 1.0, 0.0), HeldOutCheck(9, 5.0, 0.9, 0.8))
OPEN = Judgement(Word.NOT_DECIDED, 160, 0.01, drop=0.001, drop_least=-0.01, drop_most=0.02)


def bench(trust: TrustLevel, *, asked: bool, budget_ms: float = 1000.0) -> Document:
    """Return a bench whose frames keep their budget, if that is no shorter."""
    result = bench_result()
    options = replace(result.setup.options, budget_ms=budget_ms if asked else None)
    verdict = Verdict.PASS if budget_ms > 100 else Verdict.FAIL
    load = replace(result.load, budget=replace(result.load.budget, verdict=verdict))
    changed = replace(result, setup=replace(result.setup, options=options), trust=Trust(trust, ()), load=load)
    return summarize_bench(changed, frames_bench)


def optimize(document: Document, **changes: Any) -> Document:
    """Return a run of `optimize` of which something is otherwise, the accuracy of its choice too."""
    report: Any = document.result
    if judged := changes.pop("judged", None):
        candidates = (replace(each, judgement=judged) if each is report.best else each for each in report.candidates)
        changes["candidates"] = tuple(candidates)
    return summarize_optimize(replace(report, **changes))


def fleet(*codes: int) -> Document:
    """Return a fleet whose cells ended so."""
    ran = (CellRun("k", code, "w", "m", "cpu", 0.0, 0.0, 1.0, ()) for code in codes)
    cells = (CellResult(f"c{i}", "w", f"d{i}", "t", run, None, "") for i, run in enumerate(ran))
    return summarize_fleet(FleetResult("nightly", Path("out"), tuple(cells), {}))


def finetune(file: Path | None) -> Document:
    """Return a training that gained something, where a file was written."""
    change = FigureChange(1.0, 0.9, Drop(0.1, 0.05, 0.15))
    words = {"model": "a", "teacher": "b", "recipe": "r", "reason": "the loss fell by chance"}
    counts = {"learned": 9, "judged": 9, "features": 1}
    return summarize_finetune(
        FinetuneResult(**words, **counts, data=Path("d"), file=file, loss=change, agreement=change, curve=CURVE)
    )


@cache
def answered() -> LiveResult:
    """Return a run on one picture."""
    found: LiveResult = edgeopt.run("digits_detector", PICTURES, limit=1)
    return found


def live(frame_ms: float | None, *, interrupted: bool = False) -> Document:
    """Return a run whose frames took so long, with a budget of 33 ms; None: without a budget."""
    times_ns = None if frame_ms is None else np.full(1000, frame_ms * 1e6, np.int64)
    budget = None if times_ns is None else judge_budget(times_ns, 33.0, 0.01)
    return summarize_live(replace(answered(), budget=budget, interrupted=interrupted))


MORE: Mapping[str, Callable[[], tuple[Document, str | None, int]]] = {
    "bench, noisy, no budget": lambda: (bench(TrustLevel.NOISY, asked=False), "DONE", 0),
    "bench, quiet, no budget": lambda: (bench(TrustLevel.TRUSTED, asked=False), "PASS", 0),
    "bench, missed, no budget": lambda: (bench(TrustLevel.TRUSTED, asked=False, budget_ms=1.0), "DONE", 0),
    "bench, invalid": lambda: (bench(TrustLevel.INVALID, asked=True), "INVALID", 4),
    "bench, quiet": lambda: (bench(TrustLevel.TRUSTED, asked=True), "PASS", 0),
    "optimize, accuracy open": lambda: (optimize(optimized(), judged=OPEN, accuracy_asked=True), "INCONCLUSIVE", 3),
    "optimize, cut": lambda: (optimize(optimized(), was_cut=True), "DONE", 130),
    "optimize, unasked": lambda: (optimize(optimized(), budget_asked=False), "PASS", 0),
    "optimize, unasked and open": lambda: (optimize(optimized(), budget_asked=False, judged=OPEN), "DONE", 0),
    "optimize, unasked and noisy": lambda: (optimize(optimized(), budget_asked=False, trust="NOISY; a"), "DONE", 0),
    "optimize, off target": lambda: (optimize(optimized(), off_target="no engine"), "INCONCLUSIVE", 3),
    "optimize, missed": lambda: (optimize(kept_original(), budget_asked=True, trust="TRUSTED"), "FAIL", 2),
    "quantize, none": lambda: (summarize_quantize(replace(quantized().result, chosen=None, file=None)), "FAIL", 2),
    "quantize, kept": lambda: (
        summarize_quantize(
            replace(
                quantized().result,
                chosen=(kept := replace(quantized().result.chosen, judgement=replace(OPEN, word=Word.KEPT))),
                tried=(kept,),
            )
        ),
        "DONE",
        0,
    ),
    "prune, none": lambda: (summarize_prune(replace(pruned().result, written=None, file=None)), "FAIL", 2),
    "finetune, none": lambda: (finetune(None), "FAIL", 2),
    "finetune": lambda: (finetune(Path("f")), "DONE", 0),
    "fleet": lambda: (fleet(0, 0), "PASS", 0),
    "fleet, missed": lambda: (fleet(0, 3, 2), "FAIL", 2),
    "fleet, open": lambda: (fleet(0, 3, 4), "INCONCLUSIVE", 3),
    "fleet, noisy": lambda: (fleet(0, 4), "NOISY", 4),
    "fleet, error": lambda: (fleet(1, 0), "FAIL", 1),
    "fleet, cut": lambda: (fleet(130, 0), "FAIL", 1),
    "run": lambda: (live(None), "DONE", 0),
    "run, missed": lambda: (live(90.0), "FAIL", 2),
    "run, met": lambda: (live(1.0), "PASS", 0),
    "run, cut": lambda: (live(1.0, interrupted=True), "DONE", 130),
}
"""Document, verdict and exit code of results that no screen shows."""


def require_alike(document: Document) -> None:
    """Raise unless head, exit code and last lines agree."""
    head = document.result.head
    outcome = document.verdict and document.verdict.outcome
    assert head.verdict in HEADS[outcome], (outcome, head.verdict)
    if head.exit_code == EXIT_INTERRUPTED:
        assert (outcome, head.verdict) == (CommandOutcome.DONE, "DONE")
    elif head.exit_code in EXIT_OF.values() and head.exit_code != EXIT_PASS:
        assert EXIT_OF[str(head.verdict)] == head.exit_code
    if head.verdict == "PASS":
        assert head.exit_code == EXIT_PASS


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_head_of_every_screen_says_what_its_last_lines_say(name):
    require_alike(DOCUMENTS[name]())


@pytest.mark.parametrize("name", MORE)
def test_the_head_says_what_the_last_lines_say(name):
    document, verdict, exit_code = MORE[name]()
    require_alike(document)
    assert (document.data["verdict"], document.data["exit_code"]) == (verdict, exit_code)


@pytest.mark.parametrize("kind", ["frames", "generation", "pipeline"])
def test_the_head_of_optimize_of_each_kind_says_what_its_last_lines_say(kind, tmp_path):
    shutil.copyfile(REPORTS / f"{kind}.json", tmp_path / "report.json")
    require_alike(read_stored_report([tmp_path]).document)


@dataclass(frozen=True)
class Named(Result):
    """A result that names fields as the head and its command do."""

    command: ClassVar[str] = "c"
    kind: str = ""
    schema: int = 5
    environment: Environment | None = None
    notes: tuple[str, ...] = ()
    told: str = "a"

    def shared_figures(self) -> dict[str, Any]:
        return {"notes": [*self.notes], "told": "a"}

    def own_figures(self) -> dict[str, Any]:
        return fields_as_json(self)


def test_a_field_that_the_head_tells_is_left_out_and_any_other_of_its_name_is_refused():
    named = Named(environment=Environment({}), notes=("n",))
    assert named.own_figures() == {}
    assert (named.as_json()["kind"], named.as_json()["notes"]) == (None, ["n"])
    with pytest.raises(ValueError, match=r"^Named has fields whose names .* in every result: schema, told$"):
        replace(named, schema=1, told="b").as_json()


def test_numbers_that_json_does_not_know_are_none_in_python_too():
    values = {"a": (1.0, float("nan")), "b": {"c": float("inf")}, "d": 2}
    told = PlainResult(command="c", figures=values).as_json()
    assert (told["a"], told["b"], told["d"]) == ([1.0, None], {"c": None}, 2)


@pytest.mark.parametrize(
    ("most_ms", "interrupted", "verdict", "exit_code", "words"),
    [
        (33.0, False, "PASS", 0, "met by this answer"),
        (33.0, True, "DONE", 130, "not decided: it was cut short"),
        (0.5, False, "FAIL", 2, "missed by TTFT"),
    ],
)
def test_an_answer_that_was_cut_short_meets_no_budget(most_ms, interrupted, verdict, exit_code, words):
    account = Account(prompt_tokens=1, token_at_ns=(1_000_000, 2_000_000), reason="length")
    budget = AnswerBudget({"TTFT": most_ms})
    result = WrittenResult(model="m", account=account, budget=budget, interrupted=interrupted)
    assert (result.head.verdict, result.head.exit_code) == (verdict, exit_code)
    assert str(result).endswith(f"budget {budget}: {words}")
