"""A table that is a head in another shape is mapped as it lies in its file: no copy is made, rows are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.files.in_place import mapped
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.files.table_views import views_in, with_table_views

ROWS, WIDTH, BLOCK = 8192, 256, 32
IDS = np.array([0, 7, ROWS - 1, 7, 1234], np.int64)


def tied_model(shape: tuple[int, ...] = (ROWS, -1), *, is_listed: bool = False, **attributes: int) -> onnx.ModelProto:
    """Return a model whose table is the matrix of a product, reshaped, as checkpoints are exported."""
    chance = np.random.default_rng(0)
    integers = chance.integers(0, 256, (ROWS, WIDTH // BLOCK, BLOCK), np.uint8)
    scales = chance.standard_normal((ROWS, WIDTH // BLOCK)).astype(np.float32)
    nodes = [
        helper.make_node("Reshape", ["head", "shape"], ["table"], **attributes),
        helper.make_node(
            "GatherBlockQuantized", ["table", "ids", "scales"], ["rows"], domain="com.microsoft",
            bits=8, block_size=BLOCK, gather_axis=0, quantize_axis=1,
        ),
        helper.make_node(
            "MatMulNBits", ["rows", "head", "scales"], ["logits"], domain="com.microsoft",
            K=WIDTH, N=ROWS, bits=8, block_size=BLOCK,
        ),
    ]  # fmt: skip
    made = {"rows": (TensorProto.FLOAT, ["tokens", WIDTH]), "logits": (TensorProto.FLOAT, ["tokens", ROWS])}
    if is_listed:
        made["table"] = (TensorProto.UINT8, [ROWS, WIDTH])
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["tokens"])],
        [helper.make_tensor_value_info(name, *spec) for name, spec in made.items()],
        [
            numpy_helper.from_array(integers, "head"),
            numpy_helper.from_array(scales, "scales"),
            numpy_helper.from_array(np.array(shape, np.int64), "shape"),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def written(folder: Path, model: onnx.ModelProto, *, is_outside: bool) -> Path:
    file = folder / "model.onnx"
    onnx.save(model, file, save_as_external_data=is_outside, location="weights.bin", size_threshold=1 << 16)
    return file


def answers(session) -> list[np.ndarray]:
    return session.fetch(["rows", "logits"], {"ids": IDS})


def node_types(graph: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_model_from_string(graph).graph.node]


def test_a_reshaped_table_is_a_constant_at_the_same_place(tmp_path, monkeypatch):
    file = written(tmp_path, tied_model(), is_outside=True)
    viewed = with_table_views(file)
    assert isinstance(viewed, Outside)
    assert viewed.files == ((tmp_path / "weights.bin").resolve(),)
    assert node_types(viewed.graph) == ["GatherBlockQuantized", "MatMulNBits"]
    model = onnx.load_model_from_string(viewed.graph)
    onnx.load_external_data_for_model(model, str(tmp_path))
    assert [output.name for output in model.graph.output] == ["rows", "logits"]
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert np.array_equal(stored["table"], stored["head"].reshape(ROWS, WIDTH))
    session = EXECUTOR.open(file, SessionOptions())
    assert len(session.engine.lent_tables) >= 3, "the table is mapped"
    monkeypatch.setattr("edgeopt.executors.onnxruntime.with_table_views", lambda source: source)
    plain = EXECUTOR.open(file, SessionOptions())
    assert all(np.array_equal(*pair) for pair in zip(answers(session), answers(plain), strict=True))
    assert np.abs(answers(session)[0]).max() > 1


def test_a_model_in_one_file_is_opened_so_too(tmp_path, monkeypatch):
    monkeypatch.setattr("edgeopt.graph.files.in_place.LEAST_FILE_BYTES", 1 << 20)
    file = written(tmp_path, tied_model(), is_outside=False)
    viewed = with_table_views(mapped(file))
    assert node_types(viewed.graph) == ["GatherBlockQuantized", "MatMulNBits"]
    session, plain = EXECUTOR.open(mapped(file), SessionOptions()), EXECUTOR.open(file, SessionOptions())
    assert all(np.array_equal(*pair) for pair in zip(answers(session), answers(plain), strict=True))
    assert with_table_views(file) is file, "weights that lie in the graph are the engine's to load"


@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (0, -1), (-1, WIDTH)])
def test_sizes_may_be_told_in_every_way_of_the_op(tmp_path, shape):
    graph = with_table_views(written(tmp_path, tied_model(shape), is_outside=True)).graph
    tables = {tensor.name: list(tensor.dims) for tensor in onnx.load_model_from_string(graph).graph.initializer}
    assert tables["table"] == [ROWS, WIDTH]


@pytest.mark.parametrize(
    "model",
    [tied_model((ROWS, 5)), tied_model((ROWS, -1), allowzero=1), tied_model(is_listed=True)],
    ids=["a shape that does not fit", "an attribute", "a table that the model gives back"],
)
def test_other_reshapes_stay(tmp_path, model):
    file = written(tmp_path, model, is_outside=True)
    assert with_table_views(file) is file


def test_files_beyond_the_folder_are_left_to_the_engine(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    file = written(folder, tied_model(), is_outside=True)
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    assert with_table_views(file) is file, "it is not there"
    file.write_bytes(file.read_bytes().replace(b"\x12\x0bweights.bin", b"\x12\x0b../eights.b"))
    assert with_table_views(file) is file


def test_what_is_cut_off_is_no_graph(tmp_path):
    data = written(tmp_path, tied_model(), is_outside=True).read_bytes()
    assert views_in(data) is not None
    for end in range(0, len(data), 7):
        made = views_in(data[:end])
        assert made is None or len(made) <= len(data) + 200
    assert with_table_views(tmp_path / "absent.onnx") == tmp_path / "absent.onnx"


def test_a_constant_that_callers_may_replace_is_no_view(tmp_path):
    model = tied_model()
    model.graph.input.append(helper.make_tensor_value_info("head", TensorProto.UINT8, [ROWS, WIDTH // BLOCK, BLOCK]))
    file = written(tmp_path, model, is_outside=True)
    assert with_table_views(file) is file


def test_mapped_weights_beside_a_model_need_no_free_memory(tmp_path, monkeypatch):
    asked = list[int]()
    monkeypatch.setattr("edgeopt.executors.onnxruntime.require_bytes", lambda size, *_: asked.append(size))
    EXECUTOR.open(written(tmp_path, tied_model(), is_outside=True), SessionOptions()).close()
    assert not asked
