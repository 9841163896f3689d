"""A new bundle runs where it is proven, in one step; whatever goes wrong, the one before runs on."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from time import sleep

import numpy as np
import pytest
from fixture_bundles import bundle_with_test, reseal
from fixture_models import model, numbers

from edgeopt.errors import EdgeoptError, InvalidFileError, UnavailableError
from edgeopt.graph.model import Model
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.rollout.current import FRAMES, MOST_MISSED, CurrentRuntime
from edgeopt.runtime.rollout.signature import make_keys, sign_bundle, signature_file
from edgeopt.runtime.runtime import Runtime
from edgeopt.verbs.rollout.canary import CanaryOptions
from edgeopt.verbs.rollout.place import Fate, open_place
from edgeopt.verbs.rollout.push import Pushed, go_back, push

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a place needs links, which Windows grants few users")
SHAPE = (1, 3, 48, 48)
WEIGHTS = numbers(4, 3, 3, 3, seed=9)
SHORT = CanaryOptions(seconds=0.1, budget_ms=1e4)
"""No speed decides: a busy machine keeps that budget too."""


def net(off: float = 0.0, layers: int = 1) -> Model:
    """Return convolutions whose weights are off by so much of their spread, and which take longer with more layers."""
    weights = {"w": WEIGHTS + np.float32(off) * numbers(4, 3, 3, 3, seed=10), "v": numbers(4, 4, 7, 7) * 0}
    lines = ["c0 = Conv<pads = [1,1,1,1]>(x, w)"]
    for i in range(1, layers):
        lines += [f"r{i} = Conv<pads = [3,3,3,3]>(c{i - 1}, v)", f"c{i} = Add(c{i - 1}, r{i})"]
    body = " ".join([*lines, f"y = Relu(c{layers - 1})"])
    used = weights if layers > 1 else {"w": weights["w"]}
    return model(f"net (float[1,3,48,48] x) => (float[1,4,48,48] y) {{ {body} }}", **used)


def bundle(folder: Path, off: float = 0.0, layers: int = 1) -> Path:
    made = net(off, layers)
    samples = [{"x": numbers(*SHAPE, seed=seed)} for seed in range(2)]
    return bundle_with_test(folder, made, find_recipe("tensors"), samples, {"model.onnx": made.data}).folder


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "place"


def answer(place: Path) -> np.ndarray:
    with Runtime.load(place / "current") as runtime:
        return runtime.predict({"x": numbers(*SHAPE)})["y"]


def running(place: Path) -> Path:
    return (place / "current" / "bundle").resolve()


def pushed(folder: Path, place: Path, options: CanaryOptions = SHORT) -> Pushed:
    return push(folder, place, options=options)


def test_the_first_bundle_runs_if_its_own_test_passes(tmp_path, place):
    made = pushed(bundle(tmp_path / "a"), place)
    assert (made.version.fate, made.before, made.exit_code) == (Fate.RUNNING, "", 0)
    assert os.readlink(place / "current") == f"versions/{made.version.name}"
    assert answer(place).shape == (1, 4, 48, 48)


def test_a_bundle_that_answers_alike_takes_its_place_and_the_way_back_leads_to_the_other(tmp_path, place):
    first = pushed(bundle(tmp_path / "a"), place)
    second = pushed(bundle(tmp_path / "b", 0.001), place)
    assert (second.version.fate, second.before) == (Fate.RUNNING, first.version.name)
    assert running(place) == place / "versions" / second.version.name / "bundle"
    assert dict(second.canary.facts)["answers"].startswith("1.000 agree")
    back = go_back(place)
    assert (back.version.name, back.went_back, back.exit_code) == (first.version.name, True, 0)
    assert running(place) == place / "versions" / first.version.name / "bundle"
    assert go_back(place).version.name == second.version.name


def test_only_the_running_version_and_the_one_before_stay(tmp_path, place):
    names = [pushed(bundle(tmp_path / str(i), i / 1e4), place).version.name for i in range(3)]
    assert {path.name for path in (place / "versions").iterdir()} == set(names[1:])


def test_what_runs_already_is_proven_already(tmp_path, place):
    made = bundle(tmp_path / "a")
    pushed(made, place)
    again = pushed(made, place)
    assert (again.version.fate, again.canary) == (Fate.RUNNING, None)


def test_other_answers_are_refused(tmp_path, place):
    first = pushed(bundle(tmp_path / "a"), place)
    other = pushed(bundle(tmp_path / "b", 1.0), place)
    assert (other.version.fate, other.exit_code) == (Fate.REFUSED, 2)
    assert "its answers differ" in other.version.reason
    assert running(place).parent.name == first.version.name
    assert not (place / "versions" / other.version.name).exists()
    wanted = replace(SHORT, least_agreement=0.0)
    assert pushed(bundle(tmp_path / "b", 1.0), place, wanted).version.fate is Fate.RUNNING


def test_recorded_frames_judge_where_they_are_passed(tmp_path, place):
    np.savez(tmp_path / "recorded.npz", x=numbers(5, *SHAPE[1:]))
    pushed(bundle(tmp_path / "a"), place)
    options = replace(SHORT, frames=str(tmp_path / "recorded.npz"))
    made = pushed(bundle(tmp_path / "b", 0.001), place, options)
    assert "on 5 frames" in dict(made.canary.facts)["answers"]
    missing = replace(SHORT, frames=str(tmp_path / "none.npz"))
    with pytest.raises(InvalidFileError, match="does not exist"):
        pushed(bundle(tmp_path / "c", 0.002), place, missing)
    assert running(place).parent.name == made.version.name


def test_a_bundle_that_takes_other_inputs_is_refused(tmp_path, place):
    pushed(bundle(tmp_path / "a"), place)
    other = model("net (float[1,3,32,32] z) => (float[1,4,30,30] y) { y = Conv(z, w) }", w=WEIGHTS)
    samples = [{"z": numbers(1, 3, 32, 32)}]
    made = bundle_with_test(tmp_path / "b", other, find_recipe("tensors"), samples, {"model.onnx": other.data})
    refused = pushed(made.folder, place)
    assert refused.version.fate is Fate.REFUSED
    assert "does not take what the running bundle takes" in refused.version.reason
    np.savez(tmp_path / "recorded.npz", z=numbers(2, 3, 32, 32))
    with pytest.raises(EdgeoptError, match="the running bundle does not take the frames"):
        pushed(made.folder, place, replace(SHORT, frames=str(tmp_path / "recorded.npz")))


def test_a_missed_budget_is_refused(tmp_path, place):
    first = pushed(bundle(tmp_path / "a"), place)
    late = pushed(bundle(tmp_path / "b", 0.001), place, replace(SHORT, budget_ms=0.0001))
    assert late.version.fate is Fate.REFUSED
    assert "misses the budget" in late.version.reason
    assert running(place).parent.name == first.version.name


def test_a_bundle_that_is_much_slower_is_refused(tmp_path, place):
    pushed(bundle(tmp_path / "a"), place)
    slow = pushed(bundle(tmp_path / "b", layers=16), place, CanaryOptions(seconds=0.5))
    assert slow.version.fate is Fate.REFUSED
    assert "as slow as the running bundle" in slow.version.reason


def test_a_bundle_whose_numbers_are_wrong_here_is_refused(tmp_path, place):
    first = pushed(bundle(tmp_path / "a"), place)
    samples = [{"x": numbers(*SHAPE)}]
    wrong = bundle_with_test(tmp_path / "b", net(), find_recipe("tensors"), samples, {"model.onnx": net(1.0).data})
    made = pushed(wrong.folder, place)
    assert made.version.fate is Fate.REFUSED
    assert "numbers are wrong" in made.version.reason
    assert running(place).parent.name == first.version.name


def test_a_damaged_bundle_leaves_nothing_behind(tmp_path, place):
    pushed(bundle(tmp_path / "a"), place)
    before = sorted(path.name for path in (place / "versions").iterdir())
    damaged = bundle(tmp_path / "b", 0.001)
    (damaged / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InvalidFileError, match="differs from its hash"):
        pushed(damaged, place)
    assert sorted(path.name for path in (place / "versions").iterdir()) == before


def test_a_proof_that_is_interrupted_leaves_the_running_one(tmp_path, place):
    first = pushed(bundle(tmp_path / "a"), place)

    def interrupt(what: str, done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(bundle(tmp_path / "b", 0.001), place, options=SHORT, tell=interrupt)
    assert running(place).parent.name == first.version.name
    with open_place(place) as held:
        assert [version.fate for version in held.state.versions] == [Fate.RUNNING, Fate.REFUSED]


def test_a_disk_without_room_is_one_clear_line(tmp_path, place, monkeypatch):
    first = pushed(bundle(tmp_path / "a"), place)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(InvalidFileError, match="cannot take the bundle in: No space left"):
        pushed(bundle(tmp_path / "b", 0.001), place)
    assert running(place).parent.name == first.version.name
    assert [path.name for path in (place / "versions").iterdir()] == [first.version.name]


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, place):
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    with pytest.raises(InvalidFileError, match=r"holds something else: mine\.txt"):
        pushed(bundle(tmp_path / "a"), place)
    assert sorted(path.name for path in place.iterdir()) == ["mine.txt"]


def test_a_damaged_state_is_one_clear_line(tmp_path, place):
    pushed(bundle(tmp_path / "a"), place)
    (place / "state.json").write_text("{}")
    with pytest.raises(InvalidFileError, match="schema"):
        go_back(place)


def test_two_pushes_at_once_wait_for_each_other(tmp_path, place):
    pushed(bundle(tmp_path / "a"), place)
    with open_place(place), pytest.raises(EdgeoptError, match="another push works in"):
        pushed(bundle(tmp_path / "b", 0.001), place)


def test_there_is_no_way_back_from_the_first(tmp_path, place):
    pushed(bundle(tmp_path / "a"), place)
    with pytest.raises(EdgeoptError, match="no version to go back to"):
        go_back(place)
    with pytest.raises(EdgeoptError, match="is not there"):
        go_back(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> tuple[Path, Path]:
    pytest.importorskip("cryptography")
    private = tmp_path_factory.mktemp("keys") / "release.key"
    return private, make_keys(private)


def test_a_place_that_trusts_a_key_takes_only_newer_releases_of_it(tmp_path, place, keys):
    private, public = keys
    first, second, third = (bundle(tmp_path / name, i / 1e4) for i, name in enumerate("abc"))
    with pytest.raises(InvalidFileError, match="is not signed"):
        push(first, place, options=SHORT, trust=public)
    sign_bundle(first, private, 10)
    assert push(first, place, options=SHORT).version.serial == 10
    sign_bundle(second, private, 11)
    assert push(second, place, options=SHORT).version.fate is Fate.RUNNING
    sign_bundle(third, private, 11)
    with pytest.raises(EdgeoptError, match="release 11 is not newer than 11"):
        push(third, place, options=SHORT)
    with pytest.raises(EdgeoptError, match="release 10 is not newer than 11"):
        push(first, place, options=SHORT)  # a replay of what ran
    assert go_back(place).version.serial == 10
    sign_bundle(third, private, 12)
    assert push(third, place, options=SHORT).version.serial == 12


def test_a_number_that_nobody_vouches_for_keeps_no_release_out(tmp_path, place, keys):
    private, public = keys
    other = tmp_path / "other.key"
    make_keys(other)
    first, second = bundle(tmp_path / "a"), bundle(tmp_path / "b", 1e-4)
    sign_bundle(first, other, 2**53)
    assert push(first, place, options=SHORT).version.serial is None
    sign_bundle(second, private, 5)
    assert push(second, place, options=SHORT, trust=public).version.serial == 5
    assert json.loads((place / "state.json").read_text())["highest_serial"] == 5


def test_a_key_is_kept_once_a_version_runs_that_it_signed(tmp_path, place, keys):
    private, public = keys
    first, second = bundle(tmp_path / "a"), bundle(tmp_path / "b", 1e-4)
    push(first, place, options=SHORT)
    with pytest.raises(InvalidFileError, match="is not signed"):
        push(second, place, options=SHORT, trust=public)
    CurrentRuntime(place).close()  # an app that restarts loads what runs
    sign_bundle(first, private, 1)
    assert push(first, place, options=SHORT, trust=public).version.fate is Fate.RUNNING  # the same, signed since
    assert (place / "trusted.pub").read_bytes() == public.read_bytes()
    CurrentRuntime(place).close()
    with pytest.raises(InvalidFileError, match="is not signed"):
        push(second, place, options=SHORT)


def test_the_way_back_stays_where_the_same_version_cannot_be_copied_again(tmp_path, place, monkeypatch):
    first, second = bundle(tmp_path / "a"), bundle(tmp_path / "b", 1e-4)
    push(first, place, options=SHORT)
    push(second, place, options=SHORT)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", full)
        with pytest.raises(InvalidFileError, match="No space left"):
            push(first, place, options=SHORT)
    assert go_back(place).version.fate is Fate.RUNNING


def test_a_release_that_is_changed_on_the_device_does_not_come_back(tmp_path, place, keys):
    private, public = keys
    for i, name in enumerate("ab"):
        made = bundle(tmp_path / name, i / 1e4)
        sign_bundle(made, private, i)
        push(made, place, options=SHORT, trust=public)
    (old,) = [path for path in (place / "versions").iterdir() if path.name != running(place).parent.name]
    reseal(old / "bundle", lambda values: values["tools"].update(evil="1"))
    with pytest.raises(InvalidFileError, match="was changed after it was signed"):
        go_back(place)
    assert running(place).parent.name != old.name


@pytest.mark.parametrize("text", [None, "no key"])
def test_a_key_that_is_none_locks_nobody_out(tmp_path, place, keys, text):
    wrong = tmp_path / "wrong.pub"
    if text is not None:
        wrong.write_text(text)
    with pytest.raises(InvalidFileError, match="does not exist" if text is None else "holds no public key"):
        push(bundle(tmp_path / "a"), place, options=SHORT, trust=wrong)
    assert not (place / "trusted.pub").exists()


def test_another_key_cannot_be_trusted_from_outside(tmp_path, place, keys):
    made = bundle(tmp_path / "a")
    sign_bundle(made, keys[0], 1)
    push(made, place, options=SHORT, trust=keys[1])
    other = make_keys(tmp_path / "other.key")
    with pytest.raises(EdgeoptError, match="is another key"):
        push(made, place, options=SHORT, trust=other)


class Heard:
    """Hears which version answers, in any thread."""

    def __init__(self) -> None:
        self.changes = list[tuple[str, str]]()
        self._changed = Event()

    def __call__(self, name: str, problem: str) -> None:
        self.changes.append((name, problem))
        self._changed.set()

    def wait(self) -> tuple[str, str]:
        assert self._changed.wait(60)
        self._changed.clear()
        return self.changes[-1]


FRAME = {"x": numbers(*SHAPE)}


def test_an_app_needs_a_version(place):
    with pytest.raises(UnavailableError, match="nothing runs in"):
        CurrentRuntime(place)


def test_an_app_follows_without_a_restart(tmp_path, place):
    first, heard = pushed(bundle(tmp_path / "a"), place), Heard()
    with CurrentRuntime(place, budget_ms=1e4, every_s=0, on_change=heard) as current:
        before = current.predict(FRAME)["y"]
        second = pushed(bundle(tmp_path / "b", 0.001), place)
        current.predict(FRAME)
        assert heard.wait() == (second.version.name, "")
        assert current.version == second.version.name
        old = current._probation.before
        for _ in range(FRAMES):
            after = current.predict(FRAME)["y"]
        assert not np.array_equal(after, before)
        assert current._probation is None
        with pytest.raises(UnavailableError):
            old.predict(FRAME)
        go_back(place)
        current.predict(FRAME)
        assert heard.wait() == (first.version.name, "")
        assert np.array_equal(current.predict(FRAME)["y"], before)
    with pytest.raises(UnavailableError):
        current.predict(FRAME)


def test_an_app_goes_back_by_itself_where_answers_differ(tmp_path, place):
    first, heard = pushed(bundle(tmp_path / "a"), place), Heard()
    with CurrentRuntime(place, every_s=0, on_change=heard) as current:
        other = pushed(bundle(tmp_path / "b", 1.0), place, replace(SHORT, least_agreement=0.0))
        current.predict(FRAME)
        assert heard.wait() == (other.version.name, "")
        for _ in range(FRAMES):
            current.predict(FRAME)
        name, reason = heard.wait()
        assert name == other.version.name
        assert "agree with those before" in reason
        assert current.version == first.version.name
        for _ in range(10):
            current.predict(FRAME)
        assert len(heard.changes) == 2, "it is not tried again until another is pushed"


def test_an_app_goes_back_by_itself_where_frames_are_late(tmp_path, place):
    first, heard = pushed(bundle(tmp_path / "a"), place), Heard()
    with CurrentRuntime(place, budget_ms=1e-4, every_s=0, on_change=heard) as current:
        other = pushed(bundle(tmp_path / "b", 0.001), place)
        current.predict(FRAME)
        assert heard.wait() == (other.version.name, "")
        for _ in range(MOST_MISSED + 1):
            current.predict(FRAME)
        assert heard.wait() == (other.version.name, "6 of 6 frames over 0.0001 ms")
        assert current.version == first.version.name
        assert current.predict(FRAME)["y"].shape == (1, 4, 48, 48)


def test_an_app_keeps_what_works_where_another_does_not_load(tmp_path, place):
    first, heard = pushed(bundle(tmp_path / "a"), place), Heard()
    with CurrentRuntime(place, every_s=0, on_change=heard) as current:
        second = pushed(bundle(tmp_path / "b", 0.001), place)
        (place / "versions" / second.version.name / "bundle" / "model.onnx").write_bytes(b"gone")
        current.predict(FRAME)
        name, reason = heard.wait()
        assert name == second.version.name
        assert "differs from its hash" in reason
        assert current.version == first.version.name
        assert current.predict(FRAME)["y"].shape == (1, 4, 48, 48)


def test_threads_of_an_app_lose_no_frame_while_versions_change(tmp_path, place):
    pushed(bundle(tmp_path / "a"), place)
    failures, stop = list[BaseException](), Event()

    def serve(current: CurrentRuntime) -> None:
        while not stop.is_set():
            try:
                current.predict(FRAME)
            except BaseException as error:
                failures.append(error)
                return

    with CurrentRuntime(place, every_s=0) as current:
        threads = [Thread(target=serve, args=(current,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(1, 4):
            name = pushed(bundle(tmp_path / str(i), i / 1e4), place).version.name
            while current.version != name and not failures:
                sleep(0.01)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_what_is_copied_is_whole(tmp_path, place):
    made = bundle(tmp_path / "a")
    pushed(made, place)
    copied = read_bundle(place / "current")
    assert {path.name for path in copied.folder.iterdir()} == {path.name for path in made.iterdir()}
    assert not signature_file(copied.folder).exists()
    assert json.loads((place / "state.json").read_text())["versions"][0]["fate"] == "running"
