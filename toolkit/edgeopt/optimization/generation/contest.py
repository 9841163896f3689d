"""Forms of a language model against each other: what loses too much or is proven slower goes out, the others go on.

Beside the original only one form is open at a time. Each is judged by some windows of the text and timed for a moment;
then the fastest is judged by all of them, and whoever is proven slower than it goes out. Those left are timed longer,
round after round. What is chosen is proven in fresh processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from edgeopt.executors._child import EngineAbortError
from edgeopt.measurement.generation.perplexity import Rise, TextScore, agreement_between, rise_between, score_text
from edgeopt.measurement.generation.sides.turns import (
    PARTS,
    FormTurns,
    Prompt,
    logs_between,
    measure_in_turns,
    ratio_between,
)
from edgeopt.measurement.statistics.ratio import Change, Ratio, ratio_of_rounds
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_writer
from edgeopt.steps._context import Listener
from edgeopt.system.amounts import Tenths
from edgeopt.system.text import format_bytes

LEAST_WINDOWS = 6
"""Windows that judge at least, however short a time limit is."""
_FEW_WINDOWS = 12
_FEW_ROUNDS = 3
_MOST_ROUNDS = 24
_AS_FAST = 1 / 1.02
"""Speed over another form from which on one is no slower: what `ratio_of_rounds` counts as equal."""
_SAVED = 3 / 4
"""Share of the memory of a cache in floats that one in 8 bits does not take."""


@dataclass
class Entrant:
    """A form in the contest."""

    name: str
    told: str
    precision: str
    file: Path
    """The file; of an encoder with a decoder its folder."""
    score: TextScore | None = None
    windows: int = 0
    """By which it was judged: the first ones of the order in which they are asked."""
    turns: tuple[FormTurns, FormTurns] | None = None
    """The original and it, in turns."""
    out: str = ""
    """Why it is out; empty: it is not."""
    is_unfit: bool = False
    """Whether it lost too much."""
    prompts_by: str = ""
    """The form that computes prompts, where another computes tokens."""
    tokens_by: str = ""
    cache_of: str = ""
    """The form that is the same with a cache of four times the size; empty: none."""
    needs_bytes: int = 0
    """Memory that its weights and the cache of one answer take."""

    def ratio(self, part: str) -> Ratio:
        """Return its speed against the original."""
        assert self.turns is not None
        return ratio_between(*self.turns, part)


@dataclass
class FormContest:
    """The original, the text, and what is asked of answers."""

    original: Any
    """A `LanguageModel`, or an `EncoderDecoder`."""
    windows: Sequence[Any]
    """Windows of a text; or what an encoder hears or reads, with the original's answers."""
    prompts: Sequence[Prompt]
    asked: AnswerOptions
    threads: int
    max_rise: float
    seconds: float
    """For the long rounds."""
    parts: Sequence[str]
    """Parts of an answer in which a form must be proven slower to go out."""
    listener: Listener
    score: Callable[[Any, Sequence[Any]], TextScore] = score_text
    """What judges a model by windows."""
    answer_tokens: int = 0
    """Tokens of a prompt and its answer, of the lengths asked for."""
    image_bytes: int = 0
    """Size of the encoder of pictures that goes with each form; 0: the model sees none."""
    most_bytes: float = math.inf
    """Most memory that weights and the cache of one answer may take."""
    judged_s: float = math.inf
    """When the original has to be judged, on the monotonic clock: windows that are left then judge nothing."""
    base_bytes: int = field(init=False, default=0)
    """Memory that the original takes, where it is limited."""
    base: TextScore = field(init=False)
    """Scores of the original, in the order in which windows are asked."""

    def __post_init__(self) -> None:
        given, count = self.windows, len(self.windows)
        if self.most_bytes < math.inf:
            self.base_bytes = self.needs_bytes(self.original)
        few = np.linspace(0, count - 1, min(_FEW_WINDOWS, count)).round().astype(int).tolist()
        order = [*few, *(i for i in range(count) if i not in set(few))]
        self.windows, self.base = [], TextScore((), ())
        for window in [given[i] for i in order]:
            if len(self.windows) >= LEAST_WINDOWS and monotonic() > self.judged_s:
                break
            self.windows.append(window)
            self.base = self.base.joined(self.score(self.original, [window]))

    def rise(self, entrant: Entrant) -> Rise:
        """Return how much more perplexed it is by the windows that judged it."""
        assert entrant.score is not None
        return rise_between(self._base(entrant.windows), entrant.score)

    def agreement(self, entrant: Entrant) -> float:
        """Return how often it would choose the original's token, in those windows."""
        assert entrant.score is not None
        return agreement_between(self._base(entrant.windows), entrant.score)

    def times_of_original(self, entrants: Sequence[Entrant], *, is_hurried: bool) -> FormTurns:
        """Return its times beside all that were timed; where none was, those of a few answers alone, or of one."""
        known = [entrant.turns[0] for entrant in entrants if entrant.turns]
        if known:
            return reduce(FormTurns.joined, known)
        alone, rounds = {"original": self.original}, 1 if is_hurried else _FEW_ROUNDS
        prompts = dict.fromkeys(alone, self.prompts)
        return measure_in_turns(alone, prompts, self.asked, 0.0, least=rounds, most=rounds)["original"]

    def leader(self, entrants: Sequence[Entrant]) -> Entrant | None:
        """Return the fastest that is in; None: nobody is."""
        timed = [entrant for entrant in entrants if entrant.turns and not entrant.out]
        return max(timed, key=lambda entrant: entrant.ratio("answer").speedup) if timed else None

    def fastest(self, entrants: Sequence[Entrant], part: str) -> Entrant | None:
        """Return who is fastest in a part of an answer; those that may be are timed for a quarter of the seconds."""
        began_s, left = monotonic(), [entrant for entrant in entrants if entrant.turns and not entrant.out]
        while left:
            best = max(left, key=lambda entrant: entrant.ratio(part).speedup)
            left = [entrant for entrant in left if entrant.ratio(part).high >= best.ratio(part).low]
            if len(left) == 1 or monotonic() - began_s >= self.seconds / 4 or _rounds(best) >= _MOST_ROUNDS:
                return best
            for entrant in left:
                self._time(entrant, _FEW_ROUNDS)
        return None

    def enter(self, entrant: Entrant) -> None:
        """Judge and time an entrant for a moment; one on which the engine aborts is out without a score."""
        try:
            with self._open(entrant) as opened:
                self._judge(entrant, opened, min(_FEW_WINDOWS, len(self.windows)))
        except EngineAbortError as abort:
            entrant.out = abort.problem
            return
        if self.rise(entrant).low > self.max_rise:
            self._refuse(entrant)
        else:
            self._time(entrant, _FEW_ROUNDS)

    def hold(self, entrants: Sequence[Entrant], seconds: float) -> None:
        """Let them compete until one is left, or the time is over; those left are judged by the whole text.

        Args:
            entrants: All that were judged.
            seconds: At least so long, where they are more than one.

        Raises:
            OutOfTime: At the end of a time limit; `drop_unjudged` follows.
        """
        began_s, rounds = monotonic(), _FEW_ROUNDS
        while True:
            left = self._knock_out(entrants)
            over_s = monotonic() - began_s
            self._tell(over_s, seconds)
            if len(left) <= 1 or over_s >= seconds or _rounds(left[0]) >= _MOST_ROUNDS:
                break
            for entrant in left:
                self._time(entrant, rounds)
            rounds *= 2
        for entrant in left:
            self._judge_whole(entrant)
        self._tell(seconds, seconds)

    def drop_large(self, entrants: Sequence[Entrant]) -> None:
        """Take out what memory does not hold; two graphs of such forms may be smaller than each of them."""
        for entrant in entrants:
            if not entrant.out and entrant.needs_bytes > self.most_bytes:
                entrant.out = told_large(entrant.needs_bytes)

    def needs_bytes(self, opened: Any) -> int:
        """Return the memory of a language model and of one answer of the lengths asked for, its states too."""
        alone = opened.origin.size_bytes - (opened.images.size_bytes if opened.images else 0)
        alone += opened.prefill.held_bytes if opened.prefill else 0
        return int(alone + self.image_bytes + self.answer_tokens * opened.token_bytes + opened.state_bytes)

    def leader_with_small_cache(self, entrants: Sequence[Entrant]) -> Entrant | None:
        """Return the fastest that memory holds, or would hold if its cache were in 8 bits; None: nobody.

        Of a model that sees nobody: no text that calibrates or judges such a cache holds the rows of a picture.
        """
        if self.image_bytes:
            return None
        saved = 0.0 if self.most_bytes == math.inf else _SAVED * self.answer_tokens * self.original.token_bytes
        return self.leader([entrant for entrant in entrants if entrant.needs_bytes - saved <= self.most_bytes])

    def replaced_by(self, entrant: Entrant, entrants: Sequence[Entrant]) -> str:
        """Return the form in whose place one with a small cache is written, as it is proven no slower; empty: none."""
        other = next((other for other in entrants if other.name == entrant.cache_of), None)
        if other is None or other.turns is None or entrant.turns is None or entrant.out:
            return ""
        return other.name if all(_speed_over(other, entrant, part).low >= _AS_FAST for part in self.parts) else ""

    def drop_unproven(self, entrants: Sequence[Entrant]) -> None:
        """Take out two graphs unless they are proven faster than each form that is left, which take less memory.

        With a budget they stay: they keep two limits of which each form may keep one.
        """
        left = [entrant for entrant in entrants if not entrant.out]
        single = [entrant.name for entrant in left if not entrant.prompts_by]
        for entrant in left:
            if entrant.prompts_by and single and self.parts != PARTS:
                entrant.out = f"not proven faster than {single[0]}, which is one graph"

    def drop_unjudged(self, entrants: Sequence[Entrant]) -> None:
        """Take out what the whole text has not judged in time."""
        for entrant in entrants:
            if not entrant.out and entrant.windows < len(self.windows):
                entrant.out = "the time limit left no time to judge it by the whole text"

    def _knock_out(self, entrants: Sequence[Entrant]) -> list[Entrant]:
        """Return who stays, the fastest first: it is fit, and nobody is proven slower than it."""
        left = sorted(
            (entrant for entrant in entrants if not entrant.out), key=lambda entrant: -entrant.ratio("answer").speedup
        )
        while left and not self._judge_whole(left[0]):
            left = left[1:]
        for entrant in left[1:]:
            if all(_is_slower(entrant, left[0], part) for part in self.parts):
                entrant.out = f"slower than {left[0].name}"
        return [entrant for entrant in left if not entrant.out]

    def _judge_whole(self, entrant: Entrant) -> bool:
        """Judge an entrant by the whole text; return whether it is fit."""
        if entrant.windows < len(self.windows):
            with self._open(entrant) as opened:
                self._judge(entrant, opened, len(self.windows))
        if (
            not entrant.out and not self.rise(entrant).value <= self.max_rise
        ):  # a short text was judged whole on entering
            self._refuse(entrant)
        return not entrant.out

    def _refuse(self, entrant: Entrant) -> None:
        entrant.out = f"its perplexity is {self.rise(entrant).value:+.1%}, {self.max_rise:.1%} are allowed"
        entrant.is_unfit = True

    def _judge(self, entrant: Entrant, opened: Any, count: int) -> None:
        if self.most_bytes < math.inf:
            entrant.needs_bytes = self.needs_bytes(opened)
        more = self.score(opened, self.windows[entrant.windows : count])
        entrant.score = (entrant.score or TextScore((), ())).joined(more)
        entrant.windows = count

    def _time(self, entrant: Entrant, rounds: int) -> None:
        done = _rounds(entrant)
        with self._open(entrant) as opened:
            both = {"original": self.original, entrant.name: opened}
            found = measure_in_turns(
                both, dict.fromkeys(both, self.prompts), self.asked, 0.0, least=rounds, most=rounds, first=done
            )
        more = found["original"], found[entrant.name]
        entrant.turns = (entrant.turns[0].joined(more[0]), entrant.turns[1].joined(more[1])) if entrant.turns else more

    def _open(self, entrant: Entrant) -> LanguageModel | EncoderDecoder:
        return open_writer(entrant.file, self.threads)

    def _base(self, count: int) -> TextScore:
        return self.base.first(count)

    def perplexity(self, entrant: Entrant) -> float:
        """Return its perplexity; where it predicts the ends of windows alone, the original's with the rise on these."""
        assert entrant.score is not None
        if entrant.score.is_of_same(self._base(entrant.windows)):
            return entrant.score.perplexity
        return self._base(entrant.windows).perplexity * (1 + self.rise(entrant).value)

    def _tell(self, over_s: float, seconds: float) -> None:
        whole = Tenths(max(10 * seconds, 1))
        self.listener.progress("time the fastest forms", min(int(10 * over_s), whole), whole)


def told_large(needs_bytes: int) -> str:
    """Return why a form is out that takes more memory than is allowed."""
    return f"it takes {format_bytes(needs_bytes)}, more than --memory allows"


def _rounds(entrant: Entrant) -> int:
    return 0 if entrant.turns is None else len(entrant.turns[0].times_ns)


def _is_slower(entrant: Entrant, leader: Entrant, part: str) -> bool:
    """Whether the leader is proven faster."""
    return _speed_over(entrant, leader, part).verdict is Change.FASTER


def _speed_over(baseline: Entrant, entrant: Entrant, part: str) -> Ratio:
    """Return how many times as fast an entrant is: rounds of the same prompts, each against the original beside it."""
    assert entrant.turns is not None
    assert baseline.turns is not None
    logs = [logs_between(*both, part) for both in (entrant.turns, baseline.turns)]
    count = min(len(log) for log in logs)
    return ratio_of_rounds(logs[0][:count] - logs[1][:count], pairs=count)


def speeds_of(entrant: Entrant) -> dict[str, Ratio]:
    """Return the speed of each part against the original; none where it was not timed."""
    return {part: entrant.ratio(part) for part in PARTS} if entrant.turns else {}
