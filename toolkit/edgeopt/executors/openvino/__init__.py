"""OpenVINO's own runtime on Intel's and other processors, GPUs and NPUs.

Providers are OpenVINO's device words: `CPU`, `GPU`, `GPU.1`, `NPU`. The virtual devices AUTO, HETERO, MULTI and BATCH
are refused: they fall back in silence. The arithmetic is always pinned: left alone, OpenVINO runs float32 models in
bfloat16 wherever the processor can.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import InvalidFileError, Missing, NotFoundError, UnavailableError, UnsupportedError
from edgeopt.executors import Executor, Placement, SessionOptions, Source, Staged, in_one_piece
from edgeopt.executors._guard import FirstRun, active_guard
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names
from edgeopt.system.declared.optional import require
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.affinity import held_processors
from edgeopt.system.text import words_of

_HINTS = {"": "f32", "fp32": "f32", "bf16": "bf16", "fp16": "f16"}
_TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_OURS = ("INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS", "PERFORMANCE_HINT", "NUM_STREAMS", "EXECUTION_MODE_HINT")
"""Properties that `SessionOptions` sets; an entry that sets one again would contradict it."""
_TAKEN = words_of(
    """CPU_DENORMALS_OPTIMIZATION CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE DYNAMIC_QUANTIZATION_GROUP_SIZE
    ENABLE_CPU_PINNING ENABLE_CPU_RESERVATION ENABLE_HYPER_THREADING ENABLE_MMAP ENABLE_TENSOR_PARALLEL
    KEY_CACHE_GROUP_SIZE KEY_CACHE_PRECISION KV_CACHE_PRECISION LOG_LEVEL MODEL_DISTRIBUTION_POLICY MODEL_PRIORITY
    PERFORMANCE_HINT_NUM_REQUESTS PERF_COUNT SCHEDULING_CORE_TYPE VALUE_CACHE_GROUP_SIZE VALUE_CACHE_PRECISION
    WORKLOAD_TYPE ACTIVATIONS_SCALE_FACTOR COMPILATION_NUM_THREADS GPU_DISABLE_WINOGRAD_CONVOLUTION
    GPU_ENABLE_LARGE_ALLOCATIONS GPU_ENABLE_LOOP_UNROLLING GPU_ENABLE_SDPA_OPTIMIZATION GPU_HOST_TASK_PRIORITY
    GPU_QUEUE_PRIORITY GPU_QUEUE_THROTTLE NPU_BYPASS_UMD_CACHING NPU_COMPILATION_MODE NPU_COMPILER_DYNAMIC_QUANTIZATION
    NPU_DEFER_WEIGHTS_LOAD NPU_DMA_ENGINES NPU_MAX_TILES NPU_PLATFORM NPU_QDQ_OPTIMIZATION
    NPU_QDQ_OPTIMIZATION_AGGRESSIVE NPU_RUN_INFERENCES_SEQUENTIALLY NPU_STEPPING NPU_TILES NPU_TURBO"""
)
"""Properties that a bundle or a target may set, by OpenVINO's documentation. Other properties of a device write files
(CACHE_DIR), read them (WEIGHTS_PATH, CONFIG_FILE), or hand a text to a compiler (NPU_COMPILATION_MODE_PARAMS): bundles
and targets come from other people."""
_ON_FAST_CORES = {"SCHEDULING_CORE_TYPE": "PCORE_ONLY", "ENABLE_CPU_PINNING": True}
"""Properties that hold threads to cores of the fastest kind, as OpenVINO itself tells kinds apart. It pins the calling
thread with the others while it computes, and moves it back."""
BLOB_SUFFIX = ".blob"
_BLOB_MAGIC = b"RR_"
"""How the CPU's compiled models begin; no ONNX file does."""
_CPU = "CPU"
_NO_NODES = ("Const", "Input", "Output")
_WHERE = (
    "Exception from ", "Check '", "FrontEnd API failed", "Model wasn't fully converted", "Summary:", "While validating "
)  # fmt: skip
"""How lines of OpenVINO's errors begin that say where they were raised, not what is wrong."""
_MESSAGE, _FOLLOWS = " with a message:", "dynamic"
"""How a line ends that names an op which was refused, and a word of the reason where another refused op is the cause:
what it would have made has no type."""
_PURPOSE = "running a model by OpenVINO"
_REMEDY = "pip install 'edgeopt[openvino]'"


@dataclass(frozen=True, slots=True)
class CompiledNodeTime:
    """One node of the compiled graph in one run."""

    name: str
    op: str
    """Operator in OpenVINO's words."""
    time_ns: int


class OpenVinoSession(Staged):
    """One inference request and the words of `Session`."""

    simulated: ClassVar[bool] = False

    def __init__(self, compiled: Any, tensor: Any, device: str, *, reuse: bool = False) -> None:
        """Wrap a compiled model.

        Args:
            compiled: An `openvino.CompiledModel`.
            tensor: The class `openvino.Tensor`.
            device: Its provider.
            reuse: Outputs are the request's own memory: the next run writes over them.
        """
        self._compiled, self._tensor, self._device, self._reuse = compiled, tensor, device, reuse
        self.inputs = tuple(spec_of(port) for port in compiled.inputs)
        self.outputs = tuple(spec_of(port) for port in compiled.outputs)
        self._positions = {spec.name: i for i, spec in enumerate(self.inputs)}
        self._names = [spec.name for spec in self.outputs]
        self._held: list[Any] = [None] * len(self.inputs)
        self.first_run: FirstRun | None = None

    @cached_property
    def _request(self) -> Any:
        """Made when it is first needed: its memory is that of all activations."""
        return self._compiled.create_infer_request()

    def upload(self, inputs: Tensors) -> None:
        """Hand the inputs to the request, which reads them where they are: leave them alone until `execute` is done.

        Raises:
            ValueError: If an input is missing or unknown, or has another type.
            EngineAbortError: If a guard is active, and OpenVINO aborted on them in a child.
        """
        first_run, self.first_run = self.first_run, None
        if first_run is not None:
            first_run(inputs)
        require_names(inputs, self._positions)
        for name, position in self._positions.items():
            value, wanted = inputs[name], self.inputs[position].dtype
            if value.dtype != wanted:
                raise ValueError(f"input {name!r} is {value.dtype}, not {wanted}")
            if value is self._held[position]:
                continue  # a preprocessing step that fills one array again and again: the request reads it already
            shared = np.require(value, requirements=["C", "W"])  # OpenVINO shares no array that is read-only
            self._request.set_input_tensor(position, self._tensor(shared, shared_memory=True))
            self._held[position] = shared  # the request knows its address only and keeps no reference

    def execute(self, uploaded: Any) -> None:
        """Run what was uploaded, and wait until it is done.

        Raises:
            UnsupportedError: If OpenVINO cannot run the model on these inputs.
        """
        try:
            self._request.infer()
        except RuntimeError as error:
            raise UnsupportedError(
                f"OpenVINO does not run the model on these inputs: {sentence_of(error)}",
                remedy="check the numbers and the shapes of the inputs",
            ) from error

    def download(self, results: Any) -> Tensors:
        """Copy the results out of the request, over whose memory the next run writes; with `reuse` show that memory."""
        result = {name: self._request.get_output_tensor(i).data for i, name in enumerate(self._names)}
        return result if self._reuse else {name: value.copy() for name, value in result.items()}

    def placement(self) -> tuple[Placement, ...]:
        """Return where each operation of the compiled graph runs; the reason names its kernel and precision."""
        nodes = [(node, _facts(node)) for node in self._compiled.get_runtime_model().get_ordered_ops()]
        return tuple(
            Placement(
                node.get_friendly_name(),
                facts.get("layerType", node.get_type_name()),
                self._device,
                " ".join(facts[key] for key in ("primitiveType", "runtimePrecision") if key in facts),
            )
            for node, facts in nodes
            if facts.get("layerType") not in _NO_NODES
        )

    def node_times(self) -> tuple[CompiledNodeTime, ...]:
        """Return how long each node of the last run took; the session was opened with the entry PERF_COUNT."""
        return tuple(
            CompiledNodeTime(value.node_name, value.node_type, round(value.real_time.total_seconds() * 1e9))
            for value in self._request.get_profiling_info()
        )

    def export_blob(self) -> bytes:
        """Return the compiled model as its device loads it, without compiling, by the same OpenVINO version.

        Raises:
            UnavailableError: If the device cannot export.
        """
        try:
            blob = self._compiled.export_model()
        except RuntimeError as error:
            raise UnavailableError(
                f"OpenVINO's {self._device} exports no compiled model: {sentence_of(error)}",
                remedy="deploy the ONNX file: it is compiled when it is loaded",
            ) from error
        return bytes(blob.getvalue() if hasattr(blob, "getvalue") else blob)

    def beside(self, *, reuse: bool = False) -> OpenVinoSession:
        """Return another request of the same compiled model: a request runs one inference at a time."""
        beside = OpenVinoSession(self._compiled, self._tensor, self._device, reuse=reuse)
        beside.first_run = self.first_run
        return beside

    def close(self) -> None:
        """Free request and model."""
        self.__dict__.pop("_request", None)
        self._compiled = None


class OpenVino(Executor):
    """The executor `openvino`."""

    holds_cores: ClassVar[bool] = True

    def why_unavailable(self) -> str | None:
        """Return None if the package is installed and finds a device."""
        try:
            is_here = self.has_cpu() or self.devices()
        except Exception as error:  # a broken installation fails in the loader, with any class of error
            return Missing(sentence_of(error).removesuffix(f": {_PURPOSE} needs it"), _REMEDY)
        return None if is_here else Missing("OpenVINO finds no device", _REMEDY)

    def why_no_provider(self, providers: tuple[str, ...]) -> str | None:
        """Return None if the device is here; without it OpenVINO's wheels compile nothing for it on Linux."""
        if set(providers) == {_CPU} and self.has_cpu():
            return None
        missing = ", ".join(sorted(set(providers) - set(self.devices())))
        return (
            Missing(f"OpenVINO is here and finds no {missing}", f"install the driver of the {missing}")
            if missing
            else None
        )

    def has_cpu(self) -> bool:
        """Return whether it runs on the processor, without the libraries of other devices.

        Raises:
            MissingDependencyError: If openvino is not installed.
        """
        return _has_cpu(_openvino().Core())

    def devices(self) -> tuple[str, ...]:
        """Return the devices that are really here.

        Raises:
            MissingDependencyError: If openvino is not installed.
        """
        return tuple(_openvino().Core().available_devices)

    def check(self, options: SessionOptions) -> None:
        """Refuse a property that no bundle and no target may set, before any work. Raises as `open`."""
        _require_taken(options)

    def open(self, source: Source, options: SessionOptions) -> OpenVinoSession:
        """Compile an ONNX model for the one device in `options.providers`, or load what `export_blob` returned.

        Args:
            source: A path that ends in `.blob`, and bytes that begin as one, are a compiled model.
            options: `save_optimized_to` names the file for the compiled model; `profile_to` is not known here.

        Raises:
            MissingDependencyError: If openvino is not installed.
            UnavailableError: If the device is not here, lacks the precision, or does not take the compiled model.
            InvalidFileError: If OpenVINO cannot read or compile the model; UnsupportedError where it lacks an op.
            NotFoundError: On an entry that is no property of the device.
            UnsupportedError: On an entry that edgeopt sets itself.
            ValueError: On an unknown precision.
            EngineAbortError: If a guard is active, and OpenVINO aborted on the model in a child.
        """
        guard = active_guard()
        first_run = guard.try_open("openvino", source, options) if guard else None
        opened = self._open(source, options)
        opened.first_run = first_run
        return opened

    def capabilities(self, device: str) -> tuple[str, ...]:
        """Return what a device can compute in, in OpenVINO's words, `BF16` for example.

        Raises:
            MissingDependencyError: If openvino is not installed.
        """
        return tuple(_openvino().Core().get_property(device, "OPTIMIZATION_CAPABILITIES"))

    def _open(self, source: Source, options: SessionOptions) -> OpenVinoSession:
        given = in_one_piece(source, "OpenVINO")
        if options.profile_to:
            raise ValueError("the executor openvino writes no operator profile")
        compiled, tensor = compile_for(given, options)
        session = OpenVinoSession(compiled, tensor, options.providers[0])
        if options.save_optimized_to:
            write_beside(Path(options.save_optimized_to), session.export_blob())
        return session


def compile_for(
    source: bytes | Path, options: SessionOptions, alter: Callable[[Any, Any], Any] | None = None
) -> tuple[Any, Any]:
    """Return an `openvino.CompiledModel`, and the class of tensors that it takes.

    Args:
        source: An ONNX model, or what `export_blob` returned.
        options: As `OpenVino.open` takes them.
        alter: Given the package and the model that was read, returns the one that is compiled; None: that one.

    Raises:
        EdgeoptError: As `OpenVino.open`.
        ValueError: On an unknown precision.
    """
    if options.precision not in _HINTS:
        raise ValueError(f"precision is {options.precision!r}, not one of {', '.join(_HINTS)}")
    _require_taken(options)
    openvino = _openvino()
    core = openvino.Core()
    device = _require_device(core, openvino.__version__, options.providers)
    properties = _properties(core, device, options)
    if _is_compiled(source):
        compiled = _load_compiled(core, source, device, properties)
    else:
        model = _read(core, source)
        compiled = _compile(core, alter(openvino, model) if alter else model, device, properties)
    _require_precision(compiled, device, _HINTS[options.precision])
    return compiled, openvino.Tensor


def _require_taken(options: SessionOptions) -> None:
    """Refuse a property that reads or writes files, in a bundle or a target of whatever origin."""
    for key in options.entries:
        if key in _OURS:
            raise UnsupportedError(f"{key} is no entry", remedy="set precisions and threads of the profile instead")
        if key not in _TAKEN:
            raise NotFoundError("property of OpenVINO that a bundle or a target may set", key, _TAKEN)


def _openvino() -> Any:
    """Import OpenVINO; its import reports to Intel unless the package that does so seems absent."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return require("openvino", extra="openvino", purpose=_PURPOSE)


def _has_cpu(core: Any) -> bool:
    """Return whether OpenVINO runs on the processor; to list devices would load the libraries of all: 0.1 s, 20 MB."""
    try:
        return bool(core.get_property(_CPU, "FULL_DEVICE_NAME"))
    except RuntimeError:
        return False


def _require_device(core: Any, version: str, providers: tuple[str, ...]) -> str:
    if len(providers) != 1:
        raise ValueError(f"the executor openvino takes one device, not {', '.join(providers) or 'none'}")
    if providers[0] == _CPU and _has_cpu(core):
        return _CPU
    present = core.available_devices
    if providers[0] not in present:
        raise UnavailableError(
            f"OpenVINO {version} finds no device {providers[0]} here, only {', '.join(present) or 'none'}",
            remedy="install the device's driver, or choose --target openvino-cpu",
        )
    return providers[0]


def _properties(core: Any, device: str, options: SessionOptions) -> dict[str, Any]:
    """Return what the model is compiled with; keys are checked against the device's own list."""
    known = {str(key) for key, access in core.get_property(device, "SUPPORTED_PROPERTIES").items() if access == "RW"}
    for key in options.entries:
        if key not in known:
            raise NotFoundError(f"property of OpenVINO's {device}", key, known & _TAKEN)
    properties: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": _HINTS[options.precision],
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        **options.entries,
    }
    if held_processors(options.cores, options.threads):
        properties = {name: value for name, value in _ON_FAST_CORES.items() if name in known} | properties
    if "INFERENCE_NUM_THREADS" in known:
        properties["INFERENCE_NUM_THREADS"] = options.threads
    return properties


def _read(core: Any, source: bytes | Path) -> Any:
    try:
        return core.read_model(source if isinstance(source, bytes) else str(source))
    except RuntimeError as error:
        name, said = "the model" if isinstance(source, bytes) else str(source), sentence_of(error)
        kind = UnsupportedError if said.startswith("No conversion rule") else InvalidFileError
        raise kind(
            f"OpenVINO cannot read {name}: {said}",
            remedy="check it with edgeopt inspect, or choose a target that runs ONNX Runtime",
        ) from error


def _compile(core: Any, model: Any, device: str, properties: dict[str, Any]) -> Any:
    try:
        return core.compile_model(model, device, properties)
    except RuntimeError as error:
        said = sentence_of(error)
        if device != _CPU:
            problem = f"OpenVINO's {device} did not compile the model: {said}"
            raise UnavailableError(problem, remedy="run edgeopt doctor") from error
        raise InvalidFileError(
            f"OpenVINO refuses the model: {said}", remedy="choose a target that runs ONNX Runtime, e.g. --target cpu"
        ) from error


def _is_compiled(source: bytes | Path) -> bool:
    return source.startswith(_BLOB_MAGIC) if isinstance(source, bytes) else source.suffix == BLOB_SUFFIX


def _load_compiled(core: Any, source: bytes | Path, device: str, properties: dict[str, Any]) -> Any:
    try:
        return core.import_model(source if isinstance(source, bytes) else source.read_bytes(), device, properties)
    except (OSError, RuntimeError) as error:
        raise UnavailableError(
            f"OpenVINO's {device} does not take this compiled model: {sentence_of(error)}",
            remedy="open the ONNX file, or compile it again with this version on this device",
        ) from error


def _require_precision(compiled: Any, device: str, hint: str) -> None:
    """A hint that the device cannot follow is replaced in silence, e.g. f16 by bf16."""
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if used not in (hint, _TYPES[hint]):
        raise UnavailableError(
            f"OpenVINO's {device} would compute in {used}, not in {hint}", remedy="leave this precision out"
        )


def _facts(node: Any) -> dict[str, str]:
    return {key: str(value.astype(str)) for key, value in node.get_rt_info().items() if hasattr(value, "astype")}


def spec_of(port: Any) -> TensorSpec:
    """Return what an input or output of a compiled model is, by the name that the model gave it.

    Raises:
        UnsupportedError: If it holds texts, which no tensor of ours carries there.
    """
    is_unranked = port.partial_shape.rank.is_dynamic
    sizes = () if is_unranked else port.partial_shape
    shape = tuple(size.get_length() if size.is_static else None for size in sizes)
    # a tensor behind an Identity has several names, and the first is any of them: the port's node has the model's own
    name = port.node.get_friendly_name().removesuffix("/sink_port_0")
    name = name if name in port.get_names() else port.any_name
    dtype = np.dtype(port.element_type.to_dtype())
    if dtype.kind == "S":
        remedy = "ONNX Runtime takes texts: --target cpu tries it too"
        raise UnsupportedError(f"OpenVINO is given numbers, and {name!r} holds texts", remedy=remedy)
    return TensorSpec(name, str(dtype), shape, is_unranked=is_unranked)


def sentence_of(error: Exception) -> str:
    """Return the sentence of an OpenVINO error that says what is wrong: not where in its source it was raised."""
    lines = [line.strip().removeprefix("-- ") for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(_WHERE)]
    if not said or not said[0].endswith(_MESSAGE):
        return said[0] if said else type(error).__name__
    refused = [
        f"{op.removesuffix(_MESSAGE)}: {why}"
        for op, why in pairwise(said)
        if op.endswith(_MESSAGE) and not why.endswith(_MESSAGE)
    ]
    return next((text for text in refused if _FOLLOWS not in text), refused[0] if refused else said[0])


EXECUTOR = OpenVino()
