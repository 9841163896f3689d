"""One answer of a language model, token after token, with the time of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from itertools import takewhile
from numbers import Integral
from time import perf_counter_ns
from typing import Any, Protocol, Unpack

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors.onnxruntime.image_rows import ImageToken, known_token
from edgeopt.recipes.texts.answer_defaults import ANSWER_TOKENS
from edgeopt.recipes.texts.beams import MOST_BEAMS
from edgeopt.runtime.decoding.grammars import AnswerForm, Follower, form_of
from edgeopt.runtime.decoding.guessing import Guesser
from edgeopt.runtime.decoding.pieces import Pieces
from edgeopt.runtime.decoding.prompt_plan import PromptPlan
from edgeopt.runtime.decoding.sampling import UNKNOWN_ODDS, Chooser, Sampling, SamplingWishes, TokenOdds, odds_of
from edgeopt.system.processes.closing import Closing

MOST_LOGPROBS = 20
"""Alternatives of a token that may be asked for, as OpenAI has it."""


class TextDecoder(Protocol):
    """One text on a model, with its cache."""

    capacity: int
    """Tokens that the text may have."""

    @property
    def past(self) -> int:
        """Tokens that the cache holds."""
        ...

    def run(self, tokens: Sequence[int], last: int = 0) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) logits behind each token; the last ones suffice where they are asked for."""
        ...

    def run_prompt(self, tokens: Sequence[int], *, is_end: bool) -> NDArray[np.float32]:
        """Run the next part of a prompt; where it ends with them, return logits behind its last token."""
        ...

    def reusable(self, past: int) -> int:
        """Return how many of the first `past` tokens that are held can be kept."""
        ...

    def rewind(self, past: int) -> None:
        """Forget all tokens but the first `past`."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """One token with the text that can be shown: none while a character or a stop text is incomplete."""

    token: int
    """Number of the token in the vocabulary."""
    text: str
    """Text that can be shown."""
    at_ns: int
    """Nanoseconds since the answer was asked for."""
    logprob: float | None = None
    """Logarithm of the token's probability, before temperature and penalties; None: not asked for, or no number."""
    likely: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens in its place with the logarithms of their probabilities, as many as were asked for."""

    def as_json(self) -> dict[str, Any]:
        """Return token, text and time as plain values."""
        return {"token": self.token, "text": self.text, "at_ms": self.at_ns / 1e6}


class Long(StrEnum):
    """The treatment of a prompt that fills the context."""

    REFUSE = "refuse"
    HEAD = "head"
    """Its beginning is cut."""
    MIDDLE = "middle"
    TAIL = "tail"
    """Its end is cut."""
    WINDOWS = "windows"
    """A sound is heard in windows, one after the other."""


class AnswerWishes(SamplingWishes, total=False):
    """Keyword options of `generate`; `AnswerOptions` and `Sampling` say what each means, and its default."""

    most_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    chunk_tokens: int
    guesses: int | None
    uses_draft: bool
    exact: bool | None
    ends: bool
    long: Long
    keep: int
    keep_last: int
    shifts: bool
    schema: str | Mapping[str, Any] | bool | None
    regex: str
    grammar: str
    logprobs: int | None
    shows: tuple[str, ...]
    beams: int
    logit_bias: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options of an answer."""

    most_tokens: int = ANSWER_TOKENS
    """Most tokens of the answer."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are drawn."""
    stop: tuple[str, ...] = ()
    """The answer ends before any of these."""
    chunk_tokens: int = 0
    """Most tokens of a prompt in one run, for which other answers wait; 0: as the recipe says."""
    guesses: int | None = None
    """Tokens that are guessed ahead and verified in one run, which does not change the answer. 0: none; None: as the
    recipe says."""
    uses_draft: bool = True
    """Whether guesses come from the model's draft, if it has one; otherwise from the text so far."""
    exact: bool | None = None
    """Whether single tokens are computed in the same way as several, so that guesses change no token; slower with
    weights in blocks. None: as the model is opened, and guesses that might change a token are refused; False: guesses
    may change tokens."""
    ends: bool = True
    """Whether the model may end the answer; False for benchmarks, which want all tokens."""
    long: Long = Long.REFUSE
    """Treatment of a prompt that fills the context."""
    keep: int = 0
    """Number of first tokens of the prompt that are never cut, such as those of a stored prefix."""
    keep_last: int = 0
    """Number of last tokens of the prompt that are not cut either, such as those that end a turn of a conversation."""
    shifts: bool = False
    """Whether the answer continues when it fills the context: the older half of the tokens that may be cut is dropped,
    and the rest is computed again as a prompt. False: the answer ends there."""
    schema: str | Mapping[str, Any] | bool | None = None
    """JSON schema that the answer follows, as an object or as text; True: any JSON object; None: any text."""
    regex: str = ""
    """Regular expression that the answer follows; empty: any text."""
    grammar: str = ""
    """Grammar that the answer follows, in Lark's or llama.cpp's notation (GBNF); empty: any text."""
    logprobs: int | None = None
    """Number of alternatives for each token whose probabilities are given, 0 to 20; None: no probabilities."""
    shows: tuple[str, ...] = ()
    """Special tokens that are shown in the answer's text, such as the mark before a call; others are not shown."""
    beams: int = 1
    """Width of the beam search of an encoder with a decoder; the answer then comes as a whole. 1: the likeliest token
    each time; 0: as in the model's configuration, unless tokens are drawn."""

    def __post_init__(self) -> None:
        limits = {"most_tokens": 1, "chunk_tokens": 0, "keep": 0, "keep_last": 0, "guesses": 0, "beams": 0}
        for name, low in limits.items():
            value = getattr(self, name)
            is_left = name == "guesses" and value is None
            if not is_left and (not isinstance(value, Integral) or isinstance(value, bool) or value < low):
                raise ValueError(f"{name} is {value!r}, and must be a whole number of {low} or more")
        if isinstance(self.stop, str):
            raise ValueError(f"stop takes several texts: write stop=({self.stop!r},)")
        if not all(isinstance(word, str) and word for word in self.stop):
            raise ValueError(f"stop is {self.stop!r}, and takes texts of one character or more")
        form_of(self.schema, self.regex, self.grammar)
        if self.beams > MOST_BEAMS:
            raise ValueError(f"beams is {self.beams}, not 0 to {MOST_BEAMS}")
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise ValueError(f"logprobs is {self.logprobs!r}, not 0 to {MOST_LOGPROBS}")

    @property
    def form(self) -> AnswerForm | None:
        """The form that the answer follows; None: any text."""
        return form_of(self.schema, self.regex, self.grammar)

    def but(self, **wishes: Unpack[AnswerWishes]) -> AnswerOptions:
        """Return a copy with other values, also of `sampling`: `most_tokens=40, temperature=0.8`.

        Raises:
            TypeError: If there is no such field.
            ValueError: If a value is none.
        """
        if not wishes:
            return self
        values: dict[str, Any] = {**wishes}
        drawn = {each.name: values.pop(each.name) for each in fields(Sampling) if each.name in values}
        sampling = replace(values.pop("sampling", self.sampling), **drawn)
        if unknown := values.keys() - {each.name for each in fields(self)}:
            raise TypeError(f"an answer has no {min(unknown)!r}; see AnswerOptions and Sampling for what it has")
        return replace(self, sampling=sampling, **values)


@dataclass(frozen=True, slots=True)
class Account:
    """The cost of an answer, in nanoseconds since its request, and the tokens that were computed for it."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Reused tokens of the prompt that a cache held already."""
    computed_tokens: int = 0
    """Tokens that went through the model, rejected guesses too."""
    tokenize_ns: int = 0
    encode_ns: int = 0
    """Time in the encoder, where there is one; for pictures with cutting them."""
    heard_rows: int = 0
    """Rows of encoder output."""
    image_rows: int = 0
    """Tokens of the prompt that are rows of pictures."""
    images: int = 0
    """Pictures of the prompt."""
    encoded_images: int = 0
    """Pictures that went through the encoder for this answer; the others were kept from one before."""
    queue_ns: int = 0
    """Waited for a slot, where several texts share a cache."""
    prefill_ns: int = 0
    """Time from its first run to the logits behind the prompt."""
    detokenize_ns: int = 0
    token_at_ns: tuple[int, ...] = ()
    """When each token was there."""
    runs: int = 0
    """Runs of the model after the prompt."""
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    """Accepted tokens of the guessed ones: the model chose the same."""
    draft_tokens: int = 0
    """Tokens that went through the draft, besides `computed_tokens`."""
    forced_tokens: int = 0
    """Tokens that the form of the answer forced, and that ran with another."""
    reason: str = ""
    """Why it is over: `end`, `stop`, `length`, `cancelled`; empty while it is not."""
    cut_tokens: int = 0
    """Cut tokens of the prompt, left out because it filled the context."""
    shifts: int = 0
    """How often the older half of the text was dropped so that the answer could go on."""
    shifted_tokens: int = 0
    """Tokens of the text that were dropped so."""
    windows: int = 1
    """Windows of a sound, that were heard one after the other."""
    comes_whole: bool = False
    """Whether all tokens come at once, as a search with beams finds them: there is no time of a single one."""

    @property
    def acceptance(self) -> float | None:
        """Share of the guesses that the model chose too; None without any."""
        return self.accepted_tokens / self.guessed_tokens if self.guessed_tokens else None

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token; None before it."""
        return self.token_at_ns[0] / 1e6 if self.token_at_ns else None

    @property
    def came_at_ns(self) -> tuple[int, ...]:
        """Instants at which tokens came; of an answer that comes as a whole the only one."""
        return self.token_at_ns[:1] if self.comes_whole else self.token_at_ns

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of each token after the first; None before the second, and where all come at once."""
        times = self.came_at_ns
        return (times[-1] - times[0]) / 1e6 / (len(times) - 1) if len(times) > 1 else None


class Writing:
    """A text as it grows: its tokens, the choice of the next one, and the account of both."""

    def __init__(
        self,
        prompt: Sequence[int],
        pieces: Pieces,
        asked: AnswerOptions,
        *,
        end: Sequence[int],
        capacity: int,
        begun_ns: int,
        tokenize_ns: int,
        cut_tokens: int = 0,
        begins: int = 0,
        follower: Follower | None = None,
    ) -> None:
        """Begin behind a prompt.

        Args:
            prompt: Tokens.
            pieces: Of the answer.
            asked: What it may be.
            end: Tokens that end it, where it is asked to end.
            capacity: Tokens that prompt and answer may have.
            begun_ns: When the answer was asked for, by `perf_counter_ns`.
            tokenize_ns: That making tokens of the prompt took.
            cut_tokens: Of the prompt, left out.
            begins: Tokens before every prompt, which a shift leaves in place.
            follower: Keeps the answer to its form; None: it has none.
        """
        self._follower = follower
        self.tokens, self.prompt_tokens = list(prompt), len(prompt)
        self.answer = list[int]()
        """Tokens of the answer."""
        self.opening_tokens = len(prompt)
        """First tokens of `tokens` that run as a prompt: it, or what a shift left of the text."""
        self.fixed_tokens = min(begins + asked.keep, len(prompt))
        """First tokens that a shift leaves where they are."""
        self.is_shifted = False
        """Whether a shift moved the text since its cache was computed; who computes it anew sets it back."""
        self.sees = any(isinstance(token, ImageToken) for token in prompt)
        """Whether pictures stand in the prompt."""
        self._counts = {"prompt_tokens": len(prompt), "tokenize_ns": tokenize_ns, "cut_tokens": cut_tokens}
        self._at_ns, self._reason = list[int](), ""
        self._pieces, self._asked, self._capacity, self._begun_ns = pieces, asked, capacity, begun_ns
        self._end = frozenset(end) if asked.ends else frozenset[int]()
        self._chooser, self._odds = Chooser(asked.sampling), deque[TokenOdds]()

    @property
    def account(self) -> Account:
        """The cost of the text so far; made when it is read, as tokens come faster than anybody looks."""
        return Account(**self._counts, token_at_ns=tuple(self._at_ns), reason=self._reason, comes_whole=False)

    @property
    def output_tokens(self) -> int:
        """Behind the prompt."""
        return len(self._at_ns)

    @property
    def now_ns(self) -> int:
        """Time since the answer was asked for."""
        return perf_counter_ns() - self._begun_ns

    @property
    def is_over(self) -> bool:
        """Whether no token follows."""
        return bool(self._reason)

    def choose(self, logits: NDArray[np.float32], more: Sequence[int] = ()) -> int:
        """Return the token that follows the text and `more` behind it, from its (vocabulary,) logits.

        Raises:
            EdgeoptError: If no token continues the answer in its form.
        """
        limits = None if self._follower is None else self._follower.behind([*self.answer, *more])
        answer = [*self.answer, *more] if self._asked.sampling.looks_at_answer else ()
        text = [*self.tokens, *more] if more else self.tokens
        if self.sees and self._asked.sampling.repetition_penalty != 1.0:  # which looks tokens up in the vocabulary
            text = [known_token(token) for token in text]
        token = self._chooser.choose(logits, text, answer, limits)
        if self._asked.logprobs is not None:  # of a form, shares of what may follow
            shown = logits if limits is None else np.where(limits.allowed(), logits, np.float32(-np.inf))
            self._odds.append(odds_of(shown, token, self._asked.logprobs))
        return token

    def is_ended_by(self, more: Sequence[int]) -> bool:
        """Return whether the answer is over behind one or more further tokens, so that none is chosen behind them."""
        if more[-1] in self._end:
            return True
        return self._follower is not None and self._follower.is_whole([*self.answer, *more])

    def forced(self) -> list[int]:
        """Return the tokens that follow whatever the model says, as the form of the answer wants them."""
        if self._follower is None or self.is_over:
            return []
        forced = self._follower.forced(self.answer)
        if self._asked.logprobs is not None:
            self._odds += [TokenOdds(0.0, ((token, 0.0),)[: self._asked.logprobs]) for token in forced]
        return forced

    def take(self, token: int) -> Piece:
        """Take a token into the text and return its piece; the account says why the answer is over where it is."""
        self.tokens.append(token)
        self.answer.append(token)
        at_ns = self.now_ns
        self._at_ns.append(at_ns)
        shown, reason = self._pieces.add(token), ""
        if token in self._end:
            reason = "end"
        elif self._pieces.is_over:
            reason = "stop"
        elif self._follower is not None and self._follower.is_whole(self.answer):
            reason = "end"
        elif self.output_tokens >= self._asked.most_tokens or not self._has_room():
            reason = "length"
        if reason in ("end", "length"):
            shown += self._pieces.end()
        self._reason = reason
        self.count(detokenize_ns=self.now_ns - at_ns)
        odds = self._odds.popleft() if self._odds else UNKNOWN_ODDS
        return Piece(token, shown, at_ns, odds.logprob, odds.likely)

    def _has_room(self) -> bool:
        """Return whether another token fits into the context, behind a shift where the answer may go on so."""
        if len(self.tokens) < self._capacity:
            return True
        may_shift = self._asked.shifts and not self.sees  # pictures are never cut
        dropped = (len(self.tokens) - self.fixed_tokens) // 2 if may_shift else 0
        if not dropped:
            return False
        del self.tokens[self.fixed_tokens : self.fixed_tokens + dropped]
        self.opening_tokens, self.is_shifted = len(self.tokens), True
        self.count(shifts=1, shifted_tokens=dropped)
        return True

    def break_off(self) -> None:
        """End the text where it stands, if it is not over."""
        if not self.is_over:
            self._reason = "cancelled"

    def count(self, **more: int) -> None:
        """Add to figures of the account."""
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number


class Generation(Closing):
    """An answer that is being written: iterate over it for its pieces. It keeps its cache until it ends."""

    def __init__(
        self,
        decoder: TextDecoder,
        writing: Writing,
        asked: AnswerOptions,
        give_back: Callable[[Any, list[int]], None],
        guesser: Guesser | None = None,
        *,
        joins_forced: bool = True,
        plan: PromptPlan | None = None,
    ) -> None:
        """Take a decoder whose cache holds the first tokens of the prompt, and no others.

        Args:
            decoder: Of the text.
            writing: The text itself.
            asked: Options of the answer.
            give_back: Called with the decoder, and the tokens in its cache, when the answer ends.
            guesser: Guesses the next `asked.guesses` tokens of this text; None: nothing is guessed.
            joins_forced: Whether tokens that the form of the answer forces run with the one behind them; else before
                it, so that its numbers are those of a single token.
            plan: How prompts are cut into runs; None: as `asked` has it.
        """
        self._joins_forced, self._plan = joins_forced, plan or PromptPlan()
        self._decoder, self._writing, self._asked, self._give_back = decoder, writing, asked, give_back
        self._guesser = guesser
        self._is_cancelled = self._is_closed = False
        writing.count(reused_tokens=decoder.past)
        self._steps = self._write()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        try:
            return next(self._steps)
        except BaseException:
            self.close()
            raise

    @property
    def account(self) -> Account:
        """Times and counts of the answer so far."""
        return self._writing.account

    def cancel(self) -> None:
        """End the answer before its next token. Any thread may call it."""
        self._is_cancelled = True

    def close(self) -> None:
        """End the answer and free its cache."""
        if self._is_closed:
            return
        self._is_closed = True
        self._steps.close()
        self._writing.break_off()
        tokens = self._writing.tokens
        held = self._kept() if self._writing.is_shifted else len(tokens)
        self._decoder.rewind(self._decoder.reusable(min(self._decoder.past, held)))
        self._give_back(self._decoder, tokens[: self._decoder.past])
        if self._guesser:
            self._guesser.close()

    def text(self) -> str:
        """Return the rest of the answer as one text."""
        return "".join(piece.text for piece in self)

    def _write(self) -> Generator[Piece]:
        writing = self._writing
        begun_ns = writing.now_ns
        logits = self._run_opening()
        if logits is None:
            return
        writing.count(prefill_ns=writing.now_ns - begun_ns)
        waiting = [writing.choose(logits[-1])]
        while True:
            for token in waiting:
                if self._is_cancelled:
                    return
                yield writing.take(token)
                if writing.is_over:
                    return
            if self._is_cancelled:
                return
            waiting = writing.forced()
            if writing.is_shifted and not waiting:
                self._begin_again()
                logits = self._run_opening()
                if logits is None:
                    return
                waiting = [writing.choose(logits[-1])]
            waiting = waiting or self._next_tokens()

    def _run_opening(self) -> NDArray[np.float32] | None:
        """Run what the cache lacks of the prompt, or of the text behind a shift, in parts.

        Returns:
            Logits behind its last token; None: the answer was cancelled meanwhile.
        """
        decoder, writing, logits = self._decoder, self._writing, None
        opening = writing.tokens[: writing.opening_tokens]
        for part in self._plan.parts(opening, decoder.past, self._asked.chunk_tokens):
            if self._is_cancelled:
                return None
            logits = decoder.run_prompt(part, is_end=decoder.past + len(part) == len(opening))
            writing.count(computed_tokens=len(part))
        assert logits is not None
        return logits

    def _kept(self) -> int:
        """Return how many first tokens have the numbers of a prompt's behind a shift too."""
        return self._plan.kept(self._writing.fixed_tokens, self._writing.prompt_tokens)

    def _begin_again(self) -> None:
        """Forget what the cache holds of the text before a shift."""
        writing = self._writing
        writing.is_shifted = False
        writing.opening_tokens = len(writing.tokens)  # with what the form of the answer forced behind it
        self._decoder.rewind(self._decoder.reusable(min(self._decoder.past, self._kept())))
        if self._guesser:
            self._guesser.restart()

    def _next_tokens(self) -> list[int]:
        """Run the last token, and guesses behind it; return the next one and those guesses that are what comes.

        Tokens that the form of the answer forced run with it: nothing was chosen behind them.
        """
        decoder, writing, text = self._decoder, self._writing, self._writing.tokens
        guesses = self._guesses(text, decoder.capacity - len(text) - 1)  # a pair takes one more
        new = text[decoder.past :]
        if len(new) > 1 and not self._joins_forced:
            decoder.run(new[:-1])
            writing.count(computed_tokens=len(new) - 1, runs=1, forced_tokens=len(new) - 1)
            new = new[-1:]
        last = 1 + len(guesses) if len(new) > 1 else 0
        logits = decoder.run([*new, *guesses], last)[-1 - len(guesses) :]
        if len(logits) <= len(guesses):
            raise UnsupportedError(
                "the model gives logits of its last token alone: guesses cannot be verified",
                remedy="leave guesses out, or export the model with the logits of all tokens",
            )
        writing.count(computed_tokens=len(new) + len(guesses), runs=1, forced_tokens=len(new) - 1)
        next_tokens = [writing.choose(logits[0])]
        for i, guess in enumerate(guesses):
            if guess != next_tokens[-1] or writing.is_ended_by(next_tokens):
                break
            next_tokens.append(writing.choose(logits[i + 1], next_tokens))
        if guesses:
            accepted = sum(a == b for a, b in zip(guesses, next_tokens, strict=False))
            writing.count(guessed_tokens=len(guesses), accepted_tokens=accepted)
        decoder.rewind(len(text) - 1 + len(next_tokens))
        return next_tokens

    def _guesses(self, text: Sequence[int], room: int) -> list[int]:
        """Return what may follow the text, no more than fits behind it."""
        if self._guesser is None:
            return []
        missing = self._asked.most_tokens - self._writing.output_tokens
        count = min(self._asked.guesses or 0, room, missing - 1)  # behind the guesses comes one more
        if count < 1:
            return []
        before = self._guesser.computed_tokens
        guesses = self._guesser.guess(text, count)
        if self._writing.sees:  # an answer has no rows of pictures
            guesses = list(takewhile(lambda guess: not isinstance(guess, ImageToken), guesses))
        self._writing.count(draft_tokens=self._guesser.computed_tokens - before)
        return guesses
