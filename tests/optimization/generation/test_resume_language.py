"""An `optimize` of a language model that is interrupted leaves what it made, and what is proven so far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError
from edgeopt.graph.outcome import Outcome
from edgeopt.measurement.generation.sides.turns import PARTS, FormTurns
from edgeopt.measurement.statistics.ratio import Change, Ratio
from edgeopt.optimization.generation import optimize, proof
from edgeopt.optimization.generation.choice import choose_form
from edgeopt.optimization.generation.forms import attention
from edgeopt.optimization.generation.forms.kinds import MatrixForm
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE, LanguageForm
from edgeopt.optimization.generation.time_shares import TimeShares
from edgeopt.optimization.run import Silence
from edgeopt.recipes.recipe import read_recipe
from edgeopt.runtime.bundle import read_bundle

SHIPPED = Path(__file__).parents[3] / "models" / "tiny_lm"


class Interrupts(Silence):
    """A listener that interrupts when a piece of work is told of for the n-th time."""

    def __init__(self, what: str, times: int) -> None:
        self._what, self._times = what, times

    def progress(self, what: str, done: int, of: int) -> None:
        del done, of
        self._times -= what.startswith(self._what)
        if not self._times:
            raise KeyboardInterrupt


@pytest.fixture
def options(tmp_path: Path) -> LanguageOptions:
    text = tmp_path / "short.txt"
    text.write_text((SHIPPED / "held_out.txt").read_text("utf-8")[:6500], "utf-8")
    return LanguageOptions(prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, eval=str(text), processes=2)


@pytest.fixture
def two_forms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two forms alone; the names of those that are made."""
    made: list[str] = []

    def counted(form: MatrixForm) -> MatrixForm:
        def make(material: DecoderMaterial) -> Outcome:
            made.append(form.name)
            return form.make(material)

        return replace(form, make=make)

    chosen = tuple(counted(one) for one in optimize.FORMS if one.name in ("w8a8", "w8"))
    monkeypatch.setattr(optimize, "FORMS", chosen)
    return made


def run(folder: Path, options: LanguageOptions, listener=None):
    return optimize_language_model("tiny_lm", target="cpu", out=folder, options=options, listener=listener or Silence())


def test_a_resumed_run_makes_only_what_is_missing(tmp_path, options, two_forms):
    folder, resumed = tmp_path / "lm", replace(options, resume=True)
    cut = run(folder, options, Interrupts("make, judge and time forms", 2))
    assert two_forms == ["w8a8"]
    assert (cut.was_cut, cut.exit_code, cut.chosen) == (True, 130, BASELINE)
    assert [one.name for one in cut.candidates] == [BASELINE, "w8a8"]
    assert read_bundle(folder).expected["form"] == BASELINE
    first = (folder / "candidates" / "w8a8" / "model.onnx").read_bytes()
    report = run(folder, resumed)
    assert two_forms == ["w8a8", "w8"]
    assert [one.name for one in report.candidates][:3] == [BASELINE, "w8a8", "w8"]
    assert (folder / "candidates" / "w8a8" / "model.onnx").read_bytes() == first
    assert read_bundle(folder).expected["perplexity"] == report.best.perplexity
    (folder / "candidates" / "w8" / "model.onnx").write_bytes(b"torn")
    again = run(folder, resumed, Interrupts("time the fastest forms", 1))
    assert two_forms == ["w8a8", "w8", "w8"]
    assert again.was_cut
    assert again.exit_code == 130
    assert again.chosen == BASELINE  # what is not proven is not chosen
    assert read_bundle(folder).expected["form"] == BASELINE
    assert "interrupted before a form was proven faster" in (folder / "report.md").read_text("utf-8")
    (folder / "language-run.json").write_text('{"run": "another"}', "utf-8")
    with pytest.raises(InvalidFileError, match="another model, target, text or software"):
        run(folder, resumed)


def test_a_resumed_run_of_other_lengths_finds_out_anew_how_attention_is_computed(
    tmp_path, options, two_forms, monkeypatch
):
    folder, tried = tmp_path / "lm", []

    def timed(_: object, prompt_tokens: int, *__: object) -> Ratio:
        tried.append(prompt_tokens)
        return Ratio(2.0, 1.9, 2.1, Change.FASTER if prompt_tokens == 8 else Change.SLOWER)

    monkeypatch.setattr(attention, "piece_over_tiles", timed)
    run(folder, options)
    recipe = folder / "candidates" / "w8" / "recipe.toml"
    assert not read_recipe(recipe).generation.flash_attention
    run(folder, replace(options, prompt_tokens=16, resume=True))
    assert (set(tried), two_forms) == ({8, 16}, ["w8a8", "w8"])
    assert read_recipe(recipe).generation.flash_attention


def test_the_command_takes_up_what_lies_in_its_folder(tmp_path):
    (tmp_path / "language-run.json").write_text('{"run": "another"}', "utf-8")
    given = ["optimize", "tiny_lm", "-t", "cpu", "-o", str(tmp_path), "--resume"]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 1
    assert "holds a run of another model, target, text or software" in done.output


@pytest.mark.parametrize(("whole", "chosen"), [(1, BASELINE), (3, "w8")])
def test_what_fresh_processes_proved_before_the_interrupt_is_kept(monkeypatch, tmp_path, whole, chosen):
    """The times are given, all else is as it runs."""
    ratio = Ratio(2.0, 1.9, 2.1, Change.FASTER)
    forms = [
        LanguageForm(name, "", str(tmp_path / name), 1, 9.0, times_ms=dict.fromkeys(PARTS, ms), speed=speed)
        for name, ms, speed in ((BASELINE, 4.0, {}), ("w8", 2.0, dict.fromkeys(PARTS, ratio)))
    ]
    done = []

    def answer_fresh(*_: object) -> tuple[FormTurns, FormTurns]:
        if len(done) == whole:
            raise KeyboardInterrupt
        done.append(1)
        slow, fast = ([(ms, 2 * ms, 5 * ms)] * 3 for ms in (4_000_000 + 1000 * len(done), 2_000_000))
        return FormTurns(np.array(slow, float)), FormTurns(np.array(fast, float))

    monkeypatch.setattr(proof, "answer_fresh", answer_fresh)
    original = SimpleNamespace(origin=SimpleNamespace(entries={}))
    contest = SimpleNamespace(prompts=[[1]], asked=None, threads=1, original=original, clients=1)
    shares = TimeShares(None, Silence())
    found = proof.prove(forms, contest, 6, None, shares)
    assert shares.was_cut
    assert choose_form(found) == chosen
    assert found[1].speed["answer"].verdict is (Change.FASTER if whole > 1 else Change.UNCONFIRMED)
