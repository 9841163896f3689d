"""A language model that talks with a person: turn by turn, each answer behind all that was said before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from statistics import median
from threading import Event
from typing import Any

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.recipes.texts.chat_template import ChatMessage
from edgeopt.recipes.texts.conversation import ConversationReader
from edgeopt.running.answers import RunResult
from edgeopt.running.prompt_turn import template_of
from edgeopt.running.writing import find_language_model, open_decoder
from edgeopt.runtime.decoding.batching.shared_model import parts_alone
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Piece
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.system.processes.interrupts import Terminated
from edgeopt.system.text import plural

_REMEDY = "begin anew, or talk with a larger --context where the model has one"


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkResult(RunResult):
    """A conversation, and its cost."""

    model: str
    """Name of the model."""
    accounts: tuple[Account, ...]
    """Cost of each answer."""
    texts: tuple[str, ...]
    """Each answer of the model, in turn."""

    def own_figures(self) -> dict[str, Any]:
        """Return what each answer said and took."""
        costs = [
            {"text": text, "ttft_ms": account.ttft_ms, "tpot_ms": account.tpot_ms, "reason": account.reason}
            for text, account in zip(self.texts, self.accounts, strict=True)
        ]
        return {"model": self.model, "turns": costs}

    def __str__(self) -> str:
        if not self.accounts:
            return f"nothing was said{', interrupted' if self.interrupted else ''}"
        count = sum(len(account.token_at_ns) for account in self.accounts)
        parts = [plural(len(self.accounts), "answer"), plural(count, "token")]
        firsts_ms = [account.ttft_ms for account in self.accounts if account.ttft_ms is not None]
        if firsts_ms:
            parts.append(f"TTFT {median(firsts_ms):.1f} ms (median), {max(firsts_ms):.1f} ms at most")
        if tokens_ms := [account.tpot_ms for account in self.accounts if account.tpot_ms]:
            parts.append(f"TPOT {median(tokens_ms):.2f} ms (median)")
        return ", ".join([*parts, "interrupted"] if self.interrupted else parts)


def talk(
    model: str,
    options: AnswerOptions,
    ask: Callable[[], str | None],
    hear: Callable[[Piece, Account], None],
    over: Callable[[], None],
    threads: int,
    context: int = 0,
    system: str = "",
    *,
    goes_on: bool = False,
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
        goes_on: Whether Ctrl-C ends an answer and not the conversation; SIGTERM ends both.

    Raises:
        EdgeoptError: If it is no language model, or what was said fills its context.
        KeyboardInterrupt: If Ctrl-C ended an answer, unless the conversation goes on.
    """
    file = find_language_model(model)
    opened, recipe = open_decoder(file, threads, context, None)
    with opened:
        template = template_of(recipe, file)
        mark = opened.images.marks.mark if opened.images is not None else ""  # whose templates take turns in parts
        reader = ConversationReader(opened.tokenizer, recipe.generation.begin, template, system, mark=mark)
        reader.require_system("write it into your first words")
        # an answer that is cut off before its first token ends behind a part of its prompt
        parts = options.chunk_tokens or parts_alone(opened)
        options = replace(options, stop=(*options.stop, *reader.stop), chunk_tokens=parts)
        said, accounts, interrupted = list[ChatMessage](), list[Account](), False
        with _Past(opened, reader) as past:
            try:
                while (words := past.asked(ask)) is not None:
                    _say(said, words)
                    turn = _answer(past, said, options, hear)
                    over()
                    if turn.account is not None and (turn.text or turn.interrupt is None):
                        said.append(ChatMessage("assistant", turn.text))
                        accounts.append(turn.account)
                    if turn.interrupt is not None and (isinstance(turn.interrupt, Terminated) or not goes_on):
                        raise turn.interrupt
            except KeyboardInterrupt:
                if not goes_on:
                    raise
                interrupted = True
    texts = tuple(message.content for message in said if message.role == "assistant")
    return TalkResult(
        model=recipe.name,
        accounts=tuple(accounts),
        texts=texts,
        notes=(*opened.origin.notes, *_told_of_cuts(accounts, options)),
        interrupted=interrupted,
    )


def _told_of_cuts(accounts: Sequence[Account], options: AnswerOptions) -> Iterator[Note]:
    """Yield how many answers had as many tokens as they might, and were not over."""
    most = options.most_tokens
    cut = sum(account.reason == "length" and len(account.token_at_ns) >= most for account in accounts)
    if cut:
        detail = f"{cut} of {plural(len(accounts), 'answer')} cut short at {plural(most, 'token')}"
        yield Note(NoteKind.INFO, detail, "--output-tokens allows more")


@dataclass
class _Past:
    """The conversation up to the end of the last answer, which the cache holds."""

    opened: LanguageModel
    reader: ConversationReader
    text: str = ""
    tokens: tuple[int, ...] = ()
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "edgeopt-ahead"))
    _ahead: Future[int] | None = None

    def __enter__(self) -> _Past:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def asked(self, ask: Callable[[], str | None]) -> str | None:
        """Return the person's next words; meanwhile the cache of the conversation gets the numbers of a prompt.

        The answer's tokens ran one by one, and where these sum otherwise than several the next turn would compute them
        anew before its first token.
        """
        if not self.tokens:
            return ask()
        is_over = Event()
        self._ahead = self._threads.submit(self.opened.expect, self.tokens, lambda: not is_over.is_set())
        try:
            return ask()
        finally:
            is_over.set()

    def wait(self) -> None:
        """Wait until the cache is free, which what is computed ahead holds until its part is over."""
        if self._ahead is not None:
            wait((self._ahead,))

    def tokens_of(self, text: str) -> list[int]:
        """Return the tokens of a conversation.

        Where it goes on behind the past these are the model's own tokens, which need not be computed again, though
        the tokenizer might cut the same text elsewhere; the rest is read by itself, where that gives the same bytes.
        """
        encode, token_bytes = self.opened.tokenizer.encode, self.opened.tokenizer.token_bytes
        if self.tokens and text.startswith(self.text):
            rest = text[len(self.text) :]
            tokens = encode(rest, reads_special=self.reader.reads_special)
            if b"".join(map(token_bytes, tokens)) == rest.encode():
                return [*self.tokens, *tokens]
        return self.reader.without_begin(encode(text, reads_special=self.reader.reads_special))

    def grow(self, text: str, tokens: list[int], said: str, written: list[int]) -> None:
        """Take an answer in: those of its tokens that its text has, as a stop may have cut some off."""
        data, kept = said.encode(), list[int]()
        done = b""
        for token in written:
            more = done + self.opened.tokenizer.token_bytes(token)
            if not data.startswith(more):
                break
            done = more
            kept.append(token)
        is_whole = done == data
        self.text, self.tokens = (text + said, (*tokens, *kept)) if is_whole else ("", ())


@dataclass(frozen=True, slots=True)
class _Turn:
    """An answer, as far as it came."""

    text: str
    account: Account | None
    """Its cost; None: it was cut off before it began."""
    interrupt: KeyboardInterrupt | None
    """Signal that cut it off."""


def _say(said: list[ChatMessage], words: str) -> None:
    """Add the person's words; behind a turn that was never answered they go on with it, as templates want turns."""
    if said and said[-1].role == "user":
        words = f"{said.pop().content}\n\n{words}"
    said.append(ChatMessage("user", words))


def _answer(
    past: _Past, said: list[ChatMessage], options: AnswerOptions, hear: Callable[[Piece, Account], None]
) -> _Turn:
    """Return what the model answers; Ctrl-C ends it at any moment from the person's words on."""
    pieces, answer = list[Piece](), None
    text, tokens, interrupt = "", list[int](), None
    try:
        past.wait()
        try:
            text = past.reader.text_of(said)
            tokens = past.tokens_of(text)
            answer = past.opened.generate(tokens, options)
        except ValueError as error:
            raise EdgeoptError(str(error), remedy=_REMEDY) from error
        with answer:
            for piece in answer:
                pieces.append(piece)
                hear(piece, answer.account)
    except KeyboardInterrupt as error:
        interrupt = error
    words = "".join(piece.text for piece in pieces)
    if words or interrupt is None:
        past.grow(text, tokens, words, [piece.token for piece in pieces])
    return _Turn(words, answer.account if answer is not None else None, interrupt)
