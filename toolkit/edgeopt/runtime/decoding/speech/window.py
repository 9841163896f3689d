"""The answer to one window of sound: greedy, drawn or searched for, and anew at other temperatures while it is doubted.

Source: Radford et al., 2022, arXiv:2212.04356, section 4.5; `generate_with_fallback` of Hugging Face transformers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.executors.onnxruntime.cross_decoder import CrossDecoder
from edgeopt.recipes.texts.beams import BeamOptions
from edgeopt.runtime.decoding.sampling import Chooser, Sampling
from edgeopt.runtime.decoding.searching.beams import BeamSearch
from edgeopt.runtime.decoding.speech.rules import TokenRules, log_softmax


@dataclass(frozen=True, slots=True)
class Doubts:
    """When an answer is doubted."""

    compression: float | None = None
    logprob: float | None = None
    no_speech: float | None = None

    @property
    def are_any(self) -> bool:
        """Whether an answer can be doubted at all."""
        return self.compression is not None or self.logprob is not None


@dataclass(frozen=True, slots=True)
class WindowAnswer:
    """The answer to a window."""

    tokens: tuple[int, ...]
    """Without the end."""
    avg_logprob: float
    no_speech_prob: float | None
    temperature: float
    is_silent: bool = False
    """Whether nobody speaks, so that its tokens are left out."""
    is_cut: bool = False
    """Whether it is longer than it may be."""
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class WindowQuestion:
    """The request to answer a window."""

    begin: tuple[int, ...]
    """Tokens that its answer begins with."""
    start: int
    """Place of the first one among them behind which silence is told."""
    most: int
    """Tokens that the answer may have."""
    end: tuple[int, ...]
    vocabulary: int
    no_speech_token: int | None
    temperatures: tuple[float, ...]
    doubts: Doubts
    beams: BeamOptions
    seed: int


class WindowListener:
    """Hears of each token as it is there, and may end the answer."""

    def __init__(self, is_cancelled: Callable[[], bool], hear: Callable[[int, int], None]) -> None:
        """Take both.

        Args:
            is_cancelled: Asked before each token.
            hear: Hears how many tokens came, and how many went through the model for them.
        """
        self.is_cancelled, self.hear = is_cancelled, hear


def answer_window(
    question: WindowQuestion, rules: TokenRules, decode: Callable[[], CrossDecoder], listener: WindowListener
) -> WindowAnswer:
    """Return the answer to a window.

    Args:
        question: What is asked.
        rules: Of its tokens.
        decode: Gives a decoder that holds nothing.
        listener: Hears of its tokens.
    """
    first = decode()
    logits = first.run(question.begin)
    listener.hear(0, len(question.begin))
    no_speech = _no_speech(question, logits)
    answer = WindowAnswer((), 0.0, no_speech, 0.0)
    for i, temperature in enumerate(question.temperatures):
        decoder, last = first.fork(), logits[-1:]
        if temperature > 0 or question.beams.count == 1:
            tokens, logprobs = _written(question, rules, decoder, last[0], temperature, listener)
        else:
            tokens, logprobs = _searched(question, rules, decoder, last, listener)
        is_cancelled = listener.is_cancelled()
        average = sum(logprobs) / max(len(logprobs), 1)
        is_over = bool(tokens) and tokens[-1] in question.end
        answer = WindowAnswer(
            tokens[:-1] if is_over else tokens,
            average,
            no_speech,
            temperature,
            is_silent=_is_silent(question.doubts, average, no_speech),
            is_cut=not is_over and not is_cancelled,
            is_cancelled=is_cancelled,
        )
        is_last = i == len(question.temperatures) - 1
        if is_cancelled or is_last or answer.is_silent or not _is_doubted(question, tokens, average):
            break
    return answer


def _written(
    question: WindowQuestion,
    rules: TokenRules,
    decoder: CrossDecoder,
    logits: NDArray[np.float32],
    temperature: float,
    listener: WindowListener,
) -> tuple[tuple[int, ...], Sequence[float]]:
    """Return the tokens of an answer whose likeliest token comes, or one that is drawn."""
    chooser = Chooser(Sampling(temperature=temperature, seed=question.seed))
    tokens, logprobs = list[int](), list[float]()
    while len(tokens) < question.most and not listener.is_cancelled():
        allowed = rules.allowed(logits, tokens)
        token = chooser.choose(allowed, ())
        tokens.append(token)
        logprobs.append(float(log_softmax(allowed)[token]))
        listener.hear(1, 1)
        if token in question.end or len(tokens) == question.most:
            break
        logits = decoder.run([token])[-1]
    return tuple(tokens), logprobs


def _searched(
    question: WindowQuestion,
    rules: TokenRules,
    decoder: CrossDecoder,
    logits: NDArray[np.float32],
    listener: WindowListener,
) -> tuple[tuple[int, ...], Sequence[float]]:
    """Return the tokens of the likeliest answer that several beams find."""

    def scores(row: NDArray[np.float32], before: Sequence[int]) -> NDArray[np.float32]:
        return rules.allowed(log_softmax(row), before)

    search = BeamSearch(question.beams, question.end, question.most, scores, decoder)
    search.step(logits)
    while not search.is_over and not listener.is_cancelled():
        listener.hear(1, question.beams.count)
        search.step(search.run())
    listener.hear(1, 0)
    return search.best.tokens, search.best.logprobs


def _no_speech(question: WindowQuestion, logits: NDArray[np.float32]) -> float | None:
    """Return the probability of silence; None where the model has no token of it, or gives its last logits alone."""
    place = question.start - len(question.begin)
    if question.no_speech_token is None or len(logits) < -place:
        return None
    return float(np.exp(log_softmax(logits[place])[question.no_speech_token]))


def _is_doubted(question: WindowQuestion, tokens: Sequence[int], average: float) -> bool:
    doubts = question.doubts
    if doubts.logprob is not None and average < doubts.logprob:
        return True
    return doubts.compression is not None and compression_of(tokens, question.vocabulary) > doubts.compression


def _is_silent(doubts: Doubts, average: float, no_speech: float | None) -> bool:
    if doubts.no_speech is None or doubts.logprob is None or no_speech is None:
        return False
    return average < doubts.logprob and no_speech > doubts.no_speech


def compression_of(tokens: Sequence[int], vocabulary: int) -> float:
    """Return how much smaller tokens become by deflate: repeated ones much."""
    length = int(math.log2(max(vocabulary, 2)) / 8) + 1
    data = b"".join(token.to_bytes(length, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))
