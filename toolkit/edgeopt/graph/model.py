"""An ONNX model on its way: load, check, save."""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.facts.output_makers import maker_before, maker_of, nodes_by_output
from edgeopt.graph.files.exported_folder import exported_in, name_of
from edgeopt.graph.files.foreign_models import HEAD_BYTES, foreign, require_no_foreign
from edgeopt.graph.files.in_place import LEAST_FILE_BYTES, graph_alone
from edgeopt.graph.files.outside import Outside, sha256_of
from edgeopt.graph.files.outside_weights import (
    for_engines,
    in_one_file,
    layout_of,
    load_inside,
    outside_tensors,
    piece_of,
    read_outside,
    told_bytes,
    with_locations,
    without_outside,
)
from edgeopt.graph.files.validity import require_numbers, require_valid, sort_nodes
from edgeopt.graph.files.whole_hash import sha256_of_whole
from edgeopt.graph.files.written_shapes import StaleShape, drop_stale_shapes
from edgeopt.graph.tensors import TensorSpec, fix_sizes
from edgeopt.system.disk import assets
from edgeopt.system.disk.files import read_file, write_beside

_TWO_GB = 2**31 - 2**20
_MOST_FILE_BYTES = 2**31
_MOST_FILES = 8
"""Files of a folder that a message names."""
"""A protobuf holds no more; larger models keep their weights in external data."""
_MOST_TOLD = 200
"""Characters of a path in a message."""
_IR_OF_DEFAULTS = 4
"""Since it a constant that is listed as an input is the default of one."""
_NAMELESS = {"", "?", "-1", "*", "none"}
"""Placeholders that exporters write for the name of a size; two axes with the same placeholder may differ in size."""


@dataclass(frozen=True)
class Model:
    """A model and what is known of it without running it. The proto is never edited in place."""

    proto: onnx.ModelProto
    name: str
    stale: tuple[StaleShape, ...] = ()
    """Shapes that were written beside its tensors and contradicted its inputs; they are left out of the proto."""
    is_in_place: bool = False
    """Whether its large weights were left where they lie in its own file; it has the hash of the whole all the same."""

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that a caller must give: initializers listed as inputs (IR below 4) are left out."""
        constants = {tensor.name for tensor in self.proto.graph.initializer}
        return tuple(_spec(value) for value in self.proto.graph.input if value.name not in constants)

    @cached_property
    def optional_inputs(self) -> tuple[str, ...]:
        """Names of inputs with a default, which callers may give or not; empty where each constant is listed so.

        Source: ONNX IR 4. Below it, and by habit of some exporters above, all constants are listed as inputs.
        """
        constants = {tensor.name for tensor in self.proto.graph.initializer}
        listed = tuple(value.name for value in self.proto.graph.input if value.name in constants)
        return () if self.proto.ir_version < _IR_OF_DEFAULTS or len(listed) == len(constants) else listed

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of a run; shapes that nobody declared are derived from the graph."""
        makers, given = ChainMap(nodes_by_output(self.proto.graph)), {spec.name for spec in self.inputs}
        return tuple(
            replace(_spec(shape), op=maker_of(shape.name, makers), before=maker_before(shape.name, makers, given))
            for shape in _with_shapes(self.proto)
        )

    @cached_property
    def opset(self) -> int:
        """Version of the default operator set."""
        return max((opset.version for opset in self.proto.opset_import if opset.domain in ("", "ai.onnx")), default=1)

    @cached_property
    def is_outside(self) -> bool:
        """Whether weights lie in files of their own, as those of models above 2 GB do."""
        return any(True for _ in outside_tensors(self.proto))

    @cached_property
    def source(self) -> bytes | Outside:
        """The source that an engine opens: the serialized model, or its graph and the folder with its weights.

        Raises:
            UnsupportedError: If what is in the graph itself is above 2 GB.
        """
        self._require_one_protobuf()
        return for_engines(self.proto) if self.is_outside else self.data

    @cached_property
    def data(self) -> bytes:
        """The serialized model.

        Raises:
            UnsupportedError: If it is not in one piece: weights lie outside, or it is above 2 GB.
        """
        if self.is_outside:
            largest = max(outside_tensors(self.proto), key=told_bytes)
            raise UnsupportedError(
                f"{self.name} has {self.size_bytes / 1e9:.1f} GB of weights in files beside it, {largest.name!r} "
                "among them, and this takes a model in one file",
                remedy="store its weights in 4 or 8 bits first: edgeopt optimize MODEL --target cpu",
            )
        self._require_one_protobuf()
        data: bytes = self.proto.SerializeToString(deterministic=True)
        return data

    def _require_one_protobuf(self) -> None:
        if self.proto.ByteSize() > _TWO_GB:
            raise UnsupportedError(
                f"{self.name} is larger than 2 GB", remedy="quantize its weights first, or split the model"
            )

    @cached_property
    def size_bytes(self) -> int:
        """Size of the serialized model, with the weights that lie outside."""
        if not self.is_outside:
            return len(self.data)
        return int(self.proto.ByteSize()) + sum(piece.length for piece in {*map(piece_of, outside_tensors(self.proto))})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the serialized model; of weights that lie outside the hash of their file stands in it."""
        if not self.is_outside:
            return hashlib.sha256(self.data).hexdigest()
        if self.is_in_place:
            return sha256_of_whole(self.proto)
        graph = with_locations(self.proto, lambda piece: (sha256_of(piece.file), piece.offset))
        return hashlib.sha256(graph).hexdigest()

    def gathered(self) -> Model:
        """Return the model with all weights inside where that is below 2 GB; otherwise itself."""
        if not self.is_outside or self.size_bytes > _TWO_GB:
            return self
        return Model(load_inside(self.proto), self.name)

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """The metadata that the exporter wrote beside the graph."""
        return {entry.key: entry.value for entry in self.proto.metadata_props}

    @cached_property
    def op_counts(self) -> Mapping[str, int]:
        """How often each op occurs, most frequent first."""
        counts: dict[str, int] = {}
        for node in self.proto.graph.node:
            counts[node.op_type] = counts.get(node.op_type, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _with_shapes(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the outputs; those without a declared shape or type as ONNX derives them, if it does."""
    if all(_is_declared(output) for output in proto.graph.output):
        return [*proto.graph.output]
    try:
        inferred = onnx.shape_inference.infer_shapes(without_outside(proto), data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError):  # a foreign op, or above 2 GB
        return [*proto.graph.output]
    derived = {output.name: output for output in inferred.graph.output}
    return [output if _is_declared(output) else derived.get(output.name, output) for output in proto.graph.output]


def _is_declared(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return bool(tensor.HasField("shape")) and tensor.elem_type != onnx.TensorProto.UNDEFINED


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else "unknown"
    sizes = tuple(_size(dim) for dim in tensor.shape.dim)
    return TensorSpec(value.name, dtype, sizes, is_unranked=not tensor.HasField("shape"))


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """Return a size, the name of a free one, or None for a free one without a name that tells it from others."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value > 0 else None
    return dim.dim_param if dim.dim_param.casefold() not in _NAMELESS else None


def fix_inputs(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """Return the model with free dimensions of its inputs fixed, and so every other of the same name.

    Args:
        model: It is not changed.
        shapes: Whole shapes by input name; the other inputs stay as they are.

    Raises:
        EdgeoptError: If a shape does not fit.
    """
    fixed = {fix_size.name: fix_size for fix_size in fix_sizes(model.inputs, shapes)}
    if not shapes:
        return model
    known = {
        name: size
        for spec in model.inputs
        if not spec.is_unranked
        for name, size in zip(spec.shape, fixed[spec.name].shape, strict=True)
    }
    unranked = {spec.name for spec in model.inputs if spec.is_unranked}
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for value in proto.graph.input:
        if value.name in unranked and value.name in shapes:
            value.type.tensor_type.shape.SetInParent()
            value.type.tensor_type.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in shapes[value.name])
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            size = fixed[value.name].shape[i] if value.name in fixed else known.get(dim.dim_param)
            if isinstance(size, int):
                dim.dim_value = size
    stale = drop_stale_shapes(proto)
    return Model(proto, model.name, (*model.stale, *stale))


_SOURCE = "hf:"
"""Mark before a folder or an identifier of Hugging Face."""


def find_model(name: str) -> Path:
    """Return the path of the shipped model called `name`, `name` itself when it is a file, or the model in a folder.

    Raises:
        NotFoundError: If it is none of them.
        InvalidFileError: If it is another folder than one of Hugging Face with one model, or a pipeline, or lies where
            nothing may be read.
    """
    path = Path(name)
    if name.startswith(_SOURCE):
        raise InvalidFileError(
            f"{name} is what a model is exported from, and no model yet",
            remedy=f"edgeopt export {name} -o model.onnx, then name model.onnx",
        )
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        text = f"{name[:_MOST_TOLD]} cannot be read: {error.strerror}"
        raise InvalidFileError(text, remedy="name an ONNX file that may be read") from error
    if _is_pipeline(path):
        raise InvalidFileError(
            f"{path} is a pipeline, and this takes a single model",
            remedy=f"edgeopt bench {path} measures it; here name one of its models",
        )
    if is_file or is_folder:
        require_no_foreign(path)
    if is_file:
        return path
    if is_folder and (exported := exported_in(path)):
        return exported
    if is_folder and (path.suffix or name not in assets.model_folders()):
        raise _is_folder(path)
    shipped = {
        key: model_folder / "model.onnx"
        for key, model_folder in assets.model_folders().items()
        if (model_folder / "model.onnx").is_file()
    }
    if name in shipped:
        return shipped[name]
    raise NotFoundError("model file or shipped model", name, shipped)


def _is_pipeline(path: Path) -> bool:
    """Return whether a path is the bundle of a pipeline or its description: no model is TOML, but recipes are."""
    if path.is_dir():
        return any((other / "pipeline.json").is_file() for other in (path, path / "bundle"))
    if path.suffix.lower() != ".toml" or not path.is_file():
        return False
    return b"[[stage]]" in read_file(path, remedy="name an ONNX file that may be read", most_bytes=_MOST_FILE_BYTES)


def _is_folder(path: Path) -> InvalidFileError:
    """Return an error that leads to a file: a bundle, and the folder that holds one, are answers, no models."""
    bundle = next((other for other in (path, path / "bundle") if (other / "manifest.json").is_file()), None)
    paths = sorted((bundle or path).glob("*.onnx"), reverse=True)  # a bundle's model before its fallback
    named = f"name {paths[0]}" if paths else "name an ONNX file"
    if bundle is None and len(paths) > 1:
        files = ", ".join(map(str, sorted(paths)[:_MOST_FILES])) + (", ..." if len(paths) > _MOST_FILES else "")
        return InvalidFileError(f"{path} is a folder with {len(paths)} ONNX files", remedy=f"name one of them: {files}")
    if bundle is None:
        return InvalidFileError(f"{path} is a folder", remedy=named)
    takers = "edgeopt run, bench, compare and check take it, edgeopt bundle shows it"
    remedy = f"{takers}; here name the model that it was made of, or {named}"
    return InvalidFileError(f"{bundle} is a bundle, no model", remedy=remedy)


def load_model(path: Path, name: str = "", *, in_place: bool = False) -> Model:
    """Load and check one ONNX file, external data included; above 2 GB the weights stay where they are.

    Args:
        path: The file.
        name: What to call it; empty: the file's stem, or the folder's for `model.onnx`.
        in_place: Whether large weights stay where they are from 16 MiB on: in the file itself, or in those beside it.

    Raises:
        InvalidFileError: If it is not ONNX, truncated, its external data is missing, the checker refuses it, or a
            weight is NaN.
        UnsupportedError: If a node belongs to a domain that no engine here knows.
    """
    left = _graph_of(path) if in_place else None
    proto = left or _read_whole(path)
    try:
        may_stay = left is not None or _is_large(proto, LEAST_FILE_BYTES if in_place else _TWO_GB)
        read_outside(proto, path, may_stay=may_stay)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidFileError(
            f"{path}: its external data cannot be loaded: {reason}",
            remedy="keep the external data files beside the model, whole",
        ) from error
    sort_nodes(proto.graph, str(path))
    require_valid(proto, str(path))
    require_numbers(proto, str(path), of_file=left is not None)
    stale = drop_stale_shapes(proto)
    return Model(proto, name or name_of(path), stale, is_in_place=left is not None)


def _graph_of(path: Path) -> onnx.ModelProto | None:
    """Return a large model whose weights name their place in its file; None: it is loaded whole, or is none."""
    try:
        light = graph_alone(path)
        proto = None if light is None else onnx.load_model_from_string(light)
        return proto if proto is not None and proto.graph.node and proto.opset_import else None
    except (OSError, DecodeError, ValueError):
        return None


def _read_whole(path: Path) -> onnx.ModelProto:
    data = read_file(path, remedy="name an ONNX file that may be read", most_bytes=_MOST_FILE_BYTES)
    try:
        proto = onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as error:
        raise foreign(path, data[:HEAD_BYTES]) or InvalidFileError(
            f"{path} is not an ONNX file, or is truncated", remedy="export the model again, or copy the file again"
        ) from error
    if not proto.graph.node or not proto.opset_import:
        raise foreign(path, data[:HEAD_BYTES]) or InvalidFileError(
            f"{path} holds no ONNX graph", remedy="export the model again, or copy the file again"
        )
    return proto


def _is_large(proto: onnx.ModelProto, most_bytes: int) -> bool:
    """Whether the model with its external data is larger than what is loaded, 2 GB at most as a protobuf is."""
    return int(proto.ByteSize()) + sum(map(told_bytes, outside_tensors(proto))) > most_bytes


def save_model(model: Model, path: Path) -> None:
    """Write the model, whole or not at all; weights that lie outside go to one file beside it, `NAME.onnx.data`.

    Raises:
        InvalidFileError: If the folder is not writable or the disk is full.
    """
    if not model.is_outside:
        write_beside(path, model.data)
        return
    layout, beside = layout_of(model.proto), weights_beside(path)
    layout.write(beside, may_link=True)
    write_beside(path, in_one_file(model.proto, layout, beside.name))


def weights_beside(path: Path) -> Path:
    """Return where the weights of a model lie that `save_model` wrote, if they lie outside."""
    return path.with_name(f"{path.name}.data")
