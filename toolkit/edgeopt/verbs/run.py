"""`run`: a workload answers what it is given, for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeopt.verbs._perform import Performed, prepare


def answer(workload: str, sample: str | None, values: Mapping[str, Any], hears: Any = None) -> Performed:
    """Answer a sample, or what an option asks.

    Args:
        workload: A bundle, a model as it is, or a pipeline's bundle.
        sample: A picture, a folder, a video, a camera's number, an address, a sound; None: an option asks.
        values: Fields of the options that differ, by name.
        hears: Hears answers as they come.

    Raises:
        EdgeoptError: If it gives no answer at all.
    """
    kind, options = prepare("run", (workload,), None, values)
    module = kind.module("run")
    return Performed(module.work(workload, options, hears, sample), module.summarize)
