"""Messages of KServe's v2 interface over gRPC, as far as they are sent or read here.

They are described here and not generated: generated code asks for a version of protobuf, and this works with any. The
package protobuf comes with onnx. Fields that are not described, such as parameters, are skipped when a message is read.

Source: open_inference_grpc.proto of https://github.com/kserve/open-inference-protocol.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "inference"
_KINDS = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _KINDS.TYPE_BOOL,
    "int32": _KINDS.TYPE_INT32,
    "int64": _KINDS.TYPE_INT64,
    "uint32": _KINDS.TYPE_UINT32,
    "uint64": _KINDS.TYPE_UINT64,
    "float": _KINDS.TYPE_FLOAT,
    "double": _KINDS.TYPE_DOUBLE,
    "string": _KINDS.TYPE_STRING,
    "bytes": _KINDS.TYPE_BYTES,
}
_MESSAGES = {
    "Empty": "",
    "ModelMetadataRequest": "1 name string, 2 version string",
    "TensorMetadata": "1 name string, 2 datatype string, 3 shape int64*",
    "ModelMetadataResponse": "1 name string, 2 versions string*, 3 platform string, 4 inputs TensorMetadata*, "
    "5 outputs TensorMetadata*",
    "InferTensorContents": "1 bool_contents bool*, 2 int_contents int32*, 3 int64_contents int64*, "
    "4 uint_contents uint32*, 5 uint64_contents uint64*, 6 fp32_contents float*, 7 fp64_contents double*, "
    "8 bytes_contents bytes*",
    "InferTensor": "1 name string, 2 datatype string, 3 shape int64*, 5 contents InferTensorContents",
    "ModelInferRequest": "1 model_name string, 2 model_version string, 3 id string, 5 inputs InferTensor*, "
    "7 raw_input_contents bytes*",
    "ModelInferResponse": "1 model_name string, 2 model_version string, 3 id string, 5 outputs InferTensor*, "
    "6 raw_output_contents bytes*",
    "ModelIndex": "1 name string, 2 version string, 3 state string",
    "RepositoryIndexResponse": "1 models ModelIndex*",
}
"""Number, name and type of each field; `*`: repeated."""


def make_message(name: str, /, **values: Any) -> Any:
    """Return a new message of this name, such as `ModelInferRequest`."""
    return _classes()[name](**values)


def read_message(name: str, data: bytes) -> Any:
    """Return the message that bytes hold.

    Raises:
        ValueError: If they hold none.
    """
    try:
        return _classes()[name].FromString(data)
    except Exception as error:  # protobuf's own DecodeError is no ValueError
        raise ValueError(f"it is no {name}") from error


@cache
def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="edgeopt/inference.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in (words.split() for words in fields.split(", ") if words):
            made = message.field.add(name=field, number=int(number))
            made.label = _KINDS.LABEL_REPEATED if kind.endswith("*") else _KINDS.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            if kind in _SCALARS:
                made.type = _SCALARS[kind]
            else:
                made.type, made.type_name = _KINDS.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = (
        descriptor_pool.DescriptorPool()
    )  # of its own: a client library may have put its own messages into the common
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }
