"""Each silent trap of Qualcomm's plugin, shown for real: edgeopt says what happened and never falls back."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import npu_models
import numpy as np
import pytest
from npu_models import bare_erf, conv_relu, frames, parse

from edgeopt.errors import InvalidFileError, StepError, UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR as CPU
from edgeopt.executors.qnn import EXECUTOR, PROVIDER, Qnn
from edgeopt.steps.compile._numbers import check_numbers, compile_model, options_for
from edgeopt.steps.quantize.formats.htp import place_htp, study_htp
from edgeopt.steps.quantize.search.htp import search_htp
from edgeopt.system.declared.target import find_target

_REASON = EXECUTOR.why_unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

V73, V68 = find_target("qualcomm-htp-v73"), find_target("qualcomm-htp-v68")


def opened(model, target=V73, **entries):
    options = options_for(target)
    return EXECUTOR.open(model.data, replace(options, entries={**options.entries, **entries}))


@pytest.fixture(scope="module")
def quantized():
    model = conv_relu()
    inputs = frames(model)
    return place_htp(model, study_htp(model, inputs, V73), V73).model


def test_1_an_soc_that_the_library_does_not_know_is_an_error_and_not_a_run_on_the_cpu():
    with pytest.raises((UnsupportedError, UnavailableError)):
        opened(conv_relu(), soc_model="999", htp_arch="73")


def test_1_where_the_nodes_run_is_read_from_the_assignment():
    session = opened(conv_relu())
    assert session.placement()
    assert {one.provider for one in session.placement()} == {PROVIDER}
    session.close()


def test_2_a_refused_node_is_an_error_with_its_name_and_reason_when_the_session_opens():
    with pytest.raises(UnsupportedError, match=r"1 node: Erf 'Erf.*not supported"):
        opened(npu_models.parse("g (float[2,3] x) => (float[2,3] y) { [Erf] y = Erf(x) }"))


def test_2_a_failure_while_running_is_an_error_and_not_a_second_run_on_the_cpu():
    session = opened(conv_relu())
    with pytest.raises(StepError, match="failed to run"):
        session.run({"x": np.zeros((1, 3, 5, 5), np.float32)})
    session.close()


def test_3_the_numbers_are_the_npus_and_not_the_cpus():
    model = conv_relu()
    (frame,) = frames(model, 1)
    session = opened(model)
    actual = session.run(frame)["y"]
    session.close()
    expected = CPU.open(model.data, SessionOptions()).run(frame)["y"]
    assert not np.array_equal(actual, expected)
    np.testing.assert_allclose(actual, expected, atol=0.02)


def test_3_a_provider_of_another_executor_is_refused():
    with pytest.raises(UnavailableError, match="no CPUExecutionProvider"):
        EXECUTOR.open(conv_relu().data, SessionOptions((PROVIDER, "CPUExecutionProvider"), 1, {"soc_model": "43"}))


def test_4_without_a_backend_in_the_options_it_is_the_npu():
    session = EXECUTOR.open(conv_relu().data, SessionOptions((PROVIDER,), 1, {"soc_model": "43"}))
    assert {one.provider for one in session.placement()} == {PROVIDER}
    session.close()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("soc_modle", "43", "did you mean 'soc_model'"),
        ("profiling_level", "detailed", "no option"),
        ("backend_path", "libQnnCpu.so", "no option"),
        ("backend_type", "nope", "'nope'"),
        ("backend_type", "cpu", "'cpu'"),
        ("backend_type", "saver", "'saver'"),
        ("htp_arch", "12", "'12'"),
        ("soc_model", "57;69", "'57;69'"),
        ("soc_model", "", "''"),
        ("offload_graph_io_quantization", "1", "'1'"),
    ],
)
def test_5_an_option_that_the_library_would_ignore_or_misread_is_refused(name, value, said):
    with pytest.raises(InvalidFileError, match=said):
        opened(conv_relu(), **{name: value})


def test_6_each_session_is_a_process_of_its_own_and_leaves_nothing_to_the_next():
    model = conv_relu()
    (frame,) = frames(model, 1)
    fresh = opened(model, V68)
    expected = fresh.run(frame)["y"]
    fresh.close()
    newer, older = opened(model, V73), opened(model, V68)
    newer.run(frame)
    actual = older.run(frame)["y"]
    assert len({newer.pid, older.pid, os.getpid()}) == 3
    newer.close()
    older.close()
    np.testing.assert_array_equal(actual, expected)


def test_6_without_an_soc_nothing_runs():
    with pytest.raises(InvalidFileError, match="soc_model is missing"):
        EXECUTOR.open(conv_relu().data, SessionOptions((PROVIDER,), 1, {}))


def test_7_real_numbers_are_refused_for_v68_although_its_simulator_computes_them():
    model = conv_relu()
    opened(model, V68).close()
    with pytest.raises(UnsupportedError, match=r"no fp16, and 2 of the nodes .*Conv"):
        check_numbers(model, V68, frames(model))


def test_7_for_v68_no_form_in_fp16_is_offered():
    model = conv_relu()
    forms = search_htp(model, frames(model), V68, agreement=lambda one: 1.0)
    assert {one.precision for one in forms} == {"w8a8", "w8a16"}


def test_7_the_whole_model_on_integers_is_taken_for_v68(quantized):
    assert check_numbers(quantized, V68, frames(conv_relu())).nodes > 0


def test_8_a_binary_of_another_soc_is_refused_although_the_simulator_runs_it(quantized, tmp_path):
    other = find_target("qualcomm-htp-v81")
    made = compile_model(quantized, other, tmp_path / "out" / "model.onnx", frames(conv_relu(), 2))
    with pytest.raises(InvalidFileError, match="compiled for SoC 87, not 43"):
        EXECUTOR.open(made.file, options_for(V73))


def test_9_a_simulated_session_says_so_and_offers_no_cycles():
    session = opened(conv_relu())
    assert session.simulated
    session.close()
    with pytest.raises(InvalidFileError, match="profiling_level"):
        opened(conv_relu(), profiling_level="optrace")


def test_10_quantizing_at_the_edge_of_the_graph_is_not_left_to_the_cpu(quantized):
    session = opened(quantized)
    edges = [one for one in session.placement() if one.op in ("QuantizeLinear", "DequantizeLinear")]
    assert edges
    assert {one.provider for one in edges} == {PROVIDER}
    session.close()


def test_scales_that_the_npu_takes_and_does_not_honour_are_found_by_the_numbers():
    model = parse(
        """softmax (float[1,8,6,6] x) => (float[1,8,6,6] y) {
            q = QuantizeLinear(x, scale, zero) d = DequantizeLinear(q, scale, zero)
            s = Softmax(d)
            p = QuantizeLinear(s, scale, zero) y = DequantizeLinear(p, scale, zero)
        }""",
        opset=21,
        scale=np.array(0.05, np.float32),
        zero=np.array(0, np.int8),
    )
    opened(model).close()
    with pytest.raises(UnsupportedError, match=r"returns other numbers than the CPU: output 'y' -\d+.* dB"):
        check_numbers(model, V73, frames(model))


@pytest.mark.parametrize("op", ["Sigmoid", "Tanh", "Softmax"])
@pytest.mark.parametrize("wide", [frozenset(), None], ids=["U8", "U16"])
def test_our_own_encodings_are_honoured(op, wide):
    model = parse(f"{op.lower()} (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ y = {op}(x) }}")
    inputs = frames(model)
    made = place_htp(model, study_htp(model, inputs, V73), V73, wide).model
    assert check_numbers(made, V73, inputs, model).device.sqnr_db > 40


def test_a_crash_of_the_library_is_a_step_error_that_names_the_signal():
    session = opened(conv_relu())
    os.kill(session.pid, signal.SIGSEGV)
    with pytest.raises(StepError, match="died of SIGSEGV") as caught:
        session.run(frames(conv_relu(), 1)[0])
    assert "not in edgeopt" in caught.value.remedy
    session.close()


def test_a_library_that_hangs_is_killed():
    options = options_for(V73)
    session = Qnn(run_timeout_s=0.5).open(conv_relu().data, options)
    os.kill(session.pid, signal.SIGSTOP)
    with pytest.raises(StepError, match=r"did not answer within 0.5 s and was killed"):
        session.run(frames(conv_relu(), 1)[0])
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(session.pid, 0)


def test_a_refused_model_names_every_node_and_every_reason():
    with pytest.raises(UnsupportedError, match=r"refuses 1 node: Erf .*Operators of type Erf are not supported"):
        opened(bare_erf())
