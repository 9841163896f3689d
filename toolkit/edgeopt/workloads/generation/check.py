"""`check` of a model that writes tokens."""

from __future__ import annotations

from edgeopt.measurement.check.result import CheckReport
from edgeopt.measurement.check.summary import summarize
from edgeopt.measurement.generation.options import SideOptions
from edgeopt.measurement.generation.sides.check import check_language_model
from edgeopt.measurement.generation.sides.side_by_side import Tell
from edgeopt.running.writing import find_language_model
from edgeopt.workloads.generation.options import GenerationCheck

__all__ = ["summarize", "work"]


def work(source: str, options: GenerationCheck, tell: Tell | None) -> CheckReport:
    """Check it against its baseline, or write that."""
    sides = SideOptions(
        seconds=options.seconds,
        threads=options.threads,
        prompt_tokens=options.prompt_tokens,
        output_tokens=options.output_tokens,
        eval=options.eval,
    )
    return check_language_model(
        source,
        find_language_model(source),
        gate=options,
        options=sides,
        find=find_language_model,
        budget=options.budget,
        judge_noisy=options.judge_noisy,
        tell=tell or (lambda *_: None),
    )
