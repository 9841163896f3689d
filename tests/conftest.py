"""Fixtures that all groups of tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

REPOSITORY = Path(__file__).parents[1]
DATA = REPOSITORY.parent / "shared" / "data"


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real models and labelled images, where it is present."""
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is absent: the real models are not part of the repository")
    return DATA
