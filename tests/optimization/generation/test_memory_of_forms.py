"""`optimize` of a language model holds no copy of its weights, and one form at a time; its bundle is mapped."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files import in_place, large_constants
from edgeopt.graph.files.outside_weights import outside_tensors, piece_of
from edgeopt.graph.model import load_model
from edgeopt.optimization.generation import optimize
from edgeopt.optimization.generation.forms import kinds
from edgeopt.optimization.generation.forms.kinds import FORMS
from edgeopt.optimization.generation.optimize import optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.workplace import Workplace, prepared, started
from edgeopt.optimization.generation.writer_run import WriterRun
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import find_target

SHIPPED = Path(__file__).parents[3] / "models" / "tiny_lm"
TRIED = ("w8a8", "w8", "w4+short", "w4+mixed")


@pytest.fixture
def options(tmp_path: Path) -> LanguageOptions:
    """Brief ones: what matrices are fitted to is short, as all of the shipped text takes longer and proves no more."""
    text = (SHIPPED / "held_out.txt").read_text("utf-8")
    judge, calib = tmp_path / "judge.txt", tmp_path / "calibrate.txt"
    judge.write_text(text[:6500], "utf-8")
    calib.write_text(text[6500:9500], "utf-8")
    return LanguageOptions(
        prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, eval=str(judge), calib=str(calib), processes=2
    )


def make_all(folder: Path, options: LanguageOptions, beside=lambda form: form, tried=TRIED) -> dict[str, Path]:
    """Make forms of the shipped model; return their files."""
    target, file = find_target("cpu"), SHIPPED / "model.onnx"
    forms = tuple(beside(one) for one in FORMS if one.name in tried)
    with (
        WriterRun.begin(target, options, Silence(), None, named="cpu", out=folder) as run,
        started(run, file) as start,
    ):
        place = Workplace(start, prepared(start, forms), None)
        return {form.name: place.file_of(form.name) for form in place.of.forms if not place.make(form)}


def weights_of(file: Path) -> dict[str, np.ndarray]:
    return {one.name: numpy_helper.to_array(one) for one in load_model(file).proto.graph.initializer}


def test_forms_of_a_large_model_lie_outside_and_have_the_same_numbers(tmp_path, options, monkeypatch):
    assert [*make_all(tmp_path / "small", options, tried=("w8", "w4+short"))] == ["w8"], "the head is too small"
    monkeypatch.setattr(kinds, "_LARGE_HEAD", 1 << 17)
    inside = make_all(tmp_path / "inside", options)
    assert {"TopK", "ScatterElements"} <= {node.op_type for node in onnx.load(inside["w4+short"]).graph.node}
    monkeypatch.setattr(in_place, "LEAST_FILE_BYTES", 1)
    held = list[weakref.ref[object]]()

    def watched(form):
        def make(material):
            gc.collect()
            assert not any(ref() is not None for ref in held), f"weights of another form live while {form.name} is made"
            outcome = form.make(material)
            held.append(weakref.ref(outcome.model))
            return outcome

        return replace(form, make=make)

    outside = make_all(tmp_path / "outside", options, watched)
    assert tuple(outside) == tuple(inside) == TRIED
    for name, file in outside.items():
        graph = onnx.load(file, load_external_data=False)
        assert len(graph.SerializeToString()) < inside[name].stat().st_size
        assert {str(piece_of(one).file) for one in outside_tensors(graph)} == {"model.onnx.data"}
        ours, theirs = weights_of(file), weights_of(inside[name])
        assert all(np.array_equal(ours[one], theirs[one]) for one in ours.keys() & theirs.keys()), name
    assert not (tmp_path / "outside" / large_constants.FOLDER).exists()


def test_a_tied_table_lies_in_the_file_once_and_is_read_row_by_row(tmp_path, options, monkeypatch):
    monkeypatch.setattr(in_place, "LEAST_FILE_BYTES", 1)
    graph = onnx.load(make_all(tmp_path / "lm", options, tried=("w8",))["w8"], load_external_data=False).graph
    (lookup,) = (node for node in graph.node if node.op_type == "GatherBlockQuantized")
    pieces = {one.name: piece_of(one) for one in graph.initializer if one.external_data}
    table = pieces[lookup.input[0]]
    assert sum(piece == table for piece in pieces.values()) == 2, "the head reads the same bytes"
    assert not any(node.op_type == "Reshape" and node.output[0] == lookup.input[0] for node in graph.node)


@pytest.fixture
def bundle(tmp_path, options, monkeypatch) -> Path:
    monkeypatch.setattr(in_place, "LEAST_FILE_BYTES", 1)
    monkeypatch.setattr(optimize, "FORMS", tuple(one for one in FORMS if one.name == "w8"))
    report = optimize_language_model("tiny_lm", target="cpu", out=tmp_path / "lm", options=options, listener=Silence())
    assert report.bundle is not None
    return report.bundle


def test_a_bundle_of_a_large_model_is_mapped_and_its_damage_is_told(bundle):
    (weights,) = bundle.glob("weights-*.bin")
    artefact = read_bundle(bundle).artefacts[0]
    assert artefact.weights is not None
    assert (artefact.weights.file, artefact.weights.size_bytes) == (weights.name, weights.stat().st_size)
    with Runtime.load(bundle) as runtime:
        assert "".join(piece.text for piece in runtime.generate("import os", most_tokens=4))
        assert runtime.bundle.hashing is None
        if sys.platform == "linux":
            assert str(weights.resolve()) in Path("/proc/self/maps").read_text("utf-8")
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    assert manifest["expected"]["original"] == load_model(SHIPPED / "model.onnx").fingerprint
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    for opened in (Runtime.load, open_language_model):
        with pytest.raises(InvalidFileError, match="differs from its hash"):
            opened(bundle)
