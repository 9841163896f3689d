"""The result of `optimize` for a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.budget import AnswerVerdict
from edgeopt.measurement.generation.perplexity import Rise
from edgeopt.measurement.generation.sides.turns import PARTS
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.optimization.report.result import Report
from edgeopt.system.text import plural

BASELINE, STORED = "fp32", "stored"
"""Names of the original: in floats, or with matrices that it came with in blocks of integers."""
ORIGINALS = (BASELINE, STORED)
LANGUAGE_RUN = "language-run.json"
"""Marks the output folder of a language model."""


@dataclass(frozen=True, slots=True)
class LanguageForm:
    """One form of the model, judged and measured."""

    name: str
    told: str
    file: str
    size_bytes: int
    perplexity: float
    rise: Rise | None = None
    """Rise of the perplexity against the original; None of the original itself."""
    agreement: float = 1.0
    """Share of tokens behind which it would choose as the original does."""
    times_ms: Mapping[str, float] = field(default_factory=dict)
    """Medians of the whole answer, TTFT and TPOT."""
    speed: Mapping[str, Ratio] = field(default_factory=dict)
    """Ratio to the original's times, by part: of the chosen form over fresh processes, of the others in turns in one
    process."""
    unfit: str = ""
    """The loss that is too high, in a clause; empty: it is fit."""
    precision: str = BASELINE
    """Its scheme, in the words of targets."""
    out: str = ""
    """Why it went out of the contest; empty: it did not."""
    windows: int = 0
    """Windows of the text, by which it was judged."""
    prompts_by: str = ""
    """The form that computes prompts, where another computes tokens: two graphs over one cache."""
    tokens_by: str = ""
    """The form that computes tokens then."""
    engine: str = ""
    """Engine of prompts and tokens; empty: ONNX Runtime, or of prompts that of `prompts_by`."""
    replaces: str = ""
    """The form in whose place it is written: the same with a cache of four times the size, and proven no faster."""
    needs_bytes: int = 0
    """Memory of its weights and of the cache of one answer, where that was limited."""
    word: str = ""
    """KEPT, LOST or NOT DECIDED, by the bounds of the rises; empty for the original."""
    words: Rise | None = None
    """Rise of the word error rate against the original's, of a model that hears; None: nothing was transcribed."""


@dataclass(frozen=True, slots=True)
class GuessChoice:
    """The decision about guesses for the chosen form."""

    by: str = ""
    """`draft` or `text`; empty: none."""
    guesses: int = 0
    told: str = ""
    """Why, with the figures."""
    draft_bytes: int = 0
    """Memory of the draft that guesses, where that was limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageReport(Report[LanguageForm]):
    """All forms of a model that writes tokens, and the one that was chosen."""

    kind: ClassVar[str] = "generation"

    candidates: tuple[LanguageForm, ...]
    metric: str = "perplexity"
    prompt_tokens: int
    output_tokens: int
    text: str
    """Name of the text that judged."""
    windows: int
    window_tokens: int
    budget: AnswerBudget | None = None
    guessing: GuessChoice | None = None
    """Whether the bundle guesses; None where nothing was tried."""
    memory_bytes: int | None = None
    """Most memory that weights and the cache of one answer may take; None: no limit."""
    clients: int = 1
    """Answers that were timed at once."""
    told_lengths: str = ""
    """Lengths of what an encoder hears or reads, and of its answers; empty: of prompts, see `lengths`."""
    told_judge: str = ""
    """Name of the judge, where that is no text; empty: `text` judges."""
    left_windows: int = 0
    """Further windows of the text, for which a time limit left no time."""
    asks: str = "--prompt TEXT"
    """Arguments with which `edgeopt run` asks the bundle."""
    image_encoder: str = ""
    """How many times as fast the INT8 encoder of pictures in the bundle is; empty: there is none."""
    judged: AnswerVerdict | None = None
    """Verdict of the chosen form's answers on the budget; None: no budget was set."""

    @property
    def is_gate(self) -> bool:
        """Whether answers were judged by a budget, or the memory is limited."""
        return bool(self.verdict)

    @property
    def verdict(self) -> str:
        """FAIL where the chosen form needs more memory than is allowed; else what answers prove about the budget."""
        if self.memory_bytes is not None and self.best.needs_bytes > self.memory_bytes:
            return "FAIL"
        return self.judged.verdict.upper() if self.judged else ""

    @property
    def lengths(self) -> str:
        """The lengths that answers are made fast for, in words."""
        at_once = f", {self.clients} at once" if self.clients > 1 else ""
        text = f"prompts of {plural(self.prompt_tokens, 'token')}, answers of {self.output_tokens}{at_once}"
        return self.told_lengths or text

    @property
    def judge(self) -> str:
        """The text or answers that judge a form's loss, in words."""
        text = f"{plural(self.windows, 'window')} of {self.window_tokens} tokens of {self.text}"
        return self.told_judge or text

    @property
    def missing(self) -> str:
        """The first figure of a form that its screens and pages need and a damaged file lacks; empty: none."""
        for form in self.candidates:
            for values, what in ((form.times_ms, "time"), (form.speed, "speed")):
                if part := next((part for part in PARTS if values and part not in values), ""):
                    return f"{what} of {part} of the form {form.name!r}"
        if self.chosen not in ORIGINALS and not (self.best.times_ms and self.best.speed and self.best.rise):
            return f"figures of the form {self.chosen!r}, which was chosen"
        return ""
