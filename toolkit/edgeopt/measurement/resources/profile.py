"""Which operators take the time, from ONNX Runtime's own profile.

Profiling makes a run up to twice as slow and counts whole microseconds: believe shares, not times. It is a
pass of its own, on a session of its own.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgeopt.errors import InvalidFileError
from edgeopt.executors import SessionOptions, Source
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.tensors import Tensors

_KERNEL = "_kernel_time"
_RUN = "model_run"
_WARMUP = 3


@dataclass(frozen=True, slots=True)
class NodeTime:
    """One node of the optimized graph over all profiled runs."""

    name: str
    op: str
    provider: str
    input_shapes: tuple[str, ...]
    """As `float 1x3x160x160`; of the last run."""
    output_shapes: tuple[str, ...]
    total_us: int
    calls: int
    share_ratio: float
    """Share of the time of all nodes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Time by node, longest first."""

    nodes: tuple[NodeTime, ...]
    runs: int
    """Profiled runs that count, warm-up left out."""
    run_us: int
    """Microseconds of all these runs, profiling included."""
    arena_held_bytes: int | None
    """The most the engine's memory arena held; None when the engine does not say."""

    @property
    def nodes_us(self) -> int:
        """Time of all nodes."""
        return sum(node.total_us for node in self.nodes)

    @property
    def outside_ratio(self) -> float:
        """Share of the runs that no node accounts for: scheduling, and the profiler itself."""
        return max(0.0, 1 - self.nodes_us / self.run_us) if self.run_us else 0.0

    def top(self, count: int = 10) -> tuple[NodeTime, ...]:
        """Return the nodes that take longest."""
        return self.nodes[:count]

    def share_by_op(self) -> Mapping[str, float]:
        """Return the share of each operator, largest first."""
        return self._share("op")

    def share_by_provider(self) -> Mapping[str, float]:
        """Return the share of each provider, largest first."""
        return self._share("provider")

    def _share(self, key: str) -> Mapping[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for node in self.nodes:
            sums[getattr(node, key)] += node.share_ratio
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def to_json(self, count: int = 50) -> dict[str, Any]:
        """Return the figures and the first nodes as plain values."""
        return {
            "runs": self.runs,
            "run_us": self.run_us,
            "nodes_us": self.nodes_us,
            "outside_ratio": self.outside_ratio,
            "arena_held_bytes": self.arena_held_bytes,
            "share_by_op": dict(self.share_by_op()),
            "share_by_provider": dict(self.share_by_provider()),
            "nodes": [asdict(node) for node in self.top(count)],
        }


def read_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a profile: a JSON list, which a killed process leaves without its end.

    Raises:
        InvalidFileError: If it is no such list.
    """
    for candidate in (text, text.rstrip().rstrip(",") + "]"):
        try:
            events = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(events, list) and all(isinstance(event, dict) for event in events):
            return events
    raise InvalidFileError(
        "this is no operator profile of ONNX Runtime", remedy="make one with edgeopt bench --profile"
    )


def parse_profile(text: str, *, warmup_runs: int = _WARMUP) -> Profile:
    """Return the time of each node.

    Args:
        text: The file that ONNX Runtime wrote.
        warmup_runs: Runs at the start that do not count.

    Raises:
        InvalidFileError: If it is no profile.

    Source: onnxruntime/core/common/profiler.cc: complete events ("X") of the categories Session and Node, times in us.
    """
    events = [event for event in read_events(text) if event.get("ph") == "X"]
    runs = sorted((entry for entry in events if entry.get("name") == _RUN), key=lambda entry: entry["ts"])
    counted = runs[min(warmup_runs, max(0, len(runs) - 1)) :]
    begin = counted[0]["ts"] if counted else 0
    kernels = [event for event in events if str(event.get("name", "")).endswith(_KERNEL) and event["ts"] >= begin]
    whole = sum(kernel["dur"] for kernel in kernels)
    by_node: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in kernels:
        by_node[str(entry["args"].get("node_index", "")), entry["name"]].append(entry)
    nodes = [_node(found, whole) for found in by_node.values()]
    return Profile(
        nodes=tuple(sorted(nodes, key=lambda node: -node.total_us)),
        runs=len(counted),
        run_us=sum(entry["dur"] for entry in counted),
        arena_held_bytes=max(
            (int(kernel["args"]["mem_arena_held"]) for kernel in kernels if _has_arena(kernel)), default=None
        ),
    )


def _has_arena(event: dict[str, Any]) -> bool:
    return str(event["args"].get("mem_arena_held", "")).isdigit()


def _node(events: Sequence[dict[str, Any]], whole_us: int) -> NodeTime:
    last, total = events[-1], sum(event["dur"] for event in events)
    args = last["args"]
    return NodeTime(
        name=last["name"].removesuffix(_KERNEL),
        op=args.get("op_name", ""),
        provider=args.get("provider", ""),
        input_shapes=_shapes(args.get("input_type_shape")),
        output_shapes=_shapes(args.get("output_type_shape")),
        total_us=total,
        calls=len(events),
        share_ratio=total / whole_us if whole_us else 0.0,
    )


def _shapes(found: Any) -> tuple[str, ...]:
    """Each tensor is an object of one type and its shape; older builds wrote a string."""
    if not isinstance(found, list):
        return ()
    return tuple(
        f"{kind} {'x'.join(map(str, shape)) or 'scalar'}"
        for value in found
        if isinstance(value, dict)
        for kind, shape in value.items()
    )


def record_profile(source: Source, options: SessionOptions, inputs: Sequence[Tensors], *, runs: int = 20) -> str:
    """Run a session of its own under the profiler and return what it wrote (for `parse_profile`, and for a trace).

    Args:
        source: The model.
        options: How the session is opened; where it profiles to is chosen here.
        inputs: One or more; used in turn.
        runs: After three runs of warm-up.

    Raises:
        EdgeoptError: If the session does not open.
        ValueError: If there is no input.
    """
    if not inputs:
        raise ValueError("a profile needs an input")
    with tempfile.TemporaryDirectory(prefix="edgeopt-profile-") as folder:
        session = EXECUTOR.open(source, replace(options, profile_to=str(Path(folder) / "nodes")))
        for turn in range(_WARMUP + runs):
            session.run(inputs[turn % len(inputs)])
        text = session.end_profiling().read_text("utf-8", "replace")
        session.close()
    return text
