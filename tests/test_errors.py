"""Errors: one line of a length that can be read, whatever a file holds."""

from __future__ import annotations

import importlib
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgeopt
from edgeopt.errors import EdgeoptError, NotFoundError

PACKAGE = Path(edgeopt.__file__).parent
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "EngineFailure": (("llama.cpp", "it died"), {}),
    "NotFoundError": (("target", "cp", ["cpu"]), {}),
    "WorkerDeathError": (
        ("it died",),
        {"remedy": "try again", "how": "died", "last_line": "oh", "signal_name": "SIGABRT"},
    ),
}
"""Arguments of the classes that take others than `EdgeoptError`."""


def classes() -> list[type[EdgeoptError]]:
    """Return the class and all classes made from it, wherever in the package they are."""
    for path in PACKAGE.rglob("*.py"):
        if re.search(r"^class \w+Error\(", path.read_text("utf-8"), re.MULTILINE):
            name = path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".")
            importlib.import_module(name)

    def below(kind: type[EdgeoptError]) -> Iterator[type[EdgeoptError]]:
        yield kind
        for inner in kind.__subclasses__():
            yield from below(inner)

    return [kind for kind in below(EdgeoptError) if kind.__module__.startswith("edgeopt.")]


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_every_error_reaches_another_process_whole(kind):
    args, named = ARGUMENTS.get(kind.__name__, (("it is gone",), {"remedy": "put it back"}))
    error = kind(*args, **named)
    error.add_note("in the third step")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    assert back.problem
    assert back.remedy


def test_an_error_of_a_dask_worker_is_the_error_itself():
    core = pytest.importorskip("distributed.core")
    message = core.error_message(NotFoundError("target", "cp", ["cpu"]))
    error = pickle.loads(message["exception"].data)
    assert type(error) is NotFoundError
    assert error.remedy == "did you mean 'cpu'? known: cpu"


def test_a_name_of_thousands_of_characters_is_cut_in_the_middle():
    error = NotFoundError("decoder", "x" * 4000, ["yolox"])
    assert error.problem.startswith("no decoder named 'xxx")
    assert error.problem.endswith("xxx'")
    assert len(error.problem) < 1000
    assert str(error).endswith("-> choose from: yolox")


def test_a_line_of_a_usual_length_stays_whole():
    assert EdgeoptError("a" * 1000, remedy="b").problem == "a" * 1000


def test_of_hundreds_of_names_a_few_are_told():
    error = NotFoundError("layer", "nosuch", [f"/stage{i:03}/Conv" for i in range(330)])
    assert error.remedy.startswith("choose from: /stage000/Conv, ")
    assert error.remedy.endswith("/stage039/Conv and 290 more")
