"""Turn by turn: each answer stands behind all that was said, and a person ends it when they like."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.recipes.texts.chat_template import ChatMessage, ChatTemplate, plain_text_of
from edgeopt.recipes.texts.conversation import ConversationError, ConversationReader
from edgeopt.running.talking import TalkResult, _Past, talk
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Piece
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.system.processes.interrupts import Terminated

TINY = Path(__file__).parents[2] / "models" / "tiny_lm" / "model.onnx"
ASKED = AnswerOptions(12, ends=False)


@pytest.fixture(autouse=True)
def hears_ctrl_c():
    """A process that a shell starts in the background ignores SIGINT, tests too; a terminal's command does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
    assert [note.detail for note in result.notes] == ["2 of 2 answers cut short at 12 tokens"]
    assert result.exit_code == 0


def test_ctrl_c_ends_an_answer_and_not_the_conversation(monkeypatch):
    person = Person("def add(a, b):", "import os")
    hear = Person.hear

    def interrupting(self: Person, piece: Piece, account: Account) -> None:
        hear(self, piece, account)
        if len(self.heard) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Person, "hear", interrupting)
    result = talked(person, goes_on=True)
    assert [len(account.token_at_ns) for account in result.accounts][1] == 12
    assert len(result.accounts[0].token_at_ns) < 12
    assert result.exit_code == 0
    with pytest.raises(KeyboardInterrupt):  # a program's own, which is not asked to go on
        talked(Person("def add(a, b):", "import os"))
    assert person.lines == []


def interrupt_second(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[tuple[Any, ...]]:
    """Let Ctrl-C come as the second turn calls a method; return the arguments of the other calls."""
    real: Callable[..., Any] = getattr(owner, name)
    seen = list[tuple[Any, ...]]()

    def called(*arguments: Any, **more: Any) -> Any:
        seen.append(arguments)
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)
        return real(*arguments, **more)

    monkeypatch.setattr(owner, name, called)
    return seen


@pytest.mark.parametrize(
    ("owner", "name"), [(_Past, "wait"), (ConversationReader, "text_of"), (LanguageModel, "generate")]
)
def test_ctrl_c_before_the_first_token_ends_the_answer_alone_and_the_words_stay(monkeypatch, owner, name):
    interrupt_second(monkeypatch, owner, name)
    person = Person("def add(a, b):", "import os", "import sys")
    result = talked(person, goes_on=True)
    first, second, third, _ = person.heard
    assert (second, person.lines) == ("", [])
    assert result.texts == (first, third)
    assert len(result.accounts) == 2
    assert not result.interrupted
    monkeypatch.undo()
    both = Person("def add(a, b):", "import os\n\nimport sys")
    assert talked(both).texts == result.texts, "the next words go on with the turn that was never answered"
    person = Person("def add(a, b):", "import os", "import sys")
    interrupt_second(monkeypatch, owner, name)
    with pytest.raises(KeyboardInterrupt):  # a program's own, which is not asked to go on
        talked(person)


def test_ctrl_c_while_a_prompt_is_computed_ends_behind_a_part_of_it(monkeypatch):
    runs = list[int]()
    decoder = type(open_language_model(TINY, 1)[0].decoder(16))
    real = decoder.run_prompt

    def run_prompt(self: Any, tokens: list[int], **more: Any) -> Any:
        runs.append(len(tokens))
        if len(runs) == 1:
            signal.raise_signal(signal.SIGINT)
        return real(self, tokens, **more)

    monkeypatch.setattr(decoder, "run_prompt", run_prompt)
    person = Person("x = 1\n" * 150, "y = 2")
    result = talked(person, goes_on=True)
    assert max(runs) <= 256, "a long prompt is run in parts, behind which it can be cut off"
    assert person.heard[0] == ""
    assert result.texts == (person.heard[1],)


def test_the_command_gives_the_prompt_back_and_a_second_ctrl_c_ends(monkeypatch):
    seen = interrupt_second(monkeypatch, LanguageModel, "generate")
    command = ["run", "tiny_lm", "--chat", "--output-tokens", "4", "--threads", "1"]
    shown = CliRunner().invoke(cli, command, input="import os\nx = 1\ny = 2\n\n")
    assert shown.exit_code == 0, shown.output
    assert len(seen) == 3
    assert "2 answers, " in shown.stderr
    assert "interrupted" not in shown.stderr


def test_sigterm_ends_an_answer_and_the_conversation(monkeypatch):
    person = Person("def add(a, b):", "import os")

    def terminated(self: Person, piece: Piece, account: Account) -> None:
        raise Terminated

    monkeypatch.setattr(Person, "hear", terminated)
    result = talked(person, goes_on=True)
    assert person.lines == ["import os"]
    assert result.exit_code == 130
    assert str(result).endswith(", interrupted")


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
