"""The hash of a model whose weights were left in its file: that of the file that holds all, piece by piece."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from onnx import GraphProto, ModelProto, TensorProto

from edgeopt.graph.files.in_place import GRAPH, INITIALIZER, RAW
from edgeopt.graph.files.message_fields import fields_of, head_of
from edgeopt.graph.files.outside import StoredPiece, bytes_of_piece
from edgeopt.graph.files.outside_weights import piece_of


def sha256_of_whole(proto: ModelProto) -> str:
    """Return the hash of the serialized model with all its weights inside, which are read piece by piece."""
    digest = hashlib.sha256()
    light = ModelProto()
    light.CopyFrom(proto)
    light.ClearField("graph")
    graph = GraphProto()
    graph.CopyFrom(proto.graph)
    graph.ClearField("initializer")
    tensors = [_Tensor(tensor) for tensor in proto.graph.initializer]
    before, after = _split(graph.SerializeToString(deterministic=True), INITIALIZER)
    length = len(before) + len(after) + sum(len(tensor.head) + tensor.size for tensor in tensors)
    first, last = _split(light.SerializeToString(deterministic=True), GRAPH)
    digest.update(first + head_of(GRAPH, length) + before)
    for tensor in tensors:
        digest.update(tensor.head)
        for chunk in tensor.content():
            digest.update(chunk)
    digest.update(after + last)
    return digest.hexdigest()


class _Tensor:
    """A constant as it is serialized in a graph, its numbers inside."""

    def __init__(self, tensor: TensorProto) -> None:
        self._piece: StoredPiece | None = None
        if tensor.data_location == TensorProto.EXTERNAL:
            self._piece = piece_of(tensor)
            light = TensorProto()
            light.CopyFrom(tensor)
            light.ClearField("data_location")
            del light.external_data[:]
            self._before, self._after = _split(light.SerializeToString(deterministic=True), RAW)
            self._before += head_of(RAW, self._piece.length)
            self.size = len(self._before) + self._piece.length + len(self._after)
        else:
            self._before, self._after = tensor.SerializeToString(deterministic=True), b""
            self.size = len(self._before)
        self.head = head_of(INITIALIZER, self.size)

    def content(self) -> Iterator[bytes]:
        yield self._before
        if self._piece is not None:
            yield from bytes_of_piece(self._piece)
        yield self._after


def _split(serialized: bytes, number: int) -> tuple[bytes, bytes]:
    """Return the fields before and behind the place of a field that is not there; fields stand in their order."""
    at = 0
    for other, _, _, end in fields_of(serialized, 0, len(serialized)):
        if other > number:
            break
        at = end
    return serialized[:at], serialized[at:]
