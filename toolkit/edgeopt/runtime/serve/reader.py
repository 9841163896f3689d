"""Prompts and conversations as tokens, behind a text of the system where the server has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.texts.call_style import CallStyle
from edgeopt.recipes.texts.chat_template import ChatMessage, ChatTemplate
from edgeopt.recipes.texts.conversation import UNLIKE_WORDS, ConversationError, ConversationReader
from edgeopt.recipes.texts.seen_prompt import ImageMarks, PromptPicture, SeenPrompt
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.runtime.decoding.prompt_plan import common_start
from edgeopt.runtime.serve.refused import RefusedError, wrong
from edgeopt.runtime.serve.routes.pictures import read_frame
from edgeopt.runtime.serve.text_request import TextRequest


class PromptReader:
    """Prompts and conversations as tokens; it stays when the model's memory is freed."""

    def __init__(
        self,
        tokenizer: Tokens,
        context: int,
        begin: Sequence[int],
        template: ChatTemplate | None,
        system: str = "",
        marks: ImageMarks | None = None,
    ) -> None:
        """Take what reads prompts.

        Args:
            tokenizer: Of the model.
            context: Tokens of prompt and answer together.
            begin: Tokens that the model puts before every prompt.
            template: How conversations are written; None: in a plain form.
            system: A text before every prompt, the first of what the system says in a conversation.
            marks: Writes pictures into prompts; None: the model sees none.
        """
        self._marks = marks
        self._tokenizer, self._context, self._begin = tokenizer, context, list(begin)
        mark = marks.mark if marks else ""
        self._conversations = ConversationReader(tokenizer, begin, template, system, mark=mark)
        self._conversations.require_system("leave it out; a client can write it into the user's first words")
        self._longest = max((len(tokenizer.token_bytes(other)) for other in range(tokenizer.size)), default=1)
        self._largest = max(tokenizer.size - 1, *tokenizer.special.values(), 0)
        self._turn, self._system = Lock(), system
        self._call_style = template.call_style if template else None
        self._before = self._encode(system, reads_special=False) if system else []

    @property
    def call_style(self) -> CallStyle | None:
        """How the model writes calls among other text; None: its template does not tell, or it has none."""
        return self._call_style

    @property
    def sees(self) -> bool:
        """Whether the model sees pictures."""
        return self._marks is not None

    @property
    def special(self) -> Mapping[str, int]:
        """Special tokens of the model, by name."""
        return self._tokenizer.special

    def bytes_of(self, token: int) -> bytes:
        """Return what a token of an answer writes."""
        return self._tokenizer.token_bytes(token)

    @property
    def begins_with(self) -> int:
        """The number of tokens that the model puts before every prompt."""
        return len(self._begin)

    @property
    def text_before(self) -> Sequence[int]:
        """Tokens of the text that the server puts before every prompt."""
        return self._before

    @property
    def stop(self) -> tuple[str, ...]:
        """Where an answer in a conversation is over, beside the model's own end."""
        return self._conversations.stop

    @property
    def starts(self) -> list[list[int]]:
        """Tokens with which every prompt begins, and every conversation; none without a text of the system."""
        if not self._system:
            return []
        said = [list(self._tokens_of_messages((ChatMessage("user", each),))) for each in UNLIKE_WORDS]
        return [self._before, said[0][: common_start(*said)]]

    def next_start(self, wanted: TextRequest, answer: str) -> list[int]:
        """Return the tokens with which a conversation goes on, whatever the user says next; none: nobody can tell.

        Args:
            wanted: The request that was answered.
            answer: Its text, as the client sends it back.
        """
        tools = wanted.calls.tools if wanted.calls else ()
        said = (*wanted.messages, ChatMessage("assistant", answer))
        try:
            talks = [(*said, ChatMessage("user", words)) for words in UNLIKE_WORDS]
            next_turns = [self._tokens_of_messages(talk, tools) for talk in talks]
        except RefusedError:  # the context is full, or the answer holds what ends a turn
            return []
        if any(isinstance(turn, SeenPrompt) for turn in next_turns):  # whose rows only a request encodes
            return []
        return list(next_turns[0][: common_start(*next_turns)])

    def tokens_of(self, wanted: TextRequest) -> Sequence[int]:
        """Return the tokens of what was asked, without those that begin every prompt; with pictures a `SeenPrompt`.

        Raises:
            RefusedError: If it is empty, longer than the context, or the model's template does not take it.
        """
        tokens: Sequence[int]
        self._require_own(wanted)
        if wanted.messages:
            tokens = self._tokens_of_messages(wanted.messages, wanted.calls.tools if wanted.calls else ())
        elif isinstance(wanted.prompt, str):
            tokens = [*self._before, *self._encode(wanted.prompt, reads_special=False)]
        else:
            tokens = [*self._before, *wanted.prompt]
            if max(tokens) > self._largest:
                raise wrong("prompt", "it holds tokens that the model has not")
        length = len(tokens) + len(self._begin)
        if not length:
            raise RefusedError(400, "the prompt is empty", code="invalid_value", param="prompt")
        if length >= self._context:
            raise self._too_long(f"{length}")
        return tokens

    def _require_own(self, wanted: TextRequest) -> None:
        """Raise where options of an answer are about tokens, or a length, that the model has not."""
        options = wanted.asked
        if (biased := max(options.sampling.logit_bias, default=0)) > self._largest:
            raise wrong("logit_bias", f"the model has no token {biased}, only 0 to {self._largest}")
        if options.keep + len(self._begin) >= self._context:
            text = f"{options.keep} first tokens fill the context of {self._context}: nothing could move"
            raise wrong("n_keep", text)

    def _tokens_of_messages(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Sequence[int]:
        try:
            text = self._conversations.text_of(messages, tools)
        except ConversationError as error:
            raise RefusedError(400, str(error), code="invalid_value", param=error.place) from error
        if pictures := [picture for message in messages for picture in message.pictures]:
            return self._seen(text, pictures)
        tokens = self._encode(text, reads_special=self._conversations.reads_special)
        return self._conversations.without_begin(tokens)

    def _seen(self, text: str, files: Sequence[bytes]) -> SeenPrompt:
        """Return the tokens of a conversation with pictures, each of which is decoded once to see that it is one."""
        assert self._marks is not None
        if len(files) * self._marks.feeder.least_rows >= self._context:
            raise self._too_long(f"more than {self._context}")
        pictures = []
        for number, file in enumerate(files, 1):
            try:
                height, width, _ = read_frame(file).shape
            except RefusedError as refusal:
                text = f"messages: picture {number} of {len(files)} does not decode: send a PNG, JPEG, WebP or BMP"
                raise RefusedError(400, text, code=refusal.code, param="messages") from refusal
            pictures.append(PromptPicture(file, (height, width)))
        try:
            with self._turn:
                seen = self._marks.prompt(text, pictures, self._context)
        except ValueError as error:
            raise RefusedError(400, str(error), code="invalid_value", param="messages") from error
        return SeenPrompt.of(self._conversations.without_begin(list(seen)), pictures)

    def _encode(self, text: str, *, reads_special: bool) -> list[int]:
        clean = text.encode("utf-8", "replace").decode("utf-8")
        if len(clean) > self._longest * self._context:
            raise self._too_long(f"more than {self._context}")
        try:
            with self._turn:
                return self._tokenizer.encode(clean, reads_special=reads_special)
        except EdgeoptError as error:
            raise RefusedError(400, error.problem, code="invalid_value", param="prompt") from error

    def _too_long(self, length: str) -> RefusedError:
        text = f"the prompt has {length} tokens, the context {self._context}: nothing could follow"
        return RefusedError(400, text, code="context_length_exceeded", param="prompt")
