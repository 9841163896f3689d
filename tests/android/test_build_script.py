"""The script that builds edgeopt-runner for phones, with a toolchain and a package of ONNX Runtime made here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from adb_phone import HEADERS, ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it links a library of Linux, as Android's are")
SCRIPT = ROOT / "examples" / "cpp" / "runner" / "build_android.sh"
ABI = "arm64-v8a"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """An .aar with ONNX Runtime's headers and a library that has its one symbol."""
    headers = next((each for each in HEADERS if (each / "onnxruntime_cxx_api.h").is_file()), None)
    if headers is None:
        pytest.skip("no headers of ONNX Runtime: run examples/onnxruntime_headers.sh /usr/local/include")
    if missing := [name for name in ("bash", "cmake", "gcc", "g++") if shutil.which(name) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    folder = tmp_path_factory.mktemp("package")
    (folder / "stub.c").write_text("void *OrtGetApiBase(void) { return 0; }\n")
    library = folder / "libonnxruntime.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / "stub.c"], check=True)
    with zipfile.ZipFile(folder / "onnxruntime.aar", "w") as archive:
        archive.write(library, f"jni/{ABI}/libonnxruntime.so")
        for header in headers.glob("*.h"):
            archive.write(header, f"headers/{header.name}")
    toolchain = folder / "ndk" / "build" / "cmake" / "android.toolchain.cmake"
    toolchain.parent.mkdir(parents=True)
    toolchain.write_text("set(ANDROID TRUE)\n")
    return folder


def built(package: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    named = {"ANDROID_NDK_HOME": str(package / "ndk"), "ONNXRUNTIME_AAR": str(package / "onnxruntime.aar")}
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("ANDROID_NDK", "ONNXRUNTIME_"))}
    done = subprocess.run([SCRIPT, *arguments], env={**clean, **named, **variables}, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_it_builds_and_says_how_to_name_the_folder(package, tmp_path):
    code, said = built(package, str(tmp_path / "made"))
    assert code == 0, said
    assert f"export EDGEOPT_ANDROID_RUNNER={tmp_path / 'made'}" in said
    assert sorted(path.name for path in (tmp_path / "made" / ABI).iterdir()) == ["edgeopt-runner", "libonnxruntime.so"]
    assert os.access(tmp_path / "made" / ABI / "edgeopt-runner", os.X_OK)


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        ((), {}, "name the folder"),
        (("made",), {"ANDROID_NDK_HOME": "/nowhere"}, "no NDK: set ANDROID_NDK_HOME"),
        (("made", "x86"), {}, f"the package holds no library for x86: {ABI}"),
        (("made",), {"ONNXRUNTIME_SHA256": "0" * 64}, "not to ONNXRUNTIME_SHA256"),
    ],
)
def test_what_is_missing_is_one_line(package, tmp_path, monkeypatch, arguments, variables, told):
    monkeypatch.chdir(tmp_path)
    code, said = built(package, *arguments, **variables)
    assert code != 0
    assert told in said
    assert not (tmp_path / "made").exists()
