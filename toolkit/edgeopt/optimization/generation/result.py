"""The result of `optimize` for a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_MISSED, EXIT_PASS, Note
from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.budget import AnswerVerdict
from edgeopt.measurement.generation.perplexity import Rise
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.optimization.report.gate import exit_code_of
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
    """Against the original; None of the original itself."""
    agreement: float = 1.0
    """Share of tokens behind which it would choose as the original does."""
    times_ms: Mapping[str, float] = field(default_factory=dict)
    """Medians of the whole answer, TTFT and TPOT."""
    speed: Mapping[str, Ratio] = field(default_factory=dict)
    """Against the original: over fresh processes of the chosen one, in turns in one process of the others."""
    unfit: str = ""
    """What it loses too much; empty: it does not."""
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
    replaces: str = ""
    """The form in whose place it is written: the same with a cache of four times the size, and proven no faster."""
    needs_bytes: int = 0
    """Memory of its weights and of the cache of one answer, where that was limited."""
    word: str = ""
    """KEPT, LOST or NOT DECIDED, by the bounds of the rise; empty for the original."""


@dataclass(frozen=True, slots=True)
class GuessChoice:
    """The decision about guesses for the chosen form."""

    by: str = ""
    """`draft` or `text`; empty: none."""
    guesses: int = 0
    told: str = ""
    """Why, with the figures."""


@dataclass(frozen=True, slots=True)
class LanguageReport:
    """All forms, and the one that was chosen."""

    model: str
    target: str
    folder: Path
    prompt_tokens: int
    output_tokens: int
    max_rise: float
    """Max rise of the perplexity that is allowed, as a share."""
    text: str
    """Name of the text that judged."""
    windows: int
    window_tokens: int
    calibration: str
    """Windows of which text calibrated."""
    cpu: str
    threads: int
    forms: tuple[LanguageForm, ...]
    chosen: str
    seconds: float
    notes: tuple[Note, ...] = ()
    bundle: Path | None = None
    """Its folder, once it is written."""
    was_cut: bool = False
    """Whether it was interrupted while it measured: the bundle holds what is proven so far."""
    budget: AnswerBudget | None = None
    guessing: GuessChoice | None = None
    """Whether the bundle guesses; None where nothing was tried."""
    memory_bytes: int | None = None
    """Most memory that weights and the cache of one answer may take; None: no limit."""
    told_lengths: str = ""
    """Lengths of what an encoder hears or reads, and of its answers; empty: of prompts, see `lengths`."""
    told_judge: str = ""
    """What judged, where that is no text."""
    asks: str = "--prompt TEXT"
    """What `edgeopt run` is given."""
    image_encoder: str = ""
    """How many times as fast the INT8 encoder of pictures in the bundle is; empty: there is none."""
    judged: AnswerVerdict | None = None
    """What answers of the chosen form prove about the budget; None: none was asked for."""

    accuracy_asked: bool = False
    """Whether the user named what judges, or what may be lost: then accuracy that is not decided is no success."""

    @property
    def exit_code(self) -> int:
        """0 all is met or nobody asked; 2 the budget or the memory is missed; 3 not decided; 130 interrupted."""
        code = self.judged.exit_code if self.judged else EXIT_PASS
        if self.memory_bytes is not None and self.best.needs_bytes > self.memory_bytes:
            code = EXIT_MISSED
        is_open = self.accuracy_asked and self.best.word == Word.NOT_DECIDED
        return exit_code_of(code, is_accuracy_open=is_open, was_cut=self.was_cut)

    @property
    def lengths(self) -> str:
        """The lengths that answers are made fast for, in words."""
        text = f"prompts of {plural(self.prompt_tokens, 'token')}, answers of {self.output_tokens}"
        return self.told_lengths or text

    @property
    def judge(self) -> str:
        """The text or answers that judge a form's loss, in words."""
        text = f"{plural(self.windows, 'window')} of {self.window_tokens} tokens of {self.text}"
        return self.told_judge or text

    @property
    def best(self) -> LanguageForm:
        """The chosen form."""
        return next(form for form in self.forms if form.name == self.chosen)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        bundle = None if self.bundle is None else str(self.bundle)
        return {**asdict(self), "folder": str(self.folder), "bundle": bundle}
