"""The result of `inspect` as a document."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from edgeopt.executors import Placement
from edgeopt.graph.tensors import TensorSpec
from edgeopt.inspection.inspect import Inspection
from edgeopt.report.document import Document, Section, Value, make_table
from edgeopt.steps.compile._placement import Partition
from edgeopt.system.text import format_bytes

_NUMBER = re.compile(r"\d+")
_FEW = 4
"""Tensors that differ in a number of their names alone have a line each below this."""


def summarize(inspection: Inspection, *, all_nodes: bool = False) -> Document:
    """Return what a reader sees: the model, and with a target where its nodes run.

    Args:
        inspection: The facts.
        all_nodes: Whether every node has its row, not only the refused ones.
    """
    work = _why_unknown(inspection) if inspection.multiply_adds is None else f"{inspection.multiply_adds / 1e6:.1f} M"
    values = [
        Value("model", f"{inspection.name}, {format_bytes(inspection.size_bytes)}, opset {inspection.opset}"),
        Value("weights", f"{inspection.parameters:,} numbers; multiply-adds a run: {work}"),
    ]
    if inspection.integers.kind:
        values.append(Value("integers", f"{inspection.integers}; --quantized shows each tensor"))
    values += [Value("input", line) for line in _folded(inspection.inputs)]
    values += [Value("output", line) for line in _folded(inspection.outputs)]
    values.append(Value("recipe", inspection.recipe))
    values += [
        Value(label, text) for label, text in (("writes", inspection.writes), ("measured", inspection.measured)) if text
    ]
    values.append(Value("ops", ", ".join(f"{op} {count}" for op, count in inspection.ops.items())))
    if inspection.target:
        values.append(Value("target", f"{inspection.target}: {inspection.verdict}"))
    is_placed = inspection.partition is not None and inspection.partition.nodes
    sections = _placement(inspection.partition, all_nodes=all_nodes) if inspection.partition and is_placed else ()
    return Document(
        inspection,
        inspection.name,
        inspection.name,
        (Section(values=tuple(values), notes=inspection.notes), *sections),
    )


def _folded(specs: Sequence[TensorSpec]) -> list[str]:
    """Return a line for each tensor, and one for all that differ in a number of their names alone: caches of layers."""
    alike: dict[tuple[str, str], list[TensorSpec]] = {}
    for spec in specs:
        rest = str(spec).removeprefix(spec.name)
        alike.setdefault((_NUMBER.sub("*", spec.name, count=1), rest), []).append(spec)
    lines = list[str]()
    for (name, rest), group in alike.items():
        if len(group) < _FEW or "*" not in name:
            lines += map(str, group)
        else:
            numbers = [int(number[0]) for spec in group if (number := _NUMBER.search(spec.name))]
            is_whole = sorted(numbers) == list(range(min(numbers), max(numbers) + 1))
            shown = f"{min(numbers)}-{max(numbers)}" if is_whole else ",".join(map(str, sorted(numbers)))
            lines.append(f"{name.replace('*', f'({shown})', 1)}{rest}")
    return lines


def _why_unknown(inspection: Inspection) -> str:
    free = next((spec for spec in inspection.inputs if not spec.is_static), None)
    return f"unknown (free: {free}; give --shape)" if free else "unknown (a shape is not inferred)"


def _placement(partition: Partition, *, all_nodes: bool) -> tuple[Section, ...]:
    """Return how many nodes of each kind run where and which are refused; or where every node runs."""
    copies = f"{partition.copies} tensors between the {partition.device.upper()} and the CPU"
    crossing = (Value("copied", copies),) if partition.copies else ()
    if all_nodes:
        return (Section("Nodes", values=(*(_node(placement, partition) for placement in partition.nodes), *crossing)),)
    columns: dict[str, Callable[[tuple[tuple[str, str], int]], str]] = {
        "op": lambda pair: pair[0][0],
        "nodes": lambda pair: str(pair[1]),
        "runs on": lambda pair: pair[0][1],
    }
    counts = Counter((node.op, node.provider) for node in partition.nodes).most_common()
    refused = tuple(_node(placement, partition) for placement in partition.refused)
    sections = (
        Section("Nodes", make_table(counts, columns, words=["runs on"])),
        Section("Nodes that the device refuses", values=(*refused, *crossing)),
    )
    return sections if refused else sections[:1]


def _node(placement: Placement, partition: Partition) -> Value:
    why = f": {placement.reason}" if placement.reason else ""
    mend = f" -> {partition.mends[placement.node]}" if placement.node in partition.mends else ""
    return Value(placement.op, f"{placement.node} on {placement.provider}{why}{mend}")
