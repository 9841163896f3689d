"""Engines that run a model, one file each; the file name is the executor's name.

An executor takes a path or serialized bytes and never imports onnx (except `reference`, which is onnx's own evaluator).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any, ClassVar, Protocol, TypeAlias

from edgeopt.errors import UnsupportedError
from edgeopt.graph.files.outside import Outside
from edgeopt.graph.tensors import Tensors, TensorSpec

Source = bytes | Path | Outside
"""A serialized ONNX model, the path of one, or a graph whose weights lie in files of a folder (above 2 GB)."""


def in_one_piece(source: Source, engine: str) -> bytes | Path:
    """Return a source that is a file or bytes.

    Raises:
        UnsupportedError: If its weights lie in other files, which this engine is not given.
    """
    if isinstance(source, Outside):
        raise UnsupportedError(
            f"{engine} is not given models above 2 GB, whose weights lie in files of their own",
            remedy="store the weights in 4 or 8 bits first, or choose a target of the executor onnxruntime",
        )
    return source


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session is opened."""

    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    """Execution providers in order of preference; the first must really run."""
    threads: int = 1
    entries: Mapping[str, str] = field(default_factory=dict)
    """The executor's own configuration entries; an unknown key is an error."""
    precision: str = ""
    """Type in which float operators are computed: `fp32`, `bf16`, `fp16`; empty: `fp32`, whatever the engine's
    default."""
    profile_to: str = ""
    """Prefix of an operator profile; empty: none (profiling distorts times)."""
    save_optimized_to: str = ""
    """Where the engine writes its optimized graph; empty: nowhere."""
    cache_folder: str = ""
    """Where an engine that compiles keeps the result; empty: below the user's caches, for a model that is a file."""
    cores: str = ""
    """`fast`: held to cores of the fastest kind, as this machine has them when it is opened; empty: to none."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one node runs."""

    node: str
    op: str
    provider: str
    reason: str = ""


def arithmetic(scheme: str) -> str:
    """Return what float operators are computed in under a precision scheme: `w8a8+bf16` and `bf16` say bf16."""
    last = scheme.rpartition("+")[2]
    return last if last in ("bf16", "fp16") else "fp32"


Stage: TypeAlias = tuple[str, Callable[[Any], Any]]
"""A name and a part of a run. Each takes what the one before gave: the first the inputs; the last gives the outputs."""

TRANSFERS = ("upload", "download")
"""Stages that copy between the host and the device, and compute nothing."""


class Staged(Protocol):
    """A session whose run is upload, execute and download, unless it names other stages."""

    def upload(self, inputs: Tensors) -> Any:
        """Bring the inputs to the device; return what `execute` takes. On a CPU: the inputs."""
        return inputs

    def execute(self, uploaded: Any) -> Any:
        """Run, wait until done; return what `download` takes."""
        ...

    def download(self, results: Any) -> Tensors:
        """Bring the results to the host, by output name."""
        arrays: Tensors = results
        return arrays

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of a timed run; each name once, another for each part that is worth a time of its own."""
        return (("upload", self.upload), ("execute", self.execute), ("download", self.download))

    @property
    def program(self) -> str:
        """The program that computes and its version, where it is no package of Python; empty: this process does."""
        return ""

    @property
    def opening_ms(self) -> Mapping[str, float]:
        """The times that opening took, part by part in milliseconds; empty: the engine does not tell."""
        return {}

    @property
    def clock(self) -> Callable[[], int]:
        """The clock of a timed run in nanoseconds; a session in another program leaves out the way there and back."""
        return perf_counter_ns  # a frame reads it six times: `device_clock` alone would add 0.6 us

    def run(self, inputs: Tensors) -> Tensors:
        """Run once: inputs by name in, outputs by name out.

        Raises:
            ValueError: If an input is missing or unknown.
            UnsupportedError: If the engine cannot run the model on these inputs.
            StepError: If a vendor's library fails, dies or hangs.
        """
        return self.download(self.execute(self.upload(inputs)))

    def beside(self, *, reuse: bool = False) -> Session | None:
        """Return a session over the same weights that may run in another thread at the same time.

        Itself where it may; None where all that run on it take turns. It is closed before this one.

        Args:
            reuse: Its outputs may lie in memory of its own, over which its next run writes: no copy, no new memory.
        """
        del reuse
        return None


class Session(Staged, Protocol):
    """A loaded model, ready to run."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of a run."""
        ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of a run."""
        ...

    def placement(self) -> tuple[Placement, ...]:
        """Return where each node of the optimized graph runs; empty if the engine does not say."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether another device's numbers are computed here: its time is never a latency."""
        ...

    def close(self) -> None:
        """Free what the session holds; it cannot run afterwards."""
        ...


class Executor(Protocol):
    """An inference engine on this machine. An executor inherits the answers that most of them give."""

    compiled: ClassVar[bool] = False
    """Whether models are compiled for the device ahead of time, and judged by the device or its simulator."""
    takes_onnx: ClassVar[bool] = True
    """Whether a device opens an ONNX model, not only what was compiled of it."""
    sharing: ClassVar[Mapping[str, str]] = {}
    """Entries with which a session leaves its cores at once when a run is over, for other models that wait for them."""
    own_suffix: ClassVar[str] = ""
    """Suffix of the file that a bundle holds for this engine; empty: the ONNX model, which it opens itself."""
    holds_cores: ClassVar[bool] = False
    """Whether a session can be held to some cores of the processor."""
    finds_grids_on: ClassVar[frozenset[str]] = frozenset()
    """Providers that compute products on grids which are found as the model runs: the form `dynamic`."""
    one_pool: ClassVar[bool] = False
    """Whether all sessions of a process share one number of threads: no two numbers can be measured in turns."""
    heavy: ClassVar[bool] = False
    """Whether its packages take hundreds of megabytes and its conversions up to a minute: beside a target's own engine
    it is tried last, where time allows, and nothing installs it unasked."""
    foreign_runtime: ClassVar[str] = ""
    """Name of the software that runs models on the device, where this engine only compiles or writes them; empty:
    itself."""
    own_check: ClassVar[str] = ""
    """How the numbers of its own files are computed where what runs them is not here; empty: it runs them."""

    def why_unavailable(self) -> str | None:
        """Return None if it can run here, otherwise what is missing."""
        ...

    def open(self, source: Source, options: SessionOptions) -> Session:
        """Load a model on the first of `options.providers`, or raise UnavailableError."""
        ...

    def why_no_provider(self, providers: tuple[str, ...]) -> str | None:
        """Return None if the first of these providers is in this build, otherwise what is missing."""
        del providers
        return None

    def require_providers(self, providers: tuple[str, ...]) -> None:
        """Raise UnavailableError before any work if the first provider could not run a model here."""
        del providers

    def check(self, options: SessionOptions) -> None:
        """Raise an EdgeoptError before any work if the options name what the engine does not know."""
        del options

    def conversion_s(self, source: Source) -> float:
        """Return about how many seconds it takes here to convert such a model; 0: a moment."""
        del source
        return 0.0

    def converted(self, source: Source) -> Source:
        """Return what other processes open in place of a model whose conversion takes long: it is converted once.

        Raises:
            UnsupportedError: If the engine cannot hold the model.
        """
        return source

    def own_file(self, source: Source) -> bytes:
        """Return what a bundle holds of a model for this engine, where it has a suffix of its own.

        Raises:
            UnsupportedError: If the engine cannot hold the model.
        """
        del source
        raise NotImplementedError(f"{type(self).__name__} opens ONNX models")

    def own_files(self, source: Source) -> Mapping[str, bytes]:
        """Return the files that an app with this engine's own runtime loads, by name; empty: it has no other than ONNX.

        Args:
            source: A model, or what `own_file` made of it.

        Raises:
            UnsupportedError: If the engine cannot hold the model.
        """
        del source
        return {}

    def own_facts(self, file: str) -> Mapping[str, str]:
        """Return what an app is told of one of these files, or folders: what it computes in and what it needs."""
        del file
        return {}

    def own_settings(self, options: SessionOptions, precision: str) -> Mapping[str, bool | int]:
        """Return what an app sets in this engine's own runtime so that it computes as was measured.

        Args:
            options: Of the session.
            precision: Arithmetic of float operators: `fp32`, `fp16` or `bf16`.
        """
        del options, precision
        return {}

    def wire_bytes(self, source: Source) -> int | None:
        """Return what of a model goes over the wire each time an app loads it; None: it is installed with the app."""
        del source
        return None

    def app_files(self) -> Mapping[str, bytes]:
        """Return the files of an app that runs a bundle on this engine, by name, to lie beside its models; or none."""
        return {}

    def has_device(self, providers: tuple[str, ...]) -> bool:
        """Return whether the device of these providers itself is here, not only its simulator."""
        del providers
        return True
