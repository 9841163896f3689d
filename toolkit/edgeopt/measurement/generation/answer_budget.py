"""Limits of an answer, of its first token and of each token after it, as they are typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeopt.errors import EdgeoptError
from edgeopt.system.text import format_budget, parse_duration_s, short

PARTS = {"ttft": "TTFT", "tpot": "TPOT"}
"""Part of an answer that a budget may limit, as it is typed -> as reports call it."""
FRAME = "frame"
"""Time of a frame, which a server may answer in place of texts."""


@dataclass(frozen=True, slots=True)
class AnswerBudget:
    """Limits of an answer, one or both."""

    limits_ms: Mapping[str, float]
    """Limits in milliseconds by `TTFT` and `TPOT`; of a server of frames by `FRAME`."""

    def __str__(self) -> str:
        return ", ".join(f"{part} {format_budget(limit)} ms" for part, limit in self.limits_ms.items())

    def missed_by(self, times_ms: Mapping[str, float]) -> tuple[str, ...]:
        """Return the parts whose time is above their limit."""
        return tuple(part for part, limit in self.limits_ms.items() if times_ms[part] > limit)


def parse_answer_budget(text: str) -> AnswerBudget:
    """Return the limits of a text such as `ttft:200ms,tpot:20ms`; a bare number is none: TTFT is told in seconds too.

    Raises:
        EdgeoptError: If it is none.
    """
    if ":" not in text:
        parse_duration_s(text, unit="ms")
        raise EdgeoptError(
            "a budget of one time is for frames, and a language model answers token by token",
            remedy="limit the first token and each next one: --budget ttft:200ms,tpot:20ms",
        )
    limits = dict[str, float]()
    for word in text.split(","):
        name, _, duration = word.partition(":")
        part = PARTS.get(name.strip().lower(), "")
        if not part or part in limits:
            problem = f"{short(word)} limits {part} twice" if part else f"{short(word)} limits neither ttft nor tpot"
            raise EdgeoptError(problem, remedy="write ttft:200ms,tpot:20ms, or one of them")
        if duration.strip().replace(".", "", 1).isdecimal():
            raise EdgeoptError(f"{short(word)} has no unit", remedy=f"write {word.strip()}ms, or s")
        limits[part] = 1000 * parse_duration_s(duration)
    return AnswerBudget(limits)


def parse_server_budget(text: str) -> AnswerBudget:
    """Return the limits of what a server answers: `33ms` of a frame, or those of an answer of a language model.

    Raises:
        EdgeoptError: If it is none.
    """
    if ":" in text:
        return parse_answer_budget(text)
    return AnswerBudget({FRAME: 1000 * parse_duration_s(text, unit="ms")})
