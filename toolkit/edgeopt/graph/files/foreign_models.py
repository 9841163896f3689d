"""Models that are no ONNX files: what a file is instead, by its name or its first bytes, and what makes ONNX of it."""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import RAW_FILE, is_web_page, require_no_pointer

HEAD_BYTES = 64
"""First bytes of a file: they tell what it is."""
TORCH, TORCHSCRIPT = (".pt", ".pth", ".ckpt"), (".torchscript", ".ts")
KERAS = (".keras", ".h5", ".hdf5")
TENSORFLOW = (".tflite", ".pb", *KERAS)
_ENGINES = {
    ".engine": "an engine of TensorRT, compiled for one kind of GPU",
    ".plan": "an engine of TensorRT, compiled for one kind of GPU",
    ".trt": "an engine of TensorRT, compiled for one kind of GPU",
    ".rknn": "compiled for Rockchip's NPU",
    ".dlc": "compiled for Qualcomm's SNPE",
    ".hef": "compiled for Hailo's NPU",
    ".om": "compiled for Ascend's NPU",
    ".xml": "an OpenVINO IR",
    ".mlmodel": "a model of Core ML",
    ".mlpackage": "a model of Core ML",
    ".pte": "a program of ExecuTorch",
    ".ort": "in ONNX Runtime's own format",
    ".mnn": "a model of MNN",
    ".param": "a model of ncnn",
    ".ncnn": "a model of ncnn",
    ".caffemodel": "a model of Caffe",
    ".weights": "weights of Darknet",
}
"""Suffix -> origin or purpose of the file. It cannot become ONNX again; the model from which it was made can."""
_PACKED = (".zip", ".gz", ".tgz", ".tar", ".xz", ".bz2", ".7z", ".rar", ".zst")
_PICKLED = (".pkl", ".pickle", ".joblib")
_PADDLE = (".pdmodel", ".pdiparams", ".pdparams")


def require_no_foreign(path: Path) -> None:
    """Raise where a file or folder is a model of another kind by its name, or stands for a large file only.

    Raises:
        InvalidFileError: If so, with what makes ONNX of it.
    """
    if path.is_file():
        require_no_pointer(path)
    if error := _by_name(path):
        raise error


def foreign(path: Path, head: bytes) -> InvalidFileError | None:
    """Return what a file is that is no ONNX, by its first bytes; None where they tell nothing.

    Args:
        path: Of the file.
        head: Its first bytes.
    """
    if head.startswith(b"PK\x03\x04"):
        return _of_zip(path)
    if head.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04")):
        return _torch(path)
    if head.startswith(b"\x89HDF\r\n"):
        return tensorflow(path, ".h5")
    if head[4:8] == b"TFL3":
        return tensorflow(path, ".tflite")
    if head[8:9] == b"{" and head[9:10] in b'"}' and int.from_bytes(head[:8], "little") < 1 << 32:
        return _safetensors(path)
    if head.startswith(b"GGUF"):
        return gguf(path)
    if is_web_page(head):
        return _error(path, "a web page", RAW_FILE)
    if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf")):
        return _packed(path)
    if head.startswith(b"<?xml"):
        return _compiled(path, _ENGINES[".xml"])
    if head[4:8] == b"ET12":
        return _compiled(path, _ENGINES[".pte"])
    if head[4:8] == b"ORTM":
        return _compiled(path, _ENGINES[".ort"])
    if head.startswith(b"outs:"):
        return _dvc(path)
    return None


def gguf(path: Path) -> InvalidFileError:
    """Return the error of a GGUF in the place of an ONNX file."""
    remedy = f"edgeopt export {path} -o model.onnx, then name model.onnx; or edgeopt optimize {path} -t cpu"
    return _error(path, "a GGUF", remedy)


def tensorflow(path: Path, suffix: str) -> InvalidFileError:
    """Return the error of a model of TensorFlow in the place of an ONNX file, with the command that converts it.

    Args:
        path: Of the file, or the folder of a SavedModel.
        suffix: Of its kind.
    """
    return _error(path, "a model of TensorFlow", conversion(path, suffix))


def conversion(path: Path, suffix: str) -> str:
    """Return the commands that convert a model of TensorFlow.

    Args:
        path: Of the file, or the folder of a SavedModel.
        suffix: Of its kind.
    """
    form = "--tflite" if suffix == ".tflite" else "--keras" if suffix in KERAS else "--saved-model"
    where, more = path if form != "--saved-model" or path.is_dir() else path.parent, ""
    if suffix == ".pb" and path.name != "saved_model.pb":
        form, where, more = "--graphdef", path, " --inputs NAME:0 --outputs NAME:0"
    made = "converted" if path.suffix == ".onnx" else path.stem
    return (
        "pip install tf2onnx tensorflow (half a gigabyte), then python -m tf2onnx.convert "
        f"{form} {shlex.quote(str(where))}{more} --output {made}.onnx --opset 17, and name that file"
    )


def _by_name(path: Path) -> InvalidFileError | None:
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        return gguf(path)
    if suffix in (*TORCH, *TORCHSCRIPT, ".pt2"):
        with_code = suffix in (*TORCHSCRIPT, ".pt2") or (zipfile.is_zipfile(path) and _holds(path, "/code/"))
        return _torch_program(path) if with_code else _torch(path)
    if suffix == ".safetensors":
        return _safetensors(path)
    if suffix == ".pb" and path.is_file() and _begins(path, _ONNX):
        return None
    if suffix in TENSORFLOW or (path / "saved_model.pb").is_file():
        return tensorflow(path, suffix)
    if suffix == ".bin" and path.with_suffix(".xml").is_file():
        return _compiled(path, _ENGINES[".xml"])
    if suffix == ".bin" and path.name.startswith("pytorch_model"):
        return _safetensors(path)
    if suffix in _ENGINES:
        return _compiled(path, _ENGINES[suffix])
    if suffix in _PACKED:
        return _packed(path)
    if suffix in _PICKLED:
        return _error(path, "a pickle of Python", f"convert it where it was trained: skl2onnx for scikit-learn, {_OWN}")
    if suffix in _PADDLE:
        remedy = f"paddle2onnx --model_dir {path.parent} --save_file model.onnx, then name model.onnx"
        return _error(path, "a model of PaddlePaddle", remedy)
    return _dvc(path) if suffix == ".dvc" else None


def _begins(path: Path, head: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(head)) == head


_ONNX = b"\x08"
"""How an ONNX file begins: with its IR version; TensorFlow's graphs begin with a node."""
_OWN = "torch.onnx.export for PyTorch"


def _of_zip(path: Path) -> InvalidFileError:
    if not zipfile.is_zipfile(path) or not _holds(path, "data.pkl"):
        return _packed(path)
    return _torch_program(path) if _holds(path, "/code/") else _torch(path)


def _holds(path: Path, name: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name in member for member in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _torch_program(path: Path) -> InvalidFileError:
    return _error(path, "a model of PyTorch", f"edgeopt export {path} -o model.onnx, then name model.onnx")


def _torch(path: Path) -> InvalidFileError:
    remedy = (
        f"export it with the code that made it: edgeopt export torch:package.module:factory; of Ultralytics "
        f"yolo export model={path} format=onnx"
    )
    return _error(path, "a checkpoint of PyTorch", remedy)


def _safetensors(path: Path) -> InvalidFileError:
    has_network = (path.parent / "config.json").is_file()
    remedy = (
        f"edgeopt export hf:{path.parent} -o model.onnx, then name model.onnx"
        if has_network
        else "edgeopt export hf:FOLDER -o model.onnx takes a folder of Hugging Face that holds it and its config.json; "
        f"else {_OWN}"
    )
    return _error(path, "a file of weights alone", remedy)


def _compiled(path: Path, kind: str) -> InvalidFileError:
    return _error(path, kind, "name the ONNX file that it was made from; edgeopt compiles for a device by itself")


def _packed(path: Path) -> InvalidFileError:
    return _error(path, "an archive", "unpack it, and name the ONNX file in it")


def _dvc(path: Path) -> InvalidFileError:
    return _error(path, "a pointer of DVC", f"dvc pull {path}, then name {path.with_suffix('')}")


def _error(path: Path, kind: str, remedy: str) -> InvalidFileError:
    return InvalidFileError(f"{path} is {kind}, and no ONNX file", remedy=remedy)
