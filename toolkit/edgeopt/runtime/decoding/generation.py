"""One answer of a language model, token after token, with the time of each."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns

from edgeopt.executors.onnxruntime.decoder import Decoder
from edgeopt.runtime.decoding.lookup import guessed
from edgeopt.runtime.decoding.pieces import Pieces
from edgeopt.runtime.decoding.sampling import Chooser, Sampling


@dataclass(frozen=True, slots=True)
class Piece:
    """One token, and what may be shown with it: it may be empty, where a character or a stop string is not whole."""

    token: int
    text: str
    at_ns: int
    """Since the answer was asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an answer may be."""

    most_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """The answer ends before any of these."""
    chunk_tokens: int = 0
    """Of a prompt that are run at once: other answers wait no longer; 0: all."""
    guesses: int = 0
    """Tokens that are guessed from the text so far and verified in one run; the answer is the same. 0: none."""
    ends: bool = True
    """Whether the model's own end ends the answer; a benchmark wants all tokens."""


@dataclass(frozen=True, slots=True)
class Account:
    """What an answer took, in nanoseconds since it was asked for, and what was computed for it."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Of the prompt that the cache held already."""
    computed_tokens: int = 0
    """That went through the model, rejected guesses too."""
    tokenize_ns: int = 0
    prefill_ns: int = 0
    detokenize_ns: int = 0
    token_at_ns: tuple[int, ...] = ()
    """When each token was there."""
    runs: int = 0
    """Of the model after the prompt."""
    reason: str = ""
    """Why it is over: `end`, `stop`, `length`, `cancelled`; empty while it is not."""

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token; None before it."""
        return self.token_at_ns[0] / 1e6 if self.token_at_ns else None

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of each token after the first; None before the second."""
        times = self.token_at_ns
        return (times[-1] - times[0]) / 1e6 / (len(times) - 1) if len(times) > 1 else None


class Generation:
    """An answer on its way: iterate over it for its pieces. It holds its cache until it is over, or closed."""

    def __init__(
        self,
        decoder: Decoder,
        held: Sequence[int],
        prompt: Sequence[int],
        pieces: Pieces,
        asked: Asked,
        end: Sequence[int],
        begun_ns: int,
        tokenize_ns: int,
        give_back: Callable[[Decoder, list[int]], None],
    ) -> None:
        """Take a decoder whose cache holds the first tokens of the prompt, and no others."""
        self._decoder, self._pieces, self._asked = decoder, pieces, asked
        self._text, self._prompt_tokens = list(prompt), len(prompt)
        self._end = frozenset(end) if asked.ends else frozenset[int]()
        self._begun_ns, self._give_back = begun_ns, give_back
        self._chooser = Chooser(asked.sampling)
        self._is_cancelled = self._is_closed = False
        self.account = Account(len(prompt), len(held), tokenize_ns=tokenize_ns)
        self._steps = self._write()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        try:
            return next(self._steps)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cancel(self) -> None:
        """End the answer before its next token; from any thread."""
        self._is_cancelled = True

    def close(self) -> None:
        """Give the cache back; the answer is over."""
        if self._is_closed:
            return
        self._is_closed = True
        self._steps.close()
        if not self.account.reason:
            self.account = replace(self.account, reason="cancelled")
        self._decoder.rewind(min(self._decoder.past, len(self._text)))
        self._give_back(self._decoder, self._text[: self._decoder.past])

    def text(self) -> str:
        """Return the rest of the answer at once."""
        return "".join(piece.text for piece in self)

    def _now_ns(self) -> int:
        return perf_counter_ns() - self._begun_ns

    def _write(self) -> Generator[Piece]:
        decoder, asked = self._decoder, self._asked
        begun_ns = self._now_ns()
        chunk = asked.chunk_tokens or self._prompt_tokens
        logits = None
        for start in range(decoder.past, self._prompt_tokens, chunk):
            if self._is_cancelled:
                return
            part = self._text[start : min(start + chunk, self._prompt_tokens)]
            logits = decoder.run(part)
            self._count(computed_tokens=len(part))
        assert logits is not None
        self._count(prefill_ns=self._now_ns() - begun_ns)
        waiting = [self._chooser.choose(logits[-1], self._text)]
        while True:
            for token in waiting:
                yield from self._told(token)
                if self.account.reason:
                    return
            if self._is_cancelled:
                return
            waiting = self._next_tokens()

    def _told(self, token: int) -> Iterator[Piece]:
        """Take a token into the text and yield its piece; say why the answer is over where it is."""
        self._text.append(token)
        at_ns, account = self._now_ns(), self.account
        count = len(account.token_at_ns) + 1
        shown, reason = self._pieces.add(token), ""
        if token in self._end:
            reason = "end"
        elif self._pieces.is_over:
            reason = "stop"
        elif count >= self._asked.most_tokens or len(self._text) >= self._decoder.capacity:
            reason = "length"
        if reason in ("end", "length"):
            shown += self._pieces.end()
        self.account = replace(account, token_at_ns=(*account.token_at_ns, at_ns), reason=reason)
        self._count(detokenize_ns=self._now_ns() - at_ns)
        yield Piece(token, shown, at_ns)

    def _next_tokens(self) -> list[int]:
        """Run the last token, and guesses behind it; return the next one and those guesses that are what comes."""
        decoder, text = self._decoder, self._text
        room = decoder.capacity - len(text)
        guesses = guessed(text, min(self._asked.guesses, room)) if self._asked.guesses else []
        logits = decoder.run([text[-1], *guesses])
        self._count(computed_tokens=1 + len(guesses), runs=1)
        found = [self._chooser.choose(logits[0], text)]
        for i, guess in enumerate(guesses):
            if guess != found[-1]:
                break
            found.append(self._chooser.choose(logits[i + 1], [*text, *found]))
        decoder.rewind(len(text) - 1 + len(found))
        return found

    def _count(self, **more: int) -> None:
        self.account = replace(self.account, **{name: getattr(self.account, name) + n for name, n in more.items()})
