"""Guards of `check` for models that write tokens: perplexity, cache, budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.check.result import CheckResult, CheckVerdict
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.budget import BUDGET_SECONDS, prove_budget
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.perplexity import TextScore, rise_between
from edgeopt.measurement.generation.sides.side_by_side import JudgingText, WriterSide, score_sides
from edgeopt.measurement.generation.sides.turns import Prompt
from edgeopt.measurement.sides import Baselined, Tell
from edgeopt.measurement.statistics.budget import Verdict
from edgeopt.recipes.default_limits import MAX_RISE, Check
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.system.amounts import Tenths


@dataclass(frozen=True, slots=True)
class JudgedText:
    """The perplexity as a baseline holds it."""

    text_sha256: str
    """SHA-256 of the windows that judged it."""
    score: TextScore


@dataclass(frozen=True, slots=True)
class PerplexityGuard:
    """Guards the perplexity on a text."""

    sides: tuple[WriterSide, ...]
    text: JudgingText

    def hold(self, tell: Tell | None) -> dict[str, Any] | None:
        """Return the losses by window and the hash of the text; None: nothing judges."""
        scores = score_sides(self.sides, self.text, tell)
        if not scores:
            return None
        score = scores[self.sides[-1].label]
        return {"text_sha256": self._judging(score), "losses": [*score.losses]}

    def read(self, held: Any) -> JudgedText:
        """Return the losses and the hash of the text."""
        return JudgedText(str(held["text_sha256"]), TextScore(tuple(float(loss) for loss in held["losses"]), ()))

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge the rise of the perplexity over windows of the text."""
        allowed = MAX_RISE if limits.accuracy_drop is None else limits.accuracy_drop
        scores = score_sides(self.sides, self.text, tell)
        now = scores.get(self.sides[-1].label)
        before = scores.get(self.sides[0].label) if then.is_open else self._stored(then, now)
        if now is None or before is None:
            why = self.text.why_not_judged or f"{then.why_gone}, and it was judged by another text"
            return [CheckResult("perplexity", CheckVerdict.INCONCLUSIVE, None, allowed, why, "rise")]
        rise = rise_between(before, now)
        shown = f"{now.perplexity:.3f} on {len(now.losses)} windows; rise {rise}, {allowed:.1%} allowed"
        verdict = CheckVerdict.INCONCLUSIVE
        if rise.high <= allowed:
            verdict = CheckVerdict.PASS
        elif rise.low > allowed:
            verdict = CheckVerdict.FAIL
        else:
            shown = f"{shown}; a longer --eval TEXT would decide"
        value = rise.value if np.isfinite(rise.value) else None
        return [CheckResult("perplexity", verdict, value, allowed, shown, "rise")]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return that no accuracy is guarded."""
        detail = "the baseline holds no perplexity: check guards speed, size and cache, not accuracy"
        return (Note(NoteKind.WARNING, detail, "pass --eval TEXT to guard it"),)

    def _stored(self, then: Baselined, now: TextScore | None) -> TextScore | None:
        """Return the score in the baseline's file; None: it holds none, or of another text."""
        held: JudgedText | None = then.held
        return held.score if held and now and held.text_sha256 == self._judging(now) else None

    def _judging(self, score: TextScore) -> str:
        """Return the hash of the text, and how many tokens of each window are predicted where not all are."""
        counts = {len(array) for array in score.likeliest}
        whole = {len(window) for window in self.text.windows} if not self.text.sources else counts
        return self.text.sha256 if counts == whole else f"{self.text.sha256} {sorted(counts)}"


@dataclass(frozen=True, slots=True)
class CacheGuard:
    """Guards the memory of the cache."""

    token_bytes: int
    """Bytes a token."""

    def hold(self, tell: Tell | None) -> int:
        """Return the bytes a token."""
        del tell
        return self.token_bytes

    def read(self, held: Any) -> int:
        """Return the bytes a token."""
        return int(held)

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge the bytes a token, which are no estimate."""
        del tell
        allowed = limits.memory_ratio
        if then.held is None:
            return [CheckResult("memory", CheckVerdict.INCONCLUSIVE, None, allowed, "the baseline holds no cache")]
        before: int = then.held
        ratio = self.token_bytes / before if before else 1.0 + self.token_bytes  # no attention, no cache
        verdict = CheckVerdict.PASS if ratio <= allowed else CheckVerdict.FAIL
        detail = (
            f"cache of {self.token_bytes} bytes a token, the baseline's {before}: {ratio:.3f}, {allowed:.3f} allowed"
        )
        return [CheckResult("memory", verdict, ratio, allowed, detail)]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return nothing: who leaves it out knows it."""
        return ()


@dataclass(frozen=True, slots=True)
class BudgetGuard:
    """Proves limits of answers, whatever the baseline took."""

    budget: AnswerBudget
    side: WriterSide
    prompts: Sequence[Prompt]
    options: SideOptions

    def hold(self, tell: Tell | None) -> None:
        """Hold nothing: a budget is a limit of its own."""
        del tell

    def read(self, held: Any) -> None:
        """Return nothing."""
        del held

    def judge(self, then: Baselined, limits: Check, tell: Tell | None) -> list[CheckResult]:
        """Judge each limit by the share of answers that miss it."""
        del then, limits
        words = {Verdict.PASS: CheckVerdict.PASS, Verdict.FAIL: CheckVerdict.FAIL}

        def say(done: int, of: int) -> None:
            if tell:
                tell("prove the budget", done, Tenths(of))

        proven = prove_budget(
            self.side.model,
            self.prompts,
            AnswerOptions(most_tokens=self.options.output_tokens, ends=False),
            self.budget,
            BUDGET_SECONDS * self.options.seconds,
            say,
        )
        return [
            CheckResult(
                f"budget {limit.part}",
                words.get(limit.counted.verdict, CheckVerdict.INCONCLUSIVE),
                limit.median.value_ms,
                limit.limit_ms,
                str(limit),
                "ms",
            )
            for limit in proven.limits
        ]

    def note_unheld(self) -> tuple[Note, ...]:
        """Return nothing."""
        return ()
