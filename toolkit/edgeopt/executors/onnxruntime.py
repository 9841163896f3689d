"""ONNX Runtime. A provider that is not really used is an error, never a fallback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import Placement, SessionOptions, Source
from edgeopt.extras import require
from edgeopt.tensors import Tensors, TensorSpec

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read once, when onnxruntime is first imported

_CPU = "CPUExecutionProvider"
_DTYPES = {"float": "float32", "float16": "float16", "double": "float64"}
_KNOWN_ENTRIES = frozenset(
    {
        "ep.context_enable",
        "ep.context_file_path",
        "ep.context_embed_mode",
        "mlas.enable_gemm_fastmath_arm64_bfloat16",
        "session.disable_cpu_ep_fallback",
        "session.disable_prepacking",
        "session.disable_quant_qdq",
        "session.dynamic_block_base",
        "session.force_spinning_stop",
        "session.inter_op.allow_spinning",
        "session.intra_op.allow_spinning",
        "session.intra_op_thread_affinities",
        "session.intra_op.spin_duration_us",
        "session.qdqisint8allowed",
        "session.set_denormal_as_zero",
        "session.use_device_allocator_for_initializers",
        "session.use_env_allocators",
        "session.use_ort_model_bytes_directly",
        "session.x64quantprecision",
    }
)
"""ONNX Runtime accepts any key in silence, so a misspelt one would have no effect and no message."""


class OnnxRuntimeSession:
    """One `InferenceSession` and the words of `Session`."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._run = session.run
        self._names = [output.name for output in session.get_outputs()]
        self.inputs = tuple(_spec(one) for one in session.get_inputs())
        self.outputs = tuple(_spec(one) for one in session.get_outputs())

    def run(self, inputs: Tensors) -> Tensors:
        """Run once."""
        return dict(zip(self._names, self._run(None, inputs), strict=True))

    def upload(self, inputs: Tensors) -> Any:
        """Return the inputs: host memory is the device's memory on a CPU."""
        return inputs

    def execute(self, uploaded: Any) -> Any:
        """Run once, results in host memory."""
        return self._run(None, uploaded)

    def download(self, results: Any) -> Tensors:
        """Name the results."""
        return dict(zip(self._names, results, strict=True))

    def placement(self) -> tuple[Placement, ...]:
        """Return where each node of the optimized graph runs, from the graph assignment API."""
        return tuple(
            Placement(node.name, node.op_type, group.ep_name)
            for group in self._session.get_provider_graph_assignment_info()
            for node in group.get_nodes()
        )

    def end_profiling(self) -> Path:
        """Stop the operator profile and return its file."""
        return Path(self._session.end_profiling())

    def close(self) -> None:
        """Free the session."""
        self._session = self._run = None


class OnnxRuntime:
    """The executor `onnxruntime`."""

    def why_unavailable(self) -> str | None:
        """Return None if the package is installed."""
        try:
            import onnxruntime  # noqa: F401
        except ImportError as error:
            return f"{error}; pip install 'edgeopt[cpu]' (or [gpu], [directml]: one of them, never two)"
        return None

    def open(self, source: Source, options: SessionOptions) -> OnnxRuntimeSession:
        """Load a model on the first of `options.providers`.

        Raises:
            MissingDependencyError: If onnxruntime is not installed.
            UnavailableError: If the provider is not in this build, or took none of the nodes.
            InvalidFileError: If ONNX Runtime refuses the model.
            NotFoundError: On a configuration key that ONNX Runtime would ignore in silence.
        """
        ort = require("onnxruntime", extra="cpu", purpose="running a model")
        if options.precision not in ("", "fp32"):
            raise UnsupportedError(
                f"ONNX Runtime computes in the model's own types, not in {options.precision}",
                remedy="convert the model, or use the executor openvino for this precision",
            )
        missing = [name for name in options.providers if name not in ort.get_available_providers()]
        if missing:
            raise UnavailableError(
                f"ONNX Runtime {ort.__version__} here has no {', '.join(missing)}",
                remedy="install the build that has it (edgeopt[gpu], edgeopt[directml]) in an environment of its own",
            )
        made = _session_options(ort, options)
        try:
            session = ort.InferenceSession(
                source if isinstance(source, bytes) else str(source),
                made,
                providers=list(options.providers),
                enable_fallback=0,
            )
        except Exception as error:  # pybind raises a class per status code, all below Exception
            raise _refusal(error, options.providers) from error
        opened = OnnxRuntimeSession(session)
        _require_placement(opened, options.providers)
        return opened


def _session_options(ort: Any, options: SessionOptions) -> Any:
    made = ort.SessionOptions()
    made.intra_op_num_threads = options.threads
    made.inter_op_num_threads = 1
    made.log_severity_level = 3
    made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in options.entries.items():
        if key not in _KNOWN_ENTRIES:
            raise NotFoundError("session configuration entry", key, _KNOWN_ENTRIES)
        made.add_session_config_entry(key, value)
    if options.profile_to:
        made.enable_profiling = True
        made.profile_file_prefix = options.profile_to
    if options.save_optimized_to:
        made.optimized_model_filepath = options.save_optimized_to
    return made


def _refusal(error: Exception, providers: tuple[str, ...]) -> UnavailableError | InvalidFileError:
    reason = str(error).strip().splitlines()[0]
    if providers[0] != _CPU:
        return UnavailableError(f"{providers[0]} did not open the model: {reason}", remedy="run edgeopt doctor")
    return InvalidFileError(f"ONNX Runtime refuses the model: {reason}", remedy="check it with edgeopt inspect")


def _require_placement(session: OnnxRuntimeSession, providers: tuple[str, ...]) -> None:
    """`get_providers()` lists a provider that runs nothing; the graph assignment does not."""
    placed = session.placement()
    if providers[0] != _CPU and placed and not any(node.provider == providers[0] for node in placed):
        raise UnavailableError(
            f"{providers[0]} took none of the {len(placed)} nodes; all would run on the CPU",
            remedy="run edgeopt inspect MODEL --target T for the reasons, or choose --target cpu",
        )


def _spec(value: Any) -> TensorSpec:
    word = value.type.removeprefix("tensor(").removesuffix(")")
    return TensorSpec(value.name, _DTYPES.get(word, word), tuple(value.shape))


EXECUTOR = OnnxRuntime()
