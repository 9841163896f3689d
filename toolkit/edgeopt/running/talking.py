"""A language model that talks with a person: turn by turn, each answer behind all that was said before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from threading import Event

from edgeopt.errors import EXIT_PASS, EdgeoptError, Note
from edgeopt.recipes.texts.chat_template import ChatMessage, read_chat_template
from edgeopt.recipes.texts.conversation import ConversationReader
from edgeopt.running.writing import find_language_model, open_decoder
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Piece
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.text import plural

_REMEDY = "begin anew, or talk with a larger --context where the model has one"


@dataclass(frozen=True, slots=True)
class TalkResult:
    """The cost of a conversation."""

    model: str
    accounts: tuple[Account, ...]
    """Cost of each answer."""
    notes: tuple[Note, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: whatever was said, it ended as the person wished."""
        return EXIT_PASS

    def __str__(self) -> str:
        if not self.accounts:
            return "nothing was said"
        count = sum(len(account.token_at_ns) for account in self.accounts)
        parts = [plural(len(self.accounts), "answer"), plural(count, "token")]
        firsts_ms = [account.ttft_ms for account in self.accounts if account.ttft_ms is not None]
        if firsts_ms:
            parts.append(f"TTFT {median(firsts_ms):.1f} ms (median), {max(firsts_ms):.1f} ms at most")
        if tokens_ms := [account.tpot_ms for account in self.accounts if account.tpot_ms]:
            parts.append(f"TPOT {median(tokens_ms):.2f} ms (median)")
        return ", ".join(parts)


def talk(
    model: str,
    options: AnswerOptions,
    ask: Callable[[], str | None],
    hear: Callable[[Piece, Account], None],
    over: Callable[[], None],
    threads: int,
    context: int = 0,
    system: str = "",
) -> TalkResult:
    """Talk until the person says nothing more.

    Args:
        model: Bundle, shipped name, ONNX file or folder.
        options: What each answer may be.
        ask: Returns the person's next words; None: there are no more.
        hear: Called with each token, and what the answer took so far.
        over: Called when an answer is over.
        threads: Of the engine; 0: as a bundle was measured, or the default.
        context: Tokens for which memory is reserved; 0: all that the model has.
        system: A text of the system before all.

    Raises:
        EdgeoptError: If it is no language model, or what was said fills its context.
    """
    file = find_language_model(model)
    opened, recipe = open_decoder(file, threads, context, None)
    with opened:
        template = read_chat_template((recipe.path_of(recipe.tokenizer.file) or Path(file)).parent)
        mark = opened.images.marks.mark if opened.images is not None else ""  # whose templates take turns in parts
        reader = ConversationReader(opened.tokenizer, recipe.generation.begin, template, system, mark=mark)
        said, past, accounts = list[ChatMessage](), _Past(), list[Account]()
        options = replace(options, stop=(*options.stop, *reader.stop))
        while (words := _asked(ask, opened, past)) is not None:
            said.append(ChatMessage("user", words))
            text, account = _answer(opened, reader, said, past, options, hear)
            over()
            said.append(ChatMessage("assistant", text))
            accounts.append(account)
    return TalkResult(recipe.name, tuple(accounts), tuple(opened.origin.notes))


@dataclass
class _Past:
    """The conversation up to the end of the last answer, which the cache holds."""

    text: str = ""
    tokens: tuple[int, ...] = ()

    def tokens_of(self, text: str, opened: LanguageModel, reader: ConversationReader) -> list[int]:
        """Return the tokens of a conversation.

        Where it goes on behind the past these are the model's own tokens, which need not be computed again, though
        the tokenizer might cut the same text elsewhere; the rest is read by itself, where that gives the same bytes.
        """
        encode, token_bytes = opened.tokenizer.encode, opened.tokenizer.token_bytes
        if self.tokens and text.startswith(self.text):
            rest = text[len(self.text) :]
            tokens = encode(rest, reads_special=reader.reads_special)
            if b"".join(map(token_bytes, tokens)) == rest.encode():
                return [*self.tokens, *tokens]
        return reader.without_begin(encode(text, reads_special=reader.reads_special))

    def grow(self, text: str, tokens: list[int], said: str, written: list[int], opened: LanguageModel) -> None:
        """Take an answer in: those of its tokens that its text has, as a stop may have cut some off."""
        data, kept = said.encode(), list[int]()
        done = b""
        for token in written:
            more = done + opened.tokenizer.token_bytes(token)
            if not data.startswith(more):
                break
            done = more
            kept.append(token)
        is_whole = done == data
        self.text, self.tokens = (text + said, (*tokens, *kept)) if is_whole else ("", ())


def _asked(ask: Callable[[], str | None], opened: LanguageModel, past: _Past) -> str | None:
    """Return the person's next words; meanwhile the cache of the conversation gets the numbers of a prompt.

    The answer's tokens ran one by one, and where these sum otherwise than several the next turn would compute them anew
    before its first token.
    """
    if not past.tokens:
        return ask()
    is_over = Event()
    with ThreadPoolExecutor(1, "edgeopt-ahead") as threads:
        threads.submit(opened.expect, past.tokens, lambda: not is_over.is_set())
        try:
            return ask()
        finally:
            is_over.set()


def _answer(
    opened: LanguageModel,
    reader: ConversationReader,
    said: list[ChatMessage],
    past: _Past,
    options: AnswerOptions,
    hear: Callable[[Piece, Account], None],
) -> tuple[str, Account]:
    """Return the words of an answer, and what it took; Ctrl-C ends the answer and not the conversation."""
    try:
        text = reader.text_of(said)
        tokens = past.tokens_of(text, opened, reader)
        answer = opened.generate(tokens, options)
    except ValueError as error:
        raise EdgeoptError(str(error), remedy=_REMEDY) from error
    pieces = list[Piece]()
    with answer:
        try:
            for piece in answer:
                pieces.append(piece)
                hear(piece, answer.account)
        except KeyboardInterrupt:
            answer.cancel()
    words = "".join(piece.text for piece in pieces)
    past.grow(text, tokens, words, [piece.token for piece in pieces], opened)
    return words, answer.account
