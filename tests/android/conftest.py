"""The runner that tests of phones share, and a phone that has it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from adb_phone import FakePhone, adb_server, run_build_script, runner_here, runner_package

from edgeopt.verbs.android.phone import Phone


@pytest.fixture(scope="session")
def package(tmp_path_factory) -> Path:
    """A package of ONNX Runtime and a toolchain as for phones."""
    return runner_package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def built(package, tmp_path_factory) -> tuple[Path, int, str]:
    """The folder that the script built edgeopt-runner into, its exit code and what it printed."""
    folder = tmp_path_factory.mktemp("built") / "made"
    return folder, *run_build_script(package, str(folder))


@pytest.fixture(scope="session")
def runner(built, tmp_path_factory) -> Path:
    """The folder with edgeopt-runner, built for this machine as for a phone."""
    folder, code, said = built
    assert code == 0, said
    return runner_here(folder, tmp_path_factory.mktemp("runner"))


@pytest.fixture
def empty_phone(runner, tmp_path, monkeypatch):
    """One phone that is connected, and was never used."""
    monkeypatch.setenv("EDGEOPT_ANDROID_RUNNER", str(runner))
    monkeypatch.chdir(tmp_path)
    made = FakePhone(tmp_path / "phone")
    with adb_server(made):
        yield made


@pytest.fixture(scope="session")
def used_store(runner, tmp_path_factory) -> Path:
    """The store of a phone on which edgeopt was used once: the runner lies in it."""
    made = FakePhone(tmp_path_factory.mktemp("used") / "phone")
    with pytest.MonkeyPatch.context() as patch, adb_server(made):
        patch.setenv("EDGEOPT_ANDROID_RUNNER", str(runner))
        Phone("", lambda *_: None)
    return made.own / "store"


@pytest.fixture
def phone(empty_phone, used_store):
    """One phone that is connected, and has the runner from an earlier command."""
    shutil.copytree(used_store, empty_phone.own / "store", copy_function=os.link)
    return empty_phone
