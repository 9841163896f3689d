"""What `optimize` found of a language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgeopt.errors import EXIT_PASS, Note
from edgeopt.measurement.generation.perplexity import Rise
from edgeopt.measurement.statistics.ratio import Ratio

BASELINE = "fp32"


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
    """Against the original, in turns."""
    unfit: str = ""
    """Why it may not be chosen; empty: it may."""


@dataclass(frozen=True, slots=True)
class LanguageReport:
    """All forms, and the one that was chosen."""

    model: str
    target: str
    folder: Path
    prompt_tokens: int
    output_tokens: int
    max_rise: float
    """Of the perplexity that is allowed, as a share."""
    text: str
    """That judged."""
    windows: int
    window_tokens: int
    cpu: str
    threads: int
    forms: tuple[LanguageForm, ...]
    chosen: str
    null: Ratio
    """The original against itself."""
    seconds: float
    notes: tuple[Note, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: nothing was asked for that could be missed."""
        return EXIT_PASS

    @property
    def best(self) -> LanguageForm:
        """The chosen form."""
        return next(one for one in self.forms if one.name == self.chosen)

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "folder": str(self.folder)}
