"""Forms against each other: a short text that is judged whole on entering loses no less for that."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.executors._guard import guarded
from edgeopt.graph.model import find_model
from edgeopt.measurement.generation.perplexity import TextScore
from edgeopt.measurement.generation.sides.turns import PARTS, FormTurns
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.forms.kv_cache import leader_with_small_cache
from edgeopt.optimization.generation.writer_run import Made
from edgeopt.optimization.run import Silence
from edgeopt.runtime.decoding.generation import AnswerOptions

BEFORE = (2.0, 2.1, 1.9, 2.2, 2.0, 2.05)


def contest() -> FormContest:
    return FormContest(
        original=None,
        windows=list(BEFORE),
        prompts=[],
        asked=AnswerOptions(),
        threads=1,
        max_rise=0.02,
        seconds=0.0,
        parts=("answer",),
        listener=Silence(),
        score=lambda _, windows: TextScore(tuple(windows), tuple(np.zeros(1, np.int64) for _ in windows)),
    )


def entrant(name: str, more: tuple[float, ...], answer_ms: float) -> Entrant:
    score = TextScore(tuple(a + b for a, b in zip(BEFORE, more, strict=True)), (np.zeros(1, np.int64),) * len(BEFORE))
    times = [FormTurns(np.full((8, 3), 1e6 * ms) * (1 + 0.001 * np.arange(8)[:, None])) for ms in (10.0, answer_ms)]
    return Entrant(name, name, "w4", Path(name), score, len(BEFORE), (times[0], times[1]))


@pytest.mark.parametrize("answer_ms", [2.0, 8.0])
def test_a_form_that_loses_more_than_allowed_is_out_though_its_interval_holds_zero(answer_ms):
    wide = entrant("wide", (0.4, -0.3, 0.3, -0.25, 0.35, -0.2), answer_ms)
    fit = entrant("fit", (0.001, 0.002, 0.001, 0.0, 0.001, 0.002), 5.0)
    judged = contest()
    assert judged.rise(wide).low < 0 < 0.02 < judged.rise(wide).value
    judged.hold([wide, fit], 0.0)
    assert wide.is_unfit or wide.out == "slower than fit"
    assert wide.is_unfit == (answer_ms < 5.0)
    assert not fit.out


def test_two_graphs_stay_only_where_no_single_form_is_left():
    judged, fit = contest(), (0.001, 0.002, 0.001, 0.0, 0.001, 0.002)
    split = entrant("w8a8-w4", fit, 4.0)
    split.prompts_by, split.tokens_by = "w8a8", "w4"
    near, far = entrant("w4", fit, 4.0), entrant("w8a8", fit, 6.0)
    forms = [split, near, far]
    judged.hold(forms, 0.0)
    judged.drop_unproven(forms)
    assert split.out == "not proven faster than w4, which is one graph"
    assert far.out.startswith("slower than")
    split.out, near.out = "", "slower than w8a8-w4"
    judged.drop_unproven(forms)
    assert not split.out
    near.out, judged.parts = "", PARTS
    judged.drop_unproven(forms)
    assert not split.out, "with a budget it may keep two limits of which each form keeps one"


def test_the_fastest_in_each_part_of_an_answer_is_picked_and_what_memory_does_not_hold_goes_out():
    judged, fit = contest(), (0.0,) * len(BEFORE)
    prompts, tokens, refused = (entrant(name, fit, 5.0) for name in ("w8a8", "w4", "w2"))
    for other, ttft, tpot in ((prompts, 1.0, 4.0), (tokens, 3.0, 2.0), (refused, 0.5, 0.5)):
        original, form = other.turns
        times = form.times_ns.copy()
        times[:, 1:] = 1e6 * np.array([ttft, tpot])
        other.turns = original, FormTurns(times)
    refused.out = "its perplexity is +9.0%, 2.0% are allowed"
    assert judged.fastest([prompts, tokens, refused], "TTFT") is prompts
    assert judged.fastest([prompts, tokens, refused], "TPOT") is tokens
    assert judged.fastest([refused], "TPOT") is None
    prompts.needs_bytes, judged.most_bytes = 300 << 20, 200 << 20
    judged.drop_large([prompts, tokens])
    assert (prompts.out, tokens.out) == ("it takes 300.00 MiB, more than --memory allows", "")


def test_a_small_cache_replaces_what_it_is_proven_no_slower_than():
    judged, fit = contest(), (0.0,) * len(BEFORE)
    large, level, slower = (entrant(name, fit, ms) for name, ms in (("w4", 5.0), ("w4+a", 5.05), ("w4+b", 5.5)))
    level.cache_of = slower.cache_of = "w4"
    forms = [large, level, slower]
    assert [judged.replaced_by(form, forms) for form in forms] == ["", "w4", ""]
    level.out = "its perplexity is +9.0%, 2.0% are allowed"
    assert judged.replaced_by(level, forms) == ""


def test_the_form_whose_cache_is_made_small_is_one_that_memory_then_holds():
    judged, fit = contest(), (0.0,) * len(BEFORE)
    fast, slow = entrant("fast", fit, 4.0), entrant("slow", fit, 6.0)
    fast.needs_bytes, slow.needs_bytes = 500, 100
    judged.original, judged.answer_tokens = SimpleNamespace(token_bytes=4), 100
    assert leader_with_small_cache(judged, [fast, slow]) is fast
    judged.most_bytes = 200
    assert leader_with_small_cache(judged, [fast, slow]) is fast, "400 of its 500 bytes are the cache"
    judged.most_bytes = 150
    assert leader_with_small_cache(judged, [fast, slow]) is slow
    judged.most_bytes = 50
    assert leader_with_small_cache(judged, [fast, slow]) is slow
    slow.needs_bytes = 400
    assert leader_with_small_cache(judged, [fast, slow]) is None


def test_a_model_that_sees_gets_no_small_cache():
    judged = contest()
    forms = [entrant("fast", (0.0,) * len(BEFORE), 4.0)]
    judged.original, judged.answer_tokens = SimpleNamespace(token_bytes=4), 100
    assert leader_with_small_cache(judged, forms) is forms[0]
    judged.image_bytes = 1000
    assert leader_with_small_cache(judged, forms) is None, "no text that judges it holds rows of a picture"


def test_memory_counts_the_encoder_of_pictures_with_each_form_once_and_the_states_of_a_text():
    judged = contest()
    judged.image_bytes, judged.answer_tokens = 1000, 3
    needed = 1000 + 100 + 3 * 7 + 50
    parts = {"token_bytes": 7, "state_bytes": 50, "prefill": None, "engine_bytes": 0, "elsewhere": None}
    form = SimpleNamespace(images=None, origin=SimpleNamespace(size_bytes=100), **parts)
    assert judged.needs_bytes(form) == needed
    seeing = SimpleNamespace(images=SimpleNamespace(size_bytes=4000), origin=SimpleNamespace(size_bytes=4100), **parts)
    assert judged.needs_bytes(seeing) == needed, "the encoder that was chosen goes with the original too"
    form.engine_bytes, form.prefill = 300, SimpleNamespace(page_bytes=lambda tokens: 2 * tokens)
    assert judged.needs_bytes(form) == needed + 300 + 6, "what another engine holds to compute prompts, and its pages"
    judged.clients = 4
    states = 4 * 2 * 50 - 50
    assert judged.needs_bytes(form) == needed + 300 + 6 + 3 * 3 * 7 + states, "states are read and written for each"
    form.elsewhere = SimpleNamespace(page_bytes=9)
    assert judged.needs_bytes(form) == needed + 300 + 6 + 3 * 3 * 7 + states + 4 * 9, "a page may be filled in part"


@pytest.fixture
def fatal(tmp_path: Path) -> Path:
    """The small language model with a branch on which ONNX Runtime aborts, beside its recipe and tokenizer."""
    folder = tmp_path / "fatal"
    shutil.copytree(find_model("tiny_lm").parent, folder)
    proto = onnx.load(folder / "model.onnx")
    graph, node = proto.graph, helper.make_node
    for one in graph.node:
        one.output[:] = ["logits alone" if name == "logits" else name for name in one.output]
    branches = {
        "then_branch": [node("Relu", ["c"], ["then"])],
        "else_branch": [node("Add", ["t", "c"], ["else"])],
    }
    result = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("then", "else")}
    bodies = {key: helper.make_graph(nodes, key, [], [result[nodes[-1].output[0]]]) for key, nodes in branches.items()}
    constants = {
        "axes": np.array([2, 3]),
        "grid": np.float32(0.1),
        "zero": np.uint8(0),
        "w": np.ones((4, 1, 1, 1), np.float32),
        "limit": np.float32(0.5),
        "none": np.float32(0),
    }
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items())
    graph.node.extend(
        [
            node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["ids", "axes"], ["x"]),
            node("QuantizeLinear", ["x", "grid", "zero"], ["q"]),
            node("DequantizeLinear", ["q", "grid", "zero"], ["d"]),
            node("Transpose", ["d"], ["t"], perm=[0, 3, 1, 2]),
            node("Conv", ["t", "w"], ["c"]),
            node("ReduceMax", ["ids"], ["most"], keepdims=0),
            node("Greater", ["most", "limit"], ["is_large"]),
            node("If", ["is_large"], ["i"], **bodies),
            node("ReduceSum", ["i"], ["sum"], keepdims=0),
            node("Mul", ["sum", "none"], ["nothing"]),
            node("Add", ["logits alone", "nothing"], ["logits"]),
        ]
    )
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals of this kind")
def test_a_form_on_which_the_engine_aborts_is_left_out_and_the_others_stay(fatal: Path) -> None:
    aborting = Entrant("w4", "in 4 bits", "w4", fatal)
    with guarded():
        contest().enter(aborting)
    assert aborting.out.startswith("ONNX Runtime died of SIGABRT while opening it")
    made = Made()
    made.take(aborting)
    made.take(entrant("w8", (0.0,) * len(BEFORE), 5.0))
    assert [one.name for one in made.entrants] == ["w8"]
    (note,) = made.notes
    assert "left out: w4: ONNX Runtime died of SIGABRT" in note.detail
