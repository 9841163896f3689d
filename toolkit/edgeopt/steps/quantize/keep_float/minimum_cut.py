"""Cut a graph in two where it costs least.

Source: Edmonds and Karp, Theoretical improvements in algorithmic efficiency for network flow problems, J. ACM
1972; the assignment of programs to two processors as a minimum cut: Stone, IEEE Trans. Software Engineering 1977.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def minimum_cut(capacities: Mapping[tuple[T, T], int], source: T, sink: T) -> set[T]:
    """Return the nodes on the source's side of a cheapest cut.

    Args:
        capacities: (from, to) -> what it costs to have `from` on the source's side and `to` on the sink's, not
            below 0.
        source: A node on the one side.
        sink: A node on the other.
    """
    left: dict[T, dict[T, int]] = {source: {}, sink: {}}
    for (start, end), capacity in capacities.items():
        left.setdefault(start, {})[end] = left.get(start, {}).get(end, 0) + capacity
        left.setdefault(end, {}).setdefault(start, 0)
    while (came_from := _reached(left, source)).get(sink) is not None:
        path, node = [], sink
        while (before := came_from[node]) is not None:
            path.append((before, node))
            node = before
        flow = min(left[start][end] for start, end in path)
        for start, end in path:
            left[start][end] -= flow
            left[end][start] += flow
    return set(came_from)


def _reached(left: Mapping[T, Mapping[T, int]], source: T) -> dict[T, T | None]:
    """Return the nodes that the source still reaches, and from where; shortest ways first."""
    came_from: dict[T, T | None] = {source: None}
    ahead = deque([source])
    while ahead:
        node = ahead.popleft()
        for end, capacity in left[node].items():
            if capacity > 0 and end not in came_from:
                came_from[end] = node
                ahead.append(end)
    return came_from
