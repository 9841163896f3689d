"""Trained nets on sounds made here: keywords, and who talks, by a state that is fed back along a stream.

`benchmarks/trained/` trains them. INT8 by `optimize` keeps the metric, and a broken form is refused by it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from fixture_broken import lost_weights
from tones import KEYWORDS, RATE, keyword, talk

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.graph.sound import Sound
from edgeopt.measurement.accuracy.evaluate import answers, model_inputs, open_labelled, with_states
from edgeopt.recipes.drawings.drawing import class_colour
from edgeopt.recipes.inputs.feeding import fed, synthetic
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.wav_files import read_wav, write_wav
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.tasks import make_task

TRAINED = Path(__file__).parents[1] / "trained"
HEAD = """name = "{name}"
task = "{task}"
description = "trained for two minutes"
license = "ours"
source = "benchmarks/trained"
"""
TALKING = (
    HEAD.format(name="talking", task="voice_activity")
    + """
[audio]
rate_hz = 8000
samples = 128
context = 64
hop = 128
[postprocess]
decoder = "probability"
score_threshold = 0.5
[evaluation]
metric = "f1"
max_drop = 0.02
"""
)
KEYWORD = (
    HEAD.format(name="keywords", task="classification")
    + """labels = "classes.txt"
[audio]
rate_hz = 8000
features = "torchaudio"
samples = 4000
fft = 256
step = 128
bands = 24
mean = -2.0
std = 4.0
[postprocess]
decoder = "logits"
[evaluation]
metric = "top1"
max_drop = 0.02
"""
)
TRIED = {"keywords": 0.95, "talking": 0.90}
"""Net to the least that it reaches in its metric."""


def write(folder: Path, name: str) -> dict[str, Any]:
    """Write a net with its recipe, calibration sounds and labelled ones."""
    (folder / f"{name}.onnx").write_bytes((TRAINED / f"{name}.onnx").read_bytes())
    (folder / "calib").mkdir()
    if name == "keywords":
        (folder / "recipe.toml").write_text(KEYWORD)
        (folder / "classes.txt").write_text("\n".join(KEYWORDS))
        for kind, word in enumerate(KEYWORDS):
            (folder / "words" / word).mkdir(parents=True)
            for i in range(24):
                write_wav(folder / "words" / word / f"{i}.wav", Sound(keyword(kind, i), RATE))
            for i in range(6):
                write_wav(folder / "calib" / f"{word}{i}.wav", Sound(keyword(kind, 1000 + i), RATE))
        return {"calib": folder / "calib", "eval": folder / "words"}
    (folder / "recipe.toml").write_text(TALKING)
    lines = ["file,start_s,end_s"]
    for i in range(4):
        sound, told = talk(3.0, i)
        write_wav(folder / f"{i}.wav", Sound(sound, RATE))
        lines += [f"{i}.wav,{begin:.4f},{end:.4f}" for begin, end in told] or [f"{i}.wav,,"]
    (folder / "talk.csv").write_text("\n".join(lines))
    for i in range(3):
        write_wav(folder / "calib" / f"{i}.wav", Sound(talk(2.0, 1000 + i)[0], RATE))
    return {"calib": folder / "calib", "eval": folder / "talk.csv"}


def run(name: str, folder: Path) -> Any:
    given = write(folder, name)
    told = {"steps": ("simplify", "fuse", "quantize"), "threads": 1}
    return edgeopt.optimize(folder / f"{name}.onnx", out=folder / "out", **given, **told)


@pytest.fixture(scope="module")
def talking(tmp_path_factory) -> Path:
    """The recurrent net with its data."""
    folder = tmp_path_factory.mktemp("talking")
    write(folder, "talking")
    return folder


def opened(folder: Path) -> tuple[Model, Any]:
    model = load_model(folder / "talking.onnx")
    return model, choose_recipe(None, folder / "talking.onnx", model.inputs, model.outputs, {}).recipe


def by_hand(sound: np.ndarray) -> list[float]:
    """Return the net's answer to each chunk, where the app feeds back and keeps the context itself."""
    session = EXECUTOR.open((TRAINED / "talking.onnx").read_bytes(), SessionOptions(("CPUExecutionProvider",), 1))
    state, heard, found = np.zeros((1, 40), np.float32), np.concatenate([np.zeros(64, np.float32), sound]), []
    for i in range(len(sound) // 128):
        outputs = session.run({"x": heard[None, i * 128 : i * 128 + 192], "h": state})
        state = outputs["hn"].copy()
        found.append(float(outputs["speech"][0, 0]))
    session.close()
    return found


@pytest.mark.parametrize("name", TRIED)
def test_int8_of_a_trained_net_keeps_its_metric(name: str, few_forms: None, tmp_path: Path) -> None:
    report = run(name, tmp_path)
    float32, integers = report.candidates[0], [one for one in report.candidates if "quantize" in one.name]
    assert integers
    assert float32.score.value >= TRIED[name]
    assert max(one.agreement for one in integers) >= 0.9
    assert all(one.score.value >= float32.score.value - 0.02 for one in integers if one.word == "KEPT")
    with edgeopt.Runtime.load(tmp_path / "out") as runtime:
        if name == "keywords":
            answer = runtime.predict(read_wav(tmp_path / "words" / "rise" / "0.wav"))
            assert runtime.task.as_text(answer).startswith("rise ")
            given = ["run", str(tmp_path / "out"), str(tmp_path / "words" / "rise" / "0.wav"), "--save"]
            saved = CliRunner().invoke(cli, [*given, str(tmp_path / "drawn")])
            assert saved.exit_code == 0, saved.output
            assert (tmp_path / "drawn" / "0.png").is_file()
            return
        sound = read_wav(tmp_path / "0.wav").samples
        chunks = [Sound(sound[i : i + 128], RATE) for i in range(0, len(sound) - 127, 128)]
        found = [float(one.probabilities[0]) for one in runtime.predict_batch(chunks)]
    assert np.mean((np.array(found) > 0.5) == (np.array(by_hand(sound)) > 0.5)) > 0.95


@pytest.mark.parametrize("name", TRIED)
def test_a_broken_int8_form_is_refused_by_the_metric(name: str, one_form: None, tmp_path: Path) -> None:
    with lost_weights():
        report = run(name, tmp_path)
    integers = [one for one in report.candidates if "quantize" in one.name]
    assert integers
    assert "quantize" not in report.chosen
    for one in integers:
        assert "agrees with the original in" in one.refused, "labels are not opened for what differs so much"


def test_windows_of_files_are_judged_as_streams(talking: Path) -> None:
    model, recipe = opened(talking)
    assert dict(recipe.input.states) == {"h": "hn"}
    data = open_labelled(talking / "talk.csv", recipe, model.inputs)
    session = EXECUTOR.open(model.data, SessionOptions(("CPUExecutionProvider",), 1))
    task = make_task(recipe, model.inputs, model.outputs, evaluating=True)
    found = answers(session, task, data.frames)
    for i in range(4):
        mine = [float(one.probabilities[0]) for one, k in zip(found, data.frames.streams, strict=True) if k == i]
        np.testing.assert_allclose(mine, by_hand(read_wav(talking / f"{i}.wav").samples), atol=1e-6)
    scored = task.score(found, data.labels)
    assert (scored.metric, scored.n) == ("f1", len(data.frames))
    assert scored.others["auc"] > 0.95
    assert not scored.is_by_chance
    forgetful = [answers(session, task, data.frames.select([i]))[0] for i in range(0, len(found), 9)]
    apart = [abs(a.probabilities[0] - b.probabilities[0]) for a, b in zip(forgetful, found[::9], strict=True)]
    assert max(apart) > 0.1  # the state is heard
    session.close()


def test_calibration_hears_the_states_that_occur(talking: Path) -> None:
    model, recipe = opened(talking)
    task = make_task(recipe, model.inputs, model.outputs, evaluating=True)
    frames = fed(open_frames(talking / "calib"), recipe, model.inputs)
    session = EXECUTOR.open(model.data, SessionOptions(("CPUExecutionProvider",), 1))
    real = with_states(frames, lambda: session, task)
    inputs = list(model_inputs(task, real))
    begins = [real.begins_stream(i) for i in range(len(real))]
    assert sum(begins) == 3
    assert [not one["h"].any() for one in inputs] == begins
    assert isinstance(real.read(0), Sound)


def test_an_app_feeds_chunks_and_the_runtime_keeps_context_and_state(
    talking: Path, brief: None, tmp_path: Path
) -> None:
    edgeopt.optimize(
        talking / "talking.onnx", out=tmp_path / "out", calib=talking / "calib", steps=("simplify",), threads=1
    )
    sound = read_wav(talking / "1.wav").samples
    expected = by_hand(sound)
    chunks = [Sound(sound[i : i + 128], RATE) for i in range(0, len(sound) - 127, 128)]
    with edgeopt.Runtime.load(tmp_path / "out") as runtime:
        both = [[runtime.predict(one, stream=name).probabilities[0] for name in "ab"] for one in chunks]
        np.testing.assert_allclose(both, np.stack([expected, expected], axis=1), atol=1e-5)
        again = runtime.predict(chunks[0], stream="a").probabilities[0]
        assert abs(again - expected[0]) > 1e-6
        runtime.reset("a")
        np.testing.assert_allclose(runtime.predict(chunks[0], stream="a").probabilities[0], expected[0], atol=1e-5)
        for wrong, told in (
            (Sound(sound[:300], RATE), "up to 128 samples, not 300"),
            (Sound(sound[:128], 16000), "8000 Hz, not 16000"),
            (sound[:128], "takes an edgeopt.Sound, not ndarray"),
        ):
            with pytest.raises(ValueError, match=told):
                runtime.predict(wrong)
    shown = CliRunner().invoke(cli, ["run", str(tmp_path / "out"), str(talking / "1.wav"), "--json"])
    assert shown.exit_code == 0, shown.output
    lines = [json.loads(line) for line in shown.output.splitlines() if line.startswith("{")]
    told = [one for one in lines if "probabilities" in json.dumps(one)]
    assert len(told) == len(expected)
    saved = CliRunner().invoke(
        cli, ["run", str(tmp_path / "out"), str(talking / "1.wav"), "--save", str(tmp_path / "d")]
    )
    assert saved.exit_code == 0, saved.output
    assert [one.name for one in (tmp_path / "d").iterdir()] == ["1.png"]  # one of the sound, not one a window
    drawn = cv2.imread(str(tmp_path / "d" / "1.png"))[-320:]
    is_bright = (drawn == class_colour(1)).all(axis=2).any(axis=0)[8:-8]
    at = np.linspace(0, len(is_bright) - 1, 2 * len(expected) + 1)[1::2].round().astype(int)
    assert np.mean(is_bright[at] == (np.array(expected) >= 0.5)) > 0.95


def test_recipes_of_sounds_that_do_not_fit_are_refused_in_one_line(talking: Path, tmp_path: Path) -> None:
    model = load_model(talking / "talking.onnx")

    def bound(text: str) -> Any:
        (tmp_path / "recipe.toml").write_text(text)
        found = choose_recipe(str(tmp_path / "recipe.toml"), None, model.inputs, model.outputs, {}).recipe
        return make_task(found, model.inputs, model.outputs, evaluating=False)

    for text, told in (
        (TALKING.replace("= 128", "= 100"), "makes 164 samples of a sound, the model takes x"),
        (TALKING.replace("[postprocess]", '[input]\nstates = { x = "hn" }\n[postprocess]'), "h float32 1x40|samples"),
        (TALKING.replace('"probability"', '"sigmoid"'), "decoder of task voice_activity"),
        (TALKING.replace("rate_hz = 8000", "rate_hz = 0"), "picture|sound"),
    ):
        with pytest.raises(EdgeoptError, match=told):
            bound(text)
    given = choose_recipe("tensors", None, model.inputs, model.outputs, {}).recipe
    with pytest.raises(InvalidFileError, match="holds sounds, recipe 'tensors' takes pictures"):
        fed(open_frames(talking / "calib"), given, model.inputs)


def test_made_up_sounds_are_as_long_as_a_window(talking: Path) -> None:
    model, recipe = opened(talking)
    frames = synthetic(recipe, model.inputs)
    assert {len(one.samples) for one in frames} == {192}
    assert frames.states


def test_a_rate_beside_the_sound_is_a_constant(talking: Path, tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(load_model(talking / "talking.onnx").proto)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("sr", onnx.TensorProto.INT64, []))
    save_model(Model(proto, "rated"), tmp_path / "rated.onnx")
    (tmp_path / "recipe.toml").write_text(TALKING)
    model = load_model(tmp_path / "rated.onnx")
    recipe = choose_recipe(None, tmp_path / "rated.onnx", model.inputs, model.outputs, {}).recipe
    inputs, _ = make_task(recipe, model.inputs, model.outputs, evaluating=False).preprocess(
        Sound(np.zeros(128, np.float32), RATE)
    )
    assert (inputs["sr"].shape, inputs["sr"].dtype, int(inputs["sr"])) == ((), np.int64, 8000)


def test_labels_that_lie_beside_no_sound_are_told_as_such(talking: Path, tmp_path: Path) -> None:
    model, recipe = opened(talking)
    (tmp_path / "talk.csv").write_text("file,start_s,end_s\nnobody.wav,0,1\n")
    with pytest.raises(InvalidFileError, match="match no sound") as told:
        open_labelled(tmp_path / "talk.csv", recipe, model.inputs)
    assert "beside its sounds" in told.value.remedy
    with pytest.raises(InvalidFileError) as told:
        open_frames(tmp_path / "nobody.wav")
    assert "sounds (.wav)" in told.value.remedy
