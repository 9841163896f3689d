"""Forms of a language model against each other: what loses too much or is proven slower goes out, the others go on.

Beside the original only one form is open at a time. Each is judged by some windows of the text and timed for a moment;
then the fastest is judged by all of them, and whoever is proven slower than it goes out. Those left are timed longer,
round after round. What is chosen is proven in fresh processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.executors._child import EngineAbortError
from edgeopt.graph.sound import Sound
from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.generation.perplexity import Rise, TextScore, agreement_between, rise_between, score_text
from edgeopt.measurement.generation.sides.at_once import for_clients
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
from edgeopt.runtime.decoding.memory import bytes_beside_cache
from edgeopt.runtime.decoding.opening import open_writer
from edgeopt.steps._context import Listener
from edgeopt.system.amounts import Tenths
from edgeopt.system.processes.time_limit import LONGER, OutOfTime, require_time, time_left_s
from edgeopt.system.text import format_bytes

LEAST_WINDOWS = 6
"""Windows that judge at least, unless they take so much of a time limit that no form could be judged by them."""
_FEWEST_WINDOWS = 2
"""The same then: one has no spread."""
FEW_WINDOWS = 12
"""Windows that judge a form as it enters; the fastest are judged by all of them."""
_FEW_ROUNDS = 3
_MOST_ROUNDS = 24
_FASTEST = 4
"""Times as fast as the original that no form reads a prompt."""
_AS_FAST = 1 / 1.02
"""Speed over another form from which on one is no slower: what `ratio_of_rounds` counts as equal."""


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
    """Number of windows by which it was judged: the first in the order of judging."""
    turns: tuple[FormTurns, FormTurns] | None = None
    """The original and it, in turns."""
    words: Rise | None = None
    """Rise of the word error rate against the original's, of a model that hears; None: nothing was transcribed."""
    out: str = ""
    """Why it is out; empty: it is not."""
    is_unfit: bool = False
    """Whether it lost too much."""
    prompts_by: str = ""
    """The form that computes prompts, where another computes tokens."""
    tokens_by: str = ""
    engine: str = ""
    """Engine of prompts and tokens; empty: ONNX Runtime, or of prompts that of `prompts_by`."""
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
    """Time for the long rounds."""
    parts: Sequence[str]
    """Parts of an answer in which a form must be proven slower to go out."""
    listener: Listener
    score: Callable[[Any, Sequence[Any]], TextScore] = score_text
    """Judges a model by windows."""
    clients: int = 1
    """Answers that are timed at once."""
    answer_tokens: int = 0
    """Tokens of a prompt and its answer, of the lengths asked for."""
    image_bytes: int = 0
    """Size of the encoder of pictures that goes with each form; 0: the model sees none."""
    most_bytes: float = math.inf
    """Most memory that weights and the cache of one answer may take."""
    judged_s: float = math.inf
    """When the original has to be judged, on the monotonic clock: windows that are left then judge nothing."""
    fewer_s: float = math.inf
    """When fewer windows than `LEAST_WINDOWS` have to do, on the monotonic clock."""
    tried: set[str] = field(init=False, default_factory=set)
    """Names of what was put together of forms, or was to be: no one is made twice."""
    base_bytes: int = field(init=False, default=0)
    """Memory that the original takes, where it is limited."""
    left_windows: int = field(init=False, default=0)
    """Windows for which a time limit left no time."""
    window_s: float = field(init=False, default=0.0)
    """Seconds that judging the original by one window took."""
    base: TextScore = field(init=False)
    """Scores of the original, in the order in which windows are asked."""

    def __post_init__(self) -> None:
        given, count = self.windows, len(self.windows)
        if self.most_bytes < math.inf:
            self.base_bytes = self.needs_bytes(self.original)
        few = np.linspace(0, count - 1, min(FEW_WINDOWS, count)).round().astype(int).tolist()
        order = [*few, *(i for i in range(count) if i not in set(few))]
        self.windows, self.base = [], TextScore((), ())
        self._judge_original([given[i] for i in order])

    def _judge_original(self, windows: Sequence[Any]) -> None:
        """Judge the original by as many windows as there is time for.

        Raises:
            OutOfTime: If two take longer than the time limit; it tells what six take.
        """
        kept, began_s = list[Any](), monotonic()
        for window in windows:
            ahead_s = monotonic() + self.window_s
            if len(kept) >= LEAST_WINDOWS and monotonic() > self.judged_s:
                break
            if len(kept) >= _FEWEST_WINDOWS and ahead_s > self.fewer_s:
                break
            try:
                require_time(self.window_s)
                self.base = self.base.joined(self.score(self.original, [window]))
            except OutOfTime as over:
                if len(kept) < _FEWEST_WINDOWS:
                    raise OutOfTime(LEAST_WINDOWS * max(over.whole_s, self.window_s)) from over
                break
            kept.append(window)
            self.window_s = (monotonic() - began_s) / len(kept)
        self.windows, self.left_windows = kept, len(windows) - len(kept)

    @property
    def token_s(self) -> float:
        """Seconds in which the original reads a token of the text; 0 where no text judges."""
        window = self.windows[0] if self.windows else None
        return self.window_s / len(window) if isinstance(window, Sequence) else 0.0

    def entering_s(self, entrants: Sequence[Entrant]) -> float:
        """Return about how many seconds a further form takes to enter, by the original and those that entered.

        The first one's answers are not known: what judges it counts, and the prompts that the original reads beside it.
        """
        timed = [entrant.turns for entrant in entrants if entrant.turns]
        answers_s = sum(turns.median_ms("answer") for turns in timed[-1]) / 1000 if timed else 0.0
        if not timed and self.token_s:
            tokens = [len(prompt) for prompt in self.prompts if not isinstance(prompt, Sound)]
            answers_s = (1 + 1 / _FASTEST) * self.token_s * max(tokens, default=0)
        return min(FEW_WINDOWS, len(self.windows)) * self.window_s + (1 + _FEW_ROUNDS) * answers_s

    def has_time(self, entrants: Sequence[Entrant]) -> bool:
        """Return whether a further form could be judged before the time limit of this part of the work."""
        return self.entering_s(entrants) <= time_left_s()

    def rise(self, entrant: Entrant) -> Rise:
        """Return how much more perplexed it is by the windows that judged it."""
        assert entrant.score is not None
        return rise_between(self._base(entrant.windows), entrant.score)

    def word(self, entrant: Entrant) -> Word:
        """Return what is proven of its accuracy: of its perplexity, and of its words where sounds have transcripts."""
        words = {rise.word(self.max_rise) for rise in (self.rise(entrant), entrant.words) if rise}
        if entrant.words is None and all(getattr(window, "transcript", "") for window in self.windows):
            words.add(Word.NOT_DECIDED)  # they were not heard
        return next(word for word in (Word.LOST, Word.NOT_DECIDED, Word.KEPT) if word in words)

    def agreement(self, entrant: Entrant) -> float:
        """Return how often it would choose the original's token, in those windows."""
        assert entrant.score is not None
        return agreement_between(self._base(entrant.windows), entrant.score)

    def times_of_original(self, entrants: Sequence[Entrant], *, is_hurried: bool) -> FormTurns:
        """Return its times beside all that were timed; where none was, those of a few answers alone, or of one."""
        known = [entrant.turns[0] for entrant in entrants if entrant.turns]
        if known:
            return reduce(FormTurns.joined, known)
        return self._timed({"original": self.original}, 1 if is_hurried else _FEW_ROUNDS, 0)["original"]

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

    def admit(self, entrant: Entrant, entrants: list[Entrant]) -> list[Note]:
        """Judge and time a further entrant, and put it in; return why it is left out where the engine aborted on it.

        Raises:
            EdgeoptError: If the engine refuses it.
            OutOfTime: At the end of a time limit.
        """
        self.enter(entrant)
        if entrant.score is None:
            return [Note(NoteKind.WARNING, f"{entrant.name} is left out: {entrant.out}", "the other forms go on")]
        entrants.append(entrant)
        return []

    def enter(self, entrant: Entrant) -> None:
        """Judge and time an entrant for a moment; one on which the engine aborts is out without a score."""
        try:
            with self._open(entrant) as opened:
                self._judge(entrant, opened, min(FEW_WINDOWS, len(self.windows)))
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
        """Return the memory of a language model and of answers of the lengths asked for, their states too."""
        alone = bytes_beside_cache(opened, self.answer_tokens) - (opened.images.size_bytes if opened.images else 0)
        each = self.answer_tokens * opened.token_bytes + opened.state_bytes
        if self.clients > 1:  # slots keep the states that a run reads beside those that it writes, and a page each
            each += opened.state_bytes + (opened.elsewhere.page_bytes if opened.elsewhere else 0)
        return int(alone + self.image_bytes + self.clients * each)

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
            found = self._timed({"original": self.original, entrant.name: opened}, rounds, done)
        more = found["original"], found[entrant.name]
        entrant.turns = (entrant.turns[0].joined(more[0]), entrant.turns[1].joined(more[1])) if entrant.turns else more

    def _timed(self, models: Mapping[str, Any], rounds: int, first: int) -> dict[str, FormTurns]:
        """Return the times of models over some rounds, the first of which has this number."""
        with for_clients(models, self.clients) as asked:
            prompts = dict.fromkeys(asked, self.prompts)
            return measure_in_turns(asked, prompts, self.asked, 0.0, least=rounds, most=rounds, first=first)

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


def no_time(name: str) -> Note:
    """Return that a form was not made, since a time limit left none to judge it."""
    return Note(NoteKind.INFO, f"{name} is not made: no time was left to judge it", LONGER)


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
