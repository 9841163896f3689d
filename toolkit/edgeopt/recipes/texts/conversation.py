"""A conversation as the tokens of a prompt: by the model's own template, else in a plain form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.texts.chat_template import (
    PLAIN_STOP,
    ChatMessage,
    ChatTemplate,
    plain_text_of,
    with_functions,
    without_calls,
)
from edgeopt.recipes.texts.tokens import Tokens

UNLIKE_WORDS: Final = ("a", "B")
"""Words of a user that share no token: what two conversations with them share stands around any words."""


class ConversationError(ValueError):
    """A conversation that the model's template does not take, or that would end a turn by its words."""

    def __init__(self, problem: str, place: str) -> None:
        super().__init__(problem)
        self.place = place
        """The wrong part of the request: `messages` or `tools`."""


class ConversationReader:
    """Writes conversations as a model learned them, and reads their tokens."""

    def __init__(
        self,
        tokenizer: Tokens,
        begin: Sequence[int],
        template: ChatTemplate | None,
        system: str = "",
        *,
        mark: str = "",
    ) -> None:
        """Take what reads them.

        Args:
            tokenizer: Of the model.
            begin: Tokens that the model puts before every prompt.
            template: How conversations are written; None: in a plain form.
            system: The first of what the system says.
            mark: The text at whose places pictures stand, for a model that sees; empty: it sees none.
        """
        self._mark = mark
        self._tokenizer, self._begin, self._template, self._system = tokenizer, list(begin), template, system

    @property
    def stop(self) -> tuple[str, ...]:
        """Where an answer is over, beside the model's own end."""
        return () if self._template else (PLAIN_STOP,)

    @property
    def reads_special(self) -> bool:
        """Whether the names of special tokens in the text are these tokens: a template writes them, or pictures do."""
        return self._template is not None or bool(self._mark)

    @property
    def has_template(self) -> bool:
        """Whether the model came with a template."""
        return self._template is not None

    def require_system(self, remedy: str) -> None:
        """Raise where the model's template leaves out the text of the system that was passed.

        A longer text is written beside it, as a template may write one of its own where there is none. A template that
        refuses such a turn says so itself when a conversation is written.

        Args:
            remedy: What to do.

        Raises:
            EdgeoptError: If both texts make the same tokens.
        """
        if not self._system or self._template is None:
            return
        text = self._system + UNLIKE_WORDS[0]
        longer = ConversationReader(self._tokenizer, self._begin, self._template, text, mark=self._mark)
        words = (ChatMessage("user", UNLIKE_WORDS[0]),)
        with suppress(ConversationError):
            if self.tokens_of(words) == longer.tokens_of(words):
                raise EdgeoptError("the model's chat template leaves out what the system says", remedy=remedy)

    def text_of(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return a conversation as the text that an answer goes on behind.

        Args:
            messages: Its turns; where the last is the assistant's, the answer goes on behind its words.
            tools: Functions that the answer may call, as OpenAI's clients describe them.

        Raises:
            ConversationError: If the template does not take it, or it holds what ends or begins a turn.
        """
        whole = list(messages)
        if self._system:
            own = whole.pop(0).content if whole[0].role == "system" else ""
            whole.insert(0, ChatMessage("system", "\n\n".join(filter(None, (self._system, own)))))
        if not self.reads_special:
            return plain_text_of(whole, tools)
        for i, message in enumerate(messages):
            for name in self._tokenizer.special:
                if name in message.content or name in json.dumps(message.more, ensure_ascii=False):
                    text = f"messages[{i}] holds {name!r}, which ends or begins a turn for this model"
                    raise ConversationError(text, "messages")
        written = json.dumps(tools, ensure_ascii=False)
        if taken := next((name for name in self._tokenizer.special if tools and name in written), ""):
            raise ConversationError(f"tools holds {taken!r}, which ends or begins a turn for this model", "tools")
        if self._template is None:
            return plain_text_of(whole, tools, mark=self._mark)
        try:
            return self._by_template(self._template, whole, tools)
        except ValueError as error:
            raise ConversationError(str(error), "messages") from error

    def _by_template(
        self, template: ChatTemplate, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]
    ) -> str:
        """Return a conversation by the template; functions and calls that it leaves out stand in the words."""
        write = partial(template.text_of, in_parts=bool(self._mark))
        text = write(messages, tools)

        def is_same(others: Sequence[ChatMessage], functions: Sequence[Mapping[str, Any]]) -> bool:
            try:
                return text == write(others, functions)
            except ValueError:  # a template that cannot do without them writes them
                return False

        loses_tools = bool(tools) and is_same(messages, ())
        loses_calls = False
        if any(message.more.get("tool_calls") for message in messages):
            bare = [replace(message, more=without_calls(message.more)) for message in messages]
            loses_calls = is_same(bare, tools)
        if not (loses_tools or loses_calls):
            return text
        return write(with_functions(messages, tools if loses_tools else (), calls=loses_calls), tools)

    def tokens_of(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Return a conversation as the tokens of a prompt, without those that the model puts before every prompt.

        Args:
            messages: Its turns; where the last is the assistant's, the answer goes on behind its words.
            tools: Functions that the answer may call, as OpenAI's clients describe them.

        Raises:
            ConversationError: If the template does not take it, or it holds what ends or begins a turn.
        """
        text = self.text_of(messages, tools)
        return self.without_begin(self._tokenizer.encode(text, reads_special=self.reads_special))

    def without_begin(self, tokens: list[int]) -> list[int]:
        """Return the tokens of a conversation without those that the model puts before every prompt anyway."""
        is_there = bool(self._begin) and tokens[: len(self._begin)] == self._begin
        return tokens[len(self._begin) :] if is_there else tokens
