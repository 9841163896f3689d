"""Turn by turn: each answer stands behind all that was said, and a person ends it when they like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.recipes.texts.chat_template import ChatMessage, ChatTemplate, plain_text_of
from edgeopt.recipes.texts.conversation import ConversationError, ConversationReader
from edgeopt.running.talking import TalkResult, talk
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Piece
from edgeopt.runtime.decoding.opening import open_language_model

TINY = Path(__file__).parents[2] / "models" / "tiny_lm" / "model.onnx"
ASKED = AnswerOptions(12, ends=False)


class Person:
    """Says what is written down, and hears."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.heard = list(lines), [""]

    def ask(self) -> str | None:
        return self.lines.pop(0) if self.lines else None

    def hear(self, piece: Piece, account: Account) -> None:
        del account
        self.heard[-1] += piece.text

    def over(self) -> None:
        self.heard.append("")


def talked(person: Person, asked: AnswerOptions = ASKED, **more: Any) -> TalkResult:
    return talk("tiny_lm", asked, person.ask, person.hear, person.over, 1, **more)


def test_an_answer_stands_behind_all_that_was_said():
    person = Person("def add(a, b):", "import os")
    result = talked(person, system="Write Python.")
    first, second, _ = person.heard
    said = [
        ChatMessage("system", "Write Python."),
        ChatMessage("user", "def add(a, b):"),
        ChatMessage("assistant", first),
        ChatMessage("user", "import os"),
    ]
    model, _ = open_language_model(TINY, 1)
    with model:
        asked, encode = AnswerOptions(12, ends=False, stop=("\nUser:",)), model.tokenizer.encode
        begun = encode(plain_text_of(said[:2]))
        with model.generate(begun, asked) as answer:
            own = [piece.token for piece in answer]
        past = plain_text_of(said[:2]) + first
        assert plain_text_of(said).startswith(past)
        rest = plain_text_of(said).removeprefix(past)
        assert model.generate([*begun, *own, *encode(rest)], asked).text() == second
    assert len(result.accounts) == 2
    assert result.accounts[1].reused_tokens > result.accounts[0].prompt_tokens, "what was said is not computed again"
    assert str(result).startswith("2 answers, ")
    assert result.exit_code == 0


def test_ctrl_c_ends_an_answer_and_not_the_conversation(monkeypatch):
    person = Person("def add(a, b):", "import os")
    hear = Person.hear

    def interrupting(self: Person, piece: Piece, account: Account) -> None:
        hear(self, piece, account)
        if len(self.heard) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Person, "hear", interrupting)
    result = talked(person)
    assert [len(account.token_at_ns) for account in result.accounts][1] == 12
    assert len(result.accounts[0].token_at_ns) < 12


def test_a_conversation_that_fills_the_context_ends_in_one_line():
    with pytest.raises(EdgeoptError, match="context") as refused:
        talked(Person("word " * 2000))
    assert "--context" in refused.value.remedy


def test_what_ends_a_turn_for_the_model_is_not_taken_as_words():
    class Words:
        """A tokenizer with a special token."""

        special: ClassVar = {"<end>": 1}

    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "here", {})
    reader = ConversationReader(Words(), (7,), template)
    assert reader.text_of([ChatMessage("user", "hello")]) == "user: hello\n"
    with pytest.raises(ConversationError, match=r"messages\[0\] holds '<end>', which ends or begins a turn"):
        reader.text_of([ChatMessage("user", "a <end>")])
    assert reader.without_begin([7, 8]) == [8]
    assert reader.without_begin([8, 7]) == [8, 7]


def test_the_command_reads_a_turn_a_line_and_an_empty_one_ends():
    command = ["run", "tiny_lm", "--chat", "--output-tokens", "4", "--threads", "1"]
    shown = CliRunner().invoke(cli, command, input="import os\nx = 1\n\nnever\n")
    assert shown.exit_code == 0, shown.output
    assert "2 answers, " in shown.stderr
    assert CliRunner().invoke(cli, command, input="").stderr.strip() == "nothing was said"
    shown = CliRunner().invoke(cli, [*command, "--json"], input="import os\n")
    assert all("token" in json.loads(line) for line in shown.stdout.splitlines())


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--prompt", "a"], "--chat asks for each turn"),
        (["--guesses", "3"], "--guesses is not for conversations"),
        (["--on", "ssh://board"], "--chat is for the machine that you sit at"),
    ],
)
def test_what_does_not_go_with_a_conversation_is_refused(more, told):
    shown = CliRunner().invoke(cli, ["run", "tiny_lm", "--chat", *more], input="")
    assert shown.exit_code == 1
    assert told in " ".join(shown.stderr.split())
