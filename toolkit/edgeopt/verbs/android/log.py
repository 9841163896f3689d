"""The output of edgeopt-runner: a line of JSON for each thing that it measured, none of it believed unseen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.measurement.resources.memory import MemoryTrace, make_trace
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples
from edgeopt.verbs.android.adb import UnpluggedError

FORM = 1
"""As the runner has it: the form of requests and lines."""
STAGES = ("upload", "execute", "download")
"""As everywhere: the input is copied in, the model computes, its outputs are copied out."""
_MODEL, _STARTED, _FIRST, _DONE, _INPUT, _COLUMNS = 0, 1, 2, 5, 6, 7
"""Columns of a row, as the runner has them."""
_HOTTEST_C, _MILLI_FROM = 200.0, 1000
"""Above, a sensor of heat tells something else; from there on it counts in thousandths."""
_LONGEST_LINE = 1 << 26


@dataclass(frozen=True, slots=True)
class AnswerThere:
    """A model's answer to one sample, and how long it takes at least."""

    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, type and shape of each; their bytes follow each other in the file of outputs."""
    frame_ns: int


@dataclass
class RunnerLog:
    """All that a run of the runner line, as far as it came."""

    version: str = ""
    """Version of ONNX Runtime there."""
    wall_minus_clock_ns: int = 0
    opened_ns: list[int] = field(default_factory=list)
    answers: list[AnswerThere] = field(default_factory=list)
    readings: list[CounterReading] = field(default_factory=list)
    cpu_ns: int = 0
    span_ns: int = 0
    """Time in which that processor time was used."""
    peak_bytes: int | None = None
    is_done: bool = False
    error: str = ""
    lost: UnpluggedError | None = None
    """Why it ended early; None: it did not."""
    on_rows: Callable[[int], None] = lambda _: None
    """Hears how many nanoseconds of frames came."""
    _rows: list[NDArray[np.int64]] = field(default_factory=list)
    _walls: list[list[int]] = field(default_factory=list)
    _memory: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    _rest: bytes = b""

    def take(self, printed: bytes) -> None:
        """Take what was printed.

        Raises:
            EdgeoptError: If it is nothing that a runner of this edgeopt prints.
        """
        *lines, self._rest = (self._rest + printed).split(b"\n")
        for line in lines:
            try:
                self._read(json.loads(line))
            except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
                raise _distrust() from error
        if len(self._rest) > _LONGEST_LINE:
            raise _distrust()

    def _read(self, line: Any) -> None:
        if not isinstance(line, dict):
            raise TypeError("a line is no object")
        if "runner" in line:
            if line["runner"] != FORM:
                raise UnavailableError(
                    "edgeopt-runner was built from another version of edgeopt",
                    remedy="build it anew with examples/cpp/runner/build_android.sh of edgeopt's repository",
                )
            self.version = str(line["onnxruntime"])
            self.wall_minus_clock_ns = int(line["wall_ns"]) - int(line["clock_ns"])
        elif "opened_ns" in line:
            self.opened_ns.append(int(line["opened_ns"]))
        elif "rows" in line:
            self._take_rows(line)
        elif "memory" in line:
            at_ns, resident, available = np.array(line["memory"], np.int64).tolist()
            if min(resident, available) >= 0:
                self._memory.append((at_ns, (resident, available)))
        elif "reading" in line:
            self.readings.append(_reading(line["reading"]))
        elif "answer" in line:
            self.answers.append(_answer(line["answer"]))
        elif "cpu_ns" in line:
            self.cpu_ns, self.span_ns, peak = (int(line[key]) for key in ("cpu_ns", "span_ns", "peak_bytes"))
            self.peak_bytes = peak if peak >= 0 else None
        elif "error" in line:
            self.error = str(line["error"])
        elif "done" in line:
            self.is_done = True
        else:
            raise KeyError("a line tells nothing")

    def _take_rows(self, line: Mapping[str, Any]) -> None:
        rows = np.array(line["rows"], np.int64).reshape(-1, _COLUMNS)
        if len(rows) and (rows[:, _FIRST:_DONE].min() < 0 or (rows[:, _DONE] < rows[:, _STARTED]).any()):
            raise ValueError("a time is below zero")
        self._rows.append(rows)
        self._walls += [[int(row), int(took)] for row, took in line["walls"]]
        self.on_rows(int((rows[:, _DONE] - rows[:, _STARTED]).sum()))

    @property
    def frames(self) -> int:
        """How many frames came."""
        return sum(map(len, self._rows))

    @property
    def unmarked(self) -> int:
        """How many frames without marks came."""
        return len(self._walls)

    @property
    def memory(self) -> MemoryTrace:
        """Memory of the runner."""
        return make_trace(self._memory, peak_bytes=self.peak_bytes)

    def samples(self, variant: str, model: int = 0) -> Samples:
        """Return the frames of one model in their order, none of them marked as warm-up.

        Args:
            variant: A name for them.
            model: Its number in the request.
        """
        rows = np.concatenate([*self._rows, np.zeros((0, _COLUMNS), np.int64)])
        zero_ns = int(rows[0, _STARTED]) if len(rows) else 0
        rows = rows[rows[:, _MODEL] == model]
        walls = np.array(self._walls, np.int64).reshape(-1, 2)
        walls = walls[(walls[:, 0] >= 0) & (walls[:, 0] < len(rows))]
        return Samples(
            stages=STAGES,
            times_ns=rows[:, _FIRST:_DONE],
            frame_ns=rows[:, _DONE] - rows[:, _STARTED],
            warmup=np.zeros(len(rows), np.bool_),
            variant=variant,
            started_ns=rows[:, _STARTED] - zero_ns,
            done_ns=rows[:, _DONE] - zero_ns,
            input_id=rows[:, _INPUT],
            wall_row=walls[:, 0] if len(walls) else None,
            wall_ns=walls[:, 1] if len(walls) else None,
            epoch_ns=zero_ns + self.wall_minus_clock_ns,
        )


def _distrust() -> EdgeoptError:
    return EdgeoptError("edgeopt-runner prints what is not known", remedy="build it anew, and look at the phone")


def _answer(line: Mapping[str, Any]) -> AnswerThere:
    outputs = tuple(
        (str(each["name"]), str(each["dtype"]), tuple(int(size) for size in each["shape"])) for each in line["outputs"]
    )
    return AnswerThere(outputs, int(line["frame_ns"]))


def _reading(line: Mapping[str, Any]) -> CounterReading:
    """Return the counters of a phone; what it does not tell stays unknown."""
    times = [int(word) for word in str(line["cpu"]).split()[:8]]
    rate, has_times = float(line["hz"]) or 100.0, len(times) == 8
    idle, steal = (times[3] + times[4], times[7]) if has_times else (0, 0)
    mhz = tuple(khz / 1000 for khz in map(int, line["khz"]) if khz > 0)
    ceilings = [khz for khz in map(int, line["ceiling_khz"]) if khz > 0]
    degrees = [value / 1000 if abs(value) >= _MILLI_FROM else float(value) for value in map(int, line["temperature"])]
    plausible = tuple(value for value in degrees if 0 < value < _HOTTEST_C)
    waited, load = str(line["pressure"]).rpartition("total=")[2], str(line["load"]).split()
    return CounterReading(
        monotonic_ns=int(line["at_ns"]),
        wall_ns=int(line["wall_ns"]),
        busy_s=(sum(times) - idle - steal) / rate if has_times else None,
        steal_s=steal / rate if has_times else None,
        total_s=sum(times) / rate if has_times else None,
        own_s=int(line["own_ns"]) / 1e9,
        pressure_us=int(waited) if waited.isdecimal() else None,
        switches=int(line["switches"]),
        major_faults=int(line["major_faults"]),
        heat_throttled=int(line["lowered"]) if ceilings else None,
        frequency_mhz=mhz or None,
        temperature_c=plausible or None,
        load1=float(load[0]) if load else None,
    )
