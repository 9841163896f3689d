"""The options of verbs by name, for type checkers and editors: `bench(model, budget_ms=33)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from edgeopt.measurement.check.options import FrameCheckWishes
from edgeopt.measurement.compare.options import FrameCompareWishes
from edgeopt.measurement.frames.options import FrameBenchWishes
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.optimization.options import FrameOptimizeWishes
from edgeopt.running.live_options import LiveWishes
from edgeopt.runtime.decoding.sampling import SamplingWishes


class InspectWishes(TypedDict, total=False):
    """Keyword options of `inspect`; the dataclasses of the kinds say what each means, and its default."""

    target: str | None
    recipe: str | None
    shapes: Mapping[str, tuple[int, ...]]
    quantized: bool
    calib: str
    against: str
    nodes: bool


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
    clients: int


class RunWishes(LiveWishes, SamplingWishes, total=False):
    """Keyword options of `run`; the dataclasses of the kinds say what each means, and its default."""

    prompt: str | None
    image: tuple[str | Path, ...]
    chat: bool
    output_tokens: int | None
    raw: bool
    system: str | Path | None
    prefixes: str | Path | None
    long: str | None
    context: int
    context_shift: bool
    stop: tuple[str, ...]
    schema: str | Path | None
    grammar: str | Path | None
    beams: int
    times: bool
    word_times: bool
    language: str
    translate: bool
    voice_activity: str | None
    guesses: int | None
    draft: str | None
    exact: bool
    budget: AnswerBudget | None


class ServeWishes(TypedDict, total=False):
    """Keyword options of `serve`; the dataclasses of the kinds say what each means, and its default."""

    host: str
    port: int
    name: str
    slots: int
    waiting: int
    time_limit_s: float
    output_tokens: int
    tpot_ms: float | None
    body_mib: float
    picture_megapixels: float
    stalled_s: float
    keep_s: float | None
    memory_bytes: int | None
    threads: int
    access_log: str
    key_from: str | None
    origins: tuple[str, ...]
    certificate: str | Path | None
    certificate_key: str | Path | None
    context: int
    system: str | Path | None
    prefixes: str | Path | None
    no_ahead: bool
    guesses: int | None
    draft: str | None
    exact: bool
    voice_activity: str | None
