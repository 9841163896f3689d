"""ONNX Runtime. A provider that is not really used is an error, never a fallback."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from edgeopt.errors import Missing, UnavailableError, UnsupportedError
from edgeopt.executors import Executor, Placement, SessionOptions, Source
from edgeopt.executors._guard import active_guard
from edgeopt.executors.onnxruntime.binding import Binding, keeps_its_place, spec_of
from edgeopt.executors.onnxruntime.faults import not_opened
from edgeopt.executors.onnxruntime.mapped_tables import lend_tables
from edgeopt.executors.onnxruntime.optimizers import DISABLED_OPTIMIZERS, LEVEL, level_of
from edgeopt.executors.onnxruntime.providers import (
    CPU,
    CUDA,
    DIRECTML,
    PROVIDERS,
    TENSORRT,
    dead_provider,
    lists_nodes,
    memory_of,
    plain_layout,
    preload_libraries,
    require_built,
    require_loaded,
    split_entries,
)
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.executors.onnxruntime.tensorrt import tensorrt_options
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.files.table_views import with_table_views
from edgeopt.system.declared.optional import require
from edgeopt.system.disk.links import leads_elsewhere
from edgeopt.system.machine.affinity import held_processors, intervals
from edgeopt.system.machine.memory import give_back, require_bytes
from edgeopt.system.text import short

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

AFFINITIES = "session.intra_op_thread_affinities"
"""The entry that holds the threads of a session's own pool to logical cores, counted from one. The thread that asks for
a run is the app's, and none of them: `HeldSession` holds it while it runs."""
INT8_FUSED = "session.qdqisint8allowed"
"""The entry with which pairs of int8 become integer ops, and not those of uint8 alone."""
_KNOWN_ENTRIES = frozenset(
    {
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
        DISABLED_OPTIMIZERS,
        "session.disable_cpu_ep_fallback",
        "session.disable_prepacking",
        "session.disable_quant_qdq",
        "session.dynamic_block_base",
        "session.force_spinning_stop",
        "session.inter_op.allow_spinning",
        "session.intra_op.allow_spinning",
        AFFINITIES,
        "session.intra_op.spin_duration_us",
        INT8_FUSED,
        "session.set_denormal_as_zero",
        "session.use_device_allocator_for_initializers",
        "session.use_env_allocators",
        "session.x64quantprecision",
    }
)
"""ONNX Runtime accepts any key in silence, so a misspelt one would have no effect and no message."""
UNFUSED = {"session.disable_quant_qdq": "1"}
"""Entries with which pairs of Q and DQ stand around float kernels: the same numbers on every processor. Without VNNI
fused kernels saturate; `session.x64quantprecision` mends that for U8S8 only, and refuses S8S8."""
_OTHER_VALUES: Mapping[str, str] = {
    DISABLED_OPTIMIZERS: r"[A-Za-z0-9_;]{1,4096}",
    "session.dynamic_block_base": r"\d{1,4}",
    AFFINITIES: r"[\d,;-]{1,4096}",
    "session.intra_op.spin_duration_us": r"\d{1,7}",
}
"""Entries that are more than yes or no, and what they may be; of the others it takes any word but `1` for no."""
ARITHMETIC_KEY = "edgeopt.arithmetic"
"""Metadata of a model that was converted: ONNX Runtime tells no caller which types are inside."""
MEMORY_REUSE = "enable_mem_reuse"
"""A field of ONNX Runtime's session options, not one of its entries: `0` gives every tensor a buffer of its own."""
MEMORY_PATTERN = "enable_mem_pattern"
"""Another such field: `0` leaves the plan of memory out, which is for the same answers again and again."""
_FIELDS = frozenset({MEMORY_REUSE, MEMORY_PATTERN, LEVEL})


_MOST_LINKED_BYTES = 64 << 20
"""Most linked bytes of a graph whose weights lie in other files: one that is larger holds them itself."""
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"
_FATAL = 4
"""ONNX Runtime's severity of what ends the process."""


_OWN_FP16 = (TENSORRT, "CoreMLExecutionProvider")
"""Providers that turn a float32 model into fp16 themselves."""
_ONE_NODE = bytes.fromhex(
    "080712003a330a0c0a0178120179220452656c751201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a08080112040a020801"
    "42040a00100d"
)
"""An ONNX model, y = Relu(x) of one number."""


class OnnxRuntime(Executor):
    """The executor `onnxruntime`."""

    sharing: ClassVar[Mapping[str, str]] = {"session.force_spinning_stop": "1"}
    holds_cores: ClassVar[bool] = True
    finds_grids_on: ClassVar[frozenset[str]] = frozenset({"CPUExecutionProvider"})

    def why_unavailable(self) -> str | None:
        """Return None if the package is installed."""
        try:
            import onnxruntime  # noqa: F401
        except ImportError as error:
            return Missing(
                str(error), "pip install 'edgeopt[cpu]', or [gpu], [directml], [webgpu]: one of them, never two"
            )
        return None

    def why_no_provider(self, providers: tuple[str, ...]) -> str | None:
        """Return None if this build has the providers and the first starts here; otherwise what is missing."""
        try:
            self.require_providers(providers)
        except UnavailableError as error:
            facts, remedy = PROVIDERS.get(providers[0]), error.remedy.split(";")[0]
            if facts and facts.is_elsewhere:
                return Missing(f"{facts.title} exists on {facts.exists_on} only", remedy, is_elsewhere=True)
            return Missing(error.problem, remedy)
        return None

    def check(self, options: SessionOptions) -> None:
        """Refuse an entry or an option that no session takes, before any work. Raises as `open`."""
        entries, _ = split_entries(options.providers, options.entries, _KNOWN_ENTRIES | _FIELDS)
        _require_values(entries)

    def require_providers(self, providers: tuple[str, ...]) -> None:
        """Find out without a model whether the first provider could run one; a session would run on the CPU instead.

        A provider for a device opens a model of one node; TensorRT's stand-in is CUDA, which compiles nothing.

        Raises:
            MissingDependencyError: If onnxruntime is not installed.
            UnavailableError: If a provider is not in this build, or the first lacks driver, library or device.
        """
        ort = require("onnxruntime", extra="cpu", purpose="running a model")
        first = providers[0]
        require_built(ort, providers)
        require_loaded(ort, first)
        if not memory_of(providers):
            return
        try:
            self._open(_ONE_NODE, SessionOptions((CUDA if first == TENSORRT else first, CPU))).close()
        except UnavailableError as error:
            raise dead_provider(first, error.problem.partition(": ")[2]) from error

    def open(self, source: Source, options: SessionOptions) -> OnnxRuntimeSession:
        """Load a model on the first of `options.providers`.

        Raises:
            MissingDependencyError: If onnxruntime is not installed.
            UnavailableError: If the provider is not in this build, does not start, or took none of the nodes.
            InvalidFileError: If ONNX Runtime refuses the model.
            NotFoundError: On an entry or a provider's option that ONNX Runtime would ignore in silence.
            UnsupportedError: On a precision that is not the model's own.
            EdgeoptError: If weights that lie in files of their own do not fit into free memory.
            EngineAbortError: If a guard is active, and ONNX Runtime aborted on the model in a child.
        """
        guard = active_guard()
        if guard is None:
            return self._open(source, options)
        options = replace(options, entries={**guard.entries, **options.entries})
        first_run = guard.try_open("onnxruntime", source, options)
        opened = self._open(source, options)
        opened.first_run = first_run
        return opened

    def _open(self, source: Source, options: SessionOptions) -> OnnxRuntimeSession:
        ort = require("onnxruntime", extra="cpu", purpose="running a model")
        if options.precision not in ("", "fp32", "fp16"):
            raise _other_arithmetic(options.precision)
        entries, provided = split_entries(options.providers, options.entries, _KNOWN_ENTRIES | _FIELDS)
        require_built(ort, options.providers)
        cores = held_processors(options.cores, options.threads)
        made = _session_options(ort, options, {**pool_affinities(cores, options.threads), **entries})
        source = _reachable(source)
        holds_weights = isinstance(source, Outside)  # a file's own weights beside it are mapped
        if options.providers[0] == CPU:
            source = with_table_views(source)
        weights = with_weights(made, source)
        if holds_weights and isinstance(source, Outside) and not memory_of(options.providers):
            require_bytes(sum(file.stat().st_size for file in source.files), "weights", "close other programs")
        if options.providers[0] == TENSORRT:
            asked = tensorrt_options(provided[0], weights, options.precision, options.cache_folder)
            provided = (asked, *provided[1:])
        lent = () if memory_of(options.providers) else lend_tables(made, source)
        listed = _listed(options.providers, entries)
        session = _create(ort, weights, made, listed, provided[: len(listed)])
        session.lent_tables = lent  # whoever holds the session holds what it reads
        converted = session.get_modelmeta().custom_metadata_map.get(ARITHMETIC_KEY) == "fp16"
        if options.precision == "fp16" and not converted and options.providers[0] not in _OWN_FP16:
            raise _other_arithmetic(options.precision)
        memory = memory_of(options.providers)
        device_id = int(provided[0].get("device_id", 0)) if memory else 0
        plain = plain_layout(options.providers[0], options.entries)

        def placed() -> tuple[Placement, ...]:
            again = self._open(source, replace(options, entries={**options.entries, **plain}))
            placements = again.listed()
            again.close()
            return placements

        is_recorded = _is_recorded(provided[0])
        if is_recorded:
            _require_fixed_places(session)
        takes_turns = memory != "cuda" or is_recorded
        bound = Binding(session, memory, device_id, takes_turns) if memory else None
        opened = OnnxRuntimeSession(session, bound, placed if plain else None)
        opened.cores = cores
        _require_placement(opened, options.providers)
        return opened


def pool_affinities(cores: Sequence[int], threads: int) -> dict[str, str]:
    """Return the entry that lets every thread of a session's pool run on some logical cores, and on no others.

    Each may use all of these: a thread that is alone on one core waits there for what other programs run on it.

    Args:
        cores: Their numbers; none: the entry is left out.
        threads: Of the session, the calling one among them.
    """
    each = intervals(cores, first=1)
    return {AFFINITIES: ";".join([each] * (threads - 1))} if cores and threads > 1 else {}


def with_weights(made: Any, source: Source) -> bytes | Path:
    """Return what a session opens; where its weights lie outside, `made` (its options) gets their folder.

    What sessions before it held is then given back first: it would stay beside the weights.
    """
    if not isinstance(source, Outside):
        return source
    give_back()
    made.add_session_config_entry(_WEIGHTS_FOLDER, str(source.folder))
    return source.graph


def _reachable(source: Source) -> Source:
    """Return a graph with its weights where they lie in place of a file whose links ONNX Runtime would not follow."""
    if not isinstance(source, Path) or not source.is_file() or source.stat().st_size > _MOST_LINKED_BYTES:
        return source
    if not leads_elsewhere(source):
        return source
    try:
        from edgeopt.graph.files.outside_weights import followed
    except ImportError:  # a device has no onnx: ONNX Runtime says what it does not follow
        return source
    return followed(source)


def _is_recorded(provided: Mapping[str, str]) -> bool:
    """Return whether a GPU records the work of a run and replays it: it does one run of a session at a time then."""
    return "1" in (provided.get("enable_cuda_graph"), provided.get("trt_cuda_graph_enable"))


def _require_fixed_places(session: Any) -> None:
    """Raise where a recorded run of an `InferenceSession` would read or write elsewhere than the next one."""
    for spec in map(spec_of, (*session.get_inputs(), *session.get_outputs())):
        if not keeps_its_place(spec):
            raise UnsupportedError(
                f"a recorded CUDA graph needs tensors of fixed sizes and NumPy's types, and the model has {spec}",
                remedy="fix sizes with --shape, or leave enable_cuda_graph out of [options]",
            )


def _listed(providers: tuple[str, ...], entries: Mapping[str, str]) -> tuple[str, ...]:
    """Return the providers to name: ONNX Runtime refuses the processor where falling back to it is forbidden."""
    strict = entries.get("session.disable_cpu_ep_fallback") == "1" and providers[0] != CPU
    return tuple(provider for provider in providers if provider != CPU) if strict else providers


def _create(
    ort: Any, source: bytes | Path, made: Any, providers: tuple[str, ...], options: tuple[dict[str, str], ...]
) -> Any:
    """Return the session, or say why it would run elsewhere than asked."""
    on_device = bool(memory_of(providers))
    preload_libraries(ort, providers[0])
    if on_device:
        # what fails is raised, in one line; it stays so, as cuDNN writes each plan that it does not have as an error,
        # some hundred of them, when a convolution first runs
        ort.set_default_logger_severity(_FATAL)
    try:
        session = ort.InferenceSession(
            source if isinstance(source, bytes) else str(source),
            made,
            providers=list(providers),
            provider_options=list(options),
            enable_fallback=0,
        )
    except Exception as error:  # pybind raises a class per status code, all below Exception
        require_loaded(ort, providers[0], error)
        raise not_opened(error, source, providers) from error
    if providers[0] not in session.get_providers():
        require_loaded(ort, providers[0])
        raise dead_provider(providers[0], "")
    return session


def _require_values(entries: Mapping[str, str]) -> None:
    for key, value in entries.items():
        if key in _KNOWN_ENTRIES and not re.fullmatch(_OTHER_VALUES.get(key, "[01]"), value):
            allowed = f"a value of the form {_OTHER_VALUES[key]}" if key in _OTHER_VALUES else "0 or 1"
            raise UnsupportedError(f"{key} is {short(value)}", remedy=f"write {allowed}")


def _session_options(ort: Any, options: SessionOptions, entries: Mapping[str, str]) -> Any:
    made = ort.SessionOptions()
    made.intra_op_num_threads = options.threads
    made.inter_op_num_threads = 1
    made.log_severity_level = _FATAL  # what fails is raised, in one line
    made.graph_optimization_level = level_of(ort, entries)
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if DIRECTML in options.providers:  # it refuses the parallel mode, and patterns of memory that it does not own
        made.enable_mem_pattern, made.execution_mode = False, ort.ExecutionMode.ORT_SEQUENTIAL
    _require_values(entries)
    for key, value in entries.items():
        if key == MEMORY_REUSE:
            made.enable_mem_reuse = value != "0"
        elif key == MEMORY_PATTERN:
            made.enable_mem_pattern = value != "0"
        elif key != LEVEL:
            made.add_session_config_entry(key, value)
    if options.profile_to:
        made.enable_profiling = True
        made.profile_file_prefix = options.profile_to
    if options.save_optimized_to:
        made.optimized_model_filepath = options.save_optimized_to
    return made


def _other_arithmetic(precision: str) -> UnsupportedError:
    return UnsupportedError(
        f"ONNX Runtime computes in the model's own types, not in {precision}",
        remedy="convert the model, or use the executor openvino for this precision",
    )


def _require_placement(session: OnnxRuntimeSession, providers: tuple[str, ...]) -> None:
    """`get_providers()` lists a provider that runs nothing; the graph assignment does not."""
    if not lists_nodes(providers[0]) or any(node.provider == providers[0] for node in session.listed()):
        return
    placed = session.placement()
    if placed and not any(node.provider == providers[0] for node in placed):
        raise UnavailableError(
            f"{providers[0]} took none of the {len(placed)} nodes; all would run on the CPU",
            remedy="run edgeopt inspect MODEL --target T for the reasons, or choose --target cpu",
        )


EXECUTOR = OnnxRuntime()
