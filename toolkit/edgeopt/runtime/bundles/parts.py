"""The parts of a manifest: models, files with weights, attachments, and what is told of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edgeopt.graph.tensors import TensorSpec
from edgeopt.runtime.bundles.folder import FILE_NAME, MANIFEST
from edgeopt.system.machine.affinity import require_cores
from edgeopt.system.toml import Within

_MOST_SAMPLES = 64
_MOST_TEST_BYTES = 64 << 20
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model, for apps that read the manifest without opening the model."""

    name: str
    dtype: str
    """NumPy's word, for example `float32`."""
    shape: tuple[int | None, ...]
    """None: free."""

    @classmethod
    def of(cls, spec: TensorSpec) -> Port:
        """Return what the manifest says of a tensor."""
        return cls(spec.name, spec.dtype, tuple(one if isinstance(one, int) else None for one in spec.shape))


@dataclass(frozen=True, slots=True)
class Expected:
    """The figures measured when the bundle was made; None where nothing was."""

    accuracy: float | None = None
    """Accuracy in the metric of the bundle's `expected`."""
    agreement: float | None = None
    """Agreement with the original's answers."""
    frame_p50_ms: float | None = None
    frame_p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class NoiseLimit:
    """How far numbers may be off those of the bundle's maker, relative to how they differ among themselves."""

    rounding: Annotated[float, Within(0, 1)]
    """More is told."""
    wrong: Annotated[float, Within(0, 1)]
    """More is refused."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The file of stored inputs and of the numbers that each model made of them."""

    file: str
    sha256: str
    size_bytes: int
    samples: Annotated[int, Within(1, _MOST_SAMPLES)]

    def __post_init__(self) -> None:
        require_name(self.file)
        if self.size_bytes > _MOST_TEST_BYTES:
            raise ValueError(f"{self.file} has {self.size_bytes >> 20} MiB")


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that the recipe reads, such as its tokenizer."""

    file: str
    sha256: str
    size_bytes: int

    def __post_init__(self) -> None:
        require_name(self.file)


@dataclass(frozen=True, slots=True)
class Weights(Attachment):
    """A file with weights that stand outside of a model's graph; models of a bundle may share it."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """One model file of a bundle, and how it was opened when it was measured."""

    file: str
    """Its name; it lies in the bundle's folder itself."""
    sha256: str
    precision: str
    """Precision scheme, for example `w8a8`."""
    size_bytes: int
    executor: str
    providers: tuple[str, ...]
    options: Mapping[str, str]
    """The executor's own entries: the profile's, and those with which this model was fastest."""
    threads: Annotated[int, Within(0, _MOST_THREADS)]
    """Measured or asked for; 0: one per fast physical core, where nothing was measured on the device."""
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    noise_limits: Mapping[str, NoiseLimit] = field(default_factory=dict)
    """Limits by output, for its numbers on the stored inputs; an absent output is not compared."""
    expected: Expected = Expected()
    weights: Weights | None = None
    """None: they are in the model's own file."""
    cores: str = ""
    """`fast`: held to cores of the fastest kind, as the device has them; empty: the system places its threads."""

    def __post_init__(self) -> None:
        require_name(self.file)
        require_cores(self.cores)


def require_name(file: str) -> None:
    """Raise ValueError unless it names a file in the folder of a bundle."""
    if not FILE_NAME.fullmatch(file) or file == MANIFEST:
        raise ValueError(f"{file!r} is no name of a file in the bundle's folder")
