"""Weights outside of the graph's own file, as ONNX writes them: external data, here with whole paths.

Source: onnx.proto, TensorProto.external_data; locations in files are relative to the model's folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto, helper

from edgeopt.errors import InvalidFileError
from edgeopt.graph.outside import LEAST_BYTES, Layout, Outside, Piece, lay_out
from edgeopt.graph.subgraphs import stored_tensors

_REMEDY = "keep the external data files beside the model, whole"


def outside_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Yield the constants whose numbers lie in other files."""
    return (one for one in stored_tensors(proto.graph) if one.data_location == TensorProto.EXTERNAL)


def outside_files(path: Path) -> tuple[Path, ...]:
    """Return the files with weights that belong to an ONNX file and are there; none of a file of another kind."""
    try:
        proto = onnx.load_model_from_string(path.read_bytes())
    except (DecodeError, ValueError):
        return ()
    found = dict.fromkeys(path.parent / piece_of(one).file for one in outside_tensors(proto))
    return tuple(one for one in found if one.is_file())


def piece_of(tensor: TensorProto) -> Piece:
    """Return where the numbers of a tensor lie."""
    told = {one.key: one.value for one in tensor.external_data}
    length = int(told["length"]) if told.get("length") else told_bytes(tensor)
    return Piece(Path(told.get("location", "")), int(told.get("offset") or 0), length)


def told_bytes(tensor: TensorProto) -> int:
    """Return how many bytes a tensor takes by its shape and type; 0 where its type is unknown or packs several."""
    try:
        width = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, TypeError):
        return 0
    return int(math.prod(max(size, 0) for size in tensor.dims) * width)


def leave_outside(proto: ModelProto, path: Path) -> None:
    """Write whole paths in place of the relative ones, and load what is small or in a subgraph, in place.

    Args:
        proto: As it was read, no external data loaded.
        path: Of the model.

    Raises:
        InvalidFileError: If a file is absent, leads out of the folder or is too short.
    """
    for tensor in proto.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        piece = piece_of(tensor)
        file = _inside(path, piece.file)
        if not file.is_file() or file.stat().st_size < piece.offset + piece.length:
            told = "is shorter than the model says" if file.is_file() else "is missing"
            raise InvalidFileError(f"{path}: its external data {str(piece.file)!r} {told}", remedy=_REMEDY)
        if piece.length >= LEAST_BYTES:
            _place(tensor, str(file), piece.offset, piece.length)
        else:
            _load(tensor, Piece(file, piece.offset, piece.length))
    for tensor in (one for one in outside_tensors(proto) if not piece_of(one).file.is_absolute()):
        piece = piece_of(tensor)
        _load(tensor, Piece(_inside(path, piece.file), piece.offset, piece.length))


def _load(tensor: TensorProto, piece: Piece) -> None:
    with piece.file.open("rb") as file:
        file.seek(piece.offset)
        tensor.raw_data = file.read(piece.length)
    tensor.ClearField("data_location")  # the same bytes as of a tensor that never lay elsewhere
    del tensor.external_data[:]


def load_inside(proto: ModelProto) -> ModelProto:
    """Return a copy with all weights in it."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for tensor in outside_tensors(copy):
        _load(tensor, piece_of(tensor))
    return copy


def _inside(path: Path, location: Path) -> Path:
    folder = path.parent.resolve()
    file = (folder / location).resolve()
    if location.is_absolute() or not file.is_relative_to(folder):
        raise InvalidFileError(
            f"{path}: its external data {str(location)!r} leads out of the model's folder", remedy=_REMEDY
        )
    return file


def _place(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def with_locations(proto: ModelProto, place: Callable[[Piece], tuple[str, int]]) -> bytes:
    """Return the serialized graph, each location and offset as `place` says."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for tensor in outside_tensors(copy):
        piece = piece_of(tensor)
        _place(tensor, *place(piece), piece.length)
    data: bytes = copy.SerializeToString(deterministic=True)
    return data


def for_engines(proto: ModelProto) -> Outside:
    """Return the graph with the weights where they lie now."""
    files = tuple(sorted({piece_of(one).file for one in outside_tensors(proto)}))
    folder = Path(os.path.commonpath([one.parent for one in files]))
    graph = with_locations(proto, lambda one: (one.file.relative_to(folder).as_posix(), one.offset))
    return Outside(graph, folder, files)


def layout_of(proto: ModelProto) -> Layout:
    """Return how all its outside weights lie in one file."""
    return lay_out([piece_of(one) for one in outside_tensors(proto)])


def in_one_file(proto: ModelProto, layout: Layout, name: str) -> bytes:
    """Return the serialized graph with all its outside weights in the file `name` beside it."""
    places = dict(zip(layout.pieces, layout.offsets, strict=True))
    return with_locations(proto, lambda one: (name, places[one]))


def without_outside(proto: ModelProto) -> ModelProto:
    """Return a copy with inputs in the place of the weights that lie outside: no tool has to open them."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    graph: GraphProto = copy.graph
    outside = [one for one in graph.initializer if one.data_location == TensorProto.EXTERNAL]
    stored = [one for one in graph.initializer if one.data_location != TensorProto.EXTERNAL]
    if not outside:
        return copy
    listed = {one.name for one in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in outside if one.name not in listed
    )
    del graph.initializer[:]
    graph.initializer.extend(stored)
    return copy


def with_outside(made: ModelProto, source: ModelProto) -> ModelProto:
    """Put the weights that lie outside back into what a tool made of `without_outside`, in place, and return it."""
    outside = {one.name: one for one in source.graph.initializer if one.data_location == TensorProto.EXTERNAL}
    if not outside:
        return made
    read = {name for node in made.graph.node for name in _reads(node)} | {one.name for one in made.graph.output}
    kept = [one for one in made.graph.input if one.name not in outside]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.extend(one for name, one in outside.items() if name in read)
    return made


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for one in graph.node:
                yield from _reads(one)
            yield from (one.name for one in graph.output)
