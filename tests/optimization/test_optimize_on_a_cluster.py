"""`optimize --cluster`: what is made and proven is what one process makes and proves, to the last bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

import edgeopt
from edgeopt.graph.model import Model
from edgeopt.measurement.accuracy.cluster import pool as pools
from edgeopt.measurement.accuracy.cluster.address import ClusterAddress
from edgeopt.measurement.accuracy.evaluate import answers
from edgeopt.measurement.accuracy.pool import HERE, AnswerPool
from edgeopt.measurement.fresh_process.turns import Runnable
from edgeopt.measurement.opening.given import open_given
from edgeopt.optimization.choice.accuracy_proof import prove_accuracy
from edgeopt.optimization.optimize import planned
from edgeopt.optimization.options import Options, Prefer
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Silence
from edgeopt.optimization.start import begun, read_given, start_run
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.runtime.opening import opening_for
from edgeopt.steps.quantize.judges import Judge
from edgeopt.tasks import make_task

pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of sockets and loops that Dask leaves to the collector


class Heard(Silence):
    """A listener that keeps all lines."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def sent(tmp_path, monkeypatch) -> None:
    """Send also what would take less time here, and share no file with other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("_WORTH_S", "_WORTH_OWN_S", "_WORTH_OPEN_S"):
        monkeypatch.setattr(pools, name, 0.0)


def proven(report: ModelReport, folder: Path) -> dict[str, object]:
    """Return all that a run says of accuracy, and the models that it is said of."""
    facts: dict[str, object] = {"best": report.best.name}
    for candidate in report.candidates:
        values = (candidate.agreement, candidate.drift, candidate.score, candidate.judgement)
        facts[candidate.name] = (candidate.sha256, *map(repr, values))
    for file in folder.glob("candidates/*/scored.json"):
        values = json.loads(file.read_text("utf-8"))
        facts[file.parent.name + " scored"] = values.get("scored", values)
    return facts


def judged(report: ModelReport, folder: Path, pool: AnswerPool) -> list[str]:
    """Return what labels prove of the candidates of a run, whatever their speed is."""
    options = Options(threads=1, steps=("quantize",), prefer=Prefer.SIZE, resume=True)
    given, frames = read_given("digits_detector", "cpu", None, options)
    plan = planned(given, options, folder)
    run = start_run(given, frames, plan, folder, True, None, Silence(), monotonic())
    with begun(run, given):
        run.candidates += report.candidates
        run.context.pool = pool
        baseline, *others = report.candidates
        marked = [baseline, *(replace(other, refused="", judgement=None, score=None) for other in others)]
        proven_now = prove_accuracy(run, marked)
    assert any(candidate.score for candidate in proven_now[1:]), "labels judged an INT8 form"
    return [repr((candidate.judgement, candidate.score)) for candidate in proven_now]


def test_models_scores_and_proofs_are_those_of_one_process_also_where_it_goes_on_without(tmp_path, sent, one_form):
    asked = {"target": "cpu", "threads": 1, "steps": ("quantize",)}
    alone = edgeopt.optimize("digits_detector", out=tmp_path / "alone", **asked)
    expected = proven(alone, tmp_path / "alone")
    judgements = judged(alone, tmp_path / "alone", HERE)
    with pools.ClusterPool(ClusterAddress(count=2), Heard().say) as pool:
        assert judged(alone, tmp_path / "alone", pool) == judgements
    heard = Heard()
    more = {"out": tmp_path / "spread", "replay": str(tmp_path / "alone"), **asked}
    spread = edgeopt.optimize("digits_detector", **more, cluster="local:2", listener=heard)
    assert proven(spread, tmp_path / "spread") == expected
    assert [line for line in heard.lines if line.startswith("cluster: ")] == ["cluster: 2 workers of this machine"]
    resumed = edgeopt.optimize("digits_detector", **more, resume=True)
    assert proven(resumed, tmp_path / "spread") == expected


def test_an_int8_form_agrees_as_it_does_on_one_process(sent):
    given = open_given("digits_detector", "cpu", None)
    opening, specs = opening_for(given.target, "fp32", 1), (given.model.inputs, given.model.outputs)
    frames = open_frames(given.recipe.folder / "calib").spread(16)
    task = make_task(given.recipe, *specs, evaluating=True)
    session, inputs = opening.open(given.model.source), [task.preprocess(frames.read(0))[0]]
    shifted = answers(session, task, frames)
    shifted = [*shifted[1:], shifted[0]]

    def agreement(pool: AnswerPool) -> float:
        judge = Judge(
            given.model,
            lambda _: opening.open(given.model.source),
            lambda _: task,
            frames,
            inputs,
            reference=shifted,
            pool=pool,
            runnable=lambda _: Runnable(opening, given.model.source, given.recipe, *specs),
        )
        return judge.agreement(Model(given.model.proto, "form"))

    said = list[str]()
    with pools.ClusterPool(ClusterAddress(count=1), said.append) as pool:
        assert agreement(pool) == agreement(HERE)
    assert said == ["cluster: 1 worker of this machine"]
