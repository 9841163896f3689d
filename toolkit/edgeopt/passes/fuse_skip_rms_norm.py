"""Make one SkipSimplifiedLayerNormalization of a sum and its norm by the root mean square.

    s = a + b;  s / Sqrt(Mean(s * s) + epsilon) * scale   ->   SkipSimplifiedLayerNormalization(a, b, scale)

which gives s too. The residual sums of decoders; one kernel reads them once.
Source: com.microsoft.SkipSimplifiedLayerNormalization of ONNX Runtime; Zhang and Sennrich, 2019, arXiv:1910.07467.
"""

from __future__ import annotations

from edgeopt.graph.graph import Graph
from edgeopt.passes import Pass, Phase
from edgeopt.passes._rms_norm import RmsNorm, residual_sum, rms_norms


def fuse_skip_rms_norm(graph: Graph) -> int:
    """Return how many sums and norms became one node."""
    fused = sum(_fuse(graph, rms_norm) for rms_norm in rms_norms(graph))
    if fused:
        graph.remove_unused()
    return fused


def _fuse(graph: Graph, norm: RmsNorm) -> bool:
    add = residual_sum(graph, norm)
    if add is None or norm.last.graph is None:
        return False
    scale = graph.add_initializer(f"{norm.last.name}_scale", norm.scale)
    outputs = [f"{norm.last.outputs[0].name}_normal", "", "", f"{add.outputs[0].name}_sum"]
    new = graph.insert(
        "SkipSimplifiedLayerNormalization",
        [*add.inputs, scale],
        {"epsilon": norm.epsilon},
        domain="com.microsoft",
        outputs=outputs,
        before=add,
        name=f"{norm.last.name}_skip",
    )
    if not graph.replace(norm.x, new.outputs[3]):
        graph.remove(new)
        return False
    return graph.replace(norm.last.outputs[0], new.outputs[0])


PASS = Pass(fuse_skip_rms_norm, Phase.DECODER)
