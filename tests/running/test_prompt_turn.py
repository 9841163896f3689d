"""A prompt of `run`: a turn of a conversation where the model has a chat template, else the text itself."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from seeing_models import write_exported

from edgeopt.errors import EdgeoptError, InvalidFileError, MissingDependencyError
from edgeopt.recipes.texts.chat_template import ChatTemplate
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.running.prompt_turn import PromptTurn
from edgeopt.running.writing import SUMMARISE, Prompting, WrittenResult, write_answer
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.runtime.serve.reader import PromptReader

TINY = Path(__file__).parents[2] / "models" / "tiny_lm"
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}\n{% endfor %}<|assistant|>"
TURN = "<|user|>\ndef add(a, b):\n<|assistant|>"
ASKED = AnswerOptions(12, ends=False)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model, as if it had been trained on conversations."""
    folder = tmp_path_factory.mktemp("talker")
    for name in ("model.onnx", "tokenizer.json", "recipe.toml"):
        shutil.copy(TINY / name, folder / name)
    recipe = folder / "recipe.toml"
    lines = recipe.read_text("utf-8").splitlines()
    recipe.write_text("\n".join(line for line in lines if not line.startswith(("draft", "calib"))), "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return folder / "model.onnx"


def answered(model: Path, prompt: str, asked: AnswerOptions = ASKED, **how: Any) -> tuple[str, WrittenResult]:
    heard = list[str]()
    prompting = Prompting(**how)
    result = write_answer(str(model), prompt, asked, lambda piece, _: heard.append(piece.text), 1, prompting=prompting)
    return "".join(heard), result


def continued(text: str) -> str:
    model, _ = open_language_model(TINY / "model.onnx", 1)
    with model:
        return model.generate(text, ASKED).text()


def test_a_prompt_is_a_turn_where_the_model_has_a_template(talker):
    turn, result = answered(talker, "  def add(a, b):\n")
    assert turn == continued(TURN), "as the template has it, which trims"
    assert not result.notes
    assert answered(talker, "def add(a, b):", raw=True)[0] == continued("def add(a, b):")
    assert answered(TINY / "model.onnx", "def add(a, b):")[0] == continued("def add(a, b):"), "it has no template"


def test_the_text_of_the_system_is_a_turn_too_and_is_stored(talker, tmp_path):
    system = tmp_path / "system.txt"
    system.write_text("Write Python.", "utf-8")
    how = {"system": system, "prefixes": tmp_path / "kept"}
    wanted = continued(f"<|system|>\nWrite Python.\n{TURN}")
    first, again = (answered(talker, "def add(a, b):", **how) for _ in range(2))
    assert first[0] == again[0] == wanted
    assert ["computed, for later runs" in str(note) for note in first[1].notes] == [True]
    assert not again[1].notes
    assert again[1].account.reused_tokens > 8


@pytest.mark.parametrize(("long", "shown"), [("head", "tail"), ("tail", "head"), ("middle", "both")])
def test_of_a_long_prompt_the_words_are_cut_and_never_the_turn(talker, long, shown):
    prompt = "head " + "word " * 100 + "tail"
    cut, result = answered(talker, prompt, long=long, context=64)
    tokens = read_tokens(talker.with_name("tokenizer.json"))
    turn = PromptTurn(tokens, [0], ChatTemplate(TEMPLATE, "here", {}))
    whole = turn.tokens_of(prompt)
    words, room = whole[len(turn.before) : -len(turn.after)], 64 - 12 - 1 - len(turn.before) - len(turn.after)
    kept = {"head": words[-room:], "tail": words[:room], "middle": words[: room // 2] + words[room // 2 - room :]}
    assert cut == continued(tokens.decode([*turn.before, *kept[long], *turn.after]))
    assert result.account.cut_tokens == len(words) - room
    assert (shown in ("head", "both")) == ("head" in tokens.decode(kept[long]))


def test_a_summary_is_asked_for_in_turns_and_becomes_one(talker):
    result = answered(talker, "word " * 100, AnswerOptions(12), long=SUMMARISE, context=64)[1]
    assert any("is summarised to" in note.detail for note in result.notes)
    assert result.account.prompt_tokens <= 64 - 12


def test_words_that_end_a_turn_are_refused_in_one_line():
    class Marked:
        special: ClassVar[dict[str, int]] = {"<|end|>": 1}

        def encode(self, text: str, *, reads_special: bool = False) -> list[int]:
            return [ord(letter) for letter in text]

    turn = PromptTurn(Marked(), [], ChatTemplate(TEMPLATE, "here", {}))
    with pytest.raises(EdgeoptError, match=r"the prompt holds '<\|end\|>', which ends or begins a turn") as caught:
        turn.tokens_of("a<|end|>b")
    assert "--raw" in caught.value.remedy


@pytest.mark.parametrize(("raw", "remedy"), [(True, "leave --raw out"), (False, "another prompt")])
def test_an_answer_without_a_word_says_so(talker, raw, remedy):
    at_once = AnswerOptions(12, sampling=Sampling(logit_bias={0: 100.0}))
    shown, result = answered(talker, "def add(a, b):", at_once, raw=raw)
    assert shown == ""
    assert ["the answer is empty: the model ended it at once" in str(note) for note in result.notes] == [True]
    assert remedy in str(result.notes[0])


def test_without_jinja_the_line_names_raw_too(talker, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match="jinja2") as caught:
        answered(talker, "a")
    assert "or add --raw" in caught.value.remedy
    assert answered(talker, "a", raw=True)[0]


def test_a_damaged_template_names_raw_too(talker, tmp_path):
    for file in talker.parent.iterdir():
        shutil.copy(file, tmp_path / file.name)
    (tmp_path / "chat_template.jinja").write_text("{% if %}", "utf-8")
    with pytest.raises(InvalidFileError, match="is no chat template") as caught:
        answered(tmp_path / "model.onnx", "a")
    assert "or add --raw" in caught.value.remedy


def test_a_model_that_sees_gets_a_prompt_without_a_picture(tmp_path):
    file = write_exported(tmp_path)
    tokens = read_tokens(file.with_name("tokenizer.json"))
    turn = tokens.encode("<|im_start|>User: Hello there<end_of_utterance>\nAssistant:", reads_special=True)
    _, result = answered(file, "Hello there")
    assert result.account.prompt_tokens == len(turn)
    model, _ = open_language_model(file, 1)
    with model, model.generate(turn, ASKED) as answer:
        assert answer.text() == answered(file, "Hello there")[0]


def test_a_template_that_leaves_the_prompt_or_the_system_out_is_refused():
    tokens = read_tokens(TINY / "tokenizer.json")
    deaf = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{% endfor %}", "here", {})
    with pytest.raises(EdgeoptError, match="leaves the prompt out"):
        PromptTurn(tokens, [0], deaf)
    source = "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% endif %}{% endfor %}<|a|>"
    talks = ChatTemplate(source, "here", {})
    assert PromptTurn(tokens, [0], talks).before
    with pytest.raises(EdgeoptError, match="leaves out what the system says") as caught:
        PromptTurn(tokens, [0], talks, "Answer in French.")
    assert "write it into the prompt, or add --raw" in caught.value.remedy
    with pytest.raises(EdgeoptError, match="leaves out what the system says"):
        PromptReader(tokens, 64, [0], talks, "Answer in French.")
    default = "{% if messages[0].role != 'system' %}<|system|>Be brief.{% endif %}"
    own = PromptTurn(tokens, [0], ChatTemplate(default + TEMPLATE, "here", {}), "Be brief.")
    assert "Be brief." in tokens.decode(own.before), "a text that the template itself would write is no lost one"


def test_a_shift_leaves_the_turn_whole(talker):
    model, _ = open_language_model(TINY / "model.onnx", 1, 64)
    shifting = AnswerOptions(60, ends=False, shifts=True)
    turn, result = answered(talker, "def add(a, b):", shifting, context=64)
    assert result.account.shifts
    with model:
        whole = model.tokenizer.encode(TURN)
        with model.generate(whole, replace(shifting, keep=len(whole))) as answer:
            assert turn == answer.text()
        with model.generate(whole, replace(shifting, keep=4)) as answer:
            assert turn != answer.text(), "the texts would tell nothing if any shift gave the same"


@pytest.mark.parametrize(
    ("long", "most", "problem"), [("summarise", 4, "of the context of 12"), ("head", 8, "are kept for the answer")]
)
def test_a_turn_that_leaves_no_room_for_words_says_so(talker, long, most, problem):
    with pytest.raises(EdgeoptError, match="what stands around the prompt takes") as caught:
        answered(talker, "word " * 40, AnswerOptions(most), long=long, context=12)
    assert problem in caught.value.problem
    assert "a larger --context" in caught.value.remedy
