"""The times of a device's layers in a file: measured on it once, they stand for it where it is not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from edgeopt.errors import InvalidFileError
from edgeopt.system.disk.files import write_beside
from edgeopt.system.machine.processor import Processor
from edgeopt.system.text import short
from edgeopt.system.toml import THREADS, Within, parse_table, read_object

SCHEMA = 1
_WAYS = ("full", "depthwise", "grouped")
TIMES_SUFFIX = ".times.json"
"""End of the name of such a file: it is a target."""
TIMES_REMEDY = "make it anew on the device: edgeopt profile-device"
POOL_SIZES: Mapping[str, int] = {
    **{f"{op} {way}": 4 if way == "depthwise" else 5 for op in ("Conv", "ConvTranspose") for way in _WAYS},
    "product": 3,
    "product by weights": 3,
    "other": 1,
    "border": 1,
}
"""How many sizes a layer of each pool has."""
_TIME_MS = Within(1e-6, 86400e3)
_SIZE, _WORK = Within(0, 64), Within(1, 1e18)
"""The logarithm of a size to base 2, and the work of a layer: beyond them lies no layer, and no number that adds up."""
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CheckedNetwork:
    """A network that was measured whole and predicted from the layers of others."""

    name: str
    predicted_ms: Annotated[float, _TIME_MS]
    measured_ms: Annotated[float, _TIME_MS]


@dataclass(frozen=True, slots=True)
class PrecisionTimes:
    """Layers in one precision on one engine."""

    channel_step: Annotated[int, Within(1, 4096)]
    """Channels that are computed together: counts between two multiples take as long as the larger."""
    layers: Mapping[str, tuple[tuple[float, ...], ...]]
    """Rows (logarithms of sizes to base 2, work, milliseconds) by pool and kind, `POOL: KIND`, as `features.py` has
    them."""
    checks: tuple[CheckedNetwork, ...]
    """How far predictions are off: networks none of whose layers are in `layers`."""
    thinned: tuple[CheckedNetwork, ...]
    """The same networks with fewer channels, by the same names: how far a predicted speed of one is off."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Layers on one engine of the device."""

    target: str
    """Name of its shipped profile."""
    engine: str
    """Name and version, for readers."""
    precisions: Mapping[str, PrecisionTimes]


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """A device, and how long layers take on it."""

    device: str
    """Its processor's own name."""
    architecture: str
    flags: tuple[str, ...]
    """Instructions of its processor, in Linux words."""
    threads: Annotated[int, THREADS]
    made_at: str
    edgeopt: str
    """Version that measured."""
    networks: tuple[str, ...]
    """Models of the user's whose layers were measured too."""
    engines: tuple[EngineTimes, ...]
    """The target's own first."""

    def __post_init__(self) -> None:
        if not self.engines:
            raise ValueError("engines are one or more")

    @property
    def processor(self) -> Processor:
        """Its processor."""
        return Processor(self.architecture, frozenset(self.flags))

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the engines' profiles, the target's own first."""
        return tuple(engine.target for engine in self.engines)

    def of(self, target: str, precision: str) -> PrecisionTimes | None:
        """Return the times of an engine in a precision; None where none were measured.

        Args:
            target: Name of the engine's profile.
            precision: A scheme of the profile, such as `fp32`.
        """
        engine = next((each for each in self.engines if each.target == target), None)
        return engine.precisions.get(precision) if engine else None


def read_device_times(path: Path) -> DeviceTimes:
    """Return the times in a file.

    Raises:
        InvalidFileError: If it holds none, or those of another version.
    """
    values = read_object(path, schema=SCHEMA, remedy=TIMES_REMEDY, most_bytes=_MOST_BYTES)
    del values["schema"]
    times = parse_table(DeviceTimes, values, str(path))
    if len(set(times.targets)) < len(times.targets):
        raise InvalidFileError(f"{path}: an engine is there twice", remedy=TIMES_REMEDY)
    for engine in times.engines:
        for precision, known in engine.precisions.items():
            _require_layers(known, f"{path}: {engine.target} {precision}")
    return times


def write_device_times(times: DeviceTimes, path: Path) -> None:
    """Write a file for `read_device_times`, one line a kind of layer.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    write_beside(path, _text({"schema": SCHEMA, **asdict(times)}, 0) + "\n")


def _require_layers(known: PrecisionTimes, where: str) -> None:
    if not known.checks:
        raise InvalidFileError(f"{where}: no network checks its predictions", remedy=TIMES_REMEDY)
    for kind, rows in known.layers.items():
        pool, separator, _ = kind.partition(": ")
        count = POOL_SIZES.get(pool) if separator else None
        for row in rows:
            *sizes, work, ms = (0.0, 0.0, *row)
            if len(row) - 2 != count or not (_WORK.holds(work) and _TIME_MS.holds(ms)) or not _are_sizes(sizes):
                problem = f"{where}: layer {short(kind)} is no row of sizes, work and time"
                raise InvalidFileError(problem, remedy=TIMES_REMEDY)


def _are_sizes(sizes: Iterable[float]) -> bool:
    return all(map(_SIZE.holds, sizes))


def _text(value: Any, depth: int) -> str:
    """Return JSON whose tables have a line for each entry, and whose lists of numbers stand in one."""
    indent = " " * depth
    if isinstance(value, Mapping) and value:
        entries = [f"{indent} {json.dumps(key)}: {_text(each, depth + 1)}" for key, each in value.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        return "[" + ",\n".join(_text(each, depth) for each in value) + "]"
    return json.dumps(value)
