"""The part of a command on a device that runs here: what it holds meanwhile, and the command that is left for there."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeopt.optimization.folder.handover import MadeHere
from edgeopt.system.machine.processor import this_processor
from edgeopt.verbs.remote.address import Address
from edgeopt.verbs.remote.command import CommandWord, RemoteCommand
from edgeopt.verbs.remote.search import MACHINE_LOCK, SearchHere

fcntl = pytest.importorskip("fcntl", reason="locks of POSIX")
WORDS = ("optimize", "--target", "cpu", "--time-limit", "100s", "--out", "typed", "--", "digits_detector")
COMMAND = RemoteCommand(tuple(map(CommandWord, WORDS)), "cpu", {})
BOARD = SimpleNamespace(processor=this_processor(), connection=SimpleNamespace(address=Address("board")))


def search(**values: object) -> SearchHere:
    return SearchHere("optimize", "digits_detector", {"target": "cpu", **values}, nullcontext)


@pytest.fixture
def made(monkeypatch):
    """Calls of the search, which makes nothing here; each keeps whether the machine could be had meanwhile."""
    calls: list[bool] = []

    def make(*_: object) -> MadeHere:
        calls.append(is_free())
        return MadeHere("exported.onnx", Path("typed"))

    monkeypatch.setattr("edgeopt.workloads.frames.optimize.make_elsewhere", make)
    return calls


LOCK = Path()


def is_free() -> bool:
    """Return whether nobody holds the machine."""
    with LOCK.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.mark.parametrize("in_fleet", [True, False])
def test_a_search_of_a_fleet_holds_the_machine_only_as_long_as_it_searches(tmp_path, monkeypatch, made, in_fleet):
    monkeypatch.setattr(f"{__name__}.LOCK", tmp_path / "machine.lock")
    if in_fleet:
        monkeypatch.setenv(MACHINE_LOCK, str(LOCK))
    search().made_here(COMMAND, BOARD, lambda _: None)
    assert made == [not in_fleet]
    assert is_free()


def test_the_device_takes_up_the_folder_in_the_time_that_is_left(tmp_path, monkeypatch, made):
    monkeypatch.setattr(f"{__name__}.LOCK", tmp_path / "machine.lock")
    command = search(time_limit_s=100.0, out=Path("typed")).made_here(COMMAND, BOARD, lambda _: None)
    words = [word.text for word in command.words]
    assert words[:4] == ["optimize", "--resume", "--out", "typed"]
    assert words[words.index("--time-limit") + 1] in ("99s", "100s")
    assert words[-2:] == ["--", "exported.onnx"]
    assert words.count("--out") == words.count("--time-limit") == 1
    assert "--resume" in command.again


@pytest.mark.parametrize(
    ("source", "kind", "options"),
    [("tiny_lm", "generation", ("--task", "text-generation")), ("pipeline.toml", "pipeline", ("--code", "app"))],
)
def test_a_kind_without_options_of_an_export_hands_on_its_own(tmp_path, monkeypatch, source, kind, options):
    monkeypatch.chdir(tmp_path)
    Path("pipeline.toml").write_text('name = "p"\n[[stage]]\nname = "a"\nmodel = "digits_detector"\n', "utf-8")
    result = MadeHere(source, Path("typed"))
    monkeypatch.setattr(f"edgeopt.workloads.{kind}.optimize.make_elsewhere", lambda *_: result)
    words = ("optimize", "--target", "cpu", *options, "--resume", "--", source)
    command = RemoteCommand(tuple(map(CommandWord, words)), "cpu", {})
    values = {"target": "cpu", "resume": True}
    made = SearchHere("optimize", source, values, nullcontext).made_here(command, BOARD, lambda _: None)
    is_kept = kind == "pipeline"  # what a source is exported for is over when it is exported
    kept = options if is_kept else ()
    assert [word.text for word in made.words] == [
        *("optimize", "--resume", "--out", "typed", "--target", "cpu"), *kept, "--", source
    ]  # fmt: skip


def test_why_candidates_are_made_on_the_device_too_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr("edgeopt.workloads.generation.optimize.make_elsewhere", lambda *_: "its engine is not here")
    lines: list[str] = []
    search_lm = SearchHere("optimize", "tiny_lm", {"target": "cpu"}, nullcontext)
    assert search_lm.made_here(COMMAND, BOARD, lines.append) is COMMAND
    assert lines == ["candidates are made on board too: its engine is not here"]
