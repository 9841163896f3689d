"""The sketch of frames: the figures of each, in order, and how often each class was named."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from edgeopt.runtime.drift.figures import FigureReader, Figures
from edgeopt.runtime.drift.state import SURPRISE
from edgeopt.system.disk.files import write_beside
from edgeopt.system.toml import Within, parse_table, read_object

SCHEMA: Final = 2
FILE: Final = "drift.json"
LEAST_FRAMES: Final = 32
"""Fewer rank too coarsely: no limit keeps the rate of false alarms."""
MOST_FRAMES: Final = 256
MOST_BYTES: Final = 1 << 20
REMEDY: Final = "write it anew: edgeopt run BUNDLE SOURCE --learn-drift FILE"
_MOST_CLASSES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Sketch:
    """The figures of some frames, among which the figures of later frames are ranked."""

    artefact: str
    """File of the model that gave the answers; answers of another model are not compared."""
    source: str
    """`calibration`, or `field` for frames of a running app."""
    frames: Annotated[int, Within(LEAST_FRAMES, MOST_FRAMES)]
    """Number of frames."""
    reader: FigureReader
    """How the figures are read."""
    values: Mapping[str, tuple[float, ...]]
    """Values of each figure in all frames that have it, in ascending order."""
    classes: Mapping[str, int]
    """Number of things of each class, by its index, in every fourth answer."""

    def __post_init__(self) -> None:
        for name, values in self.values.items():
            if not LEAST_FRAMES <= len(values) <= self.frames:
                raise ValueError(f"{name} has {len(values)} values, not {LEAST_FRAMES} to {self.frames}")
            if any(not math.isfinite(value) for value in values) or list(values) != sorted(values):
                raise ValueError(f"the values of {name} are not finite numbers in ascending order")
        if len(self.classes) > _MOST_CLASSES or any(count < 1 for count in self.classes.values()):
            raise ValueError(f"it counts {len(self.classes)} classes, not at most {_MOST_CLASSES} once or more")
        if not (math.isfinite(self.reader.span) and self.reader.span > 0):
            raise ValueError(f"the span of its input is {self.reader.span}")


def sketch_of(
    artefact: str,
    source: str,
    reader: FigureReader,
    looks: Sequence[tuple[Figures, Sequence[int]]],
) -> Sketch | None:
    """Return the sketch of frames; None where they are fewer than 32.

    Classes are counted in every fourth frame, and how rare classes are is ranked among the others: these, as frames of
    the field, are not in the counts.

    Args:
        artefact: See `Sketch`.
        source: See `Sketch`.
        reader: It read them.
        looks: The figures of each frame, and the classes that its answer names.
    """
    if len(looks) < LEAST_FRAMES:
        return None
    looks = looks[:MOST_FRAMES]
    counts = Counter(index for _, classes in looks[3::4] for index in classes)
    ranked = [classes for place, (_, classes) in enumerate(looks) if place % 4 != 3]
    values: dict[str, list[float]] = {SURPRISE: [surprise(classes, counts) for classes in ranked]}
    for figures, _ in looks:
        for name, value in figures.items():
            values.setdefault(name, []).append(value)
    finite = {name: tuple(sorted(filter(math.isfinite, listed))) for name, listed in values.items()}
    kept = {name: listed for name, listed in finite.items() if len(listed) >= LEAST_FRAMES}
    common = {str(index): count for index, count in counts.most_common(_MOST_CLASSES)}
    return Sketch(artefact, source, len(looks), reader, kept, common)


def surprise(named: Iterable[int], counts: Mapping[int, int]) -> float:
    """Return how rare the classes of an answer are, the mean of -log(count + 1); NaN where it names none."""
    listed = list(named)
    if not listed:
        return math.nan
    return -sum(math.log(counts.get(index, 0) + 1) for index in listed) / len(listed)


def pack(sketch: Sketch) -> bytes:
    """Return the file of a sketch."""
    return json.dumps({"schema": SCHEMA, **asdict(sketch)}, allow_nan=False).encode()


def write_sketch(path: Path, sketch: Sketch) -> None:
    """Write a sketch.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    write_beside(path, pack(sketch))


def read_sketch(path: Path) -> Sketch:
    """Read a sketch.

    Raises:
        InvalidFileError: If it is none, or damaged.
    """
    values: dict[str, Any] = read_object(path, schema=SCHEMA, remedy=REMEDY, most_bytes=MOST_BYTES)
    return parse_table(Sketch, {key: value for key, value in values.items() if key != "schema"}, str(path))
