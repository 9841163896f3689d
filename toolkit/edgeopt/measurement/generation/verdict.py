"""The verdict of answers about a budget, as the last word of a document."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.measurement.generation.budget import AnswerVerdict
from edgeopt.report.document import CommandOutcome, Value, VerdictLines

Judged = Sequence[tuple[str, AnswerVerdict]]


def verdict_of(judged: Judged, told: Judged, exit_code: int) -> VerdictLines | None:
    """Return a verdict; None where nothing was judged.

    Args:
        judged: What was asked, for a reader, and what its answers prove.
        told: Those of them that the sentence speaks of.
        exit_code: Of the command.
    """
    if not judged:
        return None
    sentence = "; ".join(f"{name}: {answer_verdict.sentence}" for name, answer_verdict in told)
    facts = tuple(Value(name, str(limit)) for name, answer_verdict in judged for limit in answer_verdict.limits)
    return VerdictLines(CommandOutcome.by_exit(exit_code), sentence, facts)
