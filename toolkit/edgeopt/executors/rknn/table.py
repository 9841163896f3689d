"""The table of layers that Rockchip's compiler prints when it is talkative. There is no other way to learn it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgeopt.errors import StepError

_HEAD = re.compile(r"\bID\s+OpType\s+DataType\s+Target\s.*Cycles\(DDR/NPU/Total\)")
_LAYER = re.compile(
    r"\]\s+\d+\s+(?P<op>\S+)\s+(?P<dtype>\S+)\s+(?P<unit>\S+)\s+\S+\s+\S+\s+"
    r"(?P<ddr>\d+)/(?P<npu>\d+)/(?P<total>\d+)(?:\s+[\d.]+%)?\s+[\d.]+(?P<name>.*)$"
)
"""Some chips have a column more, the share of zeros among the weights."""
_RULE = re.compile(r"-{20,}\s*$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EDGES = ("InputOperator", "OutputOperator")
"""Rows for the model's inputs and outputs; they compute nothing."""
_REPORT = "use rknn-toolkit2 2.5.0, or report the version that you use to edgeopt"


@dataclass(frozen=True, slots=True)
class TableLayer:
    """One line of the table: what the compiler made of one or several nodes."""

    name: str
    """The node that it came from, with what the compiler appended; empty for one of the compiler's own."""
    op: str
    dtype: str
    unit: str
    """`NPU`, or `CPU` for the chip's processor."""
    ddr_cycles: int
    npu_cycles: int
    total_cycles: int
    """As the vendor's compiler estimates them; 0 for what it does not estimate."""


def read_layers(log: str) -> tuple[TableLayer, ...]:
    """Return the table's layers, without the rows for the model's inputs and outputs.

    Args:
        log: What the compiler printed.

    Raises:
        StepError: If there is no table, or a line of it is of a form that was never seen.
    """
    lines = iter(plain(log).splitlines())
    if not any(_HEAD.search(line) for line in lines):
        raise StepError("Rockchip's compiler printed no table of layers", remedy=_REPORT)
    next(lines, "")  # the rule below the head
    layers = []
    for line in lines:
        if _RULE.search(line):
            break
        layers.append(_read(line))
    return tuple(layer for layer in layers if layer.op not in _EDGES)


def _read(line: str) -> TableLayer:
    match = _LAYER.search(line)
    if match is None:
        raise StepError(f"a line of Rockchip's table of layers is unknown: {line.strip()}", remedy=_REPORT)
    name = match["name"].strip().partition(":")[2]
    cycles = (int(match[column]) for column in ("ddr", "npu", "total"))
    return TableLayer(name, match["op"], match["dtype"], match["unit"], *cycles)


def plain(text: str) -> str:
    """Return text without the colours of a terminal."""
    return _COLOUR.sub("", text)
