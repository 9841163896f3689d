"""Bad input: one clear line, the remedy, exit 1, and nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from fixture_bundles import packed
from onnx import TensorProto, helper

from edgeopt.cli import cli
from edgeopt.graph.model import find_model, load_model
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import write_bundle
from edgeopt.system.declared.target import find_target

HEAD = 'name = "own"\ntask = "classification"\ndescription = "d"\nlicense = "l"\nsource = "s"\n'
RECIPE = HEAD + '[postprocess]\ndecoder = "logits"\n[evaluation]\nmetric = "top1"\n'


def classifier(path: Path, size: tuple[int | str, ...] = (1, 3, 16, 16), **external: object) -> Path:
    """A convolution, a mean and ten classes: enough of a real model for every step."""
    rng = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array(rng.normal(size=(10, 3, 3, 3)).astype(np.float32), "weight")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["images", "weight"], ["features"]),
            helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["scores"]),
        ],
        "classifier",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, (size[0], 10))],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path), **external)
    return path


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.fixture
def model(tmp_path):
    return str(classifier(tmp_path / "model_file.onnx"))


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(3):
        cv2.imwrite(str(folder / f"{i}.png"), np.random.default_rng(i).integers(0, 256, (20, 24, 3), np.uint8))
    return folder


def refuse(*arguments: object, exit_code: int = 1) -> str:
    """Run the command; it must end with one message and its remedy, never a traceback."""
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == exit_code, result.output
    errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
    remedies = [line for line in result.output.splitlines() if line.startswith("  -> ")]
    assert len(errors) == len(remedies) == 1, result.output
    return result.output


def optimize(model: object, recipe: object, out: Path, *more: object) -> tuple[object, ...]:
    return ("optimize", model, "--target", "cpu", "--recipe", recipe, "-o", out, *more)


def test_a_file_that_is_not_onnx(tmp_path):
    path = tmp_path / "notes.onnx"
    path.write_text("this is no model" * 20)
    assert "not an ONNX file" in refuse("inspect", path)


def test_an_empty_file(tmp_path):
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    assert "no ONNX graph" in refuse("inspect", path)


def test_a_truncated_model(tmp_path, model):
    path = tmp_path / "cut.onnx"
    path.write_bytes(Path(model).read_bytes()[:-200])
    assert "truncated" in refuse("inspect", path)


def test_external_data_that_is_missing(tmp_path):
    path = classifier(tmp_path / "large.onnx", save_as_external_data=True, location="large.data", size_threshold=0)
    (tmp_path / "large.data").unlink()
    assert "external data" in refuse("inspect", path)


def test_a_custom_op_is_named(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("MyOp", ["x"], ["y"], name="odd", domain="my.company")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my.company", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), str(tmp_path / "custom.onnx"))
    shown = refuse("inspect", tmp_path / "custom.onnx")
    assert "MyOp" in shown
    assert "odd" in shown


def test_an_unknown_target_offers_the_nearest(model, recipe, tmp_path):
    assert "did you mean 'raspberry-pi-5'" in refuse("optimize", model, "-t", "raspbery-pi-5", "-r", recipe)


def test_an_unknown_recipe_offers_the_nearest(model, tmp_path):
    assert "did you mean 'yolox'" in refuse(*optimize(model, "yolx", tmp_path / "o"))


def test_an_unknown_model_offers_the_nearest():
    assert "did you mean 'digits_detector'" in refuse("inspect", "digit_detector")


def test_an_unknown_step_offers_the_nearest(model, recipe, tmp_path):
    assert "did you mean 'quantize'" in refuse(*optimize(model, recipe, tmp_path / "o", "--skip", "quantise"))


def test_a_wrong_key_of_a_recipe_is_named(tmp_path, model):
    path = tmp_path / "wrong.toml"
    path.write_text(RECIPE + "[preprocess]\ncolor = 'RGB'\n")
    assert "unknown color" in refuse(*optimize(model, path, tmp_path / "o"))


def test_a_wrong_value_of_a_recipe_is_named(tmp_path, model):
    path = tmp_path / "wrong.toml"
    path.write_text(RECIPE + "[preprocess]\nresize = 'squash'\n")
    shown = refuse(*optimize(model, path, tmp_path / "o"))
    assert "squash" in shown
    assert "letterbox" in shown


def test_a_missing_key_of_a_target_is_named(tmp_path, model, recipe):
    path = tmp_path / "board.toml"
    path.write_text('name = "board"\n')
    assert "missing" in refuse("optimize", model, "-t", path, "-r", recipe)


def test_toml_that_does_not_parse(tmp_path, model):
    path = tmp_path / "broken.toml"
    path.write_text("name = \n")
    assert "is not TOML" in refuse(*optimize(model, path, tmp_path / "o"))


def test_pictures_that_do_not_decode_are_named_and_left_out(tmp_path, model, recipe, pictures, brief):
    (pictures / "torn.jpg").write_bytes(b"\xff\xd8\xff no picture")
    result = CliRunner().invoke(cli, [str(one) for one in optimize(model, recipe, tmp_path / "o", "--calib", pictures)])
    assert result.exit_code == 0, result.output
    assert "torn.jpg" in result.output


def test_a_folder_in_which_nothing_decodes(tmp_path, model, recipe):
    folder = tmp_path / "torn"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(b"no picture")
    assert "a.jpg" in refuse(*optimize(model, recipe, tmp_path / "o", "--calib", folder))


def test_an_empty_folder(tmp_path, model, recipe):
    (tmp_path / "empty").mkdir()
    assert "holds no picture" in refuse(*optimize(model, recipe, tmp_path / "o", "--calib", tmp_path / "empty"))


def test_pictures_that_do_not_exist(tmp_path, model, recipe):
    assert "does not exist" in refuse(*optimize(model, recipe, tmp_path / "o", "--calib", tmp_path / "none"))


def test_labels_that_match_no_picture(tmp_path, model, recipe):
    labels = tmp_path / "labels.csv"
    labels.write_text("file,class_index\nnowhere.jpg,1\n")
    assert "match no picture" in refuse(*optimize(model, recipe, tmp_path / "o", "--eval", labels))


def test_a_label_file_of_another_kind(tmp_path, model, recipe):
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"a": 1}))
    assert "not COCO" in refuse(*optimize(model, recipe, tmp_path / "o", "--eval", labels))


def test_boxes_for_a_classifier(tmp_path, model, recipe, pictures):
    labels = pictures / "labels.json"
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 5, 5]}
    image, kind = {"id": 1, "file_name": "0.png", "height": 20, "width": 24}, {"id": 1, "name": "cat"}
    labels.write_text(json.dumps({"images": [image], "annotations": [box], "categories": [kind]}))
    assert "holds no classes" in refuse(*optimize(model, recipe, tmp_path / "o", "--eval", labels))


def test_a_free_dimension_that_the_recipe_does_not_fix(tmp_path, recipe):
    path = classifier(tmp_path / "free.onnx", ("batch", 3, "height", "width"))
    assert "free height or width" in refuse(*optimize(path, recipe, tmp_path / "o"))


def test_a_free_batch_becomes_one(tmp_path, recipe, pictures, brief):
    path = classifier(tmp_path / "free.onnx", ("batch", 3, 16, 16))
    result = CliRunner().invoke(cli, [str(one) for one in optimize(path, recipe, tmp_path / "o", "--calib", pictures)])
    assert result.exit_code == 0, result.output
    made = onnx.load(str(tmp_path / "o" / "candidates" / "simplify" / "model.onnx"))
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 16, 16]


def test_an_ambiguous_model_lists_the_recipes(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["shape"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 10, 100])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1000])],
        [helper.make_tensor("shape", TensorProto.INT64, [2], [1, 1000])],
    )
    path = tmp_path / "ambiguous.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    assert "imagenet, imagenet_caffe" in refuse("optimize", path, "-t", "cpu")


def test_an_output_folder_that_holds_something_else(tmp_path, model, recipe):
    out = tmp_path / "precious"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    assert "thesis.txt" in refuse(*optimize(model, recipe, out))
    assert (out / "thesis.txt").read_text() == "years of work"
    assert len(list(out.iterdir())) == 1


def test_an_output_folder_that_is_a_file(tmp_path, model, recipe):
    (tmp_path / "file").write_text("x")
    assert "is a file" in refuse(*optimize(model, recipe, tmp_path / "file"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder where even root cannot write")
def test_no_permission_to_write(model, recipe):
    assert "cannot be" in refuse(*optimize(model, recipe, Path("/proc/edgeopt")))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on file size")
def test_a_full_disk_leaves_no_torn_file(tmp_path, model, recipe, pictures):
    """A limit on file size stops the write half way, as a full disk does."""
    out = tmp_path / "o"
    limit = Path(model).stat().st_size + 400
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
        "from edgeopt.__main__ import main; main()"
    )
    arguments = [str(one) for one in optimize(model, recipe, out, "--calib", pictures)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    left = [path for path in out.rglob("*") if path.is_file()]
    assert not [path for path in left if path.suffix == ".part"]
    for path in left:
        if path.suffix == ".onnx":
            onnx.checker.check_model(onnx.load(str(path)))
        if path.suffix == ".json":
            json.loads(path.read_text())


def test_a_bundle_whose_file_was_changed(tmp_path, model, recipe, pictures, brief):
    result = CliRunner().invoke(cli, [str(one) for one in optimize(model, recipe, tmp_path / "o", "--calib", pictures)])
    assert result.exit_code == 0, result.output
    with (tmp_path / "o" / "bundle" / "model.onnx").open("ab") as file:
        file.write(b"x")
    assert "differs from its hash" in refuse("run", tmp_path / "o", pictures)


def test_a_folder_that_is_no_bundle(tmp_path, pictures):
    assert "is no bundle" in refuse("run", tmp_path, pictures)


def test_a_budget_that_is_no_duration(model, recipe, tmp_path):
    result = CliRunner().invoke(cli, [str(one) for one in optimize(model, recipe, tmp_path / "o", "--budget", "soon")])
    assert result.exit_code == 1
    assert "is not a duration" in result.output


def test_a_misspelt_command_offers_the_nearest():
    result = CliRunner().invoke(cli, ["optimise"])
    assert result.exit_code == 1
    assert "did you mean 'optimize'" in result.output


@pytest.mark.skipif(find_spec("onnxruntime_qnn") is not None, reason="Qualcomm's package is here")
def test_an_npu_without_its_package_is_refused_with_the_install_command():
    assert "pip install 'edgeopt[cpu,qnn]'" in refuse("optimize", "digits_detector", "-t", "qualcomm-htp-v73")


def test_the_step_quantize_alone_is_refused_where_a_compiler_judges(model):
    assert "edgeopt optimize MODEL --target qualcomm-htp-v73" in refuse("quantize", model, "-t", "qualcomm-htp-v73")


@pytest.mark.skipif(find_spec("onnxruntime_qnn") is not None, reason="Qualcomm's package is here")
def test_the_choosing_npu_names_every_package_when_none_is_here(model):
    shown = refuse("optimize", model, "-t", "npu")
    assert "qualcomm-htp-v73: onnxruntime_qnn not installed (pip install 'edgeopt[cpu,qnn]')" in shown
    assert "intel-npu: " in shown


@pytest.mark.skipif(find_spec("onnxruntime_qnn") is not None, reason="Qualcomm's package is here")
def test_the_fallback_of_an_npu_bundle_is_not_benched_in_its_place(tmp_path):
    path = find_model("digits_detector")
    loaded, data = load_model(path), path.read_bytes()
    recipe = choose_recipe(None, path, loaded.inputs, loaded.outputs, loaded.metadata).recipe
    npu, cpu = find_target("qualcomm-htp-v73"), find_target("cpu-x86-vnni")
    models = [packed("model.onnx", "w8a8", data, npu), packed("fallback.onnx", "fp32", data, cpu)]
    write_bundle(tmp_path / "bundle", models, npu, recipe, {}, {})
    shown = refuse("bench", tmp_path / "bundle", "--budget", "33ms")
    assert "latency: not measured (no device)" in shown
    assert "fallback.onnx" in shown


@pytest.mark.parametrize(
    "command", [("inspect",), ("compare", "digits_detector"), ("bench",), ("optimize", "-t", "cpu")]
)
def test_a_path_that_the_system_refuses_is_one_line(command):
    assert "File name too long" in refuse(*command, f"{'n' * 5000}/model.onnx")


def test_a_folder_without_access_is_one_line(tmp_path, monkeypatch):
    """Root may look everywhere, so the refusal itself is put in the way."""
    locked, known = str(tmp_path / "locked"), Path.stat

    def stat(path, **how):
        if str(path).startswith(locked):
            raise PermissionError(13, "Permission denied", str(path))
        return known(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    for arguments in (
        ("inspect", f"{locked}/a.onnx"),
        ("run", locked, locked),
        ("compare", f"{locked}/a", f"{locked}/b"),
    ):
        assert "Permission denied" in refuse(*arguments)


def test_memory_that_does_not_suffice_is_one_line_wherever_it_ends(monkeypatch):
    def full(*_, **__):
        raise MemoryError("Unable to allocate 1.79 GiB for an array with shape (480000000,)")

    monkeypatch.setattr("edgeopt.recipes.recipe.find_recipe", full)
    shown = CliRunner().invoke(cli, ["models", "yolox"])
    assert shown.exit_code == 1
    assert shown.stderr.startswith("error: this takes more memory than there is: Unable to allocate 1.79 GiB")
    assert shown.stderr.count("\n") == 2
