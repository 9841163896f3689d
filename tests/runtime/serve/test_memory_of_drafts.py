"""Memory of a server whose language model guesses by a smaller one: foreseen, counted, and what would fit is said."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from served import served_here, serving
from small_decoders import bundle_small, export_small

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.optimization.generation.guessing import choose_guesses
from edgeopt.optimization.generation.result import LanguageForm
from edgeopt.running.serving import ServeOptions
from edgeopt.running.serving_texts import hosted_texts
from edgeopt.running.writing import Prompting
from edgeopt.runtime.bundle import parse_bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.memory import bytes_of_text
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.model_memory import MemoryNeeds
from edgeopt.runtime.serve.writers import OneByOne

TINY = Path(__file__).parents[3] / "models" / "tiny_lm"
ALONE = ServeOptions(threads=1, limits=Limits(slots=1))
_MIB = 1 << 20


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model's draft as a model of its own, with its own recipe."""
    folder = tmp_path_factory.mktemp("draft")
    shutil.copy(TINY / "draft" / "model.onnx", folder / "model.onnx")
    shutil.copy(TINY / "tokenizer.json", folder)
    recipe = (TINY / "recipe.toml").read_text("utf-8").replace('draft = "draft/model.onnx"\n', "")
    (folder / "recipe.toml").write_text(recipe.replace('calib = "held_out.txt"', ""), "utf-8")
    return folder


def opened_needs(named: Path | None, context: int = 0) -> tuple[MemoryNeeds, int]:
    """Return what is counted of the open model with its draft, and the memory of the draft alone."""
    model, _ = open_language_model(TINY / "model.onnx", 1, context, named)
    model.guesses = 4
    alone = OneByOne(model, uses_draft=True)
    try:
        draft = model.opened_draft()
        assert draft is not None
        return alone.needs, draft.origin.size_bytes + min(draft.context, model.context) * draft.token_bytes
    finally:
        alone.close()


@pytest.mark.parametrize("by", ["recipe", "--draft"])
def test_a_draft_is_foreseen_from_its_file_and_counted_with_its_cache(by, named):
    guesses, draft = (4, "") if by == "recipe" else (None, str(named))
    foreseen = hosted_texts("tiny_lm", replace(ALONE, guesses=guesses, prompting=Prompting(draft=draft))).needs
    size = (TINY / "draft" / "model.onnx").stat().st_size
    assert foreseen == MemoryNeeds((TINY / "model.onnx").stat().st_size, 0, size, 1024, 1)
    counted, draft_bytes = opened_needs(None if by == "recipe" else named)
    assert counted.draft_bytes == draft_bytes > size
    assert counted.weights_bytes == foreseen.weights_bytes
    assert counted.cache_bytes > 0
    short, draft_bytes = opened_needs(None if by == "recipe" else named, context=128)
    assert short.draft_bytes == draft_bytes < counted.draft_bytes


@pytest.mark.parametrize("options", [ALONE, replace(ALONE, guesses=4, uses_draft=False), ServeOptions(guesses=None)])
def test_a_draft_that_does_not_guess_is_not_counted(options):
    assert hosted_texts("tiny_lm", options).needs.draft_bytes == 0


@served_here
@pytest.mark.parametrize("is_open", [False, True])
def test_a_draft_that_memory_does_not_hold_beside_the_model_is_refused_with_what_fits(is_open):
    foreseen = hosted_texts("tiny_lm", replace(ALONE, guesses=4)).needs
    counted, _ = opened_needs(None)
    needs = counted if is_open else foreseen
    limit_bytes = needs.total_bytes - 1
    with (
        pytest.raises(EdgeoptError, match=r"tiny_lm takes .*its draft .*, more than --memory") as refused,
        serving("tiny_lm", Limits(slots=1), guesses=4, memory_bytes=limit_bytes),
    ):
        pass
    assert refused.value.remedy.startswith("--draft none (")
    assert refused.value.remedy.endswith(f"raise --memory to {-(-needs.total_bytes // _MIB)}MiB")
    if is_open:  # and what it says holds
        with serving("tiny_lm", Limits(slots=1), guesses=4, memory_bytes=limit_bytes, uses_draft=False):
            pass
        tokens = int(refused.value.remedy.split("--context ")[1].split()[0])
        prompting = Prompting(context=tokens)
        with serving("tiny_lm", Limits(slots=1), guesses=4, memory_bytes=limit_bytes, prompting=prompting):
            pass


def test_what_is_said_to_fit_does():
    needs = MemoryNeeds(100, 80, 60, context=40, slots=4)
    assert needs.remedy(239) == "--draft none (180 B) or --slots 3 or --context 39 or raise --memory to 1MiB"
    none = "--draft none --slots 3 or --draft none --context 39"
    assert needs.remedy(179) == f"{none} or raise --memory to 1MiB"
    assert needs.remedy(100) == "raise --memory to 1MiB, or serve a smaller form of it"
    assert MemoryNeeds(100).remedy(99) == "raise --memory to 1MiB, or serve a smaller form of it"
    assert str(needs) == "240 B of memory (weights 100 B, cache 80 B, its draft 60 B)"
    assert str(MemoryNeeds(100)) == "100 B of memory"


def test_no_context_is_advised_that_a_bundle_has_not(tmp_path):
    folder = bundle_small(export_small(tmp_path), tmp_path / "bundle")
    whole = hosted_texts(str(folder), ALONE).needs
    assert whole.context == parse_bundle(folder).recipe.generation.context
    more = hosted_texts(str(folder), replace(ALONE, prompting=Prompting(context=8 * whole.context))).needs
    assert more == whole
    half_bytes = whole.weights_bytes + whole.cache_bytes // 2
    assert more.remedy(half_bytes).startswith(f"--context {whole.context // 2} or raise")
    short = hosted_texts(str(folder), replace(ALONE, prompting=Prompting(context=whole.context // 2))).needs
    assert short.total_bytes <= half_bytes


@served_here
def test_the_command_refuses_in_one_line(named):
    command = ["serve", "tiny_lm", "--port", "0", "--slots", "1", "--draft", str(named), "--memory", "5MiB"]
    shown = CliRunner().invoke(cli, command)
    assert shown.exit_code == 1
    problem, remedy = shown.stderr.strip().split("\n  -> ")
    assert " ".join(problem.split()) == (
        "error: tiny_lm takes 5.14 MiB of memory (weights 4.14 MiB, its draft 1.01 MiB), more than --memory 5.00 MiB"
    )
    assert remedy == "--draft none (4.14 MiB) or raise --memory to 6MiB"


def test_optimize_lets_no_draft_guess_that_does_not_fit_into_what_is_allowed():
    with open_language_model(TINY / "model.onnx", 1)[0] as model:
        prompts, asked = [model.tokenizer.encode("import os\n\n\ndef walk(top):\n")], AnswerOptions(8, guesses=0)
        draft = model.opened_draft()
        assert draft is not None
        needed = bytes_of_text(draft, len(prompts[0]) + 8)
        form = LanguageForm("fp32", "", "", 1, 1.0)
        large = choose_guesses(form, model, prompts, asked, 0.1, needed - 1)
        assert large.by != "draft"
        assert "does not fit beside it into --memory" in large.told
        fits = choose_guesses(form, model, prompts, asked, 0.1, needed)
        assert "--memory" not in fits.told
