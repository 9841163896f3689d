"""Which token comes next: the likeliest, or one drawn from the likeliest.

Source: Keskar et al., 2019, arXiv:1909.05858 (repetition penalty); Holtzman et al., 2020, arXiv:1904.09751 (top-p);
Nguyen et al., 2024, arXiv:2407.01082 (min-p); OpenAI API reference (frequency and presence penalty, logit bias).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from numbers import Integral
from typing import Any, Final, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.system.declared.options import Option, OptionGroup, Syntax, option, option_like, options_of

DRAWN: Final = OptionGroup("draw", "How tokens are drawn", "at random or not")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. With a temperature of 0 the likeliest token is always taken."""

    temperature: float = option(
        0.0,
        "Draw tokens at random; higher numbers make unlikely tokens more frequent.",
        group=DRAWN,
        syntax=Syntax.NUMBER,
        least=0,
        most=100,
        shown="0, always the likeliest",
    )
    """Logits are divided by this."""
    top_k: int = option(
        0,
        "Draw from this many of the likeliest tokens.",
        group=DRAWN,
        syntax=Syntax.WHOLE,
        least=0,
        most=1 << 20,
        shown="all",
    )
    """Draw from this many of the likeliest tokens; 0: from all."""
    top_p: float = option(
        1.0,
        "Draw from the likeliest tokens whose probabilities together reach this share.",
        group=DRAWN,
        syntax=Syntax.SHARE,
        least=0,
        most=1,
        shown="100%",
    )
    """Draw from the likeliest tokens that together reach this probability; the likeliest is always among them."""
    repetition_penalty: float = option(
        1.0,
        "Divide the logits of tokens that stand in the text already by this.",
        group=DRAWN,
        syntax=Syntax.NUMBER,
        least=0.01,
        most=100,
        shown="1, none",
    )
    """Divides the logits of tokens that stand in the text already, or multiplies negative ones."""
    seed: int = option(0, "Seed of the random numbers.", group=DRAWN, syntax=Syntax.WHOLE, least=0, shown="0")
    """Seed of the random numbers; the same seed draws the same tokens."""
    min_p: float = option(
        0.0,
        "Draw from tokens that have at least this share of the likeliest token's probability.",
        group=DRAWN,
        syntax=Syntax.SHARE,
        least=0,
        most=1,
        shown="0%",
    )
    """Draw from tokens that have at least this share of the likeliest token's probability; 0: from all."""
    frequency_penalty: float = option(
        0.0,
        "Subtract this from a token's logit for each time that it stands in the answer.",
        group=DRAWN,
        syntax=Syntax.NUMBER,
        least=-2,
        most=2,
        shown="0, none",
    )
    """Subtracted from the logit of a token for each time that it stands in the answer."""
    presence_penalty: float = option(
        0.0,
        "Subtract this from the logit of each token that stands in the answer.",
        group=DRAWN,
        syntax=Syntax.NUMBER,
        least=-2,
        most=2,
        shown="0, none",
    )
    """Subtracted from the logit of each token that stands in the answer."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of tokens, by their numbers."""

    def __post_init__(self) -> None:
        for name, limits in sampling_options().items():
            value = getattr(self, name)
            if limits.syntax is Syntax.WHOLE and (not isinstance(value, Integral) or isinstance(value, bool)):
                raise ValueError(f"{name} is {value!r}, and must be a whole number")
            if limits.most is not None and not limits.least <= value <= limits.most:
                raise ValueError(f"{name} is {value}, not {limits.least} to {limits.most}")
            if not value >= limits.least:
                raise ValueError(f"{name} is {value}, and must be {limits.least} or more")
        for token, bias in self.logit_bias.items():
            is_token = isinstance(token, Integral) and not isinstance(token, bool) and token >= 0
            if not is_token or not -100 <= bias <= 100:
                raise ValueError(f"logit_bias has {token!r}: {bias}, and takes numbers of tokens with -100 to 100")

    @property
    def looks_at_answer(self) -> bool:
        """Whether the answer so far changes how the next token is drawn."""
        return self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


@cache
def sampling_options() -> Mapping[str, Option]:
    """Return the numbers of `Sampling` with their limits, by name: the fields of a request, the options of `run`."""
    return dict(options_of(Sampling))


NEEDS_TEMPERATURE: Final = ("top_k", "top_p", "min_p", "seed")
"""Numbers that say nothing where the likeliest token comes; `run` refuses them there."""


def _open(name: str, **changed: Any) -> Any:
    """Return a field like that of `Sampling`, which may be left out: None."""
    made = replace(sampling_options()[name], **changed)
    return option_like(made, None)


@dataclass(frozen=True)
class SamplingFlags:
    """The numbers of `Sampling` as options of a command; None: not said."""

    temperature: float | None = _open("temperature")
    top_k: int | None = _open("top_k", least=1)
    top_p: float | None = _open("top_p")
    min_p: float | None = _open("min_p")
    frequency_penalty: float | None = _open("frequency_penalty")
    presence_penalty: float | None = _open("presence_penalty")
    seed: int | None = _open("seed")
    repetition_penalty: float | None = _open("repetition_penalty")


class SamplingWishes(TypedDict, total=False):
    """The numbers of `Sampling` as keyword options, which says what each means, and its default."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    repetition_penalty: float


_FIRST = 1024
"""Logits that are sorted at first; all of them where the drawn token is not among these."""


class AllowedTokens(Protocol):
    """Says which tokens may follow a text."""

    def accepts(self, token: int) -> bool:
        """Return whether a token may follow."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """Return (vocabulary,) which tokens may follow, one or more."""
        ...


class Chooser:
    """Chooses tokens of one text. The same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        """Begin a text."""
        self._sampling = sampling

    @cached_property
    def _chance(self) -> np.random.Generator:
        """The generator of drawn tokens; NumPy imports it when it is first asked for, and the likeliest needs none."""
        return np.random.default_rng(self._sampling.seed)

    def choose(
        self,
        logits: NDArray[np.float32],
        seen: Collection[int],
        answer: Sequence[int] = (),
        limits: AllowedTokens | None = None,
    ) -> int:
        """Return the next token.

        Args:
            logits: (vocabulary,); what is NaN is never chosen, unless nothing else may follow.
            seen: The tokens before it.
            answer: Those of them that the answer has.
            limits: The tokens that may follow; None: all.

        Raises:
            EdgeoptError: If no token may follow, or no logit is a number.
            ValueError: If a bias is of a token that the model has not.
        """
        sampling = self._sampling
        if sampling.logit_bias or (sampling.looks_at_answer and answer):
            logits = self._moved(logits, answer)
        if sampling.repetition_penalty != 1.0 and seen:
            logits = logits.copy()
            index = np.fromiter(set(seen), np.int64)
            known = logits[index]
            logits[index] = np.where(
                known > 0, known / sampling.repetition_penalty, known * sampling.repetition_penalty
            )
        if sampling.temperature == 0.0:
            best = int(logits.argmax())  # the first NaN, where there is one
            is_number = float(logits[best]) > -math.inf
            if is_number and (limits is None or limits.accepts(best)):  # most tokens that a model wants may follow
                return best
        places = None if limits is None else np.flatnonzero(limits.allowed())
        if places is not None and len(places) == 1:  # as forced tokens, which take no random number either
            return int(places[0])
        if not (logits > -np.inf).any():
            raise EdgeoptError(
                "the model computes no number: all of its logits are NaN or -inf",
                remedy="compute in float32, or make the model anew",
            )
        known = np.nan_to_num(logits if places is None else logits[places], nan=-np.inf, neginf=-np.inf)
        if not (known > -np.inf).any():  # a form allows nothing but such tokens: they are equal
            known = np.zeros_like(known)
        place = int(known.argmax()) if sampling.temperature == 0.0 else self._drawn(known)
        return place if places is None else int(places[place])

    def _drawn(self, known: NDArray[np.float32]) -> int:
        """Return the place of a logit that is drawn."""
        sampling, best, most = self._sampling, float(known.max()), len(known)

        def weights_of(logits: NDArray[np.float32]) -> NDArray[np.float64]:
            scaled = logits.astype(np.float64) - best  # first: a temperature near nothing overflows no other than these
            with np.errstate(over="ignore"):
                return np.exp(scaled / sampling.temperature)  # the likeliest has 1

        is_cut = 0 < sampling.top_k < most
        weights = np.empty(0) if is_cut else weights_of(known)
        total = float(weights.sum())
        chance = self._chance.random()
        for count in (sampling.top_k,) if is_cut else (min(_FIRST, most), most):
            ordered = largest(known, count)
            shares = weights_of(ordered)
            shares /= shares.sum() if is_cut else total
            sums = np.cumsum(shares)
            kept = int(np.searchsorted(sums, sampling.top_p)) + 1
            kept = min(kept, int(np.count_nonzero(shares >= sampling.min_p * shares[0])))
            # what may not follow is never drawn, however sums are rounded
            kept = min(kept, int(np.count_nonzero(shares)))
            is_whole = is_cut or kept < count or count == most
            # of those that may be drawn all or, without an end in sight, as many as `min_p` leaves
            mass = sums[kept - 1] if is_whole else weights[weights >= sampling.min_p].sum() / total
            if is_whole or (sampling.top_p >= 1.0 and chance * mass < sums[-1]):
                break
        drawn = min(int(np.searchsorted(sums[:kept], chance * mass, side="right")), kept - 1)
        equals = np.flatnonzero(known == ordered[drawn])  # of equal numbers the first come first
        return int(equals[drawn - int(np.count_nonzero(ordered > ordered[drawn]))])

    def _moved(self, logits: NDArray[np.float32], answer: Sequence[int]) -> NDArray[np.float32]:
        """Return logits with biases and penalties."""
        sampling, moved = self._sampling, logits.copy()
        if answer and sampling.looks_at_answer:
            tokens, counts = np.unique(np.asarray(answer, np.int64), return_counts=True)
            moved[tokens] -= sampling.frequency_penalty * counts.astype(np.float32) + sampling.presence_penalty
        for token, bias in sampling.logit_bias.items():
            if token >= len(moved):
                raise ValueError(f"logit_bias has the token {token}, the model has 0 to {len(moved) - 1}")
            moved[token] += bias
        return moved


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Return the `count` largest numbers, largest first: sorting numbers is many times as fast as sorting places."""
    least = len(values) - count
    return np.sort(np.partition(values, least)[least:] if least > 0 else values)[::-1]


@dataclass(frozen=True, slots=True)
class TokenOdds:
    """The probability of a token and of others in its place, as logarithms."""

    logprob: float | None
    likely: tuple[tuple[int, float], ...]


UNKNOWN_ODDS = TokenOdds(None, ())


def odds_of(logits: NDArray[np.float32], token: int, count: int) -> TokenOdds:
    """Return the logarithms of the probabilities of a token and of the `count` likeliest; none of a row of NaN."""
    known = np.nan_to_num(logits.astype(np.float64), nan=-np.inf, neginf=-np.inf)
    if not (known > -np.inf).any():
        return UNKNOWN_ODDS
    known -= known.max()
    known -= np.log(np.exp(known).sum())
    first = np.argpartition(-known, min(count, len(known) - 1))[:count] if count else np.zeros(0, np.int64)
    ordered = first[np.argsort(-known[first], kind="stable")]
    likely = tuple((int(each), float(known[each])) for each in ordered if np.isfinite(known[each]))
    return TokenOdds(float(known[token]), likely)
