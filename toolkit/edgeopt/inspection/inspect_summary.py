"""The result of `inspect` as a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

from edgeopt.executors import Placement
from edgeopt.inspection.inspect import Inspection
from edgeopt.report.document import Document, Section, Value, make_table
from edgeopt.steps.compile._placement import Partition
from edgeopt.system.text import format_bytes


def summarize(found: Inspection, *, all_nodes: bool = False) -> Document:
    """Return what a reader sees: the model, and with a target where its nodes run.

    Args:
        found: The facts.
        all_nodes: Whether every node has its row, not only the refused ones.
    """
    work = _why_unknown(found) if found.multiply_adds is None else f"{found.multiply_adds / 1e6:.1f} M"
    values = [
        Value("model", f"{found.name}, {format_bytes(found.size_bytes)}, opset {found.opset}"),
        Value("weights", f"{found.parameters:,} numbers; multiply-adds a run: {work}"),
    ]
    if found.integers.kind:
        values.append(Value("integers", f"{found.integers}; --quantized shows each tensor"))
    values += [Value(kind, str(one)) for kind in ("input", "output") for one in getattr(found, f"{kind}s")]
    values.append(Value("recipe", found.recipe))
    values += [Value(label, text) for label, text in (("writes", found.writes), ("measured", found.measured)) if text]
    values.append(Value("ops", ", ".join(f"{op} {count}" for op, count in found.ops.items())))
    if found.target:
        values.append(Value("target", f"{found.target}: {found.verdict}"))
    sections = _placement(found.partition, all_nodes=all_nodes) if found.partition else ()
    return Document(
        "inspect", found.name, found.name, asdict(found), (Section(values=tuple(values), notes=found.notes), *sections)
    )


def _why_unknown(found: Inspection) -> str:
    free = next((one for one in found.inputs if not one.is_static), None)
    return f"unknown (free: {free}; give --shape)" if free else "unknown (a shape is not inferred)"


def _placement(partition: Partition, *, all_nodes: bool) -> tuple[Section, ...]:
    """Return how many nodes of each kind run where and which are refused; or where every node runs."""
    copies = f"{partition.copies} tensors between the {partition.device.upper()} and the CPU"
    crossing = (Value("copied", copies),) if partition.copies else ()
    if all_nodes:
        return (Section("Nodes", values=(*(_node(one, partition) for one in partition.nodes), *crossing)),)
    columns: dict[str, Callable[[tuple[tuple[str, str], int]], str]] = {
        "op": lambda one: one[0][0],
        "nodes": lambda one: str(one[1]),
        "runs on": lambda one: one[0][1],
    }
    counts = Counter((node.op, node.provider) for node in partition.nodes).most_common()
    refused = tuple(_node(one, partition) for one in partition.refused)
    sections = (
        Section("Nodes", make_table(counts, columns, words=["runs on"])),
        Section("Nodes that the device refuses", values=(*refused, *crossing)),
    )
    return sections if refused else sections[:1]


def _node(one: Placement, partition: Partition) -> Value:
    why = f": {one.reason}" if one.reason else ""
    mend = f" -> {partition.mends[one.node]}" if one.node in partition.mends else ""
    return Value(one.op, f"{one.node} on {one.provider}{why}{mend}")
