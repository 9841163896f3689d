"""The runner that tests of phones share."""

from __future__ import annotations

import pytest
from adb_phone import build_runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    """The folder with edgeopt-runner, built for this machine as for a phone."""
    return build_runner(tmp_path_factory.mktemp("runner"))
