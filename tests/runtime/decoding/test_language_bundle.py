"""A bundle of a language model: loaded as any other, it answers prompts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fixture_bundles import CPU, packed
from onnx import numpy_helper
from small_decoders import bundle_small, export_small

from edgeopt import Runtime
from edgeopt.errors import InvalidFileError, UnavailableError, UnsupportedError
from edgeopt.graph.model import find_model, load_model
from edgeopt.recipes.recipe import read_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.runtime.bundle import make_artefact, write_bundle
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.selftest import record_logits
from edgeopt.system.declared.target import find_target


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_small(tmp_path_factory.mktemp("decoder"))


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    return bundle_small(exported, tmp_path)


def test_a_runtime_writes_what_the_exported_file_writes(bundle, exported):
    opened, _ = open_language_model(exported, 1)
    with opened, Runtime.load(bundle) as runtime:
        expected = [piece.token for piece in opened.generate("abc", AnswerOptions(20, ends=False))]
        assert [piece.token for piece in runtime.generate("abc", most_tokens=20, ends=False)] == expected
        assert runtime.language_model.origin.threads == 1
        assert runtime.language_model.origin.size_bytes == (bundle / "model.onnx").stat().st_size


def test_a_closed_runtime_says_so(bundle):
    with Runtime.load(bundle) as runtime:
        runtime.generate("abc", most_tokens=2).text()
    with pytest.raises(UnavailableError, match="closed"):
        runtime.generate("abc")
    runtime.close()


def test_an_answer_is_cancelled_before_its_next_token(bundle):
    with Runtime.load(bundle) as runtime:
        answer = runtime.generate("abc", AnswerOptions(50, ends=False))
        next(answer)
        answer.cancel()
        assert list(answer) == []
        assert answer.account.reason == "cancelled"


def test_a_language_model_takes_no_frames_and_a_detector_no_prompt(bundle, tmp_path):
    with Runtime.load(bundle) as runtime:
        for given in ({"input_ids": [[1]]}, "a text"):
            with pytest.raises(UnsupportedError, match="answers prompts, not frames"):
                runtime.predict(given)
    file = find_model("digits_detector")
    net = load_model(file)
    recipe = choose_recipe(None, file, net.inputs, net.outputs, net.metadata).recipe
    frames = write_bundle(tmp_path / "frames", [packed("model.onnx", "fp32", net.data, CPU, 1)], CPU, recipe, {}, {})
    with Runtime.load(frames) as runtime, pytest.raises(UnsupportedError, match="writes no text"):
        runtime.generate("abc")


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_damaged_bundle_is_refused(bundle, name):
    data = bytearray((bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / name).write_bytes(data)
    with pytest.raises(InvalidFileError, match=f"{name} differs from its hash"):
        open_language_model(bundle)


def test_a_device_that_writes_imports_nothing_heavy(bundle):
    code = (
        "import sys, edgeopt\n"
        f"with edgeopt.Runtime.load({str(bundle)!r}) as runtime:\n"
        "    print(len(list(runtime.generate('abc', most_tokens=5, ends=False))))\n"
        "heavy = {'onnx', 'onnx_ir', 'torch', 'click', 'tokenizers', 'importlib.metadata', 'numpy.random', 'psutil'}\n"
        "others = ('decoding.speech.transcription', 'decoding.searching', 'decoding.image_reader', 'drift.watch')\n"
        "heavy |= {f'edgeopt.runtime.{name}' for name in others} | {'statistics'}\n"
        "print(*sorted(heavy & sys.modules.keys()))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split("\n") == ["5", "", ""]


@pytest.mark.parametrize(("scale", "told"), [(1.0, None), (1.02, "answers may differ"), (3.0, "wrong on this device")])
def test_a_bundle_whose_numbers_are_others_here_says_so(exported, tmp_path, scale, told):
    """A device that computes otherwise is a model whose one matrix is otherwise."""
    recipe, target = read_recipe(exported.parent / "recipe.toml"), find_target("cpu-x86-vnni")
    with open_language_model(exported, 1)[0] as judged:
        test, numbers, limit = record_logits(judged, "fp32")
    model = load_model(exported)
    weight = max((one for one in model.proto.graph.initializer if len(one.dims) == 2), key=lambda one: one.ByteSize())
    weight.CopyFrom(numpy_helper.from_array(scale * numpy_helper.to_array(weight), weight.name))
    data = model.proto.SerializeToString()
    made = make_artefact("model.onnx", data, "fp32", target, 1, model.inputs, model.outputs)
    made = replace(made, noise_limits={"logits": replace(limit, wrong=0.5)})
    bundle = write_bundle(tmp_path / "b", [(made, data)], target, recipe, {}, {}, selftest=(test, numbers))
    if told == "wrong on this device":
        with pytest.raises(UnavailableError, match=told):
            open_language_model(bundle.folder, 1)
        return
    with open_language_model(bundle.folder, 1)[0] as opened:
        assert [told in f"{one.hint}" for one in opened.origin.notes] == ([True] if told else [])
        assert opened.generate("a", AnswerOptions(3)).text() is not None
