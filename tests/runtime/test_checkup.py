from __future__ import annotations

import pytest

from edgeopt.runtime.devices import checkup
from edgeopt.system.machine.environment import Environment, Fact, Use

ONE = {"onnxruntime": "1.31"}
TWO = ONE | {"onnxruntime-gpu": "1.31"}


@pytest.mark.parametrize(
    ("packages", "quota", "problems"),
    [
        (ONE, None, []),
        (ONE, 4.0, []),
        (ONE, 1.5, ["the container may use 1.5 cores only"]),
        ({}, 1.5, ["no ONNX Runtime", "the container may use 1.5 cores only"]),
        (TWO, None, ["onnxruntime and onnxruntime-gpu overwrite each other's files"]),
    ],
)
def test_what_is_wrong_with_a_machine_is_shown(monkeypatch, packages, quota, problems):
    facts = {
        "cpu.cores": Fact(Use.CRITICAL, 4),
        "code.packages": Fact(Use.CRITICAL, packages),
    }
    monkeypatch.setattr(checkup, "read_environment", lambda: Environment(facts))
    monkeypatch.setattr(checkup, "cpu_quota", lambda: quota)
    found = checkup.examine()
    assert [note.detail for note in found.notes] == problems
    assert checkup.summarize(found).sections[0].notes == found.notes
