"""ONNX Runtime's providers: their options, the memory they work in, the packages that bring them.

The names of options were read from the wheels of onnxruntime-gpu 1.31.1, onnxruntime-webgpu 1.27.0 and
onnxruntime-directml 1.24.4, XNNPACK's, CoreML's and Vitis AI's from their documentation; those whose value is an
address in memory are left out, since no file can hold one.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgeopt.errors import NotFoundError, UnavailableError, UnsupportedError
from edgeopt.system.machine.threads import usual_threads
from edgeopt.system.text import words_of

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
DIRECTML, WEBGPU, XNNPACK = "DmlExecutionProvider", "WebGpuExecutionProvider", "XnnpackExecutionProvider"
CORES = "{cores}"
"""As the value of an option: how many threads an engine gets where nobody says."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One execution provider."""

    title: str
    install: str
    """Command that installs it, alone in its environment, since two builds of ONNX Runtime overwrite each other."""
    needs: str
    """Other things that the machine must have, in a clause such as `it needs Windows and a DirectX 12 GPU`."""
    memory: str = ""
    """ONNX Runtime's word for the memory it works in; empty: the host's."""
    system: str = ""
    """The only system it exists on, as `sys.platform` says; empty: any."""
    options: frozenset[str] = frozenset()
    entries: frozenset[str] = frozenset()
    """Session entries that only it reads."""
    layout: tuple[str, str, str] = ("", "", "")
    """The name that sets the layout of its tensors, its default, and the value that changes none: where the layout is
    changed, ONNX Runtime's list of assignments leaves out what was placed before (seen in 1.27)."""
    lists_nodes: bool = True
    """Whether that list shows at least one node of the provider if it runs any."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether no build for this system has it."""
        return self.system not in ("", sys.platform)

    @property
    def exists_on(self) -> str:
        """The only system it exists on, as people say."""
        return {"win32": "Windows", "darwin": "Apple's systems"}[self.system]


_CUDA_OPTIONS = words_of(
    """arena_extend_strategy cudnn_conv1d_pad_to_nc1d cudnn_conv_algo_search cudnn_conv_use_max_workspace device_id
    do_copy_in_default_stream enable_cuda_graph enable_cudnn enable_skip_layer_norm_strict_mode gpu_mem_limit
    prefer_nhwc sdpa_kernel tunable_op_enable tunable_op_max_tuning_duration_ms
    tunable_op_tuning_enable use_ep_level_unified_stream use_tf32"""
)
_TENSORRT_OPTIONS = words_of(
    """device_id trt_auxiliary_streams trt_bf16_enable trt_build_heuristics_enable trt_builder_optimization_level
    trt_context_memory_sharing_enable trt_cuda_graph_enable trt_detailed_build_log trt_dla_core trt_dla_enable
    trt_engine_cache_enable trt_engine_hw_compatible trt_force_sequential_engine_build trt_force_timing_cache
    trt_fp16_enable trt_int8_enable trt_layer_norm_fp32_fallback trt_load_user_initializer
    trt_max_partition_iterations trt_max_workspace_size trt_min_subgraph_size trt_op_types_to_exclude
    trt_preview_features trt_profile_max_shapes trt_profile_min_shapes trt_profile_opt_shapes trt_sparsity_enable
    trt_tactic_sources trt_timing_cache_enable"""
)
_DIRECTML_OPTIONS = frozenset({"device_id", "performance_preference", "device_filter", "disable_metacommands"})
_DIRECTML_ENTRIES = words_of(
    """ep.dml.disable_graph_fusion ep.dml.disable_memory_arena ep.dml.enable_cpu_sync_spinning
    ep.dml.enable_graph_capture ep.dml.enable_graph_serialization"""
)
_WEBGPU_ENTRIES = frozenset(
    f"ep.webgpuexecutionprovider.{name}"
    for name in words_of(
        """dawnBackendType defaultBufferCacheMode deviceId enableGraphCapture enableInt64 forceCpuNodeNames
    maxStorageBufferBindingSize multiRotaryCacheConcatOffset powerPreference preferredLayout
    preserveDevice queryResolveBufferCacheMode storageBufferCacheMode uniformBufferCacheMode validationMode"""
    )
)
"""Session entries, not options: as options of the provider they are ignored in silence, whatever their names."""
_COREML_OPTIONS = words_of(
    """AllowLowPrecisionAccumulationOnGPU EnableOnSubgraphs MLComputeUnits ModelFormat ProfileComputePlan
    RequireStaticInputShapes SpecializationStrategy"""
)
_VITISAI_OPTIONS = frozenset({"target"})
_LOADS, _WRITES, _READS = "loads a library", "writes files", "reads a file of this machine"
_ERRS = "makes CUDA give wrong numbers from the second run on (ONNX Runtime 1.31.1 on an H200)"
REFUSED: Mapping[str, str] = {
    "fuse_conv_bias": _ERRS,
    **dict.fromkeys(words_of("trt_extra_plugin_lib_paths trt_engine_decryption_lib_path"), _LOADS),
    **dict.fromkeys(words_of("trt_engine_decryption_enable config_file xclbin"), _LOADS),
    **dict.fromkeys(words_of("trt_dump_ep_context_model trt_dump_subgraphs trt_ep_context_embed_mode"), _WRITES),
    **dict.fromkeys(words_of("trt_ep_context_file_path trt_engine_cache_path trt_engine_cache_prefix"), _WRITES),
    **dict.fromkeys(words_of("trt_timing_cache_path cache_dir cache_key ModelCacheDirectory"), _WRITES),
    **dict.fromkeys(words_of("ep.context_enable ep.context_file_path ep.context_embed_mode"), _WRITES),
    **dict.fromkeys(words_of("session.optimized_model_file_path ep.webgpuexecutionprovider.enablePIXCapture"), _WRITES),
    **dict.fromkeys(words_of("trt_int8_calibration_table_name trt_int8_use_native_calibration_table"), _READS),
    **dict.fromkeys(words_of("trt_onnx_model_folder_path trt_weight_stripped_engine_enable encryptionKey"), _READS),
    **dict.fromkeys(words_of("session.model_external_initializers_file_folder_path"), _READS),
}
"""Options that engines take and neither a bundle nor a target may set, with the reason: both come from other people,
whose files may reach nothing of this machine, and no option may make answers wrong.

What is allowed is the list of each provider, not what this one lacks; edgeopt itself names the folder of engines."""
_LIBRARIES = "pip install 'onnxruntime-gpu[cuda,cudnn]' brings CUDA and cuDNN"

PROVIDERS: Mapping[str, Provider] = {
    CUDA: Provider(
        "CUDA",
        "pip install 'edgeopt[gpu]'",
        f"it needs NVIDIA's driver, CUDA and cuDNN; {_LIBRARIES}",
        memory="cuda",
        options=_CUDA_OPTIONS,
        layout=("prefer_nhwc", "0", "0"),
    ),
    TENSORRT: Provider(
        "TensorRT",
        "pip install 'edgeopt[gpu]'",
        f"it needs NVIDIA's driver, CUDA, cuDNN and TensorRT 10's libraries on the search path; {_LIBRARIES}",
        memory="cuda",
        options=_TENSORRT_OPTIONS,
    ),
    DIRECTML: Provider(
        "DirectML",
        "pip install 'edgeopt[directml]'",
        "it needs Windows and a DirectX 12 GPU",
        memory="dml",
        system="win32",
        options=_DIRECTML_OPTIONS,
        entries=_DIRECTML_ENTRIES,
    ),
    WEBGPU: Provider(
        "WebGPU",
        "pip install 'edgeopt[webgpu]'",
        "it needs a GPU with a driver for Vulkan, Direct3D 12 or Metal",
        memory="webgpu",
        entries=_WEBGPU_ENTRIES,
        layout=("ep.webgpuexecutionprovider.preferredLayout", "NHWC", "NCHW"),
    ),
    XNNPACK: Provider(
        "XNNPACK",
        "build ONNX Runtime with --use_xnnpack",
        "no wheel has it; its packages for Android and iOS do",
        options=frozenset({"intra_op_num_threads"}),
        lists_nodes=False,  # it always changes the layout
    ),
    "CoreMLExecutionProvider": Provider(
        "CoreML",
        "pip install 'edgeopt[cpu]' on a Mac",
        "it needs macOS or, with onnxruntime-objc, iOS",
        system="darwin",
        options=_COREML_OPTIONS,
    ),
    "VitisAIExecutionProvider": Provider(
        "Vitis AI",
        "take onnxruntime-vitisai from AMD's Ryzen AI Software",
        "it needs Windows and an AMD processor with an NPU",
        system="win32",
        options=_VITISAI_OPTIONS,
    ),
}
"""The providers whose options are known; others take none here."""


def split_entries(
    providers: tuple[str, ...], entries: Mapping[str, str], session_entries: frozenset[str]
) -> tuple[dict[str, str], tuple[dict[str, str], ...]]:
    """Return the entries of the session, and the options of each provider in order.

    Args:
        providers: Of one session, in order of preference.
        entries: Both kinds together, as a profile writes them; an option goes to each provider that knows it.
        session_entries: The entries that every session takes.

    Raises:
        NotFoundError: On a name that neither the session nor one of its providers knows: ONNX Runtime ignores it.
        UnsupportedError: On a name that is refused: it loads a library, reads or writes files, or makes answers wrong.
    """
    for key in entries:
        if key in REFUSED:
            raise UnsupportedError(
                f"the option {key} {REFUSED[key]}, which no bundle and no target may do",
                remedy="leave it out of [options], or take a bundle from somebody who does not set it",
            )
    facts = [PROVIDERS.get(name) for name in providers]
    known = session_entries.union(*(fact.entries for fact in facts if fact))
    options = tuple({key: _value(entries[key]) for key in entries if fact and key in fact.options} for fact in facts)
    for key in entries:
        if key not in known and not any(key in option for option in options):
            names = known.union(*(fact.options for fact in facts if fact))
            raise NotFoundError("session configuration entry or provider option", key, names)
    return {key: value for key, value in entries.items() if key in known}, options


def _value(text: str) -> str:
    return str(usual_threads()) if text == CORES else text


def memory_of(providers: tuple[str, ...]) -> str:
    """Return the word for the memory that the first provider works in; empty: the host's."""
    first = PROVIDERS.get(providers[0]) if providers else None
    return first.memory if first else ""


def plain_layout(name: str, entries: Mapping[str, str]) -> dict[str, str]:
    """Return the entry with which a session lists all its nodes; empty if it does so as it is.

    Args:
        name: The first provider.
        entries: Of the session.
    """
    facts = PROVIDERS.get(name)
    key, default, plain = facts.layout if facts else ("", "", "")
    return {key: plain} if key and entries.get(key, default) != plain else {}


def lists_nodes(name: str) -> bool:
    """Return whether the list of assignments can tell that a provider runs nothing."""
    facts = PROVIDERS.get(name)
    return name != CPU and (facts is None or facts.lists_nodes)


def missing_provider(name: str, version: str) -> UnavailableError:
    """Return the error for a provider that this build of ONNX Runtime does not hold.

    Args:
        name: The provider.
        version: Of the ONNX Runtime that is installed.
    """
    problem = f"ONNX Runtime {version} here has no {name}"
    facts = PROVIDERS.get(name)
    if facts is None:
        return UnavailableError(problem, remedy="install a build that has it in an environment of its own")
    if facts.is_elsewhere:
        problem += f", and no build for this system has: {facts.title} exists on {facts.exists_on} only"
    return UnavailableError(problem, remedy=f"{facts.install} in its own environment; {facts.needs}")


def dead_provider(name: str, reason: str) -> UnavailableError:
    """Return the error for a provider that is installed and does not start.

    Args:
        name: The provider.
        reason: What it lacks; empty: unknown.
    """
    return UnavailableError(
        f"{name} is installed but does not start: {reason or 'it gives no reason'}", remedy=_needs(name)
    )


def refusing_provider(name: str, reason: str) -> UnavailableError:
    """Return the error for a provider that could not open a model.

    Args:
        name: The provider.
        reason: What it says.
    """
    return UnavailableError(f"{name} did not open the model: {reason}", remedy=_needs(name))


def _needs(name: str) -> str:
    facts = PROVIDERS.get(name)
    return facts.needs if facts else "run edgeopt doctor"


# Requirements of NVIDIA's providers: machine, driver and libraries, and which of them is missing.
#
# ONNX Runtime says so on standard error only, and runs on the CPU.

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_PROVIDER_FILES = {CUDA: "onnxruntime_providers_cuda", TENSORRT: "onnxruntime_providers_tensorrt"}
_LOAD = """
import contextlib, ctypes, io, os, sys
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime
with contextlib.redirect_stdout(io.StringIO()):
    getattr(onnxruntime, "preload_dlls", lambda: None)()
ctypes.CDLL(sys.argv[1])
"""
"""In a process of its own: a provider that is loaded past ONNX Runtime is broken for it afterwards."""
_ABSENT = ("cannot open shared object file", "Could not find module")


def why_no_driver(provider: str) -> str:
    """Return what is said of NVIDIA's driver where it is missing; empty for providers that need none."""
    if provider not in _PROVIDER_FILES:
        return ""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return f"there is no NVIDIA driver ({_DRIVER})"
    return ""


def preload_libraries(ort: Any, provider: str) -> None:
    """Load the CUDA and cuDNN that pip installed: they are on no search path. What is missing shows later."""
    if provider in _PROVIDER_FILES and hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()


def why_not_loaded(provider: str, folder: Path) -> str:
    """Return which library keeps a provider from being loaded; empty if none does, or the provider has none.

    Args:
        provider: Its name.
        folder: Where ONNX Runtime keeps its own libraries.
    """
    if provider not in _PROVIDER_FILES:
        return ""
    name = _PROVIDER_FILES[provider]
    return missing_library(folder / (f"{name}.dll" if sys.platform == "win32" else f"lib{name}.so"))


@cache
def missing_library(path: Path) -> str:
    """Return the first library that another one lacks, in the loader's words; empty if it lacks none."""
    import subprocess  # of a device alone

    tried = subprocess.run([sys.executable, "-c", _LOAD, str(path)], capture_output=True, text=True, timeout=120)
    said = (tried.stderr.strip().splitlines() or [""])[-1].removeprefix("OSError: ")
    return said.split(":")[0] + " is missing" if any(word in said for word in _ABSENT) else ""


def require_built(ort: Any, providers: tuple[str, ...]) -> None:
    """Raise if the build of ONNX Runtime lacks a provider, or if the first one's driver is missing.

    Raises:
        UnavailableError: Which, and what brings it.
    """
    for name in providers:
        if name not in ort.get_available_providers():
            raise missing_provider(name, ort.__version__)
    if reason := why_no_driver(providers[0]):
        raise dead_provider(providers[0], reason)


def require_loaded(ort: Any, provider: str, cause: Exception | None = None) -> None:
    """Raise if a library of a provider does not load.

    Args:
        ort: The package.
        provider: That a session is to use.
        cause: The error of a session that was not opened.

    Raises:
        UnavailableError: Which library it is.
    """
    if reason := why_not_loaded(provider, Path(ort.__file__).parent / "capi"):
        raise dead_provider(provider, reason) from cause
