"""Make one Gelu of the Gaussian error linear unit that exporters write with Erf.

    x * (1 + Erf(x / sqrt(2))) / 2   ->   Gelu(x), opset 20 or later

in any order of the products. NPU compilers know Gelu and refuse a bare Erf.
Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016; ONNX Gelu-20.
"""

from __future__ import annotations

from edgeopt.graph.gelu import gelus
from edgeopt.graph.graph import Graph
from edgeopt.passes import Pass, Phase

_OPSET_OF_GELU = 20


def fuse_gelu(graph: Graph) -> int:
    """Return how many products with 1 + Erf became a Gelu."""
    if graph.opset < _OPSET_OF_GELU:
        return 0
    fused = 0
    for gelu in gelus(graph, "Erf"):
        made = graph.insert("Gelu", [gelu.x], before=gelu.last, name=f"{gelu.function.name}_gelu")
        fused += graph.bypass(gelu.last, keep=made)
    if fused:
        graph.remove_unused()
    return fused


PASS = Pass(fuse_gelu, Phase.DEVICE)
