"""A file that is no ONNX model is called what it is, with what makes one of it, by its name and by its first bytes."""

from __future__ import annotations

import io
import shutil
import zipfile

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli
from edgeopt.errors import InvalidFileError
from edgeopt.graph.model import find_model, load_model

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
ANNEX = b"/annex/objects/MD5E-s12--0123456789abcdef0123456789abcdef.onnx\n"
NEVER = b"\0" * 64


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return file.getvalue()


CHECKPOINT, SCRIPTED = zipped("a/data.pkl", "a/version"), zipped("a/data.pkl", "a/code/net.py")
TENSORS = (20).to_bytes(8, "little") + b'{"w":{"dtype":"F32"}'
CASES = {
    "m.onnx": (LFS, "is a pointer of Git LFS", "git lfs pull"),
    "a.onnx": (ANNEX, "is a pointer of git-annex", "git annex get"),
    "lfs.pt": (LFS, "is a pointer of Git LFS", "git lfs pull"),
    "yolo.pt": (CHECKPOINT, "is a checkpoint of PyTorch", "yolo export model="),
    "old.pth": (b"\x80\x02\x8a\n", "is a checkpoint of PyTorch", "torch:package.module:factory"),
    "net.ckpt": (CHECKPOINT, "is a checkpoint of PyTorch", "torch:package.module:factory"),
    "scripted.pt": (SCRIPTED, "is a model of PyTorch", "edgeopt export "),
    "net.pt2": (zipped("x"), "is a model of PyTorch", "edgeopt export "),
    "w.safetensors": (TENSORS, "is a file of weights alone", "edgeopt export hf:FOLDER"),
    "pytorch_model.bin": (CHECKPOINT, "is a file of weights alone", "edgeopt export hf:FOLDER"),
    "a.tflite": (b"\x1c\0\0\0TFL3" + NEVER, "is a model of TensorFlow", "--tflite"),
    "saved_model.pb": (b"\x0a" + NEVER, "is a model of TensorFlow", "--saved-model"),
    "frozen.pb": (b"\x0a" + NEVER, "is a model of TensorFlow", "--graphdef"),
    "a.h5": (b"\x89HDF\r\n\x1a\n", "is a model of TensorFlow", "--keras"),
    "a.keras": (zipped("config.json"), "is a model of TensorFlow", "--keras"),
    "a.engine": (b"ftrt" + NEVER, "is an engine of TensorRT", "name the ONNX file that it was made from"),
    "a.plan": (NEVER, "is an engine of TensorRT", "name the ONNX file"),
    "a.xml": (b"<?xml version='1.0'?>", "is an OpenVINO IR", "name the ONNX file"),
    "a.rknn": (b"RKNN" + NEVER, "is compiled for Rockchip's NPU", "name the ONNX file"),
    "a.mlmodel": (NEVER, "is a model of Core ML", "name the ONNX file"),
    "a.ort": (b"\x1c\0\0\0ORTM" + NEVER, "is in ONNX Runtime's own format", "name the ONNX file"),
    "a.pte": (b"\x1c\0\0\0ET12" + NEVER, "is a program of ExecuTorch", "name the ONNX file"),
    "model.ncnn": (NEVER, "is a model of ncnn", "name the ONNX file"),
    "a.pkl": (b"\x80\x04", "is a pickle of Python", "skl2onnx"),
    "a.pdmodel": (NEVER, "is a model of PaddlePaddle", "paddle2onnx"),
    "m.onnx.gz": (b"\x1f\x8b" + NEVER, "is an archive", "unpack it"),
    "m.zip": (zipped("m.onnx"), "is an archive", "unpack it"),
    "m.onnx.dvc": (b"outs:\n- md5: ab\n", "is a pointer of DVC", "dvc pull"),
    "m.gguf": (b"GGUF" + NEVER, "is a GGUF", "edgeopt export "),
}
BY_CONTENT = ("yolo.pt", "old.pth", "scripted.pt", "w.safetensors", "a.tflite", "a.h5", "a.xml", "a.ort", "a.pte")
BY_CONTENT += ("m.onnx.gz", "m.zip", "m.gguf", "m.onnx.dvc")


@pytest.mark.parametrize("name", CASES)
def test_each_file_is_called_what_it_is(tmp_path, name):
    data, kind, remedy = CASES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidFileError) as caught:
        load_model(find_model(str(tmp_path / name)))
    assert kind in caught.value.problem
    assert remedy in caught.value.remedy
    assert "\n" not in caught.value.problem + caught.value.remedy


@pytest.mark.parametrize("name", BY_CONTENT)
def test_a_wrong_name_hides_nothing(tmp_path, name):
    data, kind, remedy = CASES[name]
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(InvalidFileError) as caught:
        load_model(find_model(str(tmp_path / "model.onnx")))
    assert kind in caught.value.problem
    assert remedy in caught.value.remedy


def test_a_web_page_that_was_downloaded_in_its_place(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\n\n<!DOCTYPE html>\n<html lang='en'>")
    with pytest.raises(InvalidFileError, match="is a web page, and no ONNX file"):
        load_model(tmp_path / "model.onnx")


def test_weights_beside_their_configuration_name_the_folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(TENSORS)
    with pytest.raises(InvalidFileError) as caught:
        find_model(str(tmp_path / "model.safetensors"))
    assert caught.value.remedy == f"edgeopt export hf:{tmp_path} -o model.onnx, then name model.onnx"


def test_an_onnx_file_of_any_other_name_is_read(tmp_path):
    for name in ("model.pb", "model", "model.dat"):
        shutil.copyfile(find_model("digits_detector"), tmp_path / name)
        assert load_model(find_model(str(tmp_path / name))).opset == 17


@pytest.mark.parametrize("command", ["inspect", "bench", "recipe", "prune", "optimize"])
def test_every_command_says_it(tmp_path, command):
    (tmp_path / "m.onnx").write_bytes(LFS)
    more = ["-t", "cpu", "-o", str(tmp_path / "out")] if command == "optimize" else []
    shown = CliRunner().invoke(cli, [command, str(tmp_path / "m.onnx"), *more])
    assert shown.exit_code == 1
    assert "is a pointer of Git LFS" in " ".join(shown.output.split())
    assert "git lfs pull" in shown.output
