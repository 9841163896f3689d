"""Memory that OpenVINO takes for a decoder beside its file, known before it is opened."""

from __future__ import annotations

from pathlib import Path

from edgeopt.graph.facts.constants import FLOAT32, constants_of

_COPIES = {FLOAT32: 2}
"""Times the numbers of a constant that are held once a prompt has run, by their type: those in 32 bits are converted,
and packed for products. Measured with 2026.4: `benchmarks/results/bf16.md`."""
_PACKED = 1
"""The same of all other types: the file's own pages are let go."""


def held_bytes(file: Path, *, is_alone: bool) -> int:
    """Return about how much memory OpenVINO takes for the constants of a graph beside the size of its file.

    Args:
        file: ONNX, with weights beside it.
        is_alone: No other engine holds these weights: the size of the file stands for what is packed of them.
    """
    first = 1 if is_alone else 0
    return sum(each.size_bytes * (_COPIES.get(each.type_number, _PACKED) - first) for each in constants_of(file))
