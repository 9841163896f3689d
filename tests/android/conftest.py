"""The runner that tests of phones share."""

from __future__ import annotations

import pytest
from adb_phone import FakePhone, adb_server, build_runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    """The folder with edgeopt-runner, built for this machine as for a phone."""
    return build_runner(tmp_path_factory.mktemp("runner"))


@pytest.fixture
def phone(runner, tmp_path, monkeypatch):
    """One phone that is connected."""
    monkeypatch.setenv("EDGEOPT_ANDROID_RUNNER", str(runner))
    monkeypatch.chdir(tmp_path)
    made = FakePhone(tmp_path / "phone")
    with adb_server(made):
        yield made
