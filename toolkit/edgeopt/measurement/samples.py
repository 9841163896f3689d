"""Raw times of inferences, one row a frame; every figure is derived from these."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.statistics.quantile import Summary, summarize
from edgeopt.system.disk.archives import read_archive
from edgeopt.system.disk.files import write_beside
from edgeopt.system.text import short

SCHEMA = 1
FRAME, OVERHEAD = "frame", "overhead"
"""Names of two parts that a summary has beside the stages: the whole, and the time of no stage."""

_INTEGERS = ("started_ns", "done_ns", "intended_ns", "arrived_ns", "stream", "round_id", "input_id", "n_out")
_FLAGS = ("dropped", "failed")
_PER_ROW = ("times_ns", "frame_ns", "warmup", *_INTEGERS, *_FLAGS)
_WALL = ("wall_ns", "wall_row")
_ABOUT = ("stages", "variant", "whole", "epoch_ns", "clock_cost_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """One run: stage times of every frame in order, warm-up marked, nothing deleted.

    All instants are nanoseconds since the start of the run; a column that a run does not know is None.
    """

    stages: tuple[str, ...]
    """Stages in order, as task and session name them."""
    times_ns: NDArray[np.int64]
    """(n, len(stages))"""
    frame_ns: NDArray[np.int64]
    """(n,) service time: from taking the frame up to its answer, overhead included."""
    warmup: NDArray[np.bool_]
    """(n,)"""
    variant: str = ""
    whole: str = FRAME
    """Name of the whole of a row: `frame` or `answer`."""
    started_ns: NDArray[np.int64] | None = None
    """When the frame was taken from the queue."""
    done_ns: NDArray[np.int64] | None = None
    intended_ns: NDArray[np.int64] | None = None
    """When the frame should have arrived; latency counts from here."""
    arrived_ns: NDArray[np.int64] | None = None
    """When the generator really sent it."""
    stream: NDArray[np.int64] | None = None
    round_id: NDArray[np.int64] | None = None
    """The process round, or the block of an interleaved run."""
    input_id: NDArray[np.int64] | None = None
    n_out: NDArray[np.int64] | None = None
    """How many things the answer holds (boxes, tokens); -1 for a frame that was not served."""
    dropped: NDArray[np.bool_] | None = None
    """Never served: replaced by a newer frame or refused by a full queue; its times are 0."""
    failed: NDArray[np.bool_] | None = None
    wall_ns: NDArray[np.int64] | None = None
    """(m,) service times of frames run without marks, to check the stages against."""
    wall_row: NDArray[np.int64] | None = None
    """(m,) the row that ran the same input with marks."""
    epoch_ns: int = 0
    """Wall-clock time of instant zero, nanoseconds since 1970; 0 when unknown."""
    clock_cost_ns: int = 0
    """Nanoseconds of one reading of the clock; reported, never subtracted."""

    def __post_init__(self) -> None:
        n = len(self.frame_ns)
        if len({*self.stages, self.whole, OVERHEAD}) < len(self.stages) + 2:
            raise ValueError(f"stages need names of their own, not {', '.join(self.stages)}")
        if self.times_ns.shape != (n, len(self.stages)):
            raise ValueError(f"times_ns is {self.times_ns.shape}, not ({n}, {len(self.stages)})")
        for name in _PER_ROW[2:]:
            column = getattr(self, name)
            if column is not None and column.shape != (n,):
                raise ValueError(f"{name} is {column.shape}, not ({n},)")
        if (self.wall_ns is None) != (self.wall_row is None):
            raise ValueError("wall_ns and wall_row belong together")

    def __len__(self) -> int:
        return len(self.frame_ns)

    @property
    def overhead_ns(self) -> NDArray[np.int64]:
        """(n,) service time that no stage accounts for."""
        stages: NDArray[np.int64] = self.times_ns.sum(axis=1)
        return self.frame_ns - stages

    @property
    def response_ns(self) -> NDArray[np.int64]:
        """(n,) from the intended arrival to the answer; the service time where nothing was intended."""
        if self.intended_ns is None or self.done_ns is None:
            return self.frame_ns
        return self.done_ns - self.intended_ns

    @property
    def lost(self) -> NDArray[np.bool_]:
        """(n,) frames that were dropped or failed."""
        none = np.zeros(len(self), np.bool_)
        return (none if self.dropped is None else self.dropped) | (none if self.failed is None else self.failed)

    def stage(self, name: str) -> NDArray[np.int64]:
        """Return (n,) the times of one stage.

        Raises:
            ValueError: If there is no such stage.
        """
        if name not in self.stages:
            raise ValueError(f"no stage {name!r}; stages are {', '.join(self.stages)}")
        return self.times_ns[:, self.stages.index(name)]

    def part(self, name: str) -> NDArray[np.int64]:
        """Return (n,) the times of the whole or of one stage.

        Raises:
            ValueError: If it is neither.
        """
        return self.frame_ns if name == self.whole else self.stage(name)

    def _columns(self, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        return {name: column for name in names if (column := getattr(self, name)) is not None}

    def select(self, rows: NDArray[np.bool_]) -> Samples:
        """Return the rows where the mask (n,) is True, in order."""
        chosen: dict[str, Any] = {name: column[rows] for name, column in self._columns(_PER_ROW).items()}
        if self.wall_ns is not None and self.wall_row is not None:
            kept = rows[self.wall_row]
            chosen["wall_ns"] = self.wall_ns[kept]
            chosen["wall_row"] = (np.cumsum(rows) - 1)[self.wall_row[kept]]
        return replace(self, **chosen)

    def steady(self) -> Samples:
        """Return the rows after warm-up."""
        return self.select(~self.warmup)

    def served(self) -> Samples:
        """Return the rows that have an answer: neither dropped nor failed."""
        return self.select(~self.lost)

    def summary(self) -> dict[str, Summary]:
        """Return the whole, each stage and `overhead`, over served frames after warm-up."""
        rows = self.steady().served()
        summaries = {name: summarize(rows.part(name)) for name in (self.whole, *self.stages)}
        return summaries | {OVERHEAD: summarize(rows.overhead_ns)}

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values; the raw samples are what `save` writes."""
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in _ABOUT},
            "stages": list(self.stages),
            "frames": len(self),
            "warmup_frames": int(self.warmup.sum()),
            "lost_frames": int(self.lost.sum()),
            "times": {name: asdict(summary) for name, summary in self.summary().items()},
        }

    def save(self, path: Path) -> None:
        """Write every raw sample to an .npz file, whole or not at all.

        Raises:
            InvalidFileError: If the file cannot be written.
        """
        about = json.dumps({"schema": SCHEMA, **{name: getattr(self, name) for name in _ABOUT}})
        buffer = io.BytesIO()
        columns: dict[str, Any] = self._columns((*_PER_ROW, *_WALL))
        np.savez_compressed(buffer, about=np.array(about), **columns)
        write_beside(path, buffer.getvalue())

    @classmethod
    def read(cls, path: Path) -> Samples:
        """Read what `save` wrote.

        Raises:
            InvalidFileError: If it cannot be read or is no file of samples.
        """
        remedy = "give an .npz file that edgeopt bench wrote"
        columns: dict[str, Any] = dict(read_archive(path, remedy=remedy))
        try:
            about = json.loads(str(columns.pop("about")))
            if about.pop("schema") != SCHEMA:
                raise ValueError("it has another schema")
            about["stages"] = tuple(map(str, about["stages"]))
            samples = cls(**about, **columns)
            samples.require_types()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidFileError(f"{path} holds no samples: {short(str(error))}", remedy=remedy) from error
        return samples

    def require_types(self) -> None:
        """Raise ValueError unless every column holds whole numbers or flags, and what is told of them is plain."""
        for name, column in self._columns((*_PER_ROW, *_WALL)).items():
            wanted = np.bool_ if name in ("warmup", *_FLAGS) else np.int64
            if not isinstance(column, np.ndarray) or column.dtype != wanted:
                raise ValueError(f"{name} is no array of {wanted.__name__}")
        if {type(self.variant), type(self.whole)} != {str} or {type(self.epoch_ns), type(self.clock_cost_ns)} != {int}:
            raise ValueError("variant or whole is no text, or epoch_ns and clock_cost_ns are no whole numbers")
        if self.wall_row is not None and not ((self.wall_row >= 0) & (self.wall_row < len(self))).all():
            raise ValueError("wall_row names rows that are not there")


def join_samples(parts: Sequence[Samples]) -> Samples:
    """Return the rows of all parts in order, with `round_id` the number of the part.

    Columns that a part lacks are left out. Instants stay relative to each part's own start.

    Args:
        parts: One or more runs of the same stages and variant.

    Raises:
        ValueError: If the parts do not have the same stages and variant.
    """
    first, lengths = parts[0], [len(part) for part in parts]
    starts = np.cumsum([0, *lengths[:-1]])
    if any((part.stages, part.whole, part.variant) != (first.stages, first.whole, first.variant) for part in parts):
        raise ValueError("only runs of the same stages and variant can be joined")
    found = [part._columns((*_PER_ROW, *_WALL)) for part in parts]
    for columns, start in zip(found, starts, strict=True):
        if "wall_row" in columns:
            columns["wall_row"] = columns["wall_row"] + start
    shared = set.intersection(*(set(columns) for columns in found))
    joined: dict[str, Any] = dict.fromkeys((*_PER_ROW, *_WALL))
    joined |= {name: np.concatenate([columns[name] for columns in found]) for name in shared}
    joined["round_id"] = np.repeat(np.arange(len(parts)), lengths)
    return replace(first, **joined)
