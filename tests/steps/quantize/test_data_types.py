from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgeopt.errors import NoteKind
from edgeopt.steps.quantize import integer_types
from edgeopt.steps.quantize.integer_types import TypeSpeeds, confirmed_rules, type_speeds
from edgeopt.system.declared import target
from edgeopt.system.declared.target import Int8Rules, Target, find_target
from edgeopt.system.disk.caches import cache_folder
from edgeopt.system.machine.processor import Processor

HERE = Target(
    "here", "cpu", "onnxruntime", "", ("CPUExecutionProvider",), ("fp32", "w8a8"), Int8Rules(reduce_range=True)
)


def never() -> TypeSpeeds:
    raise AssertionError("nothing is to be measured")


def test_a_profile_that_names_the_faster_type_is_followed_without_a_word() -> None:
    assert confirmed_rules(HERE, lambda: TypeSpeeds(3.0, 2.0)) == (HERE.int8, [])
    assert confirmed_rules(HERE, lambda: TypeSpeeds(3.0, 3.2)) == (HERE.int8, [])


def test_the_measurement_turns_the_profile_over_and_says_so_with_the_ratios() -> None:
    rules, notes = confirmed_rules(HERE, lambda: TypeSpeeds(1.1, 2.0))
    assert rules == replace(HERE.int8, activation_dtype="int8")
    assert [note.kind for note in notes] == [NoteKind.CHOICE]
    assert "S8S8 instead of the profile's U8S8: U8S8 1.10x, S8S8 2.00x" in notes[0].detail
    signed = replace(HERE, int8=replace(HERE.int8, activation_dtype="int8"))
    assert confirmed_rules(signed, lambda: TypeSpeeds(2.0, 1.1))[0].activation_dtype == "uint8"


def test_integers_that_gain_nothing_are_a_warning_and_change_no_rule() -> None:
    rules, notes = confirmed_rules(HERE, lambda: TypeSpeeds(0.9, 0.8))
    assert rules == HERE.int8
    assert [note.kind for note in notes] == [NoteKind.WARNING]
    assert "not faster than float32 here: U8S8 0.90x, S8S8 0.80x" in notes[0].detail


@pytest.mark.parametrize(
    "other",
    [
        replace(HERE, executor="openvino"),
        replace(HERE, device="gpu"),
        replace(HERE, architectures=("riscv",)),
        replace(HERE, int8=replace(HERE.int8, activation_dtype="uint16")),
    ],
    ids=["another engine", "another device", "another machine", "16 bits"],
)
def test_what_this_processor_cannot_confirm_is_left_alone(other: Target) -> None:
    assert confirmed_rules(other, never) == (other.int8, [])


@pytest.mark.parametrize(
    ("flags", "architecture", "name", "is_warned"),
    [
        ({"avx2"}, "x86-64", "cpu-x86-vnni", True),
        ({"avx2"}, "x86-64", "raspberry-pi-5", True),
        ({"avx2"}, "x86-64", "cpu-x86-avx2", False),
        ({"avx2"}, "x86-64", "openvino-cpu", False),
        ({"avx2"}, "x86-64", "nvidia-cuda", False),
        ({"avx2", "avx_vnni"}, "x86-64", "raspberry-pi-5", False),
        ({"asimddp"}, "arm64", "cpu-x86-vnni", False),
    ],
)
def test_weights_that_saturate_on_this_processor_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], architecture: str, name: str, is_warned: bool
) -> None:
    monkeypatch.setattr(target, "this_processor", lambda: Processor(architecture, flags))
    _, notes = confirmed_rules(find_target(name), lambda: TypeSpeeds(3.0, 2.0))
    warned = [note for note in notes if note.kind is NoteKind.WARNING]
    assert [f"8-bit weights of {name}" in note.detail for note in warned] == [True] * is_warned
    assert all("--target cpu" in note.hint for note in warned)


def test_speeds_are_measured_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = type_speeds(tmp_path)
    assert min(first.uint8, first.int8) > 0
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text("utf-8")) == {"uint8": first.uint8, "int8": first.int8}
    monkeypatch.setattr(integer_types, "_measure", never)
    assert type_speeds(tmp_path) == first


@pytest.mark.parametrize("damage", ["{", "[]", '{"uint8": 1.0}'])
def test_a_damaged_entry_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(integer_types, "_measure", lambda: TypeSpeeds(2.0, 1.0))
    type_speeds(tmp_path)
    next(tmp_path.iterdir()).write_text(damage)
    assert type_speeds(tmp_path) == TypeSpeeds(2.0, 1.0)


def test_a_cache_that_cannot_be_written_costs_only_the_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer_types, "_measure", lambda: TypeSpeeds(2.0, 1.0))
    (tmp_path / "file").write_text("")
    assert type_speeds(tmp_path / "file") == TypeSpeeds(2.0, 1.0)


@pytest.mark.parametrize(
    ("system", "variable", "end"),
    [
        ("linux", "XDG_CACHE_HOME", "edgeopt"),
        ("win32", "LOCALAPPDATA", "edgeopt/cache"),
        ("darwin", "HOME", "Library/Caches/edgeopt"),
    ],
)
def test_every_system_has_its_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, variable: str, end: str
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert cache_folder() == tmp_path / end
