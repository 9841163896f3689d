"""Labels are looked at three times: all looks together are wrong in 5 % of cases, and a fourth proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.measurement.accuracy.judgement import LEVEL, LEVELS_IN_STAGES, LEVELS_OF_LOOKS, NoProof
from edgeopt.optimization.choice.label_looks import count_look
from edgeopt.optimization.options import Options
from edgeopt.optimization.plan import make_plan
from edgeopt.optimization.run import Run, Silence
from edgeopt.optimization.start import read_given, start_run


@contextmanager
def opened(folder: Path, scale: float = 1.0) -> Iterator[Run]:
    """Yield a run of a small model in one output folder; models of another scale are others."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> small (float[1, 4] x) => (float[1, 4] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(scale * np.eye(4, dtype=np.float32), "w"))
    onnx.save(proto, str(folder / f"small-{scale}.onnx"))
    np.savez(folder / "inputs.npz", x=np.zeros((4, 4), np.float32))
    options = Options(calib=str(folder / "inputs.npz"), threads=1)
    given, frames = read_given(str(folder / f"small-{scale}.onnx"), "cpu", None, options)
    plan = make_plan(given.recipe, given.target, options, 1)
    run = start_run(given, frames, plan, folder / "out", True, None, Silence())
    with run.workspace:
        yield run


def level_of(folder: Path, labels: str, *, in_stages: bool = False, scale: float = 1.0) -> float | NoProof:
    with opened(folder, scale) as run:
        count_look(run, labels, in_stages=in_stages)
        return run.no_proof or run.look.level


def test_all_looks_together_have_the_level_of_one_proof() -> None:
    assert sum(LEVELS_OF_LOOKS) == pytest.approx(LEVEL)
    assert sum(LEVELS_IN_STAGES) == pytest.approx(LEVEL)


def test_a_first_look_at_whole_labels_has_most_of_the_level_and_later_ones_the_rest(tmp_path: Path) -> None:
    found = [level_of(tmp_path, labels) for labels in ("a", "a", "b", "a", "c")]
    first, second, third = LEVELS_OF_LOOKS
    assert found == [first, first, second, first, third], "the same labels once more are no new look"
    assert level_of(tmp_path, "d") is NoProof.OVERUSED
    assert level_of(tmp_path, "b") == second, "what was proven stays so"
    assert level_of(tmp_path, "d", scale=2.0) == first, "of another original it is another question"


def test_labels_of_stages_have_a_third_at_each_look(tmp_path: Path) -> None:
    found = [level_of(tmp_path, labels, in_stages=True) for labels in "abc"]
    assert found == [*LEVELS_IN_STAGES]
    assert level_of(tmp_path, "d", in_stages=True) is NoProof.OVERUSED


@pytest.mark.parametrize("in_stages", [False, True])
def test_the_first_look_decides_for_all(tmp_path: Path, in_stages: bool) -> None:
    levels = LEVELS_IN_STAGES if in_stages else LEVELS_OF_LOOKS
    assert level_of(tmp_path, "a", in_stages=in_stages) == levels[0]
    assert level_of(tmp_path, "b", in_stages=not in_stages) == levels[1]


def test_each_later_look_is_told_with_its_level(tmp_path: Path) -> None:
    level_of(tmp_path, "a")
    level_of(tmp_path, "b")
    with opened(tmp_path) as run:
        count_look(run, "c")
        told = run.context.notes[-1].detail
        assert told == "look 3 of 3 at labels that are added, the last one: it proves at 0.5%"
        assert run.look.later == run.look.level
    with opened(tmp_path) as run:
        count_look(run, "a")
        assert (run.look.level, run.look.later) == LEVELS_OF_LOOKS[:2], "more labels are looked at at that level"
