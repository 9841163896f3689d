"""Weights of a large ONNX file stay where they lie in it: nothing is lost, and nothing that is wrong goes unseen."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_decoders import SHIPPED

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.graph.files import in_place
from edgeopt.graph.files.in_place import graph_alone, mapped
from edgeopt.graph.files.outside import ALIGNED_BYTES, Outside
from edgeopt.graph.files.outside_weights import outside_tensors, piece_of
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import load_model, save_model

FILE = SHIPPED / "model.onnx"


@pytest.fixture(autouse=True)
def from_one_byte_on(monkeypatch):
    monkeypatch.setattr(in_place, "LEAST_FILE_BYTES", 1)


def logits(source) -> np.ndarray:
    session = EXECUTOR.open(source, SessionOptions(threads=1))
    parts = cache_parts(session.inputs, session.outputs)
    made = Decoder(session.engine, parts, 8, shares=True).run([1, 2, 3])
    session.close()
    return made


def test_a_model_left_in_its_file_is_the_model(tmp_path):
    whole, left = load_model(FILE), load_model(FILE, in_place=True)
    assert left.is_outside
    assert left.proto.ByteSize() < whole.proto.ByteSize() / 10
    assert left.fingerprint == whole.fingerprint
    assert left.size_bytes == pytest.approx(whole.size_bytes, rel=0.01)
    assert [one.name for one in left.proto.graph.initializer] == [one.name for one in whole.proto.graph.initializer]
    stored = {one.name: numpy_helper.to_array(one) for one in whole.proto.graph.initializer}
    graph = Graph.from_model(left)
    for value in graph.initializers:
        assert np.array_equal(graph.constant(value), stored[value.name])
    assert left.gathered().data == whole.data


def test_an_engine_maps_the_weights_of_a_file_and_computes_the_same():
    source = mapped(FILE)
    assert isinstance(source, Outside)
    assert source.files == (FILE.resolve(),)
    assert np.array_equal(logits(source), logits(FILE))
    assert np.array_equal(logits(load_model(FILE, in_place=True).source), logits(FILE))


def test_what_is_saved_begins_at_pages_and_is_no_link_to_the_file_of_the_model(tmp_path):
    source = tmp_path / "source.onnx"
    shutil.copyfile(FILE, source)
    save_model(load_model(source, in_place=True), tmp_path / "saved.onnx")
    pieces = [piece_of(one) for one in outside_tensors(onnx.load(tmp_path / "saved.onnx", load_external_data=False))]
    assert pieces
    assert all(piece.offset % ALIGNED_BYTES == 0 for piece in pieces)
    assert {str(piece.file) for piece in pieces} == {"saved.onnx.data"}
    assert not (tmp_path / "saved.onnx.data").samefile(source)
    assert load_model(tmp_path / "saved.onnx").fingerprint == load_model(source).fingerprint


def test_a_small_file_and_one_with_small_constants_are_loaded(monkeypatch, tmp_path):
    node = onnx.helper.make_node("Add", ["x", "c"], ["y"])
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    small = numpy_helper.from_array(np.ones(2, np.float32), "c")
    graph = onnx.helper.make_graph([node], "g", infos[:1], infos[1:], [small])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "small.onnx")
    assert not load_model(tmp_path / "small.onnx", in_place=True).is_outside
    monkeypatch.setattr(in_place, "LEAST_FILE_BYTES", FILE.stat().st_size + 1)
    assert graph_alone(FILE) is None
    assert mapped(FILE) == FILE
    assert not load_model(FILE, in_place=True).is_outside


def test_files_that_are_no_model_say_the_same_as_loaded_whole(tmp_path):
    data, file = FILE.read_bytes(), tmp_path / "a.onnx"
    for broken in (b"", b"\xff" * 4096, b"PK\x03\x04" + bytes(99), *(data[: len(data) * i // 5] for i in range(1, 5))):
        file.write_bytes(broken)
        told = []
        for left in (False, True):
            with pytest.raises(EdgeoptError) as raised:
                load_model(file, in_place=left)
            told.append(str(raised.value))
        assert told[0] == told[1]
    assert mapped(tmp_path / "absent.onnx") == tmp_path / "absent.onnx"


def test_a_weight_that_is_no_number_is_refused_where_it_lies(tmp_path):
    proto = onnx.load(FILE)
    weight = max(proto.graph.initializer, key=lambda one: len(one.raw_data) * ("weight" in one.name))
    array = numpy_helper.to_array(weight).copy()
    array.flat[7] = np.nan
    weight.raw_data = array.tobytes()
    onnx.save(proto, tmp_path / "nan.onnx")
    with pytest.raises(InvalidFileError, match=f"{weight.name}.*NaN in 1 of"):
        load_model(tmp_path / "nan.onnx", in_place=True)


def test_weights_of_another_length_than_their_shape_are_refused(tmp_path):
    proto = onnx.load(FILE)
    weight = max(proto.graph.initializer, key=lambda one: len(one.raw_data) * ("weight" in one.name))
    weight.raw_data = weight.raw_data[:-4]
    onnx.save(proto, tmp_path / "short.onnx")
    with pytest.raises(InvalidFileError, match="other data than its shape"):
        load_model(tmp_path / "short.onnx", in_place=True)


def test_links_are_followed_as_those_of_a_hub(tmp_path):
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    shutil.copyfile(FILE, blob)
    link = tmp_path / "model.onnx"
    try:
        link.symlink_to(blob)
    except OSError:
        pytest.skip("this system lets nobody make links")
    assert load_model(link, in_place=True).fingerprint == load_model(FILE).fingerprint
    assert np.array_equal(logits(mapped(link)), logits(FILE))
    assert isinstance(mapped(Path(link)), Outside)
