"""Fixtures that all groups of tests share, and how several workers share the files."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

# Workers take all cores already. With threads of their own, NumPy's OpenBLAS and torch wait in turn for one another,
# spinning: rounding a small language model in blocks took 107 s of processor time instead of 12. Read on import.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from fixture_brief import briefly, ending_after
from fixture_web import node_modules, web_package  # noqa: F401, fixtures
from hypothesis import HealthCheck, settings

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.pop("COLUMNS", None)  # who runs the tests in a shell that exports it reads the same tables
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)  # a busy machine, or a drawn number, decides no test
settings.load_profile("repeatable")

REPOSITORY = Path(__file__).parents[1]
DATA = REPOSITORY.parent / "shared" / "data"
LONGEST = (
    "test_ssh_device.py",
    "test_engines_environment.py",
    "test_qnn_environment.py",
    "test_real_models.py",
    "test_search_of_each_kind.py",
    "test_packaging.py",
    "test_optimize.py",
    "test_optimize_language.py",
    "test_fleet.py",
    "test_brought_models.py",
    "test_choice_truth.py",
    "test_misreading.py",
    "test_docs.py",
    "test_bench.py",
    "test_check.py",
    "test_examples.py",
    "test_arm64.py",
)
"""From half a minute to minutes: begun first, so that no worker is left alone with one of them at the end."""

TOGETHER = ("tests/remote/", "tests/android/")
"""Folders whose files share what takes long to make, and so a worker: a device's environment, a built program."""


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the eleven thousand tests themselves: each full collection took 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _own_environment() -> Iterator[None]:
    """Undo at a module's end the variables that a library has set in this process: Dask sets malloc's for its workers.

    A later module's processes would inherit them, and which module that is depends on how tests were shared out.
    """
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        if not name.startswith("EDGEOPT_"):  # ours are set for longer: the device that tests over ssh share
            del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real models and labelled images, where it is present."""
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is absent: the real models are not part of the repository")
    return DATA


@pytest.fixture
def brief() -> Iterator[None]:
    """Measurements of a moment, for a test that looks at something else than speed."""
    with briefly():
        yield


@pytest.fixture
def one_form(brief: None) -> Iterator[None]:
    """Let a search for INT8 end after its first form."""
    with ending_after(1):
        yield


@pytest.fixture
def few_forms(brief: None) -> Iterator[None]:
    """Let a search for INT8 end after three forms."""
    with ending_after(3):
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the others stay as they were shuffled."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each worker whole files, or a whole folder, in this order: what they share is made once."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((folder for folder in TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid))

    config.option.loadscopereorder = False
    return Scheduling(config, log)
