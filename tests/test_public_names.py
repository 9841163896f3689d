"""Editors, notebooks and `help` see every public name and every option of the package."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from typing import get_type_hints

import pytest

import edgeopt
from edgeopt.graph.tensors import ReducedPicture
from edgeopt.measurement.frames.options import BenchOptions, FrameBenchWishes
from edgeopt.optimization.one_step.prune import prune
from edgeopt.optimization.optimize import optimize
from edgeopt.optimization.options import FrameOptimizeWishes, Options
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import AnswerOptions, AnswerWishes
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.sampling import (
    NEEDS_TEMPERATURE,
    Sampling,
    SamplingFlags,
    SamplingWishes,
    sampling_options,
)
from edgeopt.runtime.decoding.speech.options import SpeechOptions, SpeechWishes
from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.text_request import read_text_request
from edgeopt.runtime.stream.frame_queue import size_of
from edgeopt.runtime.stream.result import StreamResult
from edgeopt.system.declared.options import options_of

WISHES = [
    (FrameOptimizeWishes, [Options]),
    (FrameBenchWishes, [BenchOptions]),
    (AnswerWishes, [AnswerOptions, Sampling]),
    (SpeechWishes, [SpeechOptions]),
]
TAKING = [
    (optimize, [Options]),
    (prune, [Options]),
    (Runtime.generate, [AnswerOptions, Sampling]),
    (LanguageModel.generate, [AnswerOptions, Sampling]),
    (EncoderDecoder.generate, [AnswerOptions, Sampling]),
    (Runtime.transcribe, [SpeechOptions]),
    (EncoderDecoder.transcribe, [SpeechOptions]),
]


def test_dir_lists_every_public_name_before_any_is_imported():
    code = "import edgeopt; print(*dir(edgeopt))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {*edgeopt.__all__} <= {*shown}
    assert {"optimize", "bench", "Runtime", "Stream", "Pipeline", "Scheduler", "EdgeoptError"} <= {*shown}


@pytest.mark.parametrize("name", edgeopt.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    value = getattr(edgeopt, name)
    assert isinstance(value, str) or inspect.getdoc(value)


@pytest.mark.parametrize(("wishes", "options"), WISHES, ids=lambda value: getattr(value, "__name__", ""))
def test_type_checkers_see_every_option_with_its_type(wishes, options):
    fields = {field.name: get_type_hints(each)[field.name] for each in options for field in dataclasses.fields(each)}
    assert get_type_hints(wishes) == fields
    assert not wishes.__required_keys__


def test_a_number_of_sampling_is_an_option_everywhere_once_it_is_a_field():
    """On the command line, by name in Python, and in a request of a client of OpenAI."""
    numbers = sampling_options()
    assert {*numbers} == {field.name for field in dataclasses.fields(Sampling)} - {"logit_bias"}
    assert {*numbers} == {*dict(options_of(SamplingFlags))} == {*get_type_hints(SamplingWishes)}
    assert {*NEEDS_TEMPERATURE} <= {*numbers}
    for name, limits in numbers.items():
        value = limits.least or 0
        body = json.dumps({"model": "m", "prompt": "a", name: value}).encode()
        asked = read_text_request(body, Limits(), is_chat=False).asked
        assert getattr(asked.sampling, name) == value
        if limits.most is not None:
            body = json.dumps({"model": "m", "prompt": "a", name: limits.most + 1}).encode()
            with pytest.raises(RefusedError, match=name):
                read_text_request(body, Limits(), is_chat=False)


@pytest.mark.parametrize(("function", "options"), TAKING, ids=lambda value: getattr(value, "__qualname__", ""))
def test_the_shown_signature_names_every_option_with_its_default(function, options):
    shown = inspect.signature(function).parameters
    for field in (field for each in options for field in dataclasses.fields(each)):
        parameter = shown[field.name]
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if field.default is not dataclasses.MISSING:
            assert parameter.default == field.default
    assert all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in shown.values())


VERBS = [
    *(edgeopt.optimize, edgeopt.inspect, edgeopt.bench, edgeopt.compare, edgeopt.check, edgeopt.quantize),
    *(edgeopt.run, edgeopt.serve),
]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_no_option_of_a_verb_is_of_any_type_at_all(verb):
    annotations = [str(each.annotation) for each in inspect.signature(verb).parameters.values()]
    assert not {"Any", "typing.Any"} & {*annotations}


def test_an_unknown_option_is_refused_by_its_name():
    with pytest.raises(TypeError, match="budgt_ms"):
        edgeopt.optimize("digits_detector", budgt_ms=33)
    with pytest.raises(TypeError, match="secs"):
        edgeopt.bench("digits_detector", secs=3)


def test_options_by_name_hold_beside_an_options_object():
    with pytest.raises(edgeopt.EdgeoptError, match="load"):
        edgeopt.bench("digits_detector", options=BenchOptions(seconds=1), load="no such load")


def test_printing_the_result_of_a_stream_leaves_the_frame_out():
    import numpy as np

    result = StreamResult(0, "a.jpg", np.zeros((2, 2, 3), np.uint8), ["cat"], 1, 1, {}, False, "model.onnx", "full")
    assert "frame" not in repr(result)
    assert "a.jpg" in repr(result)
    assert "cat" in repr(result)
    part = ReducedPicture(np.full((2, 2, 3), 7, np.uint8), 2, 3, 4)
    result = StreamResult(0, "a.jpg", part, [], 1, 1, {}, False, "model.onnx", "full")
    assert result.frame.shape == (3, 4, 3)
    assert size_of(part) == size_of(part.pixels)
