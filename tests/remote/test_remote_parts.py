"""The parts of a remote command that need no device: addresses, files taken along, the wheel, who may write what."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save_model

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.runtime.devices.availability import load_executor
from edgeopt.system.declared.options import FileUse, options_of
from edgeopt.system.disk.wheel import make_wheel
from edgeopt.verbs.remote import VERBS, command, job, perform, ssh, wheelhouse
from edgeopt.verbs.remote.address import Address, read_address
from edgeopt.verbs.remote.command import CommandWord
from edgeopt.verbs.remote.device import NO_PACKAGES, Device
from edgeopt.verbs.remote.job import place_of
from edgeopt.verbs.remote.mirror import files_behind, mirrored
from edgeopt.verbs.remote.ssh import Connection
from edgeopt.workloads import kinds

ROOT = Path(__file__).parents[2]
SIDE = ROOT / "toolkit" / "edgeopt" / "verbs" / "remote" / "_device_side.py"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ssh://board", Address("board")),
        ("ssh://pi@10.0.0.7", Address("10.0.0.7", "pi")),
        ("ssh://pi@board:2222/", Address("board", "pi", 2222)),
        ("ssh://MyBoard", Address("MyBoard")),
        ("ssh://pi@[fe80::1%eth0]:22", Address("fe80::1%eth0", "pi", 22)),
    ],
)
def test_an_address_is_read_and_written(text, address):
    assert read_address(text) == address
    assert str(address) == text.rstrip("/")


@pytest.mark.parametrize(
    "text",
    [
        "pi@board",
        "ssh://",
        "ssh://-oProxyCommand=x",
        "ssh://board:port",
        "ssh://a:b@board",
        "ssh://board/home",
        "http://a",
        "ssh://$(id)",
        "ssh://a;touch b",
        "ssh://board:0",
        "ssh://bo ard",
    ],
)
def test_another_text_is_no_address(text):
    with pytest.raises(EdgeoptError, match="is no address") as refused:
        read_address(text)
    assert "ssh://USER@HOST" in refused.value.remedy


def test_a_phone_is_no_device_that_runs_commands():
    with pytest.raises(EdgeoptError, match="is a phone, which has no Python"):
        read_address("adb://0123")


def test_names_in_the_mirror_are_those_of_this_machine(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    root = mirrored(tmp_path)
    assert root == str(tmp_path).lstrip("/").replace("\\", "/").replace(":", "")
    assert mirrored(Path("net.onnx")) == f"{root}/a/net.onnx"
    assert mirrored(Path("../b/./net.onnx")) == f"{root}/b/net.onnx"
    assert mirrored(Path()) == f"{root}/a"


def taken_of(folder: Path, *paths: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in files_behind([folder / path for path in paths]).values()}


def test_a_model_takes_its_weights_outside_along(tmp_path):
    weights = helper.make_tensor("w", TensorProto.FLOAT, (64, 64), np.ones(64 * 64, np.float32).tobytes(), raw=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 64)) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    save_model(
        helper.make_model(graph),
        tmp_path / "net.onnx",
        save_as_external_data=True,
        location="net.data",
        size_threshold=0,
    )
    (tmp_path / "other.txt").write_text("not needed")
    assert taken_of(tmp_path, "net.onnx") == {"net.onnx", "net.data"}


def test_a_model_with_a_recipe_takes_its_folder_along(tmp_path):
    for name in ("net.onnx", "recipe.toml", "calib/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert taken_of(tmp_path, "net.onnx") == {"net.onnx", "recipe.toml", "calib/1.png"}


def test_a_language_model_takes_its_configuration_and_tokenizer_along(tmp_path):
    for name in ("net.onnx", "config.json", "tokenizer.json", "chat_template.jinja", "net.safetensors"):
        (tmp_path / name).touch()
    assert taken_of(tmp_path, "net.onnx") == {"net.onnx", "config.json", "tokenizer.json", "chat_template.jinja"}


@pytest.mark.parametrize("form", ["coco", "csv"])
def test_labels_take_the_pictures_along_that_they_name(tmp_path, form):
    for name in ("images/1.png", "images/2.png", "images/other.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    labels = tmp_path / ("val.json" if form == "coco" else "val.csv")
    rows = json.dumps({"images": [{"id": i, "file_name": f"{i}.png"} for i in (1, 2)]})
    labels.write_text(rows if form == "coco" else "file,class\n1.png,3\n2.png,4\n")
    assert taken_of(tmp_path, labels.name) == {labels.name, "images/1.png", "images/2.png"}


def test_a_pipeline_takes_along_what_its_file_names(tmp_path):
    (tmp_path / "parts").mkdir()
    for name in ("parts/face.onnx", "app.py"):
        (tmp_path / name).touch()
    (tmp_path / "door.toml").write_text('code = "app.py"\n[stage.face]\nmodel = "parts/face.onnx"\n[more]\nup = ".."\n')
    assert taken_of(tmp_path, "door.toml") == {"door.toml", "app.py", "parts/face.onnx"}


@pytest.mark.parametrize("text", ["[1, 2]", "{}", "no json", '{"images": 3}', '{"images": [{"id": 1}]}'])
def test_a_file_of_another_kind_is_taken_alone(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    assert taken_of(tmp_path, "x.json") == {"x.json"}


def test_the_wheel_is_the_same_each_time_and_pip_installs_it(tmp_path):
    wheel = make_wheel()
    packed = wheel.pack()
    assert (wheel.key, packed) == (make_wheel().key, make_wheel().pack())
    first, *_ = wheel.files
    assert replace(wheel, files={**wheel.files, first: b"else"}).key != wheel.key
    assert replace(wheel, files={f"{name}x": data for name, data in wheel.files.items()}).key != wheel.key
    assert {"cpu", "serve", "openvino"} <= wheel.extras
    names = zipfile.ZipFile(BytesIO(packed)).namelist()
    assert "edgeopt/models/digits_detector/recipe.toml" in names
    assert not [name for name in names if "__pycache__" in name]
    (tmp_path / wheel.name).write_bytes(packed)
    place = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", place, tmp_path / wheel.name], check=True)
    code = (
        "import edgeopt, sys; assert edgeopt.__file__.startswith(sys.argv[1]), edgeopt.__file__; print(edgeopt.Runtime)"
    )
    subprocess.run([sys.executable, "-c", code, str(place)], check=True, env={"PYTHONPATH": str(place)}, cwd=tmp_path)


@pytest.mark.parametrize(
    "name", ["home/me/.bashrc", "home/me/out2/x", "home/me/out/../.bashrc", "etc/passwd", "home/me"]
)
def test_a_device_writes_nothing_but_what_was_asked_for(name):
    with pytest.raises(EdgeoptError, match="which nobody asked for"):
        place_of(name, {"home/me/out": Path("/home/me/out")})


@pytest.mark.parametrize(
    ("line", "head"),
    [
        (b'{"stream": "out", "bytes": 5}', ("out", 5)),
        (b'{"code": 3}', ("", 3)),
        *(
            (line, None)
            for line in (b"", b"[]", b"3", b'{"stream": "x", "bytes": 5}', b'{"code": "a"}', b'{"bytes": 5}')
        ),
        (b'{"stream": "out", "bytes": 99999999999}', None),
    ],
)
def test_a_frame_that_is_none_is_one_clear_line(line, head):
    if head is not None:
        assert job._read_head(line) == (*head, "")
        return
    with pytest.raises(EdgeoptError, match="answers in no way that is known"):
        job._read_head(line)


def test_what_was_asked_for_comes_to_its_place():
    places = {"home/me/out": Path("/home/me/out"), "tmp/b.json": Path("/tmp/b.json")}
    assert place_of("home/me/out/bundle/x.onnx", places)[1] == Path("/home/me/out/bundle/x.onnx")
    assert place_of("tmp/b.json", places)[1] == Path("/tmp/b.json")


def test_no_link_here_leads_a_file_of_the_device_elsewhere(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "out" / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "out" / "file").symlink_to(tmp_path / "victim" / "mine")
    (tmp_path / "victim" / "mine").write_text("mine")
    places = {"home/out": tmp_path / "out"}
    with pytest.raises(EdgeoptError, match="which nobody asked for"):
        job.write_below("home/out/link/.bashrc", places, BytesIO(b"x"))
    job.write_below("home/out/file", places, BytesIO(b"x"))
    assert (tmp_path / "out" / "file").read_bytes() == b"x"
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["mine"]
    assert (tmp_path / "victim" / "mine").read_text() == "mine"


def test_only_what_a_command_writes_may_come_back():
    """An option that names a file to write is declared so; code, prompts and schemas are only read."""
    written = {
        (verb, option.flags[0])
        for kind in kinds()
        for verb in VERBS
        if verb in kind.options
        for _, option in options_of(kind.options[verb])
        if option.file_use in (FileUse.WRITE, FileUse.BOTH)
    }
    outs = {(verb, "--out") for verb in ("bench", "compare", "optimize")}
    assert written == {
        *outs,
        ("bench", "--trace"),
        ("run", "--save"),
        ("run", "--learn-drift"),
        ("check", "--baseline"),
    }


def test_words_that_name_places_are_mapped_however_they_are_typed(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "net.onnx").touch()
    monkeypatch.chdir(tmp_path / "here")
    there = f"{command.FILES}/{mirrored(tmp_path)}"
    for text in (f"{tmp_path}/res/", f"{tmp_path}//res", f"{tmp_path}/./res", "../res"):
        assert CommandWord(text, is_written=True).there == f"{there}/res"
    assert CommandWord("../net.onnx", is_read=True).there == f"{there}/net.onnx"
    assert CommandWord("res", is_written=True).there == "res"
    for text in ("digits_detector", "/dev/null", "rtsp://camera/1", "0", "", "x" * 5000, "with a\0 in it"):
        assert CommandWord(text, is_read=True).there == text


def test_folders_behind_links_are_taken_along_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "1.png").touch()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "2.png").touch()
    (tmp_path / "a" / "more").symlink_to(tmp_path / "c")
    (tmp_path / "a" / "b" / "loop").symlink_to(tmp_path / "a")
    assert taken_of(tmp_path, "a") == {"a/b/1.png", "a/more/2.png"}


def test_labels_take_nothing_along_but_pictures_and_sounds(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").touch()
    (tmp_path / "secret.txt").touch()
    (tmp_path / "x.csv").write_text(f"file,class\nimages/1.png,1\n{tmp_path}/secret.txt,2\n../secret.txt,3\n")
    assert taken_of(tmp_path, "x.csv") == {"x.csv", "images/1.png"}


def test_toml_files_that_name_each_other_are_taken_once(tmp_path):
    (tmp_path / "a.toml").write_text(f'other = "b.toml"\nup = "../x"\nlong = "{"y" * 900}"\nfile = "/etc/passwd"')
    (tmp_path / "b.toml").write_text('other = "a.toml"')
    assert taken_of(tmp_path, "a.toml") == {"a.toml", "b.toml"}


def test_both_sides_mean_the_same_by_their_words():
    text = SIDE.read_text()
    assert f'FILES = "{command.FILES}"' in text
    assert f"STOPPED = {job.STOPPED}" in text
    assert f'NO_PACKAGES = "{NO_PACKAGES}"' in text
    assert f'MARKER = "{ssh.MARKER.decode()}"' in text
    assert not re.findall(r"(?:from|import) edgeopt", text), "it is sent alone"


def local_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> Connection:
    """Return a connection whose ssh is a shell of this machine, with another PATH."""
    program = tmp_path / "ssh.sh"
    program.write_text(f'for last; do :; done\nPATH={path} HOME={tmp_path} exec /bin/sh -c "$last"\n')
    monkeypatch.setenv("EDGEOPT_SSH", f"/bin/sh {program}")
    return Connection(Address("board"))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_patience_begins_anew_after_a_connection_that_held(tmp_path, monkeypatch):
    """Losses an hour apart are no device that is gone for ten minutes."""
    now_s, said, lasts_s = [0.0], list[str](), [3600.0, 3600.0, 3600.0]
    monkeypatch.setattr(ssh, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(ssh, "sleep", lambda s: now_s.__setitem__(0, now_s[0] + s))

    def action() -> str:
        if not lasts_s:
            return "done"
        now_s[0] += lasts_s.pop()
        raise ssh.LostError("lost", remedy="")

    with local_ssh(tmp_path, monkeypatch, "/bin") as connection:
        assert connection.patiently(action, said.append) == "done"
        assert len(said) == 3
        lasts_s[:] = [1.0] * 100
        with pytest.raises(ssh.LostError):
            connection.patiently(action, said.append)
    assert 560 < now_s[0] - 3 * 3600 < 620


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_device_without_python_is_one_clear_line(tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "mkdir", "cat", "mv", "chmod", "wc", "rm"):
        (tools / name).symlink_to(f"/bin/{name}")
    with local_ssh(tmp_path, monkeypatch, str(tools)) as connection, pytest.raises(EdgeoptError) as refused:
        Device(connection)
    assert refused.value.problem == "ssh://board: there is no Python 3.11 or later"
    assert refused.value.remedy == "install one, such as python3.11"


def stored(side: Path, content: bytes) -> subprocess.CompletedProcess[bytes]:
    """Give the device's side a file under a hash that is not its own."""
    sent = BytesIO()
    with tarfile.open(fileobj=sent, mode="w|") as archive:
        entry = tarfile.TarInfo("0" * 64)
        entry.size = len(content)
        archive.addfile(entry, BytesIO(content))
    return subprocess.run([sys.executable, side, "store"], input=sent.getvalue(), capture_output=True, check=False)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_device_without_room_is_one_clear_line(tmp_path):
    side = tmp_path / "side.py"
    side.write_text(SIDE.read_text().replace('open(draft, "wb")', 'open("/dev/full", "wb")', 1))
    done = stored(side, bytes(1 << 21))
    assert done.returncode == 3
    assert "No space left on device -> free disk space there" in done.stderr.decode()


def test_a_file_that_changed_on_its_way_is_refused(tmp_path):
    side = tmp_path / "side.py"
    side.write_text(SIDE.read_text())
    done = stored(side, b"abc")
    assert done.returncode == 3
    assert "a file that was sent has another hash" in done.stderr.decode()
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sparc", "3.11"), "no wheels of ONNX Runtime for 'sparc'"),
        (("aarch64", "3.9"), "3.11 to 3.14, not '3.9'"),
        (("aarch64", "x"), "3.11 to 3.14, not 'x'"),
    ],
)
def test_a_device_for_which_there_are_no_wheels_is_one_clear_line(words, said):
    with pytest.raises(UnsupportedError, match=said) as refused:
        wheelhouse.read_platform(*words)
    assert refused.value.remedy


def test_wheels_fit_the_c_library_of_the_device():
    board = {"libc": ["glibc", "2.31"], "system": "linux", "machine": "aarch64", "python": "3.11"}
    platform = wheelhouse.platform_of(board)
    assert platform == wheelhouse.DevicePlatform("aarch64", "3.11", (2, 31))
    assert platform.tags[0] == "manylinux_2_31_aarch64"
    assert "manylinux_2_17_aarch64" in platform.tags
    assert "manylinux_2_35_aarch64" not in platform.tags
    for change in ({"libc": ["", ""]}, {"system": "darwin"}, {"machine": "pdp11"}):
        with pytest.raises(UnsupportedError):
            wheelhouse.platform_of({**board, **change})
    for answer in (None, [], {"libc": 3}, {}):
        with pytest.raises(UnsupportedError, match="does not say what it is"):
            wheelhouse.platform_of(answer)


def test_a_folder_that_holds_no_wheels_says_how_they_are_collected(tmp_path, monkeypatch):
    monkeypatch.setenv(wheelhouse.VARIABLE, str(tmp_path))
    board = {"libc": ["glibc", "2.31"], "system": "linux", "machine": "aarch64", "python": "3.11"}
    with pytest.raises(EdgeoptError, match="holds no wheels") as refused:
        wheelhouse.wheels_for(board, make_wheel(), ["cpu"])
    assert refused.value.remedy == f"edgeopt wheelhouse --for aarch64 --python 3.11 --out {tmp_path}"


def test_a_device_gets_the_engines_beside_its_own_that_this_machine_has():
    assert perform.extras_for("", "aarch64") == {"cpu", "serve", "sign"}
    assert {"cpu", "serve", "onnxruntime"} <= perform.extras_for("cpu", "riscv64")
    has_ncnn = load_executor("ncnn").why_unavailable() is None
    assert ("ncnn" in perform.extras_for("cpu", "aarch64")) is has_ncnn
    assert "openvino" not in perform.extras_for("cpu", "aarch64"), "it is for x86-64"
    assert "ncnn" in perform.extras_for("ncnn-cpu", "aarch64")


@pytest.mark.parametrize(("target", "build"), [("nvidia-cuda", "gpu"), ("gpu", "gpu"), ("webgpu", "webgpu")])
def test_a_device_with_a_gpu_gets_one_build_of_onnxruntime_and_that_of_its_gpu(target, build):
    extras = perform.extras_for(target, "x86_64")
    assert build in extras
    assert "cpu" not in extras


def test_a_target_for_another_processor_is_refused_before_anything_is_installed():
    with pytest.raises(UnsupportedError, match="'raspberry-pi-5' is for arm64, and the device is x86-64"):
        perform.extras_for("raspberry-pi-5", "x86_64")
    with pytest.raises(UnsupportedError, match="'cpu-x86-vnni' is for x86-64, and the device is arm64"):
        perform.extras_for("cpu-x86-vnni", "aarch64")
    assert "cpu" in perform.extras_for("raspberry-pi-5", "aarch64")
    assert "cpu" in perform.extras_for("cpu", "aarch64"), "it is another profile there"
