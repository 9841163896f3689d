"""Candidates of which the engine makes the original's own graph: nothing can make one faster than the other."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import numpy_helper

from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import load_model
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.run import Run


def same_as_original(run: Run, candidates: Sequence[Candidate]) -> frozenset[str]:
    """Return the names of the rewrites that run the original's operators on its values, opened as it is.

    ONNX Runtime writes the graph that it made of each. Of other engines, and of models above 2 GB, nothing is known.

    Args:
        run: With the candidates on disk.
        candidates: The original first.
    """
    first = candidates[0]
    engine = run.engine_of(first)
    if engine.target.executor != "onnxruntime" or run.context.original.is_outside:
        return frozenset()
    opening = engine.opening(first.precision)
    alike = [
        candidate
        for candidate in candidates[1:]
        if candidate.is_rewrite and run.engine_of(candidate).opening(candidate.precision) == opening
    ]
    if not alike or (wanted := _made_of(run, first)) is None:
        return frozenset()
    return frozenset(candidate.name for candidate in alike if _made_of(run, candidate) == wanted)


def _made_of(run: Run, candidate: Candidate) -> str | None:
    """Return what the engine's own graph computes; None where it cannot be told."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "optimized.onnx"
        try:
            opening = run.engine_of(candidate).opening(candidate.precision).saving_to(file)
            opening.open(load_model(run.workspace.path(candidate.file), candidate.name).source).close()
        except EdgeoptError:
            return None
        return computation_hash(onnx.load(str(file))) if file.is_file() else None


# A hash of the computation of a graph, whatever its tensors and nodes are called and in which order they stand.


def computation_hash(proto: onnx.ModelProto) -> str | None:
    """Return a hash of operators, attributes, weights and how they are joined; None where a graph lies inside another.

    Two graphs of one hash run the same operators on the same values. The order in which they stand is not part of it,
    nor are names, apart from those of the graph's own inputs and outputs, nor attributes that say what is so anyhow.
    The version of the opset is none either: what it changes in an operator is seen in the numbers.

    Args:
        proto: Nodes in topological order; weights in the file.
    """
    graph, versions = proto.graph, {opset.domain: opset.version for opset in proto.opset_import}
    known = {"": ""}
    known |= {value_info.name: _hash("input", value_info.name) for value_info in graph.input}
    for constant in graph.initializer:
        value = numpy_helper.to_array(constant)
        known[constant.name] = _hash("weight", value.dtype.str, str(value.shape), value.tobytes())
    for node in graph.node:
        attributes = sorted(node.attribute, key=lambda constant: constant.name)
        if any(attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for attribute in attributes):
            return None
        defaults = _defaults(node, versions)
        values = [
            attribute.SerializeToString(deterministic=True)
            for attribute in attributes
            if attribute != defaults.get(attribute.name)
        ]
        made = _hash(node.domain, node.op_type, *values, *(known[name] for name in node.input))
        known |= {name: _hash(made, str(i)) for i, name in enumerate(node.output) if name}
    return _hash(
        str(len(graph.node)), *(part for constant in graph.output for part in (constant.name, known[constant.name]))
    )


def _defaults(node: onnx.NodeProto, versions: Mapping[str, int]) -> Mapping[str, onnx.AttributeProto]:
    """Return what an operator's attributes are where they are not written; nothing of one that ONNX does not know."""
    try:
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: attribute.default_value for name, attribute in schema.attributes.items() if attribute.default_value.name
    }


def _hash(*parts: str | bytes) -> str:
    return hashlib.sha256(b"\0".join(_bytes(parts))).hexdigest()


def _bytes(parts: Iterable[str | bytes]) -> Iterable[bytes]:
    """Yield each part with its length, so that no two lists of parts are the same bytes."""
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        yield str(len(data)).encode()
        yield data
