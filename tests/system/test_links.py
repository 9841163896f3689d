"""A user's path may be a link, in the layouts of Hugging Face, DVC, git-annex and Kubernetes; a path that a file names
stays in its tree."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from fixture_bundles import packed, reseal
from linked import LAYOUTS, dvc, folder_link, hub
from onnx import TensorProto, helper, numpy_helper

from edgeopt.errors import InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.reference import EXECUTOR as REFERENCE
from edgeopt.graph.files.exported_folder import name_of
from edgeopt.graph.files.outside_weights import outside_files
from edgeopt.graph.model import find_model, load_model
from edgeopt.measurement.accuracy.evaluate import open_labelled
from edgeopt.measurement.fresh_process.start import fresh_request
from edgeopt.recipes.recipe import read_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import read_bundle, write_bundle
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.opening import Opening
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import find_target

SHIPPED = Path(__file__).parents[2] / "models"
CPU = find_target("cpu-x86-vnni")
FED = {"x": np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8)}


def write_model(path: Path, location: str = "model.onnx_data") -> None:
    """Write a classifier of ten classes whose weights lie in a file of their own."""
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(10, 192)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w"], ["y"], transB=1)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [weight],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, str(path), save_as_external_data=True, location=location, size_threshold=0)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A model with its weights outside, and a recipe with its class names beside it."""
    folder = tmp_path_factory.mktemp("source")
    write_model(folder / "model.onnx")
    shutil.copyfile(SHIPPED / "digits_detector" / "labels.txt", folder / "labels.txt")
    (folder / "recipe.toml").write_text(
        'name = "own"\ntask = "classification"\ndescription = "d"\nlicense = "l"\nsource = "s"\nlabels = "labels.txt"\n'
        '[postprocess]\ndecoder = "logits"\n[evaluation]\nmetric = "top1"\n'
    )
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_its_weights_and_its_recipe_may_be_links(source, tmp_path, layout):
    path = layout(source, tmp_path) / "model.onnx"
    loaded, plain = load_model(path), load_model(source / "model.onnx")
    assert loaded.fingerprint == plain.fingerprint
    assert [one.read_bytes() for one in outside_files(path)] == [(source / "model.onnx_data").read_bytes()]
    choice = choose_recipe(None, path, loaded.inputs, loaded.outputs, loaded.metadata)
    assert choice.recipe.class_names[:3] == ("0", "1", "2")
    (expected,) = EXECUTOR.open(plain.data, SessionOptions()).run(FED).values()
    for executor in (EXECUTOR, REFERENCE):  # which open the file itself
        (answer,) = executor.open(path, SessionOptions()).run(FED).values()
        np.testing.assert_allclose(answer, expected, rtol=1e-4)


def test_a_link_to_a_model_finds_weights_and_recipe_beside_the_model_itself(source, tmp_path):
    link = tmp_path / "current.onnx"
    link.symlink_to(source / "model.onnx")
    loaded = load_model(link)
    assert loaded.name == "current"
    assert loaded.fingerprint == load_model(source / "model.onnx").fingerprint
    choice = choose_recipe(None, link, loaded.inputs, loaded.outputs, loaded.metadata)
    assert choice.recipe.name == "own"
    EXECUTOR.open(link, SessionOptions()).close()


def test_a_model_in_git_may_have_its_weights_in_dvc(source, tmp_path):
    folder = dvc(source, tmp_path)
    (folder / "model.onnx").unlink()
    shutil.copyfile(source / "model.onnx", folder / "model.onnx")
    assert load_model(folder / "model.onnx").fingerprint == load_model(source / "model.onnx").fingerprint
    EXECUTOR.open(folder / "model.onnx", SessionOptions()).close()


def test_a_model_of_the_hub_is_called_as_its_repository(source, tmp_path):
    assert name_of(hub(source, tmp_path) / "model.onnx") == "tiny-net"


def test_another_process_is_given_the_link_beside_which_the_weights_lie(source, tmp_path, monkeypatch):
    path = hub(source, tmp_path) / "model.onnx"
    monkeypatch.chdir(path.parent)
    request = json.loads(fresh_request(Path("model.onnx"), Opening("onnxruntime", SessionOptions())))
    assert request["model"] == str(path)


@pytest.mark.parametrize("kind", ["link", "name", "absolute", "link in a store"])
def test_weights_that_lead_out_of_the_tree_are_refused(source, tmp_path, kind):
    folder, secret = tmp_path / "model", tmp_path / "secret"
    secret.write_bytes((source / "model.onnx_data").read_bytes())
    folder.mkdir()
    if kind == "link":
        shutil.copyfile(source / "model.onnx", folder / "model.onnx")
        (folder / "model.onnx_data").symlink_to(secret)
    elif kind == "link in a store":
        folder = hub(source, tmp_path)
        (folder / "model.onnx_data").unlink()
        (folder / "model.onnx_data").symlink_to(secret)
    else:
        write_model(folder / "model.onnx", "secret")
        proto = onnx.load(str(folder / "model.onnx"), load_external_data=False)
        for entry in proto.graph.initializer[0].external_data:
            entry.value = entry.value if entry.key != "location" else "../secret" if kind == "name" else str(secret)
        onnx.save(proto, str(folder / "model.onnx"))
    for open_file in (load_model, lambda path: REFERENCE.open(path, SessionOptions())):
        with pytest.raises(InvalidFileError, match="leads out of the model's folder"):
            open_file(folder / "model.onnx")


def test_external_data_of_packed_numbers_needs_no_length(tmp_path):
    """Two numbers of 4 bits lie in a byte."""
    tensor = helper.make_tensor("w", TensorProto.INT4, [4], [1, -2, 3, -4])
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])]
    graph = helper.make_graph([node], "g", [], outputs, [tensor, numpy_helper.from_array(np.float32(1), "s")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    raw = proto.graph.initializer[0]
    data = numpy_helper.from_array(numpy_helper.to_array(raw)).raw_data
    raw.ClearField("int32_data")
    raw.data_location = TensorProto.EXTERNAL
    raw.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(data)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    assert numpy_helper.to_array(load_model(tmp_path / "m.onnx").proto.graph.initializer[0]).tolist() == [1, -2, 3, -4]


KEYS = {
    "labels": ("", "labels"),
    "model": ("", "model"),
    "tokenizer": ("tokenizer", "file"),
    "alphabet": ("alphabet", "file"),
    "encoder": ("generation", "encoder"),
    "draft": ("generation", "draft"),
    "scored": ("evaluation", "labels"),
    "calib": ("evaluation", "calib"),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("way", ["name", "link"])
def test_what_a_recipe_beside_a_model_names_lies_in_its_folder(source, tmp_path, key, way):
    (tmp_path / "secret.txt").write_text("0\n1\n")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "inside.txt").symlink_to(tmp_path / "secret.txt")
    table, name = KEYS[key]
    line = f'{name} = "{"../secret.txt" if way == "name" else "inside.txt"}"\n'
    text = (source / "recipe.toml").read_text().replace('labels = "labels.txt"\n', "")
    text = line + text if not table else text.replace(f"[{table}]\n", f"[{table}]\n{line}")
    text += "" if not table or f"[{table}]" in text else f"[{table}]\n{line}"
    (folder / "recipe.toml").write_text(text)
    with pytest.raises(InvalidFileError, match="lies outside the recipe's folder"):
        read_recipe(folder / "recipe.toml", stays_inside=True)
    (folder / "inside.txt").unlink()
    (folder / "inside.txt").write_text("0\n1\n")
    (folder / "recipe.toml").write_text(text.replace("../secret.txt", "inside.txt"))
    assert read_recipe(folder / "recipe.toml", stays_inside=True).files == ("inside.txt",) or key == "alphabet"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "bundle"
    path = find_model("digits_detector")
    net = load_model(path)
    recipe = choose_recipe(None, path, net.inputs, net.outputs, net.metadata).recipe
    write_bundle(folder, [packed("model.onnx", "fp32", path.read_bytes(), CPU, 1)], CPU, recipe, {}, {})
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bundle_may_be_links_of_one_store(bundle, tmp_path, layout):
    folder = layout(bundle, tmp_path)
    with Runtime.load(folder) as runtime:
        assert runtime.predict(np.zeros((64, 64, 3), np.uint8)) is not None
    if layout is folder_link:  # what follows would spoil the bundle itself
        return
    (tmp_path / "other").write_bytes((folder / "model.onnx").read_bytes())
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(tmp_path / "other")
    with pytest.raises(InvalidFileError, match="is a link out of the bundle"):
        read_bundle(folder)


@pytest.mark.parametrize("key", ["labels", "model", "scored", "calib"])
def test_a_bundle_reads_no_data_that_its_manifest_does_not_hash(bundle, tmp_path, key):
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)
    table, name = KEYS[key]

    def change(values):
        recipe = values["recipe"]
        (recipe[table] if table else recipe)[name] = "../../secret"

    reseal(folder, change)
    with pytest.raises(InvalidFileError, match=r"does not name '../../secret', which its recipe reads"):
        read_bundle(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_language_model_may_be_links(tmp_path, layout):
    folder = tmp_path / "source"
    folder.mkdir()
    proto = onnx.load(str(SHIPPED / "tiny_lm" / "model.onnx"))
    onnx.save(proto, str(folder / "model.onnx"), save_as_external_data=True, location="model.onnx_data")
    for name in ("recipe.toml", "tokenizer.json"):
        shutil.copyfile(SHIPPED / "tiny_lm" / name, folder / name)
    text = (folder / "recipe.toml").read_text()
    (folder / "recipe.toml").write_text("\n".join(line for line in text.split("\n") if "draft" not in line))
    with open_language_model(layout(folder, tmp_path), 1)[0] as model:
        assert model.generate("abc", most_tokens=3).text() is not None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_and_pictures_may_be_links(tmp_path, layout):
    labels = layout(SHIPPED / "digits_detector" / "eval", tmp_path) / "instances.json"
    plain = open_labelled(SHIPPED / "digits_detector" / "eval" / "instances.json")
    linked = open_labelled(labels)
    assert replace(linked.labels, source=plain.labels.source) == plain.labels
    assert len(linked.frames) == len(plain.frames)
    assert np.array_equal(linked.frames.picture(0), plain.frames.picture(0))


def test_a_link_to_nothing_is_said_to_be_one(tmp_path):
    (tmp_path / "model.onnx").symlink_to("gone.onnx")
    with pytest.raises(InvalidFileError, match=r"model.onnx is a link to gone.onnx, which does not exist"):
        load_model(tmp_path / "model.onnx")
    os.symlink("circle.onnx", tmp_path / "circle.onnx")
    with pytest.raises(InvalidFileError, match="circle"):
        load_model(tmp_path / "circle.onnx")
