"""Parts for MNN that work without it: the message of its absence, and files that no converter has to make."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.executors.mnn.file import MnnFile, is_mnn, read_mnn_file
from edgeopt.graph.tensors import TensorSpec

FILE = MnnFile(b"a network", (TensorSpec("x", "float32", (1, 3)),), (TensorSpec("y", "int64", ()),))
OPENED = (
    "from edgeopt.errors import EdgeoptError\n"
    "from edgeopt.executors import SessionOptions\n"
    "from edgeopt.executors.mnn import EXECUTOR\n"
    "print(EXECUTOR.why_unavailable())\n"
    f"try:\n    EXECUTOR.open({FILE.to_bytes()!r}, SessionOptions(('CPU',)))\n"
    "except EdgeoptError as error:\n    print(error)\n"
)


def lines_of(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()


def test_without_the_package_the_reason_ends_with_what_to_install():
    reason, problem, remedy = lines_of(f"import sys; sys.modules['MNN'] = None\n{OPENED}")
    assert reason == "MNN is not installed (pip install 'edgeopt[mnn]')"
    assert problem == "MNN is not installed: running a model by MNN needs it"
    assert remedy == "  -> pip install 'edgeopt[mnn]'"


def test_a_model_that_would_have_to_be_converted_tells_the_same():
    code = OPENED.replace(repr(FILE.to_bytes()), repr(b"not read before"))
    _, problem, remedy = lines_of(f"import sys; sys.modules['MNN'] = None\n{code}")
    assert problem == "MNN is not installed: running a model by MNN needs it"
    assert remedy == "  -> pip install 'edgeopt[mnn]'"


def test_a_package_that_does_not_load_is_one_line(tmp_path):
    (tmp_path / "MNN.py").write_text("raise ImportError('undefined symbol: gomp')\n")
    reason, problem, _ = lines_of(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{OPENED}")
    assert reason == "MNN cannot be imported (undefined symbol: gomp) (mend it: pip install 'edgeopt[mnn]')"
    assert problem.startswith("MNN cannot be imported (undefined symbol: gomp)")


def test_a_file_keeps_the_network_and_the_facts():
    data = FILE.to_bytes()
    assert data.startswith(b"a network")
    assert is_mnn(data[-8:])
    assert read_mnn_file(data, "a") == FILE


X, Y = ["x", "float32", [1, 3]], ["y", "int64", []]
DAMAGED = {
    "an input of an unknown type": {"inputs": [["x", "float99", [1, 3]]], "outputs": [Y]},
    "an input of integers": {"inputs": [["x", "int64", [1, 3]]], "outputs": [Y]},
    "an output of an unknown type": {"inputs": [X], "outputs": [["y", "zzz", []]]},
    "a type that is a list": {"inputs": [X], "outputs": [["y", ["int64"], []]]},
    "sizes below one": {"inputs": [["x", "float32", [-1, -3]]], "outputs": [Y]},
    "an output of size zero": {"inputs": [X], "outputs": [["y", "int64", [0]]]},
    "half a size": {"inputs": [["x", "float32", [1.5, 3]]], "outputs": [Y]},
    "a size without end": {"inputs": [["x", "float32", [float("inf"), 3]]], "outputs": [Y]},
    "a size that is a truth": {"inputs": [["x", "float32", [True, 3]]], "outputs": [Y]},
    "a shape that is a word": {"inputs": [["x", "float32", "13"]], "outputs": [Y]},
    "too many dimensions": {"inputs": [["x", "float32", [1] * 65]], "outputs": [Y]},
    "a name that is a number": {"inputs": [[1, "float32", [1, 3]]], "outputs": [Y]},
    "two inputs of one name": {"inputs": [X, X], "outputs": [Y]},
    "no outputs": {"inputs": [X], "outputs": []},
    "a list": [1],
    "words": {"inputs": "ab", "outputs": [Y]},
}


def with_facts(facts: object) -> bytes:
    written = json.dumps(facts).encode()
    return b"a network" + written + struct.pack("<I8s", len(written), b"EDGE-MNN")


@pytest.mark.parametrize("how", DAMAGED)
def test_a_file_whose_facts_are_damaged_is_one_line(how):
    assert read_mnn_file(with_facts({"inputs": [X], "outputs": [Y]}), "a") == FILE
    with pytest.raises(InvalidFileError, match=r"model\.mnn is no file of MNN .* or damaged") as refused:
        read_mnn_file(with_facts(DAMAGED[how]), "model.mnn")
    assert "\n" not in refused.value.problem


@pytest.mark.parametrize("cut", [slice(0), slice(9), slice(-1), slice(12, None), slice(-12, None)])
def test_a_file_that_is_cut_off_is_one_line(cut):
    with pytest.raises(InvalidFileError, match=r"model\.mnn is no file of MNN that edgeopt wrote, or it is cut off"):
        read_mnn_file(FILE.to_bytes()[cut], "model.mnn")
