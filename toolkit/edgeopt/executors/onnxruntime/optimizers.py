"""ONNX Runtime's own graph optimizers: how far they go, and which are switched off.

Two entries of a session say it: `graph_optimization_level` and `optimization.disable_specified_optimizers`. Neither
loads or writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.errors import UnsupportedError
from edgeopt.system.text import short

LEVEL = "graph_optimization_level"
"""A field of ONNX Runtime's session options, not one of its entries: one of `LEVELS`; `all` where it is absent."""
DISABLED_OPTIMIZERS = "optimization.disable_specified_optimizers"
"""An entry of the session: names with `;` between them. ONNX Runtime ignores a name that it does not know."""
_ORT_LEVELS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "disable": "ORT_DISABLE_ALL",
}
LEVELS = tuple(_ORT_LEVELS)
"""Levels from the most optimizations to none."""
UNOPTIMIZED: Mapping[str, str] = {LEVEL: "disable"}
"""Entries with which a session computes node by node what the file says."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FAMILIES: Mapping[str, tuple[str, ...]] = {
    "LayerNormFusion": _words("LayerNormFusionL1 LayerNormFusionL2 SimplifiedLayerNormFusion"),
    "SkipLayerNormFusion": _words("SkipLayerNormFusion BiasSkipLayerNormFusion EmbedLayerNormFusion"),
    "GeluFusion": _words("GeluFusionL1 GeluFusionL2 FastGeluFusion BiasGeluFusion QuickGeluFusion GeluApproximation"),
    "AttentionFusion": _words(
        """AttentionFusion GroupQueryAttentionFusion GroupQueryAttentionPreNormFusion GqaValueLayoutTransformer
        MatMulNBitsFusion MatMulNBitsMlpFusion MatMulNBitsQLoRAFusion MatMulNBitsQkvFusion"""
    ),
    "MatMulFusion": _words(
        """MatMulAddFusion MatmulTransposeFusion MatMulScaleFusion MatMulActivationFusion DynamicQuantizeMatMulFusion
        MatMulIntegerToFloatFusion MatMul_BatchNormalization_Fusion DQMatMulNBitsFusion"""
    ),
    "GemmFusion": _words("GemmActivationFusion GemmSumFusion GemmTransposeFusion"),
    "ConvFusion": _words(
        "ConvBNFusion ConvMulFusion ConvAddFusion ConvActivationFusion ConvAddActivationFusion Pad_Fusion"
    ),
    "ClipFusion": _words("FuseReluClip ReluClipFusion ClipQuantRewrite ReluQuantRewrite"),
    "SoftmaxFusion": _words("BiasSoftmaxFusion BiasDropoutFusion"),
    "SwiGluFusion": _words("SwiGluFusion"),
    "SliceFusion": _words(
        "GatherSliceToSplitFusion GatherToSliceFusion SliceConcatToSpaceToDepthFusion EliminateSlice"
    ),
    "ReshapeFusion": _words("ReshapeFusion UnsqueezeElimination NoopElimination ExpandElimination"),
    "CastElimination": _words(
        """CastElimination CastChainElimination RemoveDuplicateCastTransformer CastFloat16Transformer
        FuseFp16InitializerToFp32NodeTransformer PropagateCastOps"""
    ),
    "IdentityElimination": _words("EliminateIdentity EliminateDropout PreShapeNodeElimination"),
    "ConstantFolding": _words("ConstantFolding ConstantFoldingDQ"),
    "CommonSubexpressionElimination": _words("CommonSubexpressionElimination"),
    "TransposeOptimizer": _words("TransposeOptimizer"),
    "NchwcTransformer": _words("NchwcTransformer"),
    "NhwcTransformer": _words("NhwcTransformer"),
    "QDQPropagationTransformer": _words("QDQPropagationTransformer"),
    "QDQSelectorActionTransformer": _words("QDQSelectorActionTransformer"),
    "QDQTransformer": _words(
        "QDQFinalCleanupTransformer QDQS8ToU8Transformer Avx2WeightS8ToU8Transformer EnsureUniqueDQForNodeUnit"
    ),
    "DivMulFusion": _words("DivMulFusion NotWhereFusion LabelEncoderFusion"),
}
"""Optimizers that do one thing in several steps, or take over from each other: switched off together. The names were
read from ONNX Runtime 1.32."""


def disabled(families: tuple[str, ...]) -> dict[str, str]:
    """Return the entry that switches families of optimizers off; no entry for none."""
    names = [name for family in families for name in FAMILIES[family]]
    return {DISABLED_OPTIMIZERS: ";".join(names)} if names else {}


def merged(entries: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return entries that switch off all that any of several does."""
    names = [name for entry in entries for name in entry.get(DISABLED_OPTIMIZERS, "").split(";") if name]
    level = max((entry.get(LEVEL, LEVELS[0]) for entry in entries), key=LEVELS.index, default=LEVELS[0])
    made = {DISABLED_OPTIMIZERS: ";".join(dict.fromkeys(names))} if names else {}
    return made | ({LEVEL: level} if level != LEVELS[0] else {})


def level_of(ort: Any, entries: Mapping[str, str]) -> Any:
    """Return how far a session optimizes, in ONNX Runtime's own words.

    Args:
        ort: The module.
        entries: Of the session.

    Raises:
        UnsupportedError: On a word that is no level.
    """
    word = entries.get(LEVEL, LEVELS[0])
    if word not in _ORT_LEVELS:
        raise UnsupportedError(f"{LEVEL} is {short(word)}", remedy=f"write one of: {', '.join(LEVELS)}")
    return getattr(ort.GraphOptimizationLevel, _ORT_LEVELS[word])


def told(entries: Mapping[str, str]) -> str:
    """Return what entries switch off, in words; empty where they switch nothing off."""
    parts = []
    names = set(entries.get(DISABLED_OPTIMIZERS, "").split(";"))
    families = [family for family, members in FAMILIES.items() if names & {*members}]
    if families:
        parts.append(" and ".join(families))
    if (level := entries.get(LEVEL, LEVELS[0])) != LEVELS[0]:
        parts.append("all graph optimizations" if level == LEVELS[-1] else f"graph optimizations beyond {level!r}")
    return ", ".join(parts)
