"""A trial shows what a token's numbers depend on, and pairs make them the same where single tokens sum otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import Decoder, cache_parts
from edgeopt.executors.onnxruntime.rows import SharedRows
from edgeopt.executors.onnxruntime.sums import Sums, rounds_rows, try_sums
from edgeopt.graph.model import load_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.kv_cache import cache_ranges, make_integer_cache
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic

SHIPPED = Path(__file__).parents[2] / "models" / "tiny_lm" / "model.onnx"
TEXT = np.random.default_rng(0).integers(0, 1024, 120).tolist()


@pytest.fixture(scope="module")
def forms():
    fp32 = load_model(SHIPPED)
    small = make_integer_cache(make_weight_only(fp32, 8, 64).model, cache_ranges(fp32, [TEXT], threads=1))
    made = {
        "fp32": fp32,
        "w8a8": make_dynamic(fp32, find_device("cpu").rules_here).model,
        "w4": make_weight_only(fp32, 4).model,
        "w4+long": make_weight_only(fp32, 4, 128).model,
        "w8+cache8": small.model,
    }
    sessions = {name: EXECUTOR.open(one.source, SessionOptions(threads=1)) for name, one in made.items()}
    yield sessions
    for one in sessions.values():
        one.close()


def logits_of(session, widths, **asked) -> np.ndarray:
    """Return the logits behind a text that comes in parts of these widths, over and over."""
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 128, shares=True, pairs=True)
    decoder.is_exact = asked.get("is_exact", False)
    found = [decoder.run(TEXT[:30])]
    while decoder.past < len(TEXT):
        width = widths[len(found) % len(widths)]
        part = TEXT[decoder.past : decoder.past + width]
        found.append(decoder.run(part, last=int(len(part) == 1 and asked.get("is_prompt", False))))
    return np.concatenate(found)


def test_one_grid_for_all_tokens_is_known_and_floats_need_nothing(forms):
    found = {name: try_sums(one, cache_parts(one.inputs, one.outputs), shares=True) for name, one in forms.items()}
    assert (found["fp32"], found["w8a8"]) == (Sums.ALIKE, Sums.APART)
    assert [name for name, one in forms.items() if rounds_rows(one)] == ["w4", "w4+long", "w8+cache8"]


@pytest.mark.parametrize("name", ["w4", "w4+long", "w8+cache8"])
def test_tokens_have_the_same_bits_however_many_run_together(forms, name):
    session = forms[name]
    sums = try_sums(session, cache_parts(session.inputs, session.outputs), shares=True)
    if sums is Sums.APART:
        pytest.skip("this processor's kernels sum pairs otherwise too")
    is_exact = sums is Sums.PAIRED
    whole = logits_of(session, (90,))
    for widths in ((1,), (3, 1, 2, 5)):
        np.testing.assert_array_equal(logits_of(session, widths, is_exact=is_exact), whole)
        np.testing.assert_array_equal(logits_of(session, widths, is_prompt=True), whole)  # parts of a prompt
    rows = SharedRows(session.engine, cache_parts(session.inputs, session.outputs), 2, 128, pairs=True)
    found = [rows.run(1, TEXT[start : start + 7], is_prompt=True) for start in range(0, len(TEXT), 7)]
    np.testing.assert_array_equal(np.concatenate(found), whole)


def test_a_cache_knows_how_far_its_tokens_ran_together(forms):
    session = forms["w4"]
    decoder = Decoder(session.engine, cache_parts(session.inputs, session.outputs), 64, shares=True, pairs=True)
    decoder.run(TEXT[:7], last=1)
    decoder.run(TEXT[7:8], last=1)
    assert decoder.exact_past == 8
    decoder.run(TEXT[8:9])
    decoder.run(TEXT[9:12])
    assert (decoder.past, decoder.exact_past) == (12, 8)
    stored = decoder.stored()
    decoder.rewind(8)
    decoder.is_exact = True
    decoder.run(TEXT[8:9])
    assert decoder.exact_past == 9
    decoder.restore(stored, 5)
    assert (decoder.past, decoder.exact_past) == (5, 5)


def test_a_head_that_reads_the_last_row_alone_gives_that_of_the_last_token():
    proto = onnx.load(SHIPPED)
    last = onnx.helper.make_node("Slice", ["every", "from", "to", "axis"], ["logits"])
    for node in proto.graph.node:
        node.output[:] = ["every" if name == "logits" else name for name in node.output]
    for name, value in (("from", -1), ("to", 2**31), ("axis", 1)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    proto.graph.node.append(last)
    session = EXECUTOR.open(proto.SerializeToString(), SessionOptions(threads=1))
    whole = EXECUTOR.open(SHIPPED, SessionOptions(threads=1))
    parts = cache_parts(session.inputs, session.outputs)
    expected = Decoder(whole.engine, parts, 64, shares=True).run(TEXT[:12])
    for count in (3, 4):
        decoder = Decoder(session.engine, parts, 64, shares=True, pairs=True)
        rows = SharedRows(session.engine, parts, 2, 64, pairs=True)
        for one in (decoder.run(TEXT[:count], last=1), rows.run(0, TEXT[:count], is_prompt=True)):
            np.testing.assert_allclose(one, expected[count - 1 : count], atol=1e-4)
        decoder.is_exact = True
        found = decoder.run(TEXT[count : count + 1])
        np.testing.assert_allclose(found, expected[count : count + 1], atol=1e-4)
    session.close()
    whole.close()
