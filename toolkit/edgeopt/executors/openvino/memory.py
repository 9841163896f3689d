"""Memory that OpenVINO takes for a decoder beside its file, known before it is opened."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from edgeopt.graph.facts.constants import BFLOAT16, FLOAT16, Constant, constants_of
from edgeopt.graph.facts.lookup_tables import TABLES
from edgeopt.graph.facts.readers import readers_of

_TABLE = frozenset({*(op.decode() for op in TABLES), "Cast Gather"})
"""Readers of a table: rows of it are looked up."""
_PRODUCT = frozenset({"Cast MatMul"})
"""Readers of weights that products read, widened."""


def held_bytes(file: Path, *, is_alone: bool) -> int:
    """Return about how much memory OpenVINO takes for the constants of a graph beside the size of its file.

    Args:
        file: ONNX, with weights in it or beside it.
        is_alone: No other engine holds these weights: the size of the file counts for what OpenVINO holds of them.

    Measured with 2026.4: `benchmarks/results/bf16.md`.
    """
    constants, readers = constants_of(file), readers_of(file)
    held = sum(each.size_bytes * _copies(each, readers.get(each.name, frozenset())) for each in constants)
    in_file = sum(each.size_bytes for each in constants) if is_alone else 0
    inside = sum(each.size_bytes for each in constants if not each.file)
    return max(held - in_file, inside)  # while a graph is read, all that lies inside is held twice


def _copies(constant: Constant, ops: Set[str]) -> int:
    """Return how many times a constant's numbers are held once a prompt has run, by its type and what reads it."""
    if ops and ops <= _TABLE:
        return 0  # it is read where it lies in the file
    if constant.type_number == BFLOAT16:
        return 1 if ops <= _PRODUCT else 3  # packed; else widened before
    if constant.type_number == FLOAT16:
        return 3 if ops <= _PRODUCT else 4
    return 1  # packed; of float32 in 16 bits, and converted to 16 bits before
