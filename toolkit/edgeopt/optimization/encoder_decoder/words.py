"""How many words of transcripts a model that hears gets wrong: a form that gets more of them wrong is refused."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.generation.held_out import HeldOut
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


def refuse_by_words(contest: FormContest, entrants: Sequence[Entrant], shares: TimeShares) -> tuple[Note, ...]:
    """Take out what gets more words wrong than is allowed; nothing is done where a sound has no transcript.

    Args:
        contest: Its windows are sounds, perhaps with transcripts; `max_rise` is what the error rate may rise by.
        entrants: All that were judged.
        shares: What is left of the time.

    Returns:
        The rates of all that were heard.
    """
    held: Sequence[HeldOut] = contest.windows
    left = [entrant for entrant in entrants if not entrant.out]
    if shares.was_cut or not left or not all(held_out.transcript for held_out in held):
        return ()
    parts, heard = list[str](), set[str]()
    with shares.part(TimeShare.WORDS):
        base = word_error_rate(contest.original, held)
        parts.append(f"original {base:.1%}")
        for i, other in enumerate(left):
            contest.listener.progress("hear the words", i, len(left))
            with open_writer(other.file, contest.threads) as opened:
                assert isinstance(opened, EncoderDecoder)
                rate = word_error_rate(opened, held)
            parts.append(f"{other.name} {rate:.1%}")
            heard.add(other.name)
            if rate > base + contest.max_rise:
                other.out, other.is_unfit = f"its word error rate is {rate:.1%}, the original's {base:.1%}", True
        contest.listener.progress("hear the words", len(left), len(left))
    for other in left:
        other.out = other.out if other.name in heard else _LATE
    return (Note(NoteKind.INFO, f"word error rate of {plural(len(held), 'sound')}: {', '.join(parts)}"),)


def word_error_rate(model: EncoderDecoder, held: Sequence[HeldOut]) -> float:
    """Return the words that are wrong over those of the transcripts, of all sounds together.

    Raises:
        OutOfTime: At the end of a time limit.
    """
    wrong = words = 0
    for held_out in held:
        require_time()
        most = _MORE * len(model.tokenizer.encode(held_out.transcript)) + _SPARE
        asked = AnswerOptions(most_tokens=min(most, model.context - model.begins_with))
        with model.generate(held_out.source, asked) as answer:
            errors, count = word_errors(answer.text(), held_out.transcript)
        wrong, words = wrong + errors, words + count
    return wrong / max(words, 1)
