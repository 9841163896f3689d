"""Memory that OpenVINO takes for a decoder beside its file, known before it is opened."""

from __future__ import annotations

from pathlib import Path

from edgeopt.graph.facts.constants import BFLOAT16, FLOAT16, constants_of

_COPIES = {FLOAT16: 3, BFLOAT16: 3}
"""Times the stored numbers that are held beside them, by their type: those in 16 bits are widened as they are read, and
packed for products. Measured with 2026.4: `benchmarks/results/bf16.md`."""
_PACKED = 1
"""The same of all other types."""


def held_bytes(file: Path) -> int:
    """Return about how much memory OpenVINO takes for the constants of a graph beside the file, which it holds too."""
    return sum(each.size_bytes * _COPIES.get(each.type_number, _PACKED) for each in constants_of(file))
