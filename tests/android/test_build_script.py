"""The script that builds edgeopt-runner for phones, with a toolchain and a package of ONNX Runtime made here."""

from __future__ import annotations

import os
import sys

import pytest
from adb_phone import ARM, run_build_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it links a library of Linux, as Android's are")


def test_it_builds_and_says_how_to_name_the_folder(built):
    folder, code, said = built
    assert code == 0, said
    assert f"export EDGEOPT_ANDROID_RUNNER={folder}" in said
    assert sorted(path.name for path in (folder / ARM).iterdir()) == ["edgeopt-runner", "libonnxruntime.so"]
    assert os.access(folder / ARM / "edgeopt-runner", os.X_OK)


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        ((), {}, "name the folder"),
        (("made",), {"ANDROID_NDK_HOME": "/nowhere"}, "no NDK: set ANDROID_NDK_HOME"),
        (("made", "x86"), {}, f"the package holds no library for x86: {ARM}"),
        (("made",), {"ONNXRUNTIME_SHA256": "0" * 64}, "not to ONNXRUNTIME_SHA256"),
    ],
)
def test_what_is_missing_is_one_line(package, tmp_path, monkeypatch, arguments, variables, told):
    monkeypatch.chdir(tmp_path)
    code, said = run_build_script(package, *arguments, **variables)
    assert code != 0
    assert told in said
    assert not (tmp_path / "made").exists()
