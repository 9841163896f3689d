"""A target: one device profile. It reads one TOML file and this machine's instruction set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from edgeopt.errors import InvalidFileError, NotFoundError, UnavailableError
from edgeopt.system.declared.device_times import TIMES_REMEDY, TIMES_SUFFIX, DeviceTimes, read_device_times
from edgeopt.system.disk import assets
from edgeopt.system.machine.affinity import require_cores
from edgeopt.system.machine.place import machine_in_words
from edgeopt.system.machine.processor import Processor, cpu_name, this_processor
from edgeopt.system.text import short
from edgeopt.system.toml import DURATION_MS, THREADS, Within, parse_table, read_toml

_WIDE_SUMS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Flags of x86 processors that add integer products in 32 bits."""


class Granularity(StrEnum):
    """How many scales a weight has."""

    PER_TENSOR = "per_tensor"
    PER_CHANNEL = "per_channel"


DEVICES = ("cpu", "gpu", "npu")
PRECISIONS = frozenset({"fp32", "fp16", "bf16", "w8a8", "w8a16", "w8", "w4"})
"""Schemes and element types; a profile also joins an integer scheme with a float type, as `w8a8+fp16`."""
_OPSETS = Within(7, 28)
"""Opsets of ONNX: from the first that ONNX Runtime reads, to those not yet written."""


@dataclass(frozen=True, slots=True)
class Int8Rules:
    """The INT8 form that this target runs fast and right."""

    activation_dtype: str = "uint8"
    weight_dtype: str = "int8"
    weight_granularity: Granularity = Granularity.PER_CHANNEL
    symmetric_activations: bool = False
    reduce_range: bool = False
    """Weights take larger steps where two neighbouring products of U8S8 would saturate 16 bits, as without VNNI."""
    full_range_flags: tuple[str, ...] = ()
    """Processor flags of which one is enough for `reduce_range` not to hold; empty: it holds whatever the processor."""
    power_of_two_scales: bool = False
    """Every scale is a power of two: the device shifts where others multiply."""
    float_bias: bool = False
    """Biases stay in float: the engine dequantizes no 32-bit integers."""
    fused_sums: bool = False
    """No pair between a convolution and the sum behind it: the engine computes both in one kernel."""
    narrow_channels: Annotated[int, Within(0, 4096)] = 0
    """Convolutions with fewer input or output channels stay float."""
    fitted_silu: bool = False
    """A SiLU may be a HardSwish fitted to each channel: the engine computes both in the convolution's own kernel, and
    SiLU takes ten times as long there."""
    unit_sigmoid: bool = False
    """A Sigmoid's results have steps of 1/256: the engine's integer kernel knows no other grid."""
    grids_of_rows: bool = False
    """In the form `dynamic` each row of what a product reads has a grid of its own, as in LiteRT and ExecuTorch;
    otherwise the whole tensor has one, as in ONNX Runtime."""
    ops: tuple[str, ...] = ("Conv", "ConvTranspose", "MatMul", "Gemm")
    forms: tuple[str, ...] = ("qdq",)
    """How integers may be written: `qdq` everywhere; `nhwc`, ONNX Runtime's own integer ops, on a CPU; `inputs`, pairs
    on what layers read only, for OpenVINO; `dynamic`, beside another one, products on grids that are found as the model
    runs, for ONNX Runtime, LiteRT and ExecuTorch."""

    def __post_init__(self) -> None:
        if {self.activation_dtype, self.weight_dtype} - {"uint8", "int8", "uint16", "int16"}:
            raise ValueError("activation_dtype and weight_dtype are uint8, int8, uint16 or int16")
        if set(self.forms) - {"qdq", "nhwc", "inputs", "dynamic"} or self.forms[:1] in ((), ("dynamic",)):
            raise ValueError("forms are qdq, nhwc, inputs and dynamic, one or more, and dynamic is not the first")


@dataclass(frozen=True, slots=True)
class Target:
    """One device: what it runs, how, and how long a frame may take."""

    name: str
    device: str
    executor: str
    description: str
    providers: tuple[str, ...]
    precisions: tuple[str, ...]
    form: str = ""
    """How a model is written for it, in one clause."""
    int8: Int8Rules = field(default_factory=Int8Rules)
    threads: Annotated[int, THREADS] = 0
    """0: as many as this machine has fast cores."""
    cores: str = ""
    """`fast`: engines are held to cores of the fastest kind; empty: the system places their threads."""
    budget_ms: Annotated[float, DURATION_MS] = 100.0 / 3
    opset: Annotated[int, _OPSETS] = 17
    options: Mapping[str, str] = field(default_factory=dict)
    """Session configuration entries of the executor."""
    architectures: tuple[str, ...] = ()
    """Processor families it is for; empty: any."""
    instructions: tuple[str, ...] = ()
    """Processor flags of which at least one must be present; empty: any."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Precision to processor flags of which at least one must be present; a precision that is absent needs none."""
    alternatives: tuple[str, ...] = ()
    """Profiles of other executors on the same device: their candidates are measured beside this one's."""
    package: str = ""
    """Package that compiles for it, as pip knows it; empty: nothing to install."""
    fused_activations: tuple[str, ...] = ("Relu", "Clip")
    """Activations that its engine computes inside the layer before them, so that they take next to no time."""
    channel_step: Annotated[int, Within(0, 4096)] = 0
    """Channels that the device computes together, so that numbers between two multiples save no time; 0: not told."""
    sparsity: str = ""
    """Pattern of zeros in weights with which it computes faster, such as `2:4`; empty: none is known."""
    static_only: bool = False
    """Whether every dimension must be a number."""
    opset_least: Annotated[int, Within(0, _OPSETS.most)] = 0
    opset_most: Annotated[int, Within(0, _OPSETS.most)] = 0
    """0: no limit."""
    most_dimensions: Annotated[int, Within(0, 8)] = 0
    """0: no limit."""
    refused_ops: tuple[str, ...] = ()
    """Ops that its compiler refuses in every form."""
    taken_ops: tuple[str, ...] = ()
    """The only ops that it takes, where that is what its maker documents; empty: all but `refused_ops`."""
    refused_dtypes: tuple[str, ...] = ()
    """Element types that its compiler refuses, in NumPy's words."""
    never_quantized: tuple[str, ...] = ()
    """Ops that stay float, with float tensors around them."""
    unified_scales: tuple[str, ...] = ()
    """Ops that want one grid for all they read and make."""
    embeds: bool = False
    """Whether models hold pre- and postprocessing where they can: an app on the device has none of edgeopt's own."""
    rewrites: tuple[str, ...] = ()
    """Passes of the phase `device` that its compiler needs, in any order."""

    def __post_init__(self) -> None:
        if not self.name or not self.providers:
            raise ValueError("name and providers are not empty")
        require_cores(self.cores)
        if self.device not in DEVICES:
            raise ValueError(f"device {short(self.device)} is not {', '.join(DEVICES)}")
        for word in (*self.precisions, *self.needs):
            if set(word.split("+")) - PRECISIONS:
                raise ValueError(f"precision {short(word)} is none of {', '.join(sorted(PRECISIONS))}")
        if not self.precisions:
            raise ValueError("precisions are one or more")

    @property
    def processor(self) -> Processor:
        """The processor of the device that candidates are measured on: this machine's."""
        return this_processor()

    @property
    def machine(self) -> str:
        """The words for the machine that candidates are measured on."""
        return machine_in_words()

    def why_not_here(self) -> str | None:
        """Return None if this machine is such a device, otherwise what differs."""
        return self.why_unfit()

    def why_unfit(self) -> str | None:
        """Return None if the machine that candidates are measured on is such a device, otherwise what differs."""
        mine = self.processor
        if self.architectures and mine.architecture not in self.architectures:
            return f"{self.machine} is {mine.architecture}, not {' or '.join(self.architectures)}"
        return mine.why_without(self.instructions) if self.instructions else None

    def why_untimed(self) -> str | None:
        """Return None if candidates are measured in the end, otherwise why they cannot be."""
        return self.why_not_here()

    def beside(self, other: Target) -> Target:
        """Return another profile as one of the same machine."""
        return other

    @property
    def profile(self) -> Target:
        """The profile alone, without what is known of where the device is."""
        return Target(**self.values)

    @property
    def values(self) -> dict[str, Any]:
        """The fields of the profile."""
        return {each.name: getattr(self, each.name) for each in fields(Target)}

    @property
    def rules_here(self) -> Int8Rules:
        """The INT8 rules as they hold on the device's processor."""
        is_wide = bool(set(self.int8.full_range_flags) & self.processor.flags)
        return replace(self.int8, reduce_range=self.int8.reduce_range and not is_wide)

    @property
    def saturates_here(self) -> bool:
        """Whether this processor adds products of the target's integers in 16 bits that do not hold them."""
        mine = this_processor()
        is_narrow = mine.architecture == "x86-64" and not _WIDE_SUMS & mine.flags
        rules = self.rules_here
        return is_narrow and self.device == "cpu" and rules.weight_dtype == "int8" and not rules.reduce_range

    @property
    def float_precision(self) -> str:
        """The precision of unquantized models: the first of its precisions that is no integer scheme."""
        return next((precision for precision in self.precisions if precision.startswith(("fp", "bf"))), "fp32")

    def why_no_precision(self, precision: str) -> str | None:
        """Return None if the device's processor can run a precision, otherwise what it lacks."""
        flags = self.needs.get(precision, ())
        return self.processor.why_without(flags) if flags else None


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """A profile that stands for the first of several that fits this machine."""

    name: str
    description: str
    choose: tuple[str, ...]
    alternatives: tuple[str, ...] = ()
    """Those of the chosen profile, in place of its own; see `Target`."""


def target_names() -> list[str]:
    """Return the names of all shipped profiles."""
    return sorted(path.stem for path in assets.folder("targets").glob("*.toml"))


def read_target(path: Path) -> Target | TargetChoice:
    """Read one profile; a key that is missing or unknown is an error, never a default.

    Raises:
        InvalidFileError: If the file is wrong.
    """
    values = read_toml(path)
    if "choose" in values:
        return parse_table(TargetChoice, values, str(path))
    return parse_table(Target, values, str(path))


def declared_target(name: str) -> Target | TargetChoice:
    """Return the profile called `name`, or the one in the file at that path, as it is written.

    Args:
        name: Shipped name, path of a TOML file, or of a device's times.

    Raises:
        NotFoundError: If it is none of them.
        InvalidFileError: If the file is wrong.
    """
    path = Path(name)
    if name in target_names():
        path = assets.folder("targets") / f"{name}.toml"
    elif name.endswith(TIMES_SUFFIX):
        return _target_by_times(path)
    elif path.suffix != ".toml":
        raise NotFoundError("target", name, target_names())
    return read_target(path)


@dataclass(frozen=True, slots=True)
class TargetElsewhere(Target):
    """A target on another machine: candidates are made here, and measured there."""

    address: str = field(kw_only=True)
    """The address of that machine, as `--on` takes it; of one that is not reached, its name."""
    processor_there: Processor = field(kw_only=True)
    times: DeviceTimes | None = field(default=None, kw_only=True, repr=False, compare=False)
    """How long layers take there, by which times are predicted here; None: nothing is known of it."""
    times_digest: str = field(default="", kw_only=True)
    """Hash of these times, so that what was found with others is not taken up."""

    @property
    def processor(self) -> Processor:
        """The processor of that machine."""
        return self.processor_there

    @property
    def machine(self) -> str:
        """The address of that machine."""
        return self.address

    def why_not_here(self) -> str | None:
        """Return where it is."""
        return f"candidates are measured on {self.address}"

    def why_untimed(self) -> str | None:
        """Return None if that machine is such a device, otherwise what differs."""
        return self.why_unfit()

    def beside(self, other: Target) -> Target:
        """Return another profile as one of that machine."""
        return elsewhere(other, self.address, self.processor_there, self.times, self.times_digest)

    @property
    def is_predicted(self) -> bool:
        """Whether the times of its engine are known there."""
        return self.times is not None and self.name in self.times.targets


@dataclass(frozen=True, slots=True)
class TargetByTimes(TargetElsewhere):
    """A target that nothing is measured on: its times are predicted from those that were measured there once."""

    def why_not_here(self) -> str | None:
        """Return that it is not here."""
        return f"the {self.address} is not here"

    def why_untimed(self) -> str | None:
        """Return that nothing is measured on it."""
        return self.why_not_here()


def _target_by_times(path: Path) -> Target:
    """Return the target that a device's times are of; on that very device its plain profile."""
    times = read_device_times(path)
    name, known = times.engines[0].target, target_names()
    for other in times.targets:  # a path would be opened as one
        if other not in known:
            raise InvalidFileError(f"{path} is of the target {short(other)}, which there is not", remedy=TIMES_REMEDY)
    target = read_target(assets.folder("targets") / f"{name}.toml")
    if isinstance(target, TargetChoice):
        raise InvalidFileError(f"{path} is of the target {short(name)}, which chooses others", remedy=TIMES_REMEDY)
    target = replace(target, threads=times.threads)
    if times.device == cpu_name() and times.processor == this_processor():
        return target
    digest = sha256(path.read_bytes()).hexdigest()[:16]
    values = replace(target, alternatives=times.targets[1:]).values
    return TargetByTimes(
        **values, address=times.device, processor_there=times.processor, times=times, times_digest=digest
    )


def elsewhere(
    target: Target, address: str, processor: Processor, times: DeviceTimes | None = None, digest: str = ""
) -> TargetElsewhere:
    """Return a target as one on another machine.

    Args:
        target: Its profile; one that times are known of keeps them.
        address: Of the machine, as `--on` takes it.
        processor: Of the machine.
        times: How long layers take there.
        digest: Hash of these times.

    Raises:
        UnavailableError: If the target's times are of another processor.
    """
    if isinstance(target, TargetByTimes):
        if target.processor_there != processor:
            raise UnavailableError(
                f"the times of {target.address} are not of the processor of {address}", remedy=TIMES_REMEDY
            )
        times, digest = target.times, target.times_digest
    return TargetElsewhere(
        **target.values, address=address, processor_there=processor, times=times, times_digest=digest
    )


def _same(target: Target) -> Target:
    return target


def find_target(
    name: str,
    why_unavailable: Callable[[Target], str | None] = lambda _: None,
    placed: Callable[[Target], Target] = _same,
) -> Target:
    """Return the profile called `name`, or the one in the TOML file at that path; of one that chooses the chosen one.

    Args:
        name: Shipped name, or path of a TOML file.
        why_unavailable: What is missing to use a profile here, beside the device itself; asked by profiles that choose.
        placed: Says on which machine a profile is meant, as `elsewhere`; that of this one is as it is written.

    Raises:
        NotFoundError: If it is neither.
        InvalidFileError: If the file is wrong.
        UnavailableError: If a profile that chooses finds none that fits the machine.
    """
    target = declared_target(name)
    if isinstance(target, Target):
        return placed(target)
    reasons = []
    for choice in target.choose:
        if choice not in target_names():
            raise InvalidFileError(
                f"target {name!r}: choose names {short(choice)}", remedy=f"one of {', '.join(target_names())}"
            )
        chosen = read_target(assets.folder("targets") / f"{choice}.toml")
        if isinstance(chosen, TargetChoice):
            raise InvalidFileError(
                f"target {name!r}: {choice!r} chooses itself", remedy="name profiles of one device each"
            )
        chosen = placed(chosen)
        if (reason := chosen.why_unfit() or why_unavailable(chosen)) is None:
            description = f"{chosen.description} (chosen by {name})"
            return replace(chosen, description=description, alternatives=target.alternatives or chosen.alternatives)
        reasons.append(f"{choice}: {reason}")
    raise UnavailableError(
        "\n  ".join([f"target {name!r} fits no profile here:", *reasons]),
        remedy="install one of these, or name the device's own profile: edgeopt targets",
    )
