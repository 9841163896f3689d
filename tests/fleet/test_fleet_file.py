"""The file of a fleet: its cells, their command lines and keys, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgeopt.verbs.fleet.plan as plan_module
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.verbs.fleet.plan import read_plan
from edgeopt.verbs.fleet.run import request_of, requests_of
from edgeopt.verbs.fleet.work import FILES

PLAN = """
[workloads.small]
model = "net.onnx"
calib = "pictures"
budget = "5ms"

[workloads.digits]
model = "digits_detector"

[devices.pi5]
on = "ssh://pi@board:2222"

[devices.desk]
targets = ["cpu", "mine.toml"]

[options]
time-limit = "5m"
skip = ["prune", "activations"]
"""


def write(folder: Path, text: str) -> Path:
    (folder / "net.onnx").write_bytes(b"a net")
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / "pictures" / "a.jpg").write_bytes(b"a picture")
    (folder / "mine.toml").write_text('name = "mine"\n')
    (folder / "plan.toml").write_text(text)
    return folder / "plan.toml"


def test_each_workload_meets_each_target_of_each_device(tmp_path):
    plan = read_plan(write(tmp_path, PLAN))
    assert [cell.name for cell in plan.cells] == [
        "small-pi5-cpu",
        "small-desk-cpu",
        "small-desk-mine",
        "digits-pi5-cpu",
        "digits-desk-cpu",
        "digits-desk-mine",
    ]
    assert plan.devices == ("pi5", "desk")
    assert plan.name == "plan"


def test_a_model_is_opened_and_its_files_are_looked_up_once_for_all_devices(tmp_path, monkeypatch):
    """10,000 devices would open each model and walk its pictures 10,000 times."""
    opened, walked = list[str](), list[object]()
    open_kind, walk = plan_module.kind_of, plan_module.files_behind
    monkeypatch.setattr(plan_module, "kind_of", lambda source, *rest: opened.append(source) or open_kind(source, *rest))
    monkeypatch.setattr(plan_module, "files_behind", lambda paths: walked.append(paths) or walk(paths))
    text = '[workloads.small]\nmodel = "net.onnx"\ncalib = "pictures"\n[options]\n'
    plan = read_plan(write(tmp_path, text + "".join(f"[devices.d{i}]\n" for i in range(50))))
    requests = requests_of(plan.cells, "1")
    assert (len(opened), len(walked), len(requests)) == (1, 1, 50)
    assert requests == {cell.name: request_of(cell, "1") for cell in plan.cells}
    assert len({request.key for request in requests.values()}) == 50


def test_options_are_words_of_the_command_and_files_lie_beside_the_plan(tmp_path):
    small, *_ = read_plan(write(tmp_path, PLAN)).cells
    words = [word.text for word in small.words]
    assert words[:3] == ["optimize", "--target", "cpu"]
    assert words[-2:] == ["--", str(tmp_path / "net.onnx")]
    assert words[words.index("--calib") + 1] == str(tmp_path / "pictures")
    assert words[words.index("--budget") + 1] == "5ms"
    assert [words[i + 1] for i, word in enumerate(words) if word == "--skip"] == ["prune", "activations"]
    assert {path.name for path in small.files.values()} == {"net.onnx", "a.jpg"}


def test_a_request_names_the_device_and_mirrors_the_files(tmp_path):
    small, on_desk, *_ = read_plan(write(tmp_path, PLAN)).cells
    request = request_of(small, "1")
    assert request.words[:3] == ("optimize", "--on", "ssh://pi@board:2222")
    assert request.words[-1].startswith(f"{FILES}/")
    assert not request.is_here
    assert request_of(on_desk, "1").is_here
    assert "--on" not in request_of(on_desk, "1").words


def test_all_that_enters_makes_the_key(tmp_path):
    file = write(tmp_path, PLAN)

    def key(version: str = "1") -> str:
        return request_of(read_plan(file).cells[0], version).key

    first = key()
    assert key() == first
    assert key("2") != first, "another edgeopt"
    (tmp_path / "pictures" / "a.jpg").write_bytes(b"another picture")
    assert key() != first, "other pictures"
    write(tmp_path, PLAN.replace("5ms", "6ms"))
    assert key() != first, "another budget"
    write(tmp_path, PLAN)
    assert key() == first


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (PLAN, "", "missing devices, workloads"),
        (PLAN, "[workloads]\n[devices]\n", "names no workloads or no devices"),
        ('model = "net.onnx"', "", "workloads.small names no model"),
        ("budget", "bugdet", "there is no option 'bugdet'"),
        ("budget", "out", "there is no option 'out'"),
        ("budget", "resume", "there is no option 'resume'"),
        ('"5ms"', '["5ms", "6ms"]', "budget is a list"),
        ('"5ms"', "true", "budget is True, neither a text nor a number"),
        ('["cpu", "mine.toml"]', '["cpu", "cpu"]', "2 cells would be called small-desk-cpu"),
        ("[devices.desk]", '[devices."a/b"]', "'a/b' cannot be the name of a folder"),
        ("[devices.desk]", '[devices.".."]', "'..' cannot be the name of a folder"),
        ("[devices.desk]", '[devices."a."]', "'a.' cannot be the name of a folder"),
        ("[devices.desk]", '[devices."a\\u0000b"]', "cannot be the name of a folder"),
        ("[devices.desk]", '[devices."a\\u001b[2J"]', "cannot be the name of a folder"),
        ("[devices.desk]", '[devices."a\\u202eb"]', "cannot be the name of a folder"),
        ("[devices.desk]", f"[devices.{'x' * 300}]", "is too long for a folder"),
        ("[devices.desk]", "[devices.DESK]\n[devices.desk]", "2 cells would be called small-desk-cpu"),
        ("[devices.desk]", '[devices."d\\u00e9"]\n[devices."de\\u0301"]', "2 cells would be called small-d\u00e9-cpu"),
        ("[devices.desk]", "[devices.desk]\nspeed = 1", "unknown speed"),
        ("[devices.desk]", "[devices.desk]\ncost-per-hour = -1", "cost_per_hour is -1"),
        ("[devices.desk]", '[devices.desk]\ncost-per-hour = "much"', "cost_per_hour is 'much'"),
        ("[devices.desk]", "[devices]\ndesk = 1\n[devices.x]", "devices is 1"),
        ("[options]", "[optoins]", "unknown optoins"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, before, after, said):
    with pytest.raises(InvalidFileError, match=said.replace("[", r"\[")):
        read_plan(write(tmp_path, PLAN.replace(before, after)))


def test_an_address_that_is_none_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(EdgeoptError, match="no address of a device"):
        read_plan(write(tmp_path, PLAN.replace("ssh://pi@board:2222", "http://board")))


def test_prices_of_devices_are_read_and_change_no_cell(tmp_path):
    before = read_plan(write(tmp_path, PLAN))
    plan = read_plan(write(tmp_path, PLAN.replace("[devices.desk]", "[devices.desk]\ncost-per-hour = 0.4")))
    assert before.prices == {}
    assert plan.prices == {"desk": 0.4}
    assert requests_of(plan.cells, "1") == requests_of(before.cells, "1"), "finished cells stay finished"
