"""The output of edgeopt-runner: a line of JSON for each thing that it measured, none of it believed unseen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.measurement.resources.memory import MemoryTrace, make_trace
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples
from edgeopt.system.text import format_bytes, printable, shorten
from edgeopt.verbs.android.adb_stream import UnpluggedError

FORM = 2
"""As the runner has it: the form of requests and lines."""
STAGES = ("upload", "execute", "download")
"""As everywhere: the input is copied in, the model computes, its outputs are copied out."""
_MODEL, _STARTED, _FIRST, _DONE, _INPUT, _COLUMNS = 0, 1, 2, 5, 6, 7
"""Columns of a row, as the runner has them."""
_HOTTEST_C, _MILLI_FROM = 200.0, 1000
"""Above, a sensor of heat tells something else; from there on it counts in thousandths."""
_LONGEST_LINE = 1 << 23
_LONGEST_TOLD = 4096
_MOST_PRINTED = 1 << 30
"""Bytes of a run, some twenty million frames."""
_MOST_NUMBER = 1 << 62
"""Nanoseconds and bytes beyond it are none: the difference of two is a number of 64 bits; today is a third of it."""
_MOST_OUTPUTS, _MOST_DIMENSIONS, _MOST_OPENED = 4096, 32, 1000
_MOST_COUNTERS = 4096


@dataclass(frozen=True, slots=True)
class AnswerThere:
    """A model's answer to one sample, and how long it took."""

    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, type and shape of each; their bytes follow the line one after the other."""
    bytes: int
    """Bytes of all of them."""
    stages_ns: tuple[int, ...]
    """Times of `STAGES`."""
    since_start_ns: int
    """Nanoseconds from the start of the process to this answer."""
    peak_bytes: int | None
    """Most memory that the process held until then."""

    @property
    def frame_ns(self) -> int:
        """The time of the whole frame."""
        return sum(self.stages_ns)


@dataclass
class RunnerLog:
    """All that a run of the runner tells, as far as it came."""

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
    _walls: list[NDArray[np.int64]] = field(default_factory=list)
    _memory: list[tuple[int, tuple[int, int]]] = field(default_factory=list)
    _rest: bytearray = field(default_factory=bytearray)
    _printed: int = 0

    def take(self, printed: bytes) -> None:
        """Take what was printed.

        Raises:
            EdgeoptError: If it is nothing that a runner of this edgeopt prints.
        """
        self._printed += len(printed)
        if self._printed > _MOST_PRINTED:
            raise EdgeoptError(
                f"edgeopt-runner prints more than {format_bytes(_MOST_PRINTED)}", remedy="measure for a shorter time"
            )
        first, end, rest = printed.rpartition(b"\n")
        if not end:
            self._rest += printed
        else:
            lines, self._rest = bytes(self._rest + first).split(b"\n"), bytearray(rest)
            for line in lines:
                self.take_line(line)
        if len(self._rest) > _LONGEST_LINE:
            raise _distrust()

    def take_line(self, line: bytes) -> None:
        """Take one line, without its end. Raises as `take`."""
        try:
            self._read(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, AttributeError) as error:
            raise _distrust() from error

    def _read(self, line: Any) -> None:
        if not isinstance(line, dict):
            raise TypeError("a line is no object")
        if "runner" in line:
            if line["runner"] != FORM:
                raise UnavailableError(
                    "edgeopt-runner was built from another version of edgeopt",
                    remedy="build it anew with examples/cpp/runner/build_android.sh of edgeopt's repository",
                )
            self.version = shorten(printable(str(line["onnxruntime"])), 40)
            self.wall_minus_clock_ns = _whole(line["wall_ns"]) - _whole(line["clock_ns"])
        elif "opened_ns" in line:
            if len(self.opened_ns) == _MOST_OPENED:
                raise ValueError("too many models")
            self.opened_ns.append(_whole(line["opened_ns"]))
        elif "rows" in line:
            self._take_rows(line)
        elif "memory" in line:
            at_ns, resident, available = (_whole(each, least=-1) for each in line["memory"])
            if min(resident, available) >= 0:
                self._memory.append((at_ns, (resident, available)))
        elif "reading" in line:
            self.readings.append(_reading(line["reading"]))
        elif "answer" in line:
            self.answers.append(_answer(line["answer"]))
        elif "cpu_ns" in line:
            self.cpu_ns, self.span_ns = _whole(line["cpu_ns"]), _whole(line["span_ns"])
            self.peak_bytes = _known(line["peak_bytes"])
        elif "error" in line:
            self.error = printable(str(line["error"])[:_LONGEST_TOLD])
        elif "done" in line:
            self.is_done = True
        else:
            raise KeyError("a line tells nothing")

    def _take_rows(self, line: Mapping[str, Any]) -> None:
        rows, walls = _table(line["rows"], _COLUMNS), _table(line["walls"], 2)
        frames = rows[:, _DONE] - rows[:, _STARTED]
        if (rows[:, _FIRST:_DONE].sum(axis=1) > frames).any():
            raise ValueError("stages take longer than their frame")
        self._rows.append(rows)
        self._walls.append(walls)
        self.on_rows(int((rows[:, _DONE] - rows[:, _STARTED]).sum()))

    @property
    def frames(self) -> int:
        """How many frames came."""
        return sum(map(len, self._rows))

    @property
    def unmarked(self) -> int:
        """How many frames without marks came."""
        return sum(map(len, self._walls))

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
        walls = np.concatenate([*self._walls, np.zeros((0, 2), np.int64)])
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
    if not isinstance(line["outputs"], list) or len(line["outputs"]) > _MOST_OUTPUTS:
        raise ValueError("no list of outputs")
    if len(line["stages_ns"]) != len(STAGES):
        raise ValueError("an answer has other parts")
    outputs = list[tuple[str, str, tuple[int, ...]]]()
    for each in line["outputs"]:
        if len(each["shape"]) > _MOST_DIMENSIONS:
            raise ValueError("an output has too many dimensions")
        outputs.append((str(each["name"]), str(each["dtype"]), tuple(map(_whole, each["shape"]))))
    return AnswerThere(
        tuple(outputs),
        _whole(line["bytes"]),
        tuple(map(_whole, line["stages_ns"])),
        _whole(line["since_start_ns"]),
        _known(line["peak_bytes"]),
    )


def _finite(text: str) -> float:
    """Return a number that is no NaN and not infinite.

    Raises:
        ValueError: If it is another one, or none.
    """
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("no finite number")
    return value


def _whole(value: Any, least: int = 0) -> int:
    """Return a whole number of a plausible size.

    Raises:
        TypeError: If it is something else, such as NaN.
        ValueError: If it is too small or too large.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("no whole number")
    if not least <= value <= _MOST_NUMBER:
        raise ValueError("a number out of range")
    return value


def _counters(values: Any) -> list[int]:
    """Return what some files of the phone count; -1 where one is not readable, and sensors count below zero too.

    Raises:
        TypeError: If they are no whole numbers.
        ValueError: If one is out of range, or there are too many.
    """
    if len(values) > _MOST_COUNTERS:
        raise ValueError("too many counters")
    return [_whole(value, least=-_MOST_NUMBER) for value in values]


def _known(value: Any) -> int | None:
    """Return a whole number; None: the phone does not tell it. Raises as `_whole`."""
    number = _whole(value, least=-1)
    return number if number >= 0 else None


def _table(values: Any, columns: int) -> NDArray[np.int64]:
    """Return rows of whole numbers.

    Raises:
        ValueError: If they are something else.
    """
    table = np.array(values)
    if not table.size:
        return np.zeros((0, columns), np.int64)
    if table.dtype.kind != "i" or table.ndim != 2 or table.shape[1] != columns:
        raise ValueError("no table of whole numbers")
    if table.min() < 0 or table.max() > _MOST_NUMBER:
        raise ValueError("a number out of range")
    return table.astype(np.int64)


def _reading(line: Mapping[str, Any]) -> CounterReading:
    """Return the counters of a phone; what it does not tell stays unknown."""
    times = [int(word) for word in str(line["cpu"]).split()[:8]]
    rate, has_times = float(_whole(line["hz"], least=-1)), len(times) == 8
    rate = rate if rate > 0 else 100.0
    idle, steal = (times[3] + times[4], times[7]) if has_times else (0, 0)
    mhz = tuple(khz / 1000 for khz in _counters(line["khz"]) if khz > 0)
    ceilings = [khz for khz in _counters(line["ceiling_khz"]) if khz > 0]
    degrees = [value / 1000 if abs(value) >= _MILLI_FROM else float(value) for value in _counters(line["temperature"])]
    plausible = tuple(value for value in degrees if 0 < value < _HOTTEST_C)
    waited, load = str(line["pressure"]).rpartition("total=")[2], str(line["load"]).split()
    return CounterReading(
        monotonic_ns=_whole(line["at_ns"]),
        wall_ns=_whole(line["wall_ns"]),
        busy_s=(sum(times) - idle - steal) / rate if has_times else None,
        steal_s=steal / rate if has_times else None,
        total_s=sum(times) / rate if has_times else None,
        own_s=_whole(line["own_ns"]) / 1e9,
        pressure_us=int(waited) if waited.isdecimal() else None,
        switches=_whole(line["switches"]),
        major_faults=_whole(line["major_faults"]),
        heat_throttled=_whole(line["lowered"]) if ceilings else None,
        frequency_mhz=mhz or None,
        temperature_c=plausible or None,
        load1=_finite(load[0]) if load else None,
    )
