"""Weights outside of the graph's own file, as ONNX writes them: external data, here with whole paths.

Source: onnx.proto, TensorProto.external_data; locations in files are relative to the model's folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto, helper

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.outside import LEAST_BYTES, Outside, PieceLayout, StoredPiece, lay_out
from edgeopt.graph.subgraphs import stored_tensors
from edgeopt.system.disk.files import read_file, require_no_pointer
from edgeopt.system.disk.links import named_by

_REMEDY = "keep the external data files beside the model, whole"
_MOST_FILE_BYTES = 2**31
"""A protobuf holds no more."""
_PACKED_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}
"""Packed bits of the types of which a byte holds several numbers."""


def outside_tensors(proto: ModelProto) -> Iterator[TensorProto]:
    """Yield the constants whose numbers lie in other files."""
    return (
        stored_tensor
        for stored_tensor in stored_tensors(proto.graph)
        if stored_tensor.data_location == TensorProto.EXTERNAL
    )


def outside_files(path: Path) -> tuple[Path, ...]:
    """Return the files with weights that belong to an ONNX file and are there; none of a file of another kind."""
    try:
        proto = onnx.load_model_from_string(path.read_bytes())
    except (DecodeError, ValueError):
        return ()
    files = dict.fromkeys(named_by(path, piece_of(outside_tensor).file) for outside_tensor in outside_tensors(proto))
    return tuple(file for file in files if file is not None and file.is_file())


def piece_of(tensor: TensorProto) -> StoredPiece:
    """Return where the numbers of a tensor lie."""
    values = {entry.key: entry.value for entry in tensor.external_data}
    length = int(values["length"]) if values.get("length") else told_bytes(tensor)
    return StoredPiece(Path(values.get("location", "")), int(values.get("offset") or 0), length)


def told_bytes(tensor: TensorProto) -> int:
    """Return how many bytes a tensor takes by its shape and type; 0 where its type is unknown."""
    try:
        width = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        name = TensorProto.DataType.Name(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        return 0
    count = math.prod(max(size, 0) for size in tensor.dims)
    packed = _PACKED_BITS.get(name)
    return int(count * width) if packed is None else -(-count * packed // 8)


def read_outside(proto: ModelProto, path: Path, *, may_stay: bool) -> None:
    """Load the weights that lie in other files, or write whole paths in place of the relative ones, in place.

    Args:
        proto: As it was read, no external data loaded.
        path: Of the model.
        may_stay: Whether what is large and in the main graph stays where it is.

    Raises:
        InvalidFileError: If a file is absent, leads out of the model's tree or is too short.
    """
    main = proto.graph.initializer
    for tensor in (value for value in main if value.data_location == TensorProto.EXTERNAL):
        piece = _located(path, piece_of(tensor))
        if may_stay and piece.length >= LEAST_BYTES:
            _place(tensor, str(piece.file), piece.offset, piece.length)
        else:
            _load(tensor, piece)
    for tensor in islice(stored_tensors(proto.graph), len(main), None):
        if tensor.data_location == TensorProto.EXTERNAL:
            _load(tensor, _located(path, piece_of(tensor)))


def read_whole(path: Path, *, may_stay: bool = False) -> ModelProto:
    """Read an ONNX file with its weights, links followed; nothing of it is checked.

    Raises:
        InvalidFileError: As `read_outside`, or if it is no ONNX file.
    """
    try:
        proto = onnx.load_model_from_string(read_file(path, remedy="name an ONNX file", most_bytes=_MOST_FILE_BYTES))
    except (DecodeError, ValueError) as error:
        raise InvalidFileError(f"{path} is not an ONNX file, or is truncated", remedy="copy the file again") from error
    read_outside(proto, path, may_stay=may_stay)
    return proto


def followed(path: Path) -> bytes | Outside:
    """Return what an engine opens of an ONNX file whose links it would not follow: the graph, weights where they lie.

    Raises:
        InvalidFileError: As `read_whole`.
    """
    proto = read_whole(path, may_stay=True)
    if any(True for _ in outside_tensors(proto)):
        return for_engines(proto)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def bytes_of_tensor(tensor: TensorProto) -> bytes:
    """Return the numbers of a tensor as they lie in memory, wherever they are stored; of texts none."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return _read(piece_of(tensor))
    return bytes(tensor.raw_data)


def place_outside(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Let a tensor's numbers lie in another file, in place."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    _place(tensor, location, offset, length)


def _read(piece: StoredPiece) -> bytes:
    with piece.file.open("rb") as file:
        file.seek(piece.offset)
        return file.read(piece.length)


def _load(tensor: TensorProto, piece: StoredPiece) -> None:
    tensor.raw_data = _read(piece)
    tensor.ClearField("data_location")  # the same bytes as of a tensor that never lay elsewhere
    del tensor.external_data[:]


def load_inside(proto: ModelProto) -> ModelProto:
    """Return a copy with all weights in it."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for tensor in outside_tensors(copy):
        _load(tensor, piece_of(tensor))
    return copy


def _located(path: Path, piece: StoredPiece) -> StoredPiece:
    """Return where a piece really lies; raise InvalidFileError where it is not all there."""
    text = f"{path}: its external data {str(piece.file)!r}"
    file = None if piece.file.is_absolute() else named_by(path, piece.file)
    if file is None:
        raise InvalidFileError(f"{text} leads out of the model's folder", remedy=_REMEDY)
    if not file.is_file():
        raise InvalidFileError(f"{text} is missing", remedy=_REMEDY)
    if piece.offset < 0 or piece.length < 0:
        raise InvalidFileError(f"{text} begins at {piece.offset} and has {piece.length} bytes", remedy=_REMEDY)
    if file.stat().st_size < piece.offset + piece.length:
        require_no_pointer(file)
        raise InvalidFileError(f"{text} is shorter than the model says", remedy=_REMEDY)
    return StoredPiece(file.resolve(), piece.offset, piece.length)


def _place(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def with_locations(proto: ModelProto, place: Callable[[StoredPiece], tuple[str, int]]) -> bytes:
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
    files = tuple(sorted({piece_of(outside_tensor).file for outside_tensor in outside_tensors(proto)}))
    folder = Path(os.path.commonpath([file.parent for file in files]))
    graph = with_locations(proto, lambda piece: (piece.file.relative_to(folder).as_posix(), piece.offset))
    return Outside(graph, folder, files)


def layout_of(proto: ModelProto) -> PieceLayout:
    """Return how all its outside weights lie in one file."""
    return lay_out([piece_of(outside_tensor) for outside_tensor in outside_tensors(proto)])


def in_one_file(proto: ModelProto, layout: PieceLayout, name: str) -> bytes:
    """Return the serialized graph with all its outside weights in the file `name` beside it."""
    places = dict(zip(layout.pieces, layout.offsets, strict=True))
    return with_locations(proto, lambda piece: (name, places[piece]))


def without_outside(proto: ModelProto) -> ModelProto:
    """Return a copy with inputs in the place of the weights that lie outside: no tool has to open them."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    graph: GraphProto = copy.graph
    outside = [constant for constant in graph.initializer if constant.data_location == TensorProto.EXTERNAL]
    stored = [constant for constant in graph.initializer if constant.data_location != TensorProto.EXTERNAL]
    if not outside:
        return copy
    listed = {value_info.name for value_info in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(value.name, value.data_type, value.dims)
        for value in outside
        if value.name not in listed
    )
    del graph.initializer[:]
    graph.initializer.extend(stored)
    return copy


def with_outside(made: ModelProto, source: ModelProto) -> ModelProto:
    """Put the weights that lie outside back into what a tool made of `without_outside`, in place, and return it."""
    outside = {
        constant.name: constant
        for constant in source.graph.initializer
        if constant.data_location == TensorProto.EXTERNAL
    }
    if not outside:
        return made
    read = {name for node in made.graph.node for name in _reads(node)} | {
        value_info.name for value_info in made.graph.output
    }
    kept = [value_info for value_info in made.graph.input if value_info.name not in outside]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.extend(value for name, value in outside.items() if name in read)
    return made


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for value in graph.node:
                yield from _reads(value)
            yield from (value.name for value in graph.output)
