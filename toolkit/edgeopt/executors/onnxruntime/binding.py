"""A session's inputs and outputs bound to memory: its device's, or buffers on the host that every run writes over.

Upload, execute and download are each done when they return. A binding opens no session, and is for one run at a time.

An input of known sizes has one place in the memory of an NVIDIA GPU, over which every upload writes. A recorded graph
(`enable_cuda_graph`) reads the addresses it was recorded with: copied elsewhere, an input has no effect, and the
answer is that of a frame before (seen with ONNX Runtime 1.31 on an H200: every second frame).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.graph.tensors import Tensors, TensorSpec, require_names

_PLAIN = frozenset(
    f"{kind}{bits}" for kind, sizes in (("float", (16, 32, 64)), ("int", (8, 16, 32, 64))) for bits in sizes
) | {"uint8", "uint16", "uint32", "uint64", "bool"}
_NEVER_WAITS = ("webgpu",)
"""Where synchronizing returns at once: unless results are fetched, all the time of a run would count as download."""
_WRITTEN_OVER = ("cuda",)
"""Memory in which ONNX Runtime's Python package can write over a tensor."""
_DTYPES = {"float": "float32", "float16": "float16", "double": "float64"}


class Binding:
    """ONNX Runtime's I/O binding of one session.

    Inputs of free sizes, and all on other devices than NVIDIA's, are copied when they are bound, each to the memory in
    which its first reader works. An output whose shape is static keeps the buffer of the first run; one whose shape is
    free is bound anew for every upload, since ONNX Runtime would take the old buffer for one of the right size.
    """

    def __init__(self, session: Any, memory: str, device_id: int = 0, takes_turns: bool = True) -> None:
        """Reserve the inputs and bind the outputs.

        Args:
            session: An `InferenceSession`.
            memory: ONNX Runtime's word for the device: `cuda`, `dml`, `webgpu`, `cpu`.
            device_id: Which of several.
            takes_turns: Whether the device runs one inference of a session at a time.
        """
        self._takes_turns = takes_turns
        self._binding = session.io_binding()
        self._session, self._memory, self._device_id = session, memory, device_id
        inputs = [spec_of(input_) for input_ in session.get_inputs()]
        self._inputs = {spec.name: spec for spec in inputs}
        outputs = session.get_outputs()
        self._names = tuple(output.name for output in outputs)
        self._free = tuple(output.name for output in outputs if not _is_static(output.shape))
        self._places: dict[str, Any] = {}
        for spec in inputs if memory in _WRITTEN_OVER else ():
            if keeps_its_place(spec):
                self._reserve(spec)
        self._bind_outputs(self._names)

    def _reserve(self, spec: TensorSpec) -> None:
        import onnxruntime

        place = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            [int(str(size)) for size in spec.shape], np.dtype(spec.dtype).type, self._memory, self._device_id
        )
        self._binding.bind_ortvalue_input(spec.name, place)
        self._places[spec.name] = place

    def _bind_outputs(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._binding.bind_output(name, self._memory, self._device_id)

    def upload(self, inputs: Tensors) -> None:
        """Copy the inputs to the device and wait until they are there.

        Raises:
            ValueError: If an input is missing or unknown: the binding would run on that of the run before.
            UnsupportedError: If an input has another type or shape than the model takes.
        """
        require_names(inputs, frozenset(self._inputs))
        for name, value in inputs.items():
            array, place = np.ascontiguousarray(value), self._places.get(name)
            if place is None:
                self._binding.bind_cpu_input(name, array)
                continue
            _require_like(array, self._inputs[name])
            place.update_inplace(array)
        self._bind_outputs(self._free)
        self._binding.synchronize_inputs()

    def execute(self) -> list[Any] | None:
        """Run what was uploaded and wait until it is done; return the results if waiting meant to fetch them."""
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()
        return self._fetch() if self._memory in _NEVER_WAITS else None

    def download(self, fetched: list[Any] | None) -> Tensors:
        """Copy the results to the host: the next run may write over the device's buffers."""
        return dict(zip(self._names, self._fetch() if fetched is None else fetched, strict=True))

    def _fetch(self) -> list[Any]:
        results: list[Any] = self._binding.copy_outputs_to_cpu()
        return results

    def beside(self) -> Binding | None:
        """Return other buffers of the same session, None where its runs take turns."""
        return None if self._takes_turns else Binding(self._session, self._memory, self._device_id, False)

    def close(self) -> None:
        """Free the buffers, and only then the session: they lie in its memory, and the process would die."""
        self._binding = None
        self._places.clear()
        self._session = None


class HostBinding:
    """Inputs read where they lie, and outputs written into buffers of its own: the next run writes over them.

    ONNX Runtime's own way copies every output into new memory, whose pages the system then has to clear.
    """

    def __init__(self, session: Any, outputs: Sequence[TensorSpec]) -> None:
        """Reserve the outputs.

        Args:
            session: An `InferenceSession` on the host.
            outputs: Its outputs; see `fits`.
        """
        self._binding = session.io_binding()
        self._raw, self._run = self._binding._iobinding, session._sess.run_with_iobinding
        self._names = frozenset(input_.name for input_ in session.get_inputs())
        self._held: dict[str, NDArray[Any]] = {}
        self.results = {output.name: np.empty([int(str(n)) for n in output.shape], output.dtype) for output in outputs}
        """Buffers by name; a run writes into them."""
        for name, value in self.results.items():
            self._binding.bind_output(name, "cpu", 0, value.dtype.type, value.shape, value.ctypes.data)

    @staticmethod
    def fits(outputs: Sequence[TensorSpec]) -> bool:
        """Return whether memory can be reserved: shapes are known, and elements are numbers of NumPy's own."""
        return all(output.is_static and output.dtype in _PLAIN for output in outputs)

    def upload(self, inputs: Tensors) -> None:
        """Tell where the inputs lie: leave them alone until `execute` is done.

        Raises:
            ValueError: If an input is missing or unknown.
        """
        if inputs.keys() != self._names:
            require_names(inputs, self._names)
        for name, value in inputs.items():
            if value is self._held.get(name):
                continue  # a preprocessing step that fills one array again and again
            held = np.require(value, requirements=["C", "A"])
            self._binding.bind_input(name, "cpu", 0, held.dtype.type, held.shape, held.ctypes.data)
            self._held[name] = held  # the binding knows its address only

    def execute(self) -> None:
        """Run what was uploaded."""
        self._run(self._raw, None)


def keeps_its_place(spec: TensorSpec) -> bool:
    """Return whether memory can be reserved for a tensor of a session once for all runs.

    Without sizes it is a scalar or of unknown shape: ONNX Runtime tells no difference.
    """
    return bool(spec.shape) and spec.is_static and spec.dtype in _PLAIN


def spec_of(value: Any) -> TensorSpec:
    """Return an input or output of a session in NumPy's words."""
    word = value.type.removeprefix("tensor(").removesuffix(")")
    return TensorSpec(value.name, _DTYPES.get(word, word), tuple(value.shape))


def _require_like(array: NDArray[Any], spec: TensorSpec) -> None:
    """Raise unless an array fills the memory of an input exactly: ONNX Runtime copies as many bytes as that holds."""
    if str(array.dtype) != spec.dtype or array.shape != tuple(spec.shape):
        sizes = "x".join(map(str, array.shape))
        raise UnsupportedError(
            f"the device does not run the model: {spec} got {array.dtype} {sizes}", remedy="feed what the model takes"
        )


def _is_static(shape: Any) -> bool:
    """Return whether sizes are known; none at all are those of a scalar, or of a tensor of unknown shape."""
    return bool(shape) and all(isinstance(size, int) and size >= 0 for size in shape)
