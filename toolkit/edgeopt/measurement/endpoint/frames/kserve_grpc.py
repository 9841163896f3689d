"""KServe's v2 interface over gRPC, by the package grpcio: messages as bytes, so that each stage is timed apart.

A client library such as Triton's makes, sends and reads a message in one call. Bytes go over the same channel here as
there, made before it and read after it. A unary call is asked for as one whose reply is a stream of one message: the
bytes on the network are the same, and the instant at which the head of the reply came is known.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

from edgeopt.errors import UnavailableError
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.endpoint.connection import MOST_REPLY, ServerPlace, open_socket, unreachable
from edgeopt.measurement.endpoint.frames.exchange import FrameExchange, Sample, StageClock
from edgeopt.measurement.endpoint.frames.http import WRONG, wrong
from edgeopt.measurement.endpoint.frames.kserve import (
    NAMES,
    TYPES,
    KServeModel,
    choose_model,
    no_such_model,
    picture_input,
    raw_tensor,
    shape_of_picture,
    specs_of,
    tensor_encodings,
    whole,
)
from edgeopt.measurement.endpoint.frames.own import encode_picture
from edgeopt.system.declared.optional import require
from edgeopt.system.text import short

_SERVICE: Final = "/inference.GRPCInferenceService/"
_MOST_TEXT = 200
_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MOST_REPLY),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each user
    ("grpc.enable_retries", 0),
)
_CONTENTS = {
    "bool": "bool_contents",
    **dict.fromkeys(("int8", "int16", "int32"), "int_contents"),
    "int64": "int64_contents",
    **dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents"),
    "uint64": "uint64_contents",
    "float32": "fp32_contents",
    "float64": "fp64_contents",
}
"""Field of a message that holds the numbers of a type."""


def _grpc() -> Any:
    return require("grpc", extra="grpc", purpose="a server that is asked over gRPC")


class GrpcFrames:
    """One channel, which is one connection."""

    def __init__(self, place: ServerPlace, timeout_s: float, server: GrpcServer | None = None) -> None:
        """Prepare; nothing is connected yet. Without a server only `call` is for use."""
        self._place, self._timeout_s, self._server = place, timeout_s, server
        self._grpc, self._calls = _grpc(), dict[str, Any]()
        host = f"[{place.host}]" if ":" in place.host else place.host
        address = f"{host}:{place.port}"
        if place.is_encrypted:
            self._channel = self._grpc.secure_channel(address, self._credentials(), options=_OPTIONS)
        else:
            self._channel = self._grpc.insecure_channel(address, options=_OPTIONS)
        self._metadata = (("authorization", f"Bearer {place.key}"),) if place.key else ()

    def _credentials(self) -> Any:
        """Return what a server's certificate is judged by: `SSL_CERT_FILE`, as over HTTP, else gRPC's own roots."""
        roots = None
        with suppress(KeyError, OSError):
            roots = Path(os.environ["SSL_CERT_FILE"]).read_bytes()
        return self._grpc.ssl_channel_credentials(roots)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def ask(self, sample: Sample, encoding: str, begun_ns: int = 0) -> FrameExchange:
        """Return one answer, as `FrameClient` has it."""
        clock, server = StageClock(begun_ns), self._server
        assert server is not None
        try:
            request = server.encode(sample, encoding)
            clock.serialized_ns, clock.request_bytes = perf_counter_ns(), len(request)
            reply = self._call("ModelInfer", request, clock)
            clock.reply_bytes = len(reply)
            return clock.end(outputs_of(reply))
        except self._grpc.RpcError as error:
            return clock.end(problem=_status(error))
        except WRONG as error:
            return clock.end(problem=f"the reply is no answer: {wrong(error)}")

    def round_trip_ns(self) -> int:
        """Return what the smallest request takes.

        Raises:
            OSError: If nobody answers.
        """
        begun_ns = perf_counter_ns()
        self.call("ServerLive", b"")
        return perf_counter_ns() - begun_ns

    def call(self, method: str, request: bytes) -> bytes:
        """Return the reply of a method.

        Raises:
            OSError: If nobody answers, or the server refuses; its own words are the text.
        """
        try:
            return self._call(method, request, StageClock(0))
        except self._grpc.RpcError as error:
            raise OSError(0, _status(error)) from error
        except ValueError as error:
            raise OSError(0, str(error)) from error

    def _call(self, method: str, request: bytes, clock: StageClock) -> bytes:
        if method not in self._calls:
            self._calls[method] = self._channel.unary_stream(f"{_SERVICE}{method}")
        clock.ready_ns = clock.sent_ns = perf_counter_ns()
        call = self._calls[method](request, timeout=self._timeout_s, metadata=self._metadata, wait_for_ready=False)
        call.initial_metadata()
        clock.first_ns = perf_counter_ns()
        reply: bytes | None = next(call, None)
        clock.last_ns = perf_counter_ns()
        if reply is None:
            raise ValueError("it is no message")
        for _ in call:  # the status comes behind the message
            call.cancel()
            raise ValueError("it is more than one message")
        return reply


@dataclass(frozen=True, slots=True)
class GrpcServer(KServeModel):
    """One model of a server that is asked over gRPC."""

    interface: str = "KServe v2 over gRPC"
    smallest: str = "ServerLive"
    tells_sending: bool = False

    @property
    def encodings(self) -> tuple[str, ...]:
        """How samples may be sent."""
        return ("jpeg", "png") if self.takes_files else tensor_encodings(self.inputs, "contents", "raw")

    def client(self) -> GrpcFrames:
        """Return a channel of its own; nothing is connected yet."""
        return GrpcFrames(self.place, self.timeout_s, self)

    def encode(self, sample: Sample, encoding: str) -> bytes:
        """Return a sample as the bytes of a request."""
        name, _, version = self.model.partition("/versions/")
        request = make_message("ModelInferRequest", model_name=name, model_version=version)
        if isinstance(sample, np.ndarray):
            spec = picture_input(self.inputs)
            assert spec is not None
            tensor = request.inputs.add(name=spec.name, datatype="BYTES", shape=shape_of_picture(spec))
            tensor.contents.bytes_contents.append(encode_picture(sample, encoding))
            return bytes(request.SerializeToString())
        for name, array in sample.items():
            tensor = request.inputs.add(name=name, datatype=NAMES[str(array.dtype)], shape=array.shape)
            if encoding == "raw":
                request.raw_input_contents.append(array.tobytes())
            else:
                getattr(tensor.contents, _CONTENTS[str(array.dtype)]).extend(array.ravel().tolist())
        return bytes(request.SerializeToString())


def outputs_of(reply: bytes) -> Tensors:
    """Return the outputs of a reply.

    Raises:
        ValueError: If it is no whole answer.
    """
    value = read_message("ModelInferResponse", reply)
    if not value.outputs:
        raise ValueError("it holds no outputs")
    outputs, raw = dict[str, NDArray[Any]](), list(value.raw_output_contents)
    for number, output in enumerate(value.outputs):
        if number < len(raw):
            outputs[output.name] = raw_tensor(output.datatype, output.shape, raw[number])
            continue
        dtype = TYPES.get(output.datatype, "object")
        field = _CONTENTS.get(dtype)
        if field is None:
            outputs[output.name] = np.array(list(output.contents.bytes_contents), object)
        else:
            outputs[output.name] = np.array(getattr(output.contents, field), dtype).reshape(whole(output.shape))
    return outputs


def open_grpc(place: ServerPlace, model: str, timeout_s: float) -> GrpcServer:
    """Return a model of a server, with what it says of its inputs.

    Args:
        place: Of gRPC.
        model: Empty: the only one that is ready.
        timeout_s: Of each request.

    Raises:
        UnavailableError: If there is no such model, or none is named and it is not the only one.
        MissingDependencyError: If grpcio is not installed.
    """
    _grpc()
    try:
        open_socket(place, timeout_s, ("h2",))[0].close()  # a channel would wait, and say less of what is wrong
    except OSError as error:
        raise unreachable(place, error) from error
    channel = GrpcFrames(place, timeout_s)
    try:
        _read(channel.call, "ServerLive", b"", "Empty", place)
        known = _ready(channel.call)
        name = choose_model(model, known, str(place))
        title, _, version = name.partition("/versions/")
        request = make_message("ModelMetadataRequest", name=title, version=version).SerializeToString()
        try:
            value = read_message("ModelMetadataResponse", channel.call("ModelMetadata", request))
        except OSError as error:
            raise no_such_model(name, known, str(place), str(error.strerror)) from error
        rows = [{"name": row.name, "datatype": row.datatype, "shape": row.shape} for row in value.inputs]
        inputs = specs_of(rows, name)
    except ValueError as error:
        raise _no_kserve(place, str(error)) from error
    finally:
        channel.close()
    return GrpcServer(place, name, inputs, timeout_s)


def _read(call: Callable[[str, bytes], bytes], method: str, request: bytes, reply: str, place: ServerPlace) -> Any:
    try:
        return read_message(reply, call(method, request))
    except OSError as error:
        raise _no_kserve(place, str(error.strerror)) from error


def _no_kserve(place: ServerPlace, problem: str) -> UnavailableError:
    return UnavailableError(
        f"{place} does not speak KServe's v2 interface: {short(problem)}",
        remedy="correct the address: gRPC has a port of its own, 8001 of Triton, 8081 of MLServer",
    )


def _ready(call: Callable[[str, bytes], bytes]) -> list[str]:
    """Return the models that are ready, by the extension for repositories; none where the server has it not."""
    try:
        value = read_message("RepositoryIndexResponse", call("RepositoryIndex", b""))
    except (OSError, ValueError):
        return []
    return [row.name for row in value.models if row.state.rpartition(".")[2] in ("", "READY")]  # MLServer: State.READY


def _status(error: Any) -> str:
    """Return why a call failed: gRPC's word, and the server's own."""
    words = " ".join(str(error.details() or "").split())[:_MOST_TEXT]
    return f"status {str(error.code().name).lower()}{f': {words}' if words else ''}"


# Messages of KServe's v2 interface over gRPC, as far as they are sent or read here.
#
# They are described here and not generated: generated code asks for a version of protobuf, and this works with any.
# The package protobuf comes with onnx. Fields that are not described, such as parameters, are skipped when a message
# is read.
#
# Source: open_inference_grpc.proto of https://github.com/kserve/open-inference-protocol.

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
