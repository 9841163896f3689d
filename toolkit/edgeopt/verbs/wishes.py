"""The options of verbs by name, for type checkers and editors: `bench(model, budget_ms=33)`."""

from __future__ import annotations

from pathlib import Path

from edgeopt.measurement.check.options import FrameCheckWishes
from edgeopt.measurement.compare.options import FrameCompareWishes
from edgeopt.measurement.frames.options import FrameBenchWishes
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.optimization.options import FrameOptimizeWishes


class BenchWishes(FrameBenchWishes, total=False):
    """Keyword options of `bench`; the dataclasses of the kinds say what each means, and its default."""

    target: str
    recipe: str | None
    out: str | Path | None
    code: str | Path | None
    prompt_tokens: tuple[int, ...]
    output_tokens: int
    budget: AnswerBudget | None
    slots: tuple[int, ...]
    guesses: int | None
    draft: str | Path | None
    context: int
    image: tuple[str | Path, ...]
    url: str
    model: str
    encodings: tuple[str, ...]
    turns: int
    key_from: str | None


class CompareWishes(FrameCompareWishes, total=False):
    """Keyword options of `compare`; the dataclasses of the kinds say what each means, and its default."""

    target: str
    recipe: str | None
    out: str | Path | None
    code: str | Path | None
    prompt_tokens: int
    output_tokens: int
    rivals: tuple[str, ...]
    rival_models: tuple[str, ...]


class CheckWishes(FrameCheckWishes, total=False):
    """Keyword options of `check`; the dataclasses of the kinds say what each means, and its default."""

    target: str
    recipe: str | None
    code: str | Path | None
    budget: AnswerBudget | None
    prompt_tokens: int
    output_tokens: int


class OptimizeWishes(FrameOptimizeWishes, total=False):
    """Keyword options of `optimize`; the dataclasses of the kinds say what each means, and its default."""

    target: str
    recipe: str | None
    out: str | Path | None
    fps: float | None
    cluster: str
    dry_run: bool
    inputs: tuple[tuple[str, tuple[int, ...], str], ...]
    task: str
    code: str | Path | None
    prompt_tokens: int
    output_tokens: int
    pictures: str
    budget: AnswerBudget | None
    memory_bytes: int | None
