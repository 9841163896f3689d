"""Tables that rows are looked up in lie in memory once, however many sessions read them, and give the same numbers."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_decoders import export_small
from two_graphs import answers_of, write_pair

from edgeopt.errors import EdgeoptError
from edgeopt.executors import SessionOptions, onnxruntime
from edgeopt.executors.onnxruntime import EXECUTOR, mapped_tables
from edgeopt.graph.facts.lookup_tables import outside_tables
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.model import load_model
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.steps.convert import prefill_graph
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.system.declared.target import find_target

ROWS, WIDTH, BLOCK, PAGE = 4096, 256, 32, 4096
IDS = np.array([0, 7, ROWS - 1, 7, 1234], np.int64)
TYPES = {np.uint8: TensorProto.UINT8, np.float32: TensorProto.FLOAT}


@pytest.fixture(autouse=True)
def from_small_tables_on(monkeypatch):
    monkeypatch.setattr(mapped_tables, "_LEAST_BYTES", 1 << 10)


def outside_tensor(name: str, array: np.ndarray, file: str, offset: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=TYPES[array.dtype.type])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", offset), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write_graphs(folder: Path, names: tuple[str, ...] = ("a.onnx", "b.onnx"), data: str = "weights.bin") -> list[Path]:
    """Write graphs that look tokens up in one table in blocks, as those of a pair do."""
    chance = np.random.default_rng(0)
    table = chance.integers(0, 256, (ROWS, WIDTH), np.uint8)
    scales = chance.standard_normal((ROWS, WIDTH // BLOCK)).astype(np.float32)
    places = {"table": (table, PAGE), "scales": (scales, PAGE + table.nbytes)}
    (folder / data).write_bytes(bytes(PAGE) + table.tobytes() + scales.tobytes())
    files = list[Path]()
    for name in names:
        look_up = helper.make_node(
            "GatherBlockQuantized", ["table", "ids", "scales"], ["rows"], domain="com.microsoft",
            bits=8, block_size=BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
        stored = [outside_tensor(key, array, data, offset) for key, (array, offset) in places.items()]
        graph = helper.make_graph(
            [look_up],
            "look_up",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["tokens"])],
            [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["tokens", WIDTH])],
            stored,
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        files.append(folder / name)
        files[-1].write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return files


def rows_of(session) -> np.ndarray:
    return session.fetch(["rows"], {"ids": IDS})[0]


def mappings(file: Path, offset: int) -> int:
    """Return how often a place of a file is mapped into this process."""
    count = 0
    for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
        where, _, begin, _, _, *name = line.split(maxsplit=5)
        first, end = (int(place, 16) for place in where.split("-"))
        count += name == [str(file.resolve())] and int(begin, 16) <= offset < int(begin, 16) + end - first
    return count


def test_sessions_on_one_file_read_one_table(tmp_path, monkeypatch):
    first, second = write_graphs(tmp_path)
    gc.collect()
    before, sessions = len(mapped_tables._files), [EXECUTOR.open(file, SessionOptions()) for file in (first, second)]
    lent = [session.engine.lent_tables for session in sessions]
    assert len(mapped_tables._files) == before + 1
    places = [[value.data_ptr() for value in values[::3]] for values in lent]  # value, array and file of each table
    assert places[0] == places[1]
    assert len(set(places[0])) == 2
    together = [rows_of(session) for session in sessions]
    if sys.platform == "linux":
        assert mappings(tmp_path / "weights.bin", PAGE + ROWS * WIDTH // 2) == 1
    with monkeypatch.context() as patched:
        patched.setattr(onnxruntime, "lend_tables", lambda made, source: ())
        alone = EXECUTOR.open(first, SessionOptions())
    assert all(np.array_equal(rows, rows_of(alone)) for rows in together)
    assert np.abs(together[0]).max() > 1
    for session in (*sessions, alone):
        session.close()
    del sessions, session, lent, alone
    gc.collect()
    assert len(mapped_tables._files) == before  # nobody reads it any longer


def test_a_table_lives_as_long_as_whoever_can_run_its_session(tmp_path):
    file, _ = write_graphs(tmp_path)
    session = EXECUTOR.open(file, SessionOptions())
    engine, wanted = session.engine, rows_of(session)
    session.close()
    del session
    gc.collect()
    assert np.array_equal(engine.run(["rows"], {"ids": IDS})[0], wanted)


def test_a_graph_in_memory_reads_the_table_in_its_folder(tmp_path):
    file, _ = write_graphs(tmp_path)
    source = Outside(file.read_bytes(), tmp_path, (tmp_path / "weights.bin",))
    session, beside = EXECUTOR.open(source, SessionOptions()), EXECUTOR.open(file, SessionOptions())
    places = [opened.engine.lent_tables[0].data_ptr() for opened in (session, beside)]
    assert places[0] == places[1]
    assert np.array_equal(rows_of(session), rows_of(beside))


def test_a_changed_file_is_another_one(tmp_path):
    file, _ = write_graphs(tmp_path)
    old = EXECUTOR.open(file, SessionOptions())
    before, data = rows_of(old), (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "new.bin").write_bytes(data[:PAGE] + bytes(ROWS * WIDTH) + data[PAGE + ROWS * WIDTH :])
    if sys.platform != "win32":  # which replaces no file that is mapped
        (tmp_path / "new.bin").replace(tmp_path / "weights.bin")
        new = EXECUTOR.open(file, SessionOptions())
        assert not np.array_equal(rows_of(new), before)
    assert np.array_equal(rows_of(old), before)


@pytest.mark.parametrize("left", [0, PAGE, PAGE + ROWS * WIDTH])
def test_a_file_that_is_cut_off_is_refused(tmp_path, left):
    file, _ = write_graphs(tmp_path)
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:left])
    with pytest.raises(EdgeoptError):
        EXECUTOR.open(file, SessionOptions())


def test_nothing_beyond_the_folder_is_mapped(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_graphs(tmp_path)
    file = write_graphs(folder, ("a.onnx",))[0]
    model = onnx.load(file, load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = "../weights.bin"
    file.write_bytes(model.SerializeToString())
    assert len(outside_tables(file.read_bytes())) == 2
    assert not list(mapped_tables._tables_of(file))
    with pytest.raises(EdgeoptError):  # as the engine says itself
        EXECUTOR.open(file, SessionOptions())


def test_only_tables_that_rows_are_looked_up_in_are_lent(tmp_path):
    file, _ = write_graphs(tmp_path)
    model = onnx.load(file, load_external_data=False)
    assert [(table.name, table.shape, table.offset) for table in outside_tables(file.read_bytes())] == [
        ("table", (ROWS, WIDTH), PAGE),
        ("scales", (ROWS, WIDTH // BLOCK), PAGE + ROWS * WIDTH),
    ]
    model.graph.node[0].op_type = "OtherGather"
    assert not outside_tables(model.SerializeToString())
    assert not outside_tables(file.read_bytes()[:-7])
    assert not outside_tables(b"no graph")


def test_a_pair_of_graphs_reads_one_table_and_answers_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(prefill_graph, "LEAST_BYTES", 1 << 12)
    exported = export_small(tmp_path / "small")
    original = load_model(exported)
    prompts = make_dynamic(original, find_target("cpu-x86-vnni").rules_here).model
    file = write_pair(exported, tmp_path / "pair", prompts, make_weight_only(original, 4, 32, tables=True).model)
    options, tables = AnswerOptions(12, guesses=0, ends=False), []
    lend = mapped_tables.lend_tables

    def lend_and_note(made, source):
        lent = lend(made, source)
        tables.append({value.data_ptr() for value in lent[::3]})
        return lent

    monkeypatch.setattr(onnxruntime, "lend_tables", lend_and_note)
    with open_language_model(file, 1)[0] as opened:
        together = answers_of(opened, options)
        assert len(tables) == 2
        assert tables[0] & tables[1]
    monkeypatch.setattr(onnxruntime, "lend_tables", lambda made, source: ())
    with open_language_model(file, 1)[0] as opened:
        assert answers_of(opened, options) == together
