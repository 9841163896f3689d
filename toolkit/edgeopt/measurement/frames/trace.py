"""A run as a timeline for Perfetto or chrome://tracing.

Stages lie where their durations put them, one after the other from the start of the frame; what no stage accounts
for is the gap at its end. Operators come from the separate profiling pass and have a process of their own.

Source: Trace Event Format (Google, 2016): complete (X), asynchronous (b, e), counter (C), instant (i), metadata (M).
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.resources.profile import read_events
from edgeopt.measurement.resources.readings import CounterReading
from edgeopt.measurement.samples import Samples
from edgeopt.system.disk.files import write_beside

Event = dict[str, Any]
_RUN, _OPERATORS = 1, 2  # process ids: frames of the run; operators of the profiling pass
_LANES_PER_STREAM = 1000
_COUNTERS = {"temperature_c": "temperature (C)", "frequency_mhz": "frequency (MHz)"}


def make_trace(
    samples: Samples,
    readings: Sequence[CounterReading] = (),
    *,
    profile: str | None = None,
    counters: Mapping[str, Sequence[tuple[int, float]]] | None = None,
) -> list[Event]:
    """Return the events of a run in order of time; a slice comes before the slices inside it.

    Args:
        samples: With `started_ns` and `done_ns`.
        readings: Temperature and frequency over the run; placed by `epoch_ns`, not used without it.
        profile: What ONNX Runtime's profiler wrote, of another pass.
        counters: More series by name: pairs of nanoseconds since the start of the run and a value (power, memory).

    Raises:
        ValueError: If the run has no instants.
        InvalidFileError: If `profile` is none.
    """
    if samples.started_ns is None or samples.done_ns is None:
        raise ValueError("a trace needs the instants of frames")
    events = [*_frames(samples), *_waits(samples), *_drops(samples), *_queue_depth(samples)]
    if samples.epoch_ns:
        events += _sensors(readings, samples.epoch_ns)
    for name, series in (counters or {}).items():
        events += [_counter(name, at, value) for at, value in series]
    names = [_named("process_name", _RUN, 0, f"edgeopt bench {samples.variant}".strip())]
    if profile is not None:
        events += _operators(profile)
        names.append(_named("process_name", _OPERATORS, 0, "operators (separate profiling pass)"))
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))
    return [*names, *_lane_names(events), *events]


def write_trace(path: Path, events: Sequence[Event]) -> None:
    """Write the events as a file that the viewers open.

    Raises:
        InvalidFileError: If the file cannot be written.
    """
    write_beside(path, json.dumps({"traceEvents": list(events), "displayTimeUnit": "ms"}, allow_nan=False))


def _us(nanoseconds: float) -> float:
    return round(float(nanoseconds) / 1e3, 3)


def _slice(name: str, category: str, tid: int, begin_ns: int, end_ns: int, **args: Any) -> Event:
    begin, end = _us(begin_ns), _us(end_ns)
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": begin,
        "dur": round(max(0.0, end - begin), 3),
        "pid": _RUN,
        "tid": tid,
        "args": args,
    }


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": name}}


def _counter(name: str, at_ns: int, value: float) -> Event:
    return {"name": name, "ph": "C", "ts": _us(at_ns), "pid": _RUN, "tid": 0, "args": {"value": value}}


def _streams(samples: Samples) -> NDArray[np.int64]:
    return samples.stream if samples.stream is not None else np.zeros(len(samples), np.int64)


def _frames(samples: Samples) -> Iterable[Event]:
    started, done = _instants(samples)
    served, lanes = np.flatnonzero(~samples.lost), _lanes(samples)
    for row in served:
        tid, end = int(lanes[row]), int(done[row])
        args: dict[str, Any] = {"row": int(row), "warmup": bool(samples.warmup[row])}
        for key in ("input_id", "n_out"):
            if (column := getattr(samples, key)) is not None:
                args[key] = int(column[row])
        if samples.intended_ns is not None:
            args["response_ms"] = round(float(samples.response_ns[row]) / 1e6, 6)
        yield _slice("frame", "frame", tid, int(started[row]), end, **args)
        at = int(started[row])
        for stage, took in zip(samples.stages, samples.times_ns[row], strict=True):
            until = min(at + int(took), end)
            if took > 0:
                yield _slice(stage, "stage", tid, at, until)
            at = until


def _instants(samples: Samples) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    none = np.zeros(len(samples), np.int64)
    return (
        none if samples.started_ns is None else samples.started_ns,
        none if samples.done_ns is None else samples.done_ns,
    )


def _lanes(samples: Samples) -> NDArray[np.int64]:
    """Return (n,) thread ids: one a stream, and further ones where frames of a stream overlap."""
    started, done = _instants(samples)
    streams, tids = _streams(samples), np.zeros(len(samples), np.int64)
    for stream in np.unique(streams):
        rows = np.flatnonzero((streams == stream) & ~samples.lost)
        free: list[tuple[int, int]] = []  # (when it ends, lane)
        used = 0
        for row in rows[np.argsort(started[rows], kind="stable")]:
            if free and free[0][0] <= started[row]:
                lane = heapq.heappop(free)[1]
            else:
                lane, used = used, used + 1
            heapq.heappush(free, (int(done[row]), lane))
            tids[row] = 1 + int(stream) * _LANES_PER_STREAM + lane
    return tids


def _lane_names(events: Sequence[Event]) -> list[Event]:
    found = sorted({event["tid"] for event in events if event["pid"] == _RUN and event["tid"]})
    named = []
    for tid in found:
        stream, lane = divmod(tid - 1, _LANES_PER_STREAM)
        named.append(_named("thread_name", _RUN, tid, f"stream {stream}" + (f" worker {lane + 1}" if lane else "")))
    return named


def _waits(samples: Samples) -> Iterable[Event]:
    """Waits of one stream overlap without nesting, so they are asynchronous events."""
    if samples.intended_ns is None or samples.started_ns is None:
        return
    streams = _streams(samples)
    for row in np.flatnonzero(~samples.lost & (samples.started_ns > samples.intended_ns)):
        shared = {"name": "queue", "cat": "queue", "id": int(row), "pid": _RUN}
        shared["tid"] = 1 + int(streams[row]) * _LANES_PER_STREAM
        yield {**shared, "ph": "b", "ts": _us(samples.intended_ns[row]), "args": {"row": int(row)}}
        yield {**shared, "ph": "e", "ts": _us(samples.started_ns[row]), "args": {}}


def _drops(samples: Samples) -> Iterable[Event]:
    if samples.intended_ns is None:
        return
    streams = _streams(samples)
    for row in np.flatnonzero(samples.lost):
        tid = 1 + int(streams[row]) * _LANES_PER_STREAM
        at = _us(samples.intended_ns[row])
        name = "failed" if samples.failed is not None and samples.failed[row] else "dropped"
        yield {"name": name, "ph": "i", "s": "t", "ts": at, "pid": _RUN, "tid": tid, "args": {"row": int(row)}}


def _queue_depth(samples: Samples) -> Iterable[Event]:
    """How many frames wait, at every change; frames that are dropped leave at an instant nobody recorded."""
    if samples.intended_ns is None or samples.started_ns is None:
        return
    rows = ~samples.lost & (samples.started_ns > samples.intended_ns)
    at = np.concatenate([samples.intended_ns[rows], samples.started_ns[rows]])
    change = np.repeat([1, -1], int(rows.sum()))
    order = np.lexsort((change, at))
    for instant, depth in zip(at[order], np.cumsum(change[order]), strict=True):
        yield _counter("frames waiting", int(instant), int(depth))


def _sensors(readings: Sequence[CounterReading], epoch_ns: int) -> Iterable[Event]:
    for reading in readings:
        for field, name in _COUNTERS.items():
            if values := getattr(reading, field):
                yield _counter(name, reading.wall_ns - epoch_ns, max(values))


def _operators(profile: str) -> Iterable[Event]:
    """Keep the profiler's own clock and threads; its microseconds are whole, so ends are cut to their parents'."""
    events = [other for other in read_events(profile) if other.get("ph") == "X"]
    open_until: dict[int, list[float]] = {}
    for entry in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        begin, end = float(entry["ts"]), float(entry["ts"] + entry["dur"])
        stack = open_until.setdefault(int(entry["tid"]), [])
        while stack and stack[-1] <= begin:
            stack.pop()
        end = min([end, *stack[-1:]])
        stack.append(end)
        args = {key: value for key, value in entry.get("args", {}).items() if value not in ("", [])}
        name, shared = str(entry["name"]).removesuffix("_kernel_time"), {"ph": "X", "pid": _OPERATORS}
        category = f"operator {entry.get('cat', '')}".strip()
        yield {
            **shared,
            "name": name,
            "cat": category,
            "ts": begin,
            "dur": end - begin,
            "tid": entry["tid"],
            "args": args,
        }
