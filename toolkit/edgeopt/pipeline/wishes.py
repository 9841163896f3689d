"""The fields of `Options` by name, for type checkers and editors: `optimize(model, budget_ms=33)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from edgeopt.pipeline.plan import SelfTestInputs
from edgeopt.pipeline.selection import Prefer


class OptimizeWishes(TypedDict, total=False):
    """What `optimize` and `prune` take by name; `Options` says what each means, and its default."""

    calib: str
    eval: str
    budget_ms: float | None
    max_drop: float | None
    steps: tuple[str, ...] | None
    skip: tuple[str, ...]
    threads: int
    time_limit_s: float | None
    resume: bool
    replay: str
    shapes: Mapping[str, tuple[int, ...]]
    prefer: Prefer
    selftest: SelfTestInputs
    prune: str
    keep_layers: tuple[str, ...]
    finetune_s: float | None
