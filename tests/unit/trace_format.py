"""What a trace must be for the viewers to open it; shared by tests."""

from __future__ import annotations

KNOWN = {"X", "b", "e", "i", "C", "M"}


def check(events: list[dict]) -> None:
    """What the viewers demand of the Trace Event Format, and what ours promises beside it."""
    for one in events:
        assert one["ph"] in KNOWN
        assert isinstance(one["name"], str)
        assert all(isinstance(one[key], int) for key in ("pid", "tid"))
        assert isinstance(one["ts"], (int, float))
        assert isinstance(one.get("args", {}), dict)
        assert ("dur" in one) == (one["ph"] == "X")
        assert one.get("dur", 0) >= 0
        assert ("id" in one) == (one["ph"] in "be")
        assert one["ph"] != "C" or all(isinstance(value, (int, float)) for value in one["args"].values())
    stamps = [one["ts"] for one in events if one["ph"] != "M"]
    assert stamps == sorted(stamps)
    for thread in {(one["pid"], one["tid"]) for one in events if one["ph"] == "X"}:
        check_nesting([one for one in events if one["ph"] == "X" and (one["pid"], one["tid"]) == thread])
    begun = [one["id"] for one in events if one["ph"] == "b"]
    assert sorted(begun) == sorted(one["id"] for one in events if one["ph"] == "e")
    assert len(begun) == len(set(begun))


def check_nesting(slices: list[dict]) -> None:
    stack: list[float] = []
    for one in slices:
        end = one["ts"] + one["dur"]
        while stack and stack[-1] <= one["ts"] + 1e-6:
            stack.pop()
        assert not stack or end <= stack[-1] + 1e-6, f"{one} sticks out of the slice around it"
        stack.append(end)
