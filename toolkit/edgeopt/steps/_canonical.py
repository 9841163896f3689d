"""Bring a model into the form that passes expect: fixed shapes, a recent opset, no dead weight.

Numbers are checked in `simplify`, which runs each result against the model it came from.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import checker, helper, inliner, version_converter

from edgeopt.errors import NotFoundError, UnsupportedError
from edgeopt.graph.files.outside_weights import with_outside, without_outside
from edgeopt.graph.files.written_shapes import drop_stale_shapes
from edgeopt.graph.graph import Graph, Value
from edgeopt.graph.model import Model
from edgeopt.graph.subgraphs import all_nodes
from edgeopt.system.processes.quiet import quiet_thread
from edgeopt.system.text import short

FOLD_LIMIT_BYTES = 1024
"""OnnxSlim computes a constant subgraph only up to a result of this size, so folding cannot blow up a file."""


def fix_shapes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Return the model with every input in one fixed shape, and all shapes derived from them.

    Args:
        model: Any model.
        shapes: Whole shapes by input name; inputs that the model fixes itself may be left out.

    Raises:
        NotFoundError: If `shapes` names an input that the model does not have.
        UnsupportedError: If a dimension is fixed by neither, or by both differently.
    """
    graph = Graph.from_model(model)
    names = [str(value.name) for value in graph.inputs]
    for name in shapes.keys() - set(names):
        raise NotFoundError("input", name, names)
    for value in graph.inputs:
        graph.set_shape(value, _fixed_shape(value, shapes.get(str(value.name))))
    proto = graph.to_model().proto
    stale = drop_stale_shapes(proto)  # a network that was traced in another size than the one that is fixed now
    graph = Graph.from_model(Model(proto, model.name))
    graph.infer_shapes()
    return replace(graph.to_model(), stale=stale)


def _fixed_shape(value: Value, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    declared = None if value.shape is None else [d if isinstance(d, int) and d > 0 else None for d in value.shape]
    if wanted is None:
        wanted = tuple(size for size in declared or () if size is not None)
        if declared is None or len(wanted) != len(declared):
            free = f"dimension {declared.index(None)}" if declared else "every dimension"
            raise UnsupportedError(
                f"input {value.name!r} is free in {free} ({value.shape}), and the recipe does not fix it",
                remedy="write the size into [input] size or [input.fixed] of the recipe, or export with fixed shapes",
            )
    elif declared is not None and not _agree(declared, wanted):
        raise UnsupportedError(
            f"input {value.name!r} is {value.shape} in the model, not {list(wanted)}",
            remedy="correct the size in the recipe, or export the model in the size you want",
        )
    return wanted


def _agree(declared: list[int | None], wanted: tuple[int, ...]) -> bool:
    return len(declared) == len(wanted) and all(d in (None, w) for d, w in zip(declared, wanted, strict=True))


def inline_functions(model: Model) -> Model:
    """Return the model with its local functions written out, so that passes see standard ops."""
    if not model.proto.functions:
        return model
    return Model(inliner.inline_local_functions(model.proto), model.name)


def upgrade_opset(model: Model, opset: int) -> Model:
    """Return the model in the default operator set `opset`, metadata kept.

    Raises:
        ValueError: If onnx's converter or checker refuses.
    """
    if unknown := sorted({node.op_type for node in all_nodes(model.proto.graph) if _is_unknown(node)}):
        raise ValueError(f"ONNX has no {' and no '.join(unknown)}")
    proto = Graph.from_model(model).to_model().proto  # the converter keeps constants that are inputs as inputs
    try:
        converted = version_converter.convert_version(proto, opset)
        needed = helper.find_min_ir_version_for(converted.opset_import, ignore_unknown=True)
        converted.ir_version = max(converted.ir_version, needed)
        _keep_metadata(proto, converted)
        checker.check_model(without_outside(converted))
    except (RuntimeError, checker.ValidationError) as error:  # ConvertError is a RuntimeError
        raise ValueError(str(error).strip().splitlines()[0].rpartition("` failed: ")[2]) from error
    return Model(converted, model.name)


def _is_unknown(node: onnx.NodeProto) -> bool:
    """Whether a standard name is no standard op: ONNX Runtime still runs a few that were never taken up."""
    return node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type)


def slim(model: Model, *, fold: bool = True) -> Model:
    """Return what OnnxSlim makes of the model: constants folded, equal subexpressions and dead nodes removed.

    Its fusions are left out: `edgeopt.passes` has them, counted and checked one by one.

    Args:
        model: Any model; it is not changed.
        fold: Whether constant subgraphs may be computed, up to FOLD_LIMIT_BYTES each.

    Raises:
        ValueError: If OnnxSlim fails, or changes the inputs or outputs.
    """
    logging.getLogger("onnxslim").addHandler(logging.NullHandler())  # otherwise it adds one that prints
    import onnxslim  # brings sympy: half a second that `fuse` does not need
    from onnxslim.core.pattern.registry import DEFAULT_FUSION_PATTERNS

    proto = without_outside(model.proto)
    try:
        with quiet_thread():
            slimmed = onnxslim.slim(
                proto,
                size_threshold=FOLD_LIMIT_BYTES,
                skip_fusion_patterns=[name for name in DEFAULT_FUSION_PATTERNS if name.startswith("Fusion")],
                skip_optimizations=[] if fold else ["constant_folding"],
            )
    except Exception as error:  # it raises whatever its many rewrites do
        raise ValueError(f"it fails on this model, by a fault of its own ({short(str(error))})") from error
    _keep_metadata(model.proto, slimmed)
    result = Model(with_outside(slimmed, model.proto), model.name)
    if _signature(result) != _signature(model):
        raise ValueError("it changed the model's inputs or outputs")
    return result


def _signature(model: Model) -> tuple[list[str], list[str]]:
    return [one.name for one in model.inputs], [one.name for one in model.outputs]


def _keep_metadata(source: onnx.ModelProto, target: onnx.ModelProto) -> None:
    target.producer_name, target.producer_version = source.producer_name, source.producer_version
    target.domain, target.model_version, target.doc_string = source.domain, source.model_version, source.doc_string
    del target.metadata_props[:]
    target.metadata_props.extend(source.metadata_props)
