"""Providers' options: known names only, each to the provider that knows it, and profiles that use nothing else."""

from __future__ import annotations

import re

import onnxruntime
import pytest
from fixture_models import model, numbers

from edgeopt.errors import EdgeoptError, NotFoundError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import _KNOWN_ENTRIES, EXECUTOR, _listed, _session_options, faults
from edgeopt.executors.onnxruntime.providers import (
    CPU,
    CUDA,
    DIRECTML,
    PROVIDERS,
    REFUSED,
    TENSORRT,
    WEBGPU,
    XNNPACK,
    lists_nodes,
    memory_of,
    plain_layout,
    split_entries,
)
from edgeopt.executors.onnxruntime.tensorrt import tensorrt_options
from edgeopt.system.declared.target import Target, read_target, target_names
from edgeopt.system.disk import assets
from edgeopt.system.machine.threads import usual_threads

PROFILES = [read_target(assets.folder("targets") / f"{name}.toml") for name in target_names()]
TARGETS = [one for one in PROFILES if isinstance(one, Target) and one.executor == "onnxruntime"]
NET = model("net (float[1,2] x) => (float[1,2] y) { y = MatMul(x, w) }", w=numbers(2, 2))
FLOAT, INTEGERS = b"a model", b"a model with DequantizeLinear"


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.name)
def test_a_shipped_profile_sets_only_what_its_providers_know(target):
    entries, options = split_entries(target.providers, target.options, _KNOWN_ENTRIES)
    assert entries.keys() | {key for one in options for key in one} == target.options.keys()
    assert len(options) == len(target.providers)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_recorded_name_is_taken_by_its_provider_and_by_no_other(provider):
    facts = PROVIDERS[provider]
    for name in facts.options:
        assert split_entries((provider, CPU), {name: "1"}, _KNOWN_ENTRIES) == ({}, ({name: "1"}, {}))
    for name in facts.entries:
        assert split_entries((provider, CPU), {name: "1"}, _KNOWN_ENTRIES) == ({name: "1"}, ({}, {}))
    for name in facts.options | facts.entries:
        with pytest.raises(NotFoundError, match=name.replace(".", r"\.")):
            EXECUTOR.open(NET.data, SessionOptions(entries={name: "1"}))


@pytest.mark.parametrize(
    ("provider", "wrong", "meant"),
    [
        (CUDA, "gpu_memory_limit", "gpu_mem_limit"),
        (TENSORRT, "trt_fp16_enabled", "trt_fp16_enable"),
        (DIRECTML, "disable_meta_commands", "disable_metacommands"),
        (WEBGPU, "ep.webgpuexecutionprovider.prefferedLayout", "ep.webgpuexecutionprovider.preferredLayout"),
        (XNNPACK, "intra_op_num_thread", "intra_op_num_threads"),
    ],
)
def test_a_misspelt_option_is_an_error_with_the_name_that_was_meant(provider, wrong, meant):
    with pytest.raises(NotFoundError, match=f"did you mean '{meant}'"):
        EXECUTOR.open(NET.data, SessionOptions(providers=(provider, CPU), entries={wrong: "1"}))


def test_an_option_that_two_providers_know_goes_to_both():
    asked = {"device_id": "1", "use_tf32": "0", "trt_fp16_enable": "1", "session.intra_op.allow_spinning": "0"}
    entries, options = split_entries((TENSORRT, CUDA, CPU), asked, _KNOWN_ENTRIES)
    assert entries == {"session.intra_op.allow_spinning": "0"}
    assert options == ({"device_id": "1", "trt_fp16_enable": "1"}, {"device_id": "1", "use_tf32": "0"}, {})


def test_xnnpack_gets_all_cores_and_onnxruntime_one_thread_that_does_not_spin():
    target = next(one for one in TARGETS if one.name == "cpu-xnnpack")
    entries, options = split_entries(target.providers, target.options, _KNOWN_ENTRIES)
    assert target.threads == 1
    assert entries == {"session.intra_op.allow_spinning": "0"}
    assert options[0] == {"intra_op_num_threads": str(usual_threads())}


def test_directml_runs_in_sequence_and_without_patterns_of_memory():
    for providers, pattern in (((DIRECTML, CPU), False), ((CPU,), True)):
        made = _session_options(onnxruntime, SessionOptions(providers=providers), {})
        assert made.enable_mem_pattern is pattern
        assert made.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL


def test_where_falling_back_is_forbidden_the_processor_is_not_named():
    strict = {"session.disable_cpu_ep_fallback": "1"}
    assert _listed((CUDA, CPU), {}) == (CUDA, CPU)
    assert _listed((CUDA, CPU), strict) == (CUDA,)
    assert _listed((CPU,), strict) == (CPU,)


def test_nodes_are_listed_without_a_change_of_layout_which_hides_some():
    key = "ep.webgpuexecutionprovider.preferredLayout"
    assert plain_layout(WEBGPU, {}) == {key: "NCHW"}
    assert plain_layout(WEBGPU, {key: "NCHW"}) == {}
    assert plain_layout(CUDA, {}) == {}
    assert plain_layout(CUDA, {"prefer_nhwc": "1"}) == {"prefer_nhwc": "0"}
    assert plain_layout(TENSORRT, {}) == plain_layout(CPU, {}) == {}
    assert [lists_nodes(one) for one in (CUDA, WEBGPU, XNNPACK, CPU)] == [True, True, False, False]


def test_only_a_gpu_has_memory_of_its_own():
    assert [memory_of((one, CPU)) for one in (CUDA, TENSORRT, DIRECTML, WEBGPU)] == ["cuda", "cuda", "dml", "webgpu"]
    assert [memory_of((one,)) for one in (CPU, XNNPACK, "SomeExecutionProvider")] == ["", "", ""]


def test_float32_on_cuda_is_float32():
    assert {one.options["use_tf32"] for one in TARGETS if CUDA in one.providers} == {"0"}


def test_tensorrt_is_told_the_precision_of_the_model():
    assert tensorrt_options({}, FLOAT, "fp32", "") == {}
    assert tensorrt_options({}, FLOAT, "fp16", "") == {"trt_fp16_enable": "1"}
    assert tensorrt_options({}, INTEGERS, "fp32", "") == {"trt_int8_enable": "1"}
    assert tensorrt_options({"trt_fp16_enable": "0"}, FLOAT, "fp16", "") == {"trt_fp16_enable": "0"}


CACHED = {"trt_engine_cache_enable": "1", "trt_timing_cache_enable": "1"}


def test_engines_of_a_bundle_lie_below_the_users_caches_one_folder_for_each_content(tmp_path, monkeypatch):
    """An engine is a program for the GPU: one that lay in a bundle would be somebody else's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    path = tmp_path / "bundle" / "model.onnx"
    path.parent.mkdir()
    kept = tmp_path / "caches" / "edgeopt" / "engines"
    folders = []
    for data in (FLOAT, INTEGERS):
        path.write_bytes(data)
        told = tensorrt_options(CACHED, path, "fp32", "")
        assert told["trt_timing_cache_path"] == str(kept)
        folders.append(told["trt_engine_cache_path"])
    assert len(set(folders)) == 2  # TensorRT tells engines apart by names in the graph, not by weights
    assert all(kept.samefile(f"{folder}/..") for folder in folders)
    assert [one.name for one in path.parent.iterdir()] == ["model.onnx"]


def test_engines_of_a_run_lie_in_its_folder(tmp_path):
    told = tensorrt_options(CACHED, FLOAT, "fp32", str(tmp_path / "run" / "engines"))
    assert told["trt_engine_cache_path"].startswith(str(tmp_path / "run" / "engines"))
    assert told["trt_engine_cache_enable"] == told["trt_timing_cache_enable"] == "1"


def test_without_a_folder_nothing_is_kept_rather_than_written_into_the_current_one(tmp_path):
    assert tensorrt_options(CACHED, FLOAT, "fp32", "") == dict.fromkeys(CACHED, "0")
    (tmp_path / "file").write_text("in the way")
    assert tensorrt_options(CACHED, FLOAT, "fp32", str(tmp_path / "file")) == dict.fromkeys(CACHED, "0")


_HOSTILE = (
    "trt_extra_plugin_lib_paths",
    "trt_engine_decryption_enable",
    "trt_engine_decryption_lib_path",
    "trt_engine_cache_path",
    "trt_engine_cache_prefix",
    "trt_timing_cache_path",
    "trt_dump_subgraphs",
    "trt_dump_ep_context_model",
    "trt_ep_context_file_path",
    "trt_int8_calibration_table_name",
    "trt_onnx_model_folder_path",
    "ep.context_enable",
    "ep.context_file_path",
    "session.optimized_model_file_path",
    "session.model_external_initializers_file_folder_path",
    "session.use_ort_model_bytes_directly",
    "session.load_model_format",
    "session.debug_layout_transformation",
    "session.collect_node_memory_stats_to_file",
    "session.node_partition_config_file",
    "session.resource_cpu_partitioning_settings",
    "session.optimized_model_external_initializers_file_name",
    "session.custom_ops_library",
    "optimized_model_filepath",
    "profile_file_prefix",
    "user_compute_stream",
    "default_memory_arena_cfg",
    "gpu_external_alloc",
    "backend_path",
    "profiling_file_path",
    "dump_json_qnn_graph",
    "ModelCacheDirectory",
    "cache_dir",
    "config_file",
    "xclbin",
    "ep.webgpuexecutionprovider.dawnProcTable",
    "ep.webgpuexecutionprovider.enablePIXCapture",
)
"""Options of engines that no outsider may set: they load a library, are an address, or read or write files."""


@pytest.mark.parametrize("key", _HOSTILE)
def test_an_option_loads_no_library_and_touches_no_file(key, tmp_path):
    for providers in ((CPU,), *((one, CPU) for one in PROVIDERS)):
        with pytest.raises(EdgeoptError, match=key.replace(".", r"\.")):
            EXECUTOR.open(NET.data, SessionOptions(providers=providers, entries={key: str(tmp_path / "made")}))
    assert list(tmp_path.iterdir()) == []


def test_no_name_of_a_provider_speaks_of_a_path_a_file_or_a_library():
    """A list of another version of ONNX Runtime, copied here whole, would hold them again."""
    words = re.compile(
        r"path|file|lib_|_lib|dump|prefix|folder|director|xclbin|encrypt|callback|table|alloc\b|stream\b"
    )
    names = {name for one in PROVIDERS.values() for name in one.options | one.entries} | _KNOWN_ENTRIES
    harmless = {name for name in names if "profile" in name.lower()}  # shapes, and a line in the log
    assert {name for name in names - harmless if words.search(name.lower())} <= {
        "do_copy_in_default_stream",
        "use_ep_level_unified_stream",
    }
    assert not names & REFUSED.keys()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.intra_op.spin_duration_us", "9" * 30),
        ("session.intra_op_thread_affinities", "1;$(id)"),
        ("session.dynamic_block_base", "-1"),
        ("session.disable_prepacking", "yes"),
    ],
)
def test_a_value_of_another_form_is_refused(key, value):
    with pytest.raises(UnsupportedError, match=key.replace(".", r"\.")):
        EXECUTOR.open(NET.data, SessionOptions(entries={key: value}))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "/src/webgpu_context.cc:65 Init(const Config&)::<lambda(Status, Adapter*)> status == Success was false. "
            "Failed to get a WebGPU adapter: No supported adapters",
            "Failed to get a WebGPU adapter: No supported adapters",
        ),
        ("/src/state.cc:729 void f(Options&, const T&) Please install TensorRT", "Please install TensorRT"),
        ("[ONNXRuntimeError] : 1 : FAIL : no luck", "no luck"),
    ],
)
def test_where_in_its_source_onnxruntime_failed_is_left_out(said, told):
    assert faults.said(RuntimeError(said)) == told
