"""One loaded model of ONNX Runtime: what runs it, and what its errors say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors import Placement
from edgeopt.executors._guard import FirstRun
from edgeopt.executors._held import HeldSession
from edgeopt.executors.onnxruntime.binding import Binding, HostBinding, spec_of
from edgeopt.executors.onnxruntime.faults import not_run, said
from edgeopt.graph.tensors import Tensors

Placed = Callable[[], tuple[Placement, ...]]


class OnnxRuntimeSession(HeldSession):
    """One `InferenceSession` and the words of `Session`."""

    simulated: ClassVar[bool] = False

    def __init__(self, session: Any, binding: Binding | None = None, placed: Placed | None = None) -> None:
        """Wrap a session.

        Args:
            session: An `InferenceSession`.
            binding: Of it, where the device has memory of its own.
            placed: Finds out where the nodes run; None: the session's own list is complete.
        """
        self._binding, self._session, self._placed = binding, session, placed
        self._run = session.run
        self._names = [output.name for output in session.get_outputs()]
        self.inputs = tuple(spec_of(input_) for input_ in session.get_inputs())
        outputs = [spec_of(other) for other in session.get_outputs()]
        self.outputs = tuple(replace(spec, is_unranked=not spec.shape) for spec in outputs)  # of a scalar too: no word
        self.first_run: FirstRun | None = None

    def upload(self, inputs: Tensors) -> Any:
        """Copy the inputs to the device; return them where its memory is the host's.

        Raises:
            EngineAbortError: If a guard is active, and ONNX Runtime aborted on them in a child.
        """
        self._try_first(inputs)
        if self._binding is None:
            return inputs
        return self._binding.upload(inputs)

    def _try_first(self, inputs: Tensors | None) -> None:
        """Run in the child where this is the first run under a guard."""
        first_run, self.first_run = self.first_run, None
        if first_run is not None:
            first_run(inputs)

    def _execute(self, uploaded: Any) -> Any:
        """Run once; the results stay in the device's memory.

        Raises:
            UnsupportedError: If the device fails: it may lack a type, which no provider asks when a model is opened. On
                the CPU: if a number of the inputs is none that the model takes, an index beyond a table for example.
        """
        if self._binding is None:
            try:
                return self._run(None, uploaded)
            except Exception as error:  # pybind raises a class per status code, all below Exception
                if not type(error).__module__.startswith("onnxruntime"):
                    raise  # not the engine's words: a bug stays what it is
                has_free = not all(spec.is_static for spec in self.inputs)
                raise not_run(error, has_free_sizes=has_free) from error
        try:
            return self._binding.execute()
        except Exception as error:  # pybind raises a class per status code, all below Exception
            raise UnsupportedError(
                f"the device does not run the model: {said(error)}", remedy="choose another precision or target"
            ) from error

    def download(self, results: Any) -> Tensors:
        """Copy the results to the host, and name them."""
        if self._binding is None:
            return dict(zip(self._names, results, strict=True))
        return self._binding.download(results)

    def placement(self) -> tuple[Placement, ...]:
        """Return where each node of the optimized graph runs, from the graph assignment API."""
        return self.listed() if self._placed is None else self._placed()

    def listed(self) -> tuple[Placement, ...]:
        """Return what the API lists for this very session; after a change of layout it leaves nodes out."""
        return tuple(
            Placement(node.name, node.op_type, group.ep_name)
            for group in self._session.get_provider_graph_assignment_info()
            for node in group.get_nodes()
        )

    def end_profiling(self) -> Path:
        """Stop the operator profile and return its file."""
        return Path(self._session.end_profiling())

    def beside(self, *, reuse: bool = False) -> OnnxRuntimeSession | None:
        """Return itself on the host, whose runs share nothing; on a device buffers of its own, where it allows that."""
        if self._binding is None:
            if not (reuse and HostBinding.fits(self.outputs)):
                return self
            reusing = ReusingSession(self._session, self._placed)
            reusing.first_run, reusing.cores = self.first_run, self.cores
            return reusing
        again = self._binding.beside()
        if again is None:
            return None
        beside = OnnxRuntimeSession(self._session, again, self._placed)
        beside.first_run, beside.cores = self.first_run, self.cores
        return beside

    @property
    def engine(self) -> Any:
        """The `InferenceSession`, for runs that keep memory of their own between them (`decoder.py`)."""
        self._try_first(None)
        return self._session

    def fetch(self, names: Sequence[str], inputs: Tensors) -> list[NDArray[Any]]:
        """Return some outputs of a run, by their names; the others are computed, and not copied."""
        self._try_first(inputs)
        arrays: list[NDArray[Any]] = self._session.run(names, inputs)
        return arrays

    def close(self) -> None:
        """Free the session."""
        if self._binding is not None:
            self._binding.close()
        self._session = self._run = self._binding = None


class ReusingSession(OnnxRuntimeSession):
    """A session on the host whose every run writes into the same outputs."""

    def __init__(self, session: Any, placed: Placed | None) -> None:
        super().__init__(session, None, placed)
        self._host: HostBinding | None = HostBinding(session, self.outputs)

    def upload(self, inputs: Tensors) -> Tensors:
        """Bind the inputs where they lie."""
        self._try_first(inputs)
        if self._host is not None:
            self._host.upload(inputs)
        return inputs

    def _execute(self, uploaded: Tensors) -> Any:
        """Run once. Where a model gives other shapes than it declares, this and further runs get new memory.

        Raises:
            UnsupportedError: If a number of the inputs is none that the model takes.
        """
        if self._host is not None:
            try:
                self._host.execute()
            except Exception:  # the plain run says what is wrong, or that only the reserved memory was
                results = super()._execute(uploaded)
                self._host = None
                return results
            return None
        return super()._execute(uploaded)

    def download(self, results: Any) -> Tensors:
        """Return the outputs, in memory over which the next run writes."""
        return super().download(results) if results is not None or self._host is None else self._host.results

    def beside(self, *, reuse: bool = False) -> OnnxRuntimeSession | None:
        """Return a session over the same weights."""
        plain = OnnxRuntimeSession(self._session, None, self._placed)
        plain.cores = self.cores
        return plain.beside(reuse=reuse)

    def close(self) -> None:
        """Free the buffers; the session is another's too."""
        self._host = None
        super().close()
