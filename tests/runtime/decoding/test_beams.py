"""A search with several beams finds what trying every answer finds, and keeps to what it is told.

That its tokens are those of transformers, `test_transcription.py` shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from exported_pairs import unpacked

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.texts.beams import BeamOptions, BeamStop
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.searching.beams import BeamSearch
from edgeopt.runtime.decoding.speech.rules import TokenRules, log_softmax

WORDS, END, MOST = 5, 0, 4


class Scripted:
    """A decoder whose logits hang on all tokens before."""

    def __init__(self, seed: int, text: tuple[int, ...] = ()) -> None:
        self.seed, self.text = seed, text

    def fork(self) -> Scripted:
        return Scripted(self.seed, self.text)

    def run(self, tokens: Sequence[int], last: int = 0) -> np.ndarray:
        self.text = (*self.text, *(int(token) for token in tokens))
        return self.logits(self.text)[None]

    def logits(self, text: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([self.seed, *text]).normal(0, 2, WORDS).astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_enough_beams_find_the_best_of_all_answers(seed, penalty):
    decoder = Scripted(seed)
    options = BeamOptions(64, penalty, BeamStop.NEVER)
    search = BeamSearch(options, [END], MOST, lambda logits, _: log_softmax(logits), decoder)
    search.step(decoder.logits(())[None])
    while not search.is_over:
        search.step(search.run())
    best = max(every_answer(decoder), key=lambda answer: score(decoder, answer) / len(answer) ** penalty)
    assert search.best.tokens == best
    assert search.best.score == pytest.approx(score(decoder, best) / len(best) ** penalty, rel=1e-4)


def every_answer(decoder: Scripted) -> list[tuple[int, ...]]:
    answers = set[tuple[int, ...]]()
    for tokens in product(range(WORDS), repeat=MOST):
        answers.add(tokens[: tokens.index(END) + 1] if END in tokens else tokens)
    return sorted(answers)


def score(decoder: Scripted, answer: tuple[int, ...]) -> float:
    return sum(float(log_softmax(decoder.logits(answer[:i]))[token]) for i, token in enumerate(answer))


def test_one_beam_more_changes_what_is_written_and_nothing_else_is_searched_with(tmp_path):
    text = "import os and the brown fox"
    with open_encoder_decoder(unpacked("marian", tmp_path / "marian"), 1) as model:
        searched = model.generate(text, beams=0, most_tokens=12)
        tokens = [piece.token for piece in searched]
        assert tokens == [piece.token for piece in model.generate(text, beams=4, most_tokens=12)]
        assert tokens != [piece.token for piece in model.generate(text, most_tokens=12)]
        assert searched.account.runs == 11
        assert searched.account.computed_tokens == 1 + 4 * 11
        assert searched.account.came_at_ns == searched.account.token_at_ns[:1]  # a server counts no TPOT of them
        with model.generate(text, beams=4, most_tokens=12) as answer:
            answer.cancel()
            assert list(answer) == []
        assert answer.account.reason == "cancelled"
        for wish in ({"temperature": 0.5}, {"logprobs": 1}):
            with pytest.raises(EdgeoptError, match=f"takes no {next(iter(wish))}"):
                model.generate(text, beams=4, **wish)
    with pytest.raises(ValueError, match="beams is 65"):
        AnswerOptions(beams=65)


def test_rules_keep_times_in_pairs_and_in_order():
    first, end = 10, 5
    rules = TokenRules([1], [2], first_time=first, end=end, last_start=3)
    flat = np.zeros(20, np.float32)

    def kept(*answer: int) -> list[int]:
        return np.flatnonzero(rules.allowed(flat, answer) > -np.inf).tolist()

    assert kept() == [10, 11, 12, 13]  # a time first, and an early one
    loud = flat.copy()
    loud[3] = 9.0
    assert np.flatnonzero(rules.allowed(loud, (11,)) > -np.inf).tolist() == [0, 2, 3, 4, 5, 6, 7, 8]  # text follows
    assert kept(11, 3) == [12, 13, 14, 15, 16, 17, 18, 19]  # together likelier than any text, and later
    assert 3 in np.flatnonzero(rules.allowed(loud, (11, 3)) > -np.inf)
    closed = np.flatnonzero(rules.allowed(loud, (11, 3, 14)) > -np.inf).tolist()
    assert closed == [14, 15, 16, 17, 18, 19]  # the pair, as no text may come; the end may, where it is likelier
    quiet = flat.copy()
    quiet[end] = 9.0
    assert end in np.flatnonzero(rules.allowed(quiet, (11, 3, 14)) > -np.inf)
