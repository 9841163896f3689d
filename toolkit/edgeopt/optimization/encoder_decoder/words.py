"""Wrong words of transcripts: a form of a model that hears is refused where more of them are wrong than is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.accuracy.bootstrap import drop_of_means
from edgeopt.measurement.accuracy.judgement import is_within
from edgeopt.measurement.accuracy.paired_shares import most_unseen
from edgeopt.measurement.generation.held_out import HeldOut
from edgeopt.measurement.generation.perplexity import Rise
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.time_shares import TimeShare, TimeShares
from edgeopt.recipes.scoring.spelling import word_errors
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_writer
from edgeopt.system.processes.time_limit import require_time
from edgeopt.system.text import plural

_MORE, _SPARE = 2, 16
"""An answer ends after so many times the transcript's tokens and a few: one that goes on is wrong all the same."""
_LATE = "the time limit left no time to hear its answers"
_TAIL = 0.025
"""Share of cases in which each bound may be wrong."""


@dataclass(frozen=True, slots=True)
class WrongWords:
    """Wrong words in the answers to sounds."""

    errors: NDArray[np.float64]
    """(sounds,) words that are inserted, missing or replaced."""
    words: int
    """Words of all transcripts."""

    @property
    def rate(self) -> float:
        """Wrong words over those of the transcripts, of all sounds together."""
        return float(self.errors.sum()) / max(self.words, 1)


def wrong_words(model: EncoderDecoder, held: Sequence[HeldOut]) -> WrongWords:
    """Return the wrong words in a model's answers to sounds with transcripts.

    Raises:
        OutOfTime: At the end of a time limit.
    """
    errors, words = list[float](), 0
    for held_out in held:
        require_time()
        most = _MORE * len(model.tokenizer.encode(held_out.transcript)) + _SPARE
        asked = AnswerOptions(most_tokens=min(most, model.context - model.begins_with))
        with model.generate(held_out.source, asked) as answer:
            wrong, count = word_errors(answer.text(), held_out.transcript)
        errors.append(wrong)
        words += count
    return WrongWords(np.array(errors, np.float64), words)


def rise_of_words(before: WrongWords, after: WrongWords) -> Rise:
    """Return what the word error rate rose by, with its 95 % interval over sounds, paired.

    A rare sound whose words are all lost is not seen among few, however alike the answers to those are.

    Args:
        before: Of the original.
        after: Of a form, for the same sounds.
    """
    count, words = len(before.errors), max(before.words, 1)
    value = float((after.errors - before.errors).sum()) / words
    if count < 2:
        return Rise(value, -1.0, 1.0)  # one sound says nothing of others
    rates = (-each.errors * count / words for each in (before, after))
    drop = drop_of_means(*rates)
    unseen = most_unseen(count, _TAIL)
    return Rise(value, min(drop.low, value - unseen), max(drop.high, value + unseen))


def refuse_by_words(contest: FormContest, entrants: Sequence[Entrant], shares: TimeShares) -> tuple[Note, ...]:
    """Take out what gets more words wrong than is allowed; nothing is done where a sound has no transcript.

    Args:
        contest: Its windows are sounds, perhaps with transcripts; `max_rise` is what the error rate may rise by.
        entrants: All that were judged; those that were heard get the rise of their rate.
        shares: What is left of the time.

    Returns:
        The rates of all that were heard.
    """
    held: Sequence[HeldOut] = contest.windows
    left = [entrant for entrant in entrants if not entrant.out]
    if shares.was_cut or not left or not all(held_out.transcript for held_out in held):
        return ()
    parts = list[str]()
    with shares.part(TimeShare.WORDS):
        base = wrong_words(contest.original, held)
        parts.append(f"original {base.rate:.1%}")
        for i, other in enumerate(left):
            contest.listener.progress("hear the words", i, len(left))
            with open_writer(other.file, contest.threads) as opened:
                assert isinstance(opened, EncoderDecoder)
                heard = wrong_words(opened, held)
            other.words = rise_of_words(base, heard)
            parts.append(f"{other.name} {heard.rate:.1%}")
            if not is_within(other.words.value, contest.max_rise):
                more = f"its word error rate is {heard.rate:.1%}, the original's {base.rate:.1%}"
                other.out, other.is_unfit = more, True
        contest.listener.progress("hear the words", len(left), len(left))
    for other in left:
        other.out = other.out if other.words else _LATE
    return (Note(NoteKind.INFO, f"word error rate of {plural(len(held), 'sound')}: {', '.join(parts)}"),)
