"""Constants that are made of a model above 2 GB lie in files while a run lasts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.files.large_constants import held_outside, kept_in, place_of
from edgeopt.graph.files.outside import sha256_of
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model

LARGE = np.random.default_rng(0).normal(size=(200, 200)).astype(np.float32)
SMALL = np.arange(200, dtype=np.float32)


GRAPH = """<ir_version: 8, opset_import: ["": 17]> m (float[1, 200] x) => (float[1, 200] y) { y = Identity(x) }"""


def edited(*constants: np.ndarray) -> Model:
    """Return x times each constant, one behind the other."""
    graph = Graph.from_model(Model(onnx.parser.parse_model(GRAPH), "m"))
    (last,) = graph.nodes("Identity")
    for constant in constants:
        stored = graph.add_initializer("c", constant)
        made = graph.insert("MatMul" if constant.ndim > 1 else "Mul", [last.inputs[0], stored], before=last)
        graph.set_input(last, 0, made.outputs[0])
    graph.infer_shapes()
    return graph.to_model()


def run(model: Model) -> np.ndarray:
    session = EXECUTOR.open(model.source, SessionOptions())
    try:
        return session.run({"x": SMALL[None] / 200})["y"]
    finally:
        session.close()


def test_large_constants_of_a_graph_lie_in_files_and_compute_the_same(tmp_path: Path) -> None:
    inside = edited(LARGE, SMALL, LARGE.T)
    with kept_in(tmp_path / "large"):
        outside = edited(LARGE, SMALL, LARGE.T)
        assert outside.is_outside
        assert outside.proto.ByteSize() < LARGE.nbytes
        assert np.array_equal(run(outside), run(inside))
        assert outside.gathered().fingerprint == inside.fingerprint, "the same bytes once they are in one file"
        assert outside.size_bytes == pytest.approx(inside.size_bytes, rel=0.01)
    assert not inside.is_outside
    assert not (tmp_path / "large").exists(), "nothing is left of it"


def test_equal_constants_are_one_file_that_is_known_by_its_hash(tmp_path: Path) -> None:
    with kept_in(tmp_path / "large"):
        first, second = place_of(LARGE), place_of(LARGE.copy(order="F"))
        assert first is not None
        assert first == second
        assert [one.name for one in (tmp_path / "large").iterdir()] == [first.file.name]
        assert sha256_of(first.file) == first.file.stem
        assert edited(LARGE, LARGE.T).fingerprint == edited(LARGE, LARGE.T).fingerprint


def test_what_is_small_or_made_elsewhere_stays_in_memory(tmp_path: Path) -> None:
    assert held_outside(LARGE) is LARGE
    with kept_in(tmp_path / "large"):
        assert held_outside(SMALL) is SMALL
        mapped = held_outside(LARGE)
        assert np.array_equal(mapped, LARGE)
        assert not mapped.flags.writeable
        with kept_in(None):
            assert held_outside(LARGE) is LARGE
        del mapped


def test_a_run_that_was_killed_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "torn.bin").write_bytes(b"half")
    with kept_in(tmp_path / "large"):
        place_of(LARGE)
        assert not (tmp_path / "large" / "torn.bin").exists()


def test_a_folder_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with kept_in(tmp_path / "file" / "large"), pytest.raises(InvalidFileError, match="cannot be written"):
        place_of(LARGE)
