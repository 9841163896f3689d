"""Cheaper activations in a run of `optimize`: interrupted, taken up, replayed, and timed as they will run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fixture_brief import briefly
from small_nets import Net

from edgeopt.graph.model import save_model
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.result import ModelReport
from edgeopt.optimization.run import Silence
from edgeopt.steps.activations import step

STEPS = ("simplify", "activations")
CHOICE = "activations.json"
FIRST = "candidates/activations/model.onnx"


@pytest.fixture(autouse=True)
def any_speed_is_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time decide which forms are offered."""
    monkeypatch.setattr(step, "_LEAST", 0.0)


class Stops(Silence):
    """A listener that is interrupted when it first hears something, and keeps what it heard."""

    def __init__(self, at: str = "") -> None:
        self.at, self.said = at, list[str]()

    def say(self, text: str) -> None:
        self.said.append(text)
        if self.at and self.at in text:
            raise KeyboardInterrupt


def silu_net() -> Net:
    net = Net(size=12, channels=6, seed=5)
    x = net.conv("x", 6, 12, 3)
    for _ in range(2):
        x = net.conv(net.op("Mul", x, net.op("Sigmoid", x)), 12, 12, 3)
    net.conv(net.op("Mul", x, net.op("Sigmoid", x)), 12, 4)
    return net


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, net = tmp_path_factory.mktemp("activations"), silu_net()
    save_model(net.model(f"conv_{len(net.nodes) - 1}"), folder / "net.onnx")
    pictures = np.random.default_rng(0).normal(0, 1, (16, 6, 12, 12)).astype(np.float32)
    np.savez(folder / "in.npz", x=pictures)
    return {"model": str(folder / "net.onnx"), "recipe": "tensors", "calib": str(folder / "in.npz")}


def run(asked: dict[str, str], out: Path, **more: object) -> ModelReport:
    with briefly():
        return optimize(**asked, out=out, **{"steps": STEPS, "threads": 1, "selftest": "off", **more})


@pytest.fixture(scope="module")
def whole(asked: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelReport]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "_LEAST", 0.0)
        yield run(asked, tmp_path_factory.mktemp("whole") / "out")


def made(folder: Path) -> dict[str, bytes]:
    """Return the models of the step, and what each was made of."""
    found = sorted((folder / "candidates").glob("activations*/*"))
    return {f"{one.parent.name}/{one.name}": one.read_bytes() for one in found if one.name in ("model.onnx", CHOICE)}


def test_a_cheaper_form_is_offered(whole: ModelReport) -> None:
    assert any(one.steps[-1:] == ("activations",) for one in whole.candidates)
    assert {"activations/model.onnx", "activations/activations.json"} <= made(whole.folder).keys()


def test_an_interrupt_in_the_step_leaves_no_candidate_and_a_resumed_run_makes_the_same(asked, whole, tmp_path) -> None:
    out = tmp_path / "out"
    assert run(asked, out, listener=Stops("activations as")).was_cut
    assert not (out / FIRST).exists()
    again = run(asked, out, resume=True)
    assert made(out) == made(whole.folder)
    assert [one.name for one in again.candidates] == [one.name for one in whole.candidates]


def test_what_is_finished_is_taken_up_and_not_made_again(asked, whole, tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    assert run(asked, out, listener=Stops("measuring")).was_cut
    assert made(out) == made(whole.folder)

    def forbidden(*_: object) -> None:
        raise AssertionError("it is on disk")

    monkeypatch.setattr(step, "_candidates", forbidden)
    again = run(asked, out, resume=True)
    assert made(out) == made(whole.folder)
    assert [one.sha256 for one in again.candidates] == [one.sha256 for one in whole.candidates]


def test_a_replay_times_nothing_and_makes_the_same_bytes(asked, whole, tmp_path, monkeypatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a replay times no form")

    monkeypatch.setattr(step, "_gains", forbidden)
    again = run(asked, tmp_path / "again", replay=str(whole.folder))
    assert made(again.folder) == made(whole.folder)


def test_forms_are_timed_on_integers_where_integers_follow(asked, tmp_path, monkeypatch) -> None:
    seen = dict[bool, set[str]]()
    gains = step._gains

    def watched(*given: object) -> list[object]:
        found = gains(*given)
        seen.setdefault(given[3].quantizes, set()).update(one.precision for one in found)
        return found

    monkeypatch.setattr(step, "_gains", watched)
    for steps in (STEPS, (*STEPS, "quantize")):
        assert run(asked, tmp_path / str(len(steps)), listener=Stops("activations as"), steps=steps).was_cut
    assert "fp32" in seen[False] & seen[True]
    assert not [one for one in seen[False] if one.startswith("w8a8")]
    assert [one for one in seen[True] if one.startswith("w8a8")]
