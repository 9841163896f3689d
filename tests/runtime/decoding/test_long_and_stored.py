"""Prompts beyond the context, prefixes whose cache is stored, and memory that is known before a model is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_decoders import bundle_small, export_small

from edgeopt import Runtime
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.running.writing import SUMMARISE, Prompting, write_answer
from edgeopt.runtime.decoding import memory
from edgeopt.runtime.decoding.generation import AnswerOptions, Long
from edgeopt.runtime.decoding.long import summarised
from edgeopt.runtime.decoding.opening import open_language_model

SYSTEM = "import os\nimport sys\n\n\ndef read(name):\n    return open(name).read()\n"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_small(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def bundle(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_small(exported, tmp_path_factory.mktemp("bundle") / "lm")


@pytest.fixture
def model(bundle: Path):
    opened, _ = open_language_model(bundle, 1)
    with opened:
        yield opened


def answer_behind(model, prefix, prompt: str) -> tuple[list[int], object]:
    answer = model.generate(prefix.before(model.tokenizer.encode(prompt)), AnswerOptions(12, ends=False))
    return [piece.token for piece in answer], answer.account


def test_a_stored_prefix_is_not_computed_again_in_another_process(model, bundle, tmp_path):
    tokens = model.tokenizer.encode(SYSTEM)
    first = model.keep_prefix(SYSTEM, tmp_path)
    assert first.computed_tokens == first.held_tokens == len(tokens) + model.begins_with
    expected, account = answer_behind(model, first, "def write(")
    rest = len(model.tokenizer.encode("def write("))
    assert account.reused_tokens == first.held_tokens
    assert account.computed_tokens == rest + 11
    code = (
        "import sys, pathlib, edgeopt\n"
        f"with edgeopt.Runtime.load({str(bundle)!r}) as runtime:\n"
        "    model = runtime.language_model\n"
        f"    prefix = model.keep_prefix({SYSTEM!r}, pathlib.Path({str(tmp_path)!r}))\n"
        "    prompt = prefix.before(model.tokenizer.encode('def write('))\n"
        "    answer = runtime.generate(prompt, most_tokens=12, ends=False)\n"
        "    print(*[piece.token for piece in answer])\n"
        "    print(prefix.computed_tokens, answer.account.computed_tokens, prefix.note or 'none')\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    written, figures = shown.stdout.splitlines()
    assert [int(one) for one in written.split()] == expected
    assert figures == f"0 {rest + 11} none"


def test_a_prefix_serves_every_prompt_and_answers_as_without_it(model, tmp_path):
    prefix = model.keep_prefix(SYSTEM)
    kept = [answer_behind(model, prefix, one) for one in ("a", "b", "class C", "a")]
    assert all(account.reused_tokens >= prefix.held_tokens for _, account in kept)
    model.forget()
    for (tokens, _), prompt in zip(kept[:3], ("a", "b", "class C"), strict=True):
        model.forget()
        again, account = answer_behind(model, prefix, prompt)
        assert again == tokens
        assert account.reused_tokens == 0


@pytest.mark.parametrize("fault", ["flipped", "cut", "empty", "encrypted", "of another"])
def test_a_damaged_file_is_computed_anew_with_a_note(model, tmp_path, fault):
    model.keep_prefix(SYSTEM, tmp_path)
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    if fault == "of another":
        other = model.keep_prefix(SYSTEM + "x", tmp_path)
        assert other.computed_tokens
        data = bytearray(next(one for one in tmp_path.iterdir() if one != file).read_bytes())
    data[len(data) // 2] ^= 1 if fault == "flipped" else 0
    data[data.index(b"PK\x01\x02") + 8] |= fault == "encrypted"  # a flag of the archive's first file
    file.write_bytes(data[: {"cut": len(data) // 2, "empty": 0}.get(fault, len(data))])
    model.forget()
    again = model.keep_prefix(SYSTEM, tmp_path)
    assert again.computed_tokens == again.held_tokens
    assert "computed anew" in again.note
    assert not model.keep_prefix(SYSTEM, tmp_path).note


def test_where_nothing_can_be_stored_the_answer_comes_all_the_same(model, tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    prefix = model.keep_prefix(SYSTEM, tmp_path / "file")
    assert prefix.computed_tokens
    assert "not stored" in prefix.note
    assert answer_behind(model, prefix, "a")[1].reused_tokens == prefix.held_tokens


def test_a_cache_that_each_run_gives_anew_is_stored_too(exported):
    session = EXECUTOR.open(exported, SessionOptions(threads=1))
    parts = cache_parts(session.inputs, session.outputs)
    found = []
    for shares in (True, False):
        decoder = Decoder(session.engine, parts, 64, shares=shares)
        decoder.run([5, 6, 7, 8])
        again = Decoder(session.engine, parts, 64, shares=not shares)
        again.restore(decoder.stored(), 3)
        assert again.past == 3
        found.append(int(again.run([8])[-1].argmax()))
    assert found[0] == found[1]


@pytest.mark.parametrize("how", [Long.HEAD, Long.MIDDLE, Long.TAIL])
def test_a_long_prompt_is_cut_where_that_is_asked_for(bundle, how):
    opened, _ = open_language_model(bundle, 1, context=40)
    with opened:
        tokens = list(range(5, 65))
        asked = AnswerOptions(most_tokens=10, ends=False, long=how, keep=4)
        answer = opened.generate(tokens, asked)
        room = 40 - 10 - 4
        body = {
            Long.HEAD: tokens[-room:],
            Long.MIDDLE: [*tokens[4 : 4 + room // 2], *tokens[-(room - room // 2) :]],
            Long.TAIL: tokens[4 : 4 + room],
        }[how]
        expected = [piece.token for piece in opened.generate([*tokens[:4], *body], AnswerOptions(10, ends=False))]
        assert [piece.token for piece in answer] == expected
        assert answer.account.cut_tokens == 60 - 30
        assert answer.account.prompt_tokens == 30
        assert opened.generate([5, 6], asked).account.cut_tokens == 0
        with pytest.raises(ValueError, match="the prompt has 60 tokens, the context 40"):
            opened.generate(tokens, AnswerOptions(10))


def test_a_text_is_summarised_until_it_fits(bundle):
    opened, _ = open_language_model(bundle, 1, context=200)
    with opened:
        heard = []
        text, taken = summarised(opened, SYSTEM * 20, 60, lambda done, of: heard.append((done, of)))
        assert len(opened.tokenizer.encode(text)) <= 60
        assert taken >= len(opened.tokenizer.encode(SYSTEM * 20))
        assert heard[-1][0] == heard[-1][1]
        assert summarised(opened, "short", 60) == ("short", 0)


@pytest.mark.parametrize(("characters", "is_summarised"), [(300, False), (900, True)])
def test_only_a_prompt_that_fills_the_context_is_summarised(bundle, tmp_path, characters, is_summarised):
    (tmp_path / "system.txt").write_text(SYSTEM, "utf-8")
    prompting = Prompting(tmp_path / "system.txt", tmp_path / "kept", long=SUMMARISE)
    prompt = "a b c d e " * (characters // 10)
    found = write_answer(str(bundle), prompt, AnswerOptions(400), lambda *_: None, 1, prompting=prompting)
    assert any("is summarised to" in one.detail for one in found.notes) == is_summarised
    assert found.account.token_at_ns


def test_what_does_not_fit_into_memory_is_known_before_it_is_loaded(bundle, exported, monkeypatch):
    opened, recipe = open_language_model(bundle, 1)
    opened.close()
    cache = opened.token_bytes * recipe.generation.context
    monkeypatch.setattr(memory, "free_bytes", lambda: opened.origin.size_bytes + cache // 2)
    monkeypatch.setattr("edgeopt.runtime.fallback.Opening.open", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(EdgeoptError, match=r"weights of .* and a cache of .* for 512 tokens do not fit") as caught:
        open_language_model(bundle, 1)
    assert "--context 256 at most" in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setattr(memory, "free_bytes", lambda: opened.origin.size_bytes + cache // 2)
    with Runtime.load(bundle, context=256, threads=1) as runtime:
        assert runtime.language_model.context == 256
    monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
    with pytest.raises(EdgeoptError, match=r"weights of .* do not fit: 1000 B are free"):
        open_language_model(exported, 1)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--context", "5000"], "tiny_lm has 1024"),
        (["--prefixes", "here"], "--prefixes belongs to --system"),
        (["--system", "no_such_file.txt"], "no_such_file.txt"),
        (["--long", "both"], "is not one of"),
    ],
)
def test_what_does_not_go_is_one_line(more, told):
    done = CliRunner().invoke(cli, ["run", "tiny_lm", "--prompt", "a", *more])
    assert done.exit_code == 1
    assert told in done.output
    assert "Traceback" not in done.output


def test_a_run_stores_the_system_prompt_for_the_next(tmp_path):
    (tmp_path / "system.txt").write_text(SYSTEM, "utf-8")
    asked = ["run", "tiny_lm", "--prompt", "def f(", "--output-tokens", "4", "--system", str(tmp_path / "system.txt")]
    first, second = (CliRunner().invoke(cli, [*asked, "--prefixes", str(tmp_path / "kept")]) for _ in range(2))
    assert first.exit_code == second.exit_code == 0, first.output
    assert "before the prompt computed" in first.stderr
    assert "computed" not in second.stderr
    assert first.stdout == second.stdout
