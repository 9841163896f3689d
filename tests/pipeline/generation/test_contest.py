"""What a short text judged whole on entering loses no less for that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeopt.measurement.generation.perplexity import TextScore
from edgeopt.measurement.generation.turns import Turns
from edgeopt.pipeline.generation.contest import Contest, Entrant
from edgeopt.pipeline.run import Silence
from edgeopt.runtime.decoding.generation import Asked

BEFORE = (2.0, 2.1, 1.9, 2.2, 2.0, 2.05)


def contest() -> Contest:
    return Contest(
        original=None,
        windows=list(BEFORE),
        prompts=[],
        asked=Asked(),
        threads=1,
        max_rise=0.02,
        seconds=0.0,
        parts=("answer",),
        listener=Silence(),
        score=lambda _, windows: TextScore(tuple(windows), tuple(np.zeros(1, np.int64) for _ in windows)),
    )


def entrant(name: str, more: tuple[float, ...], answer_ms: float) -> Entrant:
    score = TextScore(tuple(a + b for a, b in zip(BEFORE, more, strict=True)), (np.zeros(1, np.int64),) * len(BEFORE))
    times = [Turns(np.full((8, 3), 1e6 * ms) * (1 + 0.001 * np.arange(8)[:, None])) for ms in (10.0, answer_ms)]
    return Entrant(name, name, "w4", Path(name), score, len(BEFORE), (times[0], times[1]))


@pytest.mark.parametrize("answer_ms", [2.0, 8.0])
def test_a_form_that_loses_more_than_allowed_is_out_though_its_interval_holds_zero(answer_ms):
    wide = entrant("wide", (0.4, -0.3, 0.3, -0.25, 0.35, -0.2), answer_ms)
    fit = entrant("fit", (0.001, 0.002, 0.001, 0.0, 0.001, 0.002), 5.0)
    judged = contest()
    assert judged.rise(wide).low < 0 < 0.02 < judged.rise(wide).value
    judged.hold([wide, fit], 0.0)
    assert wide.is_unfit or wide.out == "slower than fit"
    assert wide.is_unfit == (answer_ms < 5.0)
    assert not fit.out
