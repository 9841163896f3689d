from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from edgeopt.executors import SessionOptions
from edgeopt.executors.null import EXECUTOR, Script
from edgeopt.graph.tensors import TensorSpec
from edgeopt.measurement.opening.subject import subject_facts
from edgeopt.system.machine.environment import Environment, Fact, Use, read_environment
from edgeopt.system.machine.facts import commit_of, software_facts


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def board(tmp_path: Path) -> tuple[Path, Path]:
    """A Raspberry Pi in files."""
    proc, system = tmp_path / "proc", tmp_path / "sys"
    write(
        proc / "cpuinfo",
        "processor\t: 0\nFeatures\t: fp asimd asimddp\nprocessor\t: 1\nFeatures\t: fp\nModel\t: Pi 5\n",
    )
    write(proc / "meminfo", "MemTotal:        8245000 kB\nMemAvailable:    4096000 kB\nSwapTotal:        0 kB\n")
    write(proc / "stat", "cpu  1 2 3 4 5 6 7 0 0 0\n")
    write(proc / "self/cgroup", "0::/job\n")
    write(proc / "1/cgroup", "0::/kubepods/x\n")
    write(proc / "device-tree/model", "Raspberry Pi 5\0")
    cpus = system / "devices/system/cpu"
    for core, top in ((0, 1800000), (1, 2400000), (10, 2400000)):
        write(cpus / f"cpu{core}/cpufreq/cpuinfo_max_freq", f"{top}\n")
        write(cpus / f"cpu{core}/cpufreq/scaling_governor", "ondemand\n")
        write(cpus / f"cpu{core}/cpufreq/scaling_cur_freq", "600000\n")
    write(cpus / "cpufreq/boost", "0")
    write(system / "fs/cgroup/job/cpu.max", "150000 100000\n")
    write(system / "class/power_supply/usb/type", "USB")
    write(system / "class/power_supply/usb/online", "1")
    write(system / "class/thermal/thermal_zone0/type", "cpu-thermal")
    write(system / "class/thermal/thermal_zone0/temp", "61000")
    return proc, system


def read(board: tuple[Path, Path], **more: object) -> Environment:
    return read_environment(proc=board[0], system=board[1], **more)


def value(found: Environment, key: str) -> object:
    return found.facts[key].value


def test_facts_are_read_from_the_device_files(board):
    found = read(board)
    assert value(found, "cpu.model") == "Pi 5"
    assert value(found, "cpu.flags") == "asimd asimddp fp"
    assert value(found, "cpu.core_max_khz") == [1800000, 2400000, 2400000]  # cpu10 comes after cpu1
    assert value(found, "cpu.governor") == ["ondemand"]
    assert value(found, "cpu.turbo") == "off"
    assert value(found, "cpu.quota") == "150000 100000"
    assert value(found, "memory.limit") == "no limit"
    assert value(found, "memory.total_gib") == 7.75
    assert value(found, "system.board") == "Raspberry Pi 5"
    assert value(found, "power.source") == "mains"
    assert value(found, "heat.zones") == {"thermal_zone0": {"type": "cpu-thermal", "millicelsius": 61000}}
    assert found.facts["cpu.now_khz"].use is Use.INFORMATIONAL


def test_a_fact_that_is_absent_is_none_with_the_reason(board):
    found = read(board)
    assert value(found, "cpu.core_capacity") is None
    assert "no core has cpu_capacity" in found.missing["cpu.core_capacity"]
    assert found.missing["power.jetson_mode"] == "FileNotFoundError: no command nvpmodel"
    assert "cpu.governor" not in found.missing


def test_nothing_is_raised_on_a_machine_without_any_file(tmp_path):
    found = read_environment(proc=tmp_path / "no", system=tmp_path / "none")
    assert value(found, "python.version")
    assert all(found.missing.values())
    json.dumps(found.to_json(), allow_nan=False)


def test_the_same_machine_has_the_same_hash_whatever_its_temperature(board):
    first = read(board)
    write(board[1] / "class/thermal/thermal_zone0/temp", "80000")
    write(board[1] / "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1800000")
    second = read(board, info={"seed": 3})
    assert first.hash == second.hash
    assert first.why_not_comparable(second) == ()
    assert {"cpu.now_khz", "heat.zones", "seed"} <= set(first.differing(second))


def test_a_machine_set_up_in_another_way_is_not_comparable_and_the_key_is_named(board):
    first = read(board)
    for core in (0, 1, 10):
        write(board[1] / f"devices/system/cpu/cpu{core}/cpufreq/scaling_governor", "performance")
    second = read(board)
    assert first.hash != second.hash
    assert first.why_not_comparable(second) == ("cpu.governor",)


def test_another_model_is_named_but_refuses_no_comparison(board):
    first, second = (read(board, subject={"model.sha256": one}) for one in ("a", "b"))
    assert first.differing(second, Use.SUBJECT) == ("model.sha256",)
    assert first.subject_hash != second.subject_hash
    assert first.why_not_comparable(second) == ()


def test_a_key_that_one_side_lacks_differs_unless_it_is_unknown_there():
    known, unknown = Fact(Use.CRITICAL, 1), Fact(Use.CRITICAL, None, "no sensor")
    assert Environment({"a": known}).differing(Environment({})) == ("a",)
    assert Environment({"a": known}).why_not_comparable(Environment({"a": unknown})) == ("a",)
    assert Environment({"a": unknown}).differing(Environment({})) == ()


def test_an_environment_survives_json(board):
    found = read(board, subject={"model.opset": None})
    again = Environment.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert again.hash == found.hash
    assert found.missing["model.opset"] == "not told"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (None, "it has no environment"),
        ({}, "it has no environment"),
        ({"other": 1}, "its environment has no facts"),
        ([1], "its environment has no facts"),
        ({"facts": [1]}, "its environment has no facts"),
        ({"facts": {"cpu.cores": 2}}, "fact cpu.cores of its environment is 2"),
        ({"facts": {"a": {"use": [], "value": 2}}}, "fact a of its environment is {'use': [], 'value': 2}"),
        ({"facts": {"a": {"use": "other", "value": 2}}}, "fact a of its environment is {'use': 'other', 'value': 2}"),
    ],
)
def test_what_is_no_environment_is_told_in_words(values, why):
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        Environment.from_json(values)


def test_without_a_known_fact_of_the_subject_there_is_no_hash_of_it():
    machine = Fact(Use.CRITICAL, 1)
    assert Environment({"a": machine}).to_json()["subject_hash"] is None
    assert Environment({"a": machine, "model.sha256": Fact(Use.SUBJECT, None, "not told")}).subject_hash is None
    first, second = (Environment({"a": machine, "model.sha256": Fact(Use.SUBJECT, text)}) for text in "ab")
    assert first.subject_hash != second.subject_hash


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"AC/type": "Mains", "AC/online": "0", "B/type": "Battery", "B/status": "Discharging"}, "battery"),
        ({"B/type": "Battery", "B/status": "Full"}, "full"),
        ({}, "mains"),
    ],
)
def test_the_power_source_is_told(tmp_path, files, source):
    (tmp_path / "class/power_supply").mkdir(parents=True)
    for name, text in files.items():
        write(tmp_path / "class/power_supply" / name, text)
    assert value(read_environment(system=tmp_path), "power.source") == source


def test_the_limits_of_an_old_container_are_found(tmp_path):
    write(tmp_path / "proc/self/cgroup", "4:cpu,cpuacct:/job\n2:memory:/job\n")
    write(tmp_path / "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000")
    write(tmp_path / "sys/devices/system/cpu/intel_pstate/no_turbo", "0")
    found = read_environment(proc=tmp_path / "proc", system=tmp_path / "sys")
    assert value(found, "cpu.quota") == "50000"
    assert value(found, "cpu.turbo") == "on"


def test_the_commit_is_read_without_git(tmp_path):
    write(tmp_path / ".git/HEAD", "ref: refs/heads/main\n")
    write(tmp_path / ".git/packed-refs", "# pack-refs\nabc refs/heads/main\n")
    assert commit_of(tmp_path) == "abc"
    write(tmp_path / ".git/refs/heads/main", "def\n")
    assert commit_of(tmp_path) == "def"
    write(tmp_path / ".git/HEAD", "0123\n")
    assert commit_of(tmp_path) == "0123"


def test_the_subject_is_described_by_hashes_and_options(tmp_path):
    script = Script((TensorSpec("x", "float32", (1, 3)),), ({"y": np.ones(3, np.float32)},)).to_bytes()
    (tmp_path / "m").write_bytes(script)
    options = SessionOptions(threads=2, entries={"session.intra_op.allow_spinning": "0"})
    inputs = {"x": np.ones((1, 3), np.float32)}
    facts = subject_facts(script, options, EXECUTOR.open(script, options), inputs=inputs)
    assert facts == subject_facts(tmp_path / "m", options, EXECUTOR.open(script, options), inputs=inputs)
    assert (facts["session.threads"], facts["session.spins"], facts["session.placement"]) == (2, False, {})
    assert facts["model.inputs"] == ["x float32 1x3"]
    assert facts["inputs"]["x"]["shape"] == [1, 3]
    json.dumps(facts)
    assert subject_facts(script, SessionOptions())["session.spins"]


@pytest.mark.parametrize(
    ("key", "value"), [("packages", 5), ("cpu.cores", "two"), ("cpu.instructions", 7), ("cpu.instructions", [["avx"]])]
)
def test_a_stored_fact_of_another_type_is_refused_when_it_is_read(key, value):
    facts = {"facts": {key: {"use": "critical", "value": value}}}
    with pytest.raises(ValueError, match=f"fact {key} is"):
        Environment.from_json(facts)


def test_a_package_that_is_one_file_beside_its_modules_is_seen(tmp_path, monkeypatch):
    """Debian's packages of Python are installed so, which a board's environment often sees."""
    write(tmp_path / "numpy-1.21.5.egg-info", "Metadata-Version: 1.2\nName: numpy\nVersion: 1.21.5\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    assert software_facts()["packages"]() == {"numpy": "1.21.5"}
