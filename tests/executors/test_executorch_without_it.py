"""Parts for ExecuTorch that work without it: the message of its absence, whole or in parts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeopt.executors.executorch.kept import keep_program, kept_program

OPENED = (
    "from edgeopt.errors import EdgeoptError\n"
    "from edgeopt.executors import SessionOptions\n"
    "from edgeopt.executors.executorch import EXECUTOR\n"
    "print(EXECUTOR.why_unavailable())\n"
    "try:\n    EXECUTOR.open(b'\\0\\0\\0\\0ET12', SessionOptions(('CPU',)))\n"
    "except EdgeoptError as error:\n    print(error)\n"
)


def lines_of(code: str, path: str = "") -> list[str]:
    code = f"import sys; sys.path.insert(0, {path!r})\n{code}" if path else code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().splitlines()


@pytest.mark.parametrize("package", ["executorch", "torch"])
def test_without_a_package_the_reason_ends_with_what_to_install(package):
    reason, problem, remedy = lines_of(f"import sys; sys.modules[{package!r}] = None\n{OPENED}")
    assert "is not installed" in reason
    assert problem.endswith("is not installed: running a model by ExecuTorch needs it")
    assert remedy.startswith("  -> pip install 'edgeopt[executorch]'")


def halves(tmp_path, native: str | None) -> str:
    """Packages of those names that are there in parts."""
    (tmp_path / "torch.py").write_text("")
    folder = tmp_path / "executorch" / "extension" / "pybindings"
    folder.mkdir(parents=True)
    for place in (folder.parent.parent, folder.parent, folder):
        (place / "__init__.py").write_text("")
    if native is not None:
        (folder / "_C.py").write_text(native)
    return str(tmp_path)


def test_a_package_without_its_runtime_is_one_line(tmp_path):
    reason, problem, _ = lines_of(OPENED, halves(tmp_path, None))
    assert reason.startswith("executorch has no runtime in its package")
    assert problem.startswith("executorch has no runtime in its package: running a model")


def test_a_runtime_that_does_not_load_is_one_line(tmp_path):
    native = "raise ImportError('undefined symbol: torch')\n"
    reason, problem, remedy = lines_of(OPENED, halves(tmp_path, native))
    assert reason == "None", "it is seen when a model is opened"
    assert problem.startswith("executorch cannot be imported (undefined symbol: torch)")
    assert remedy.startswith("  -> pip install")


PROGRAM = b"\0\0\0\0ET12" + bytes(1000)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "edgeopt" / "executorch"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-100], lambda data: data[:500] + b"\1" + data[501:], lambda _: b""]
)
def test_a_kept_program_that_is_damaged_is_converted_again(folder, damage):
    keep_program(b"model", PROGRAM)
    assert kept_program(b"model") == PROGRAM
    assert kept_program(b"other") is None
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert kept_program(b"model") is None


def test_kept_programs_have_a_bound_in_number_and_in_bytes(folder, monkeypatch):
    monkeypatch.setattr("edgeopt.executors.executorch.kept._MOST", 3)
    for i in range(5):
        keep_program(bytes([i]), PROGRAM)
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr("edgeopt.executors.executorch.kept._MOST_BYTES", 1500)
    keep_program(b"large", PROGRAM * 3)
    assert kept_program(b"large") == PROGRAM * 3, "what was just made stays, however large"
    assert len(list(folder.iterdir())) == 1


def test_where_no_disk_takes_them_programs_are_kept_in_memory(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file in the place of the folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    monkeypatch.setattr("edgeopt.executors.executorch.kept._MOST_UNWRITTEN", 2)
    for i in range(3):
        keep_program(bytes([i]), PROGRAM + bytes([i]))
    kept = [kept_program(bytes([i])) for i in range(3)]
    assert kept == [None, PROGRAM + b"\1", PROGRAM + b"\2"]
