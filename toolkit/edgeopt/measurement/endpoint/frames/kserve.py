"""KServe's v2 interface over HTTP, as Triton, MLServer, OpenVINO Model Server and others speak it.

Source: Open Inference Protocol, https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol, and
its extension for binary tensors: the JSON of a request comes first, its length in `Inference-Header-Content-Length`,
then the bytes of each tensor, row by row, little-endian.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnavailableError, UnsupportedError
from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.measurement.endpoint.connection import ServerPlace, read_json, unreachable
from edgeopt.measurement.endpoint.frames.exchange import Sample
from edgeopt.measurement.endpoint.frames.http import OK, WRONG, HttpFrames, HttpMessage, wrong
from edgeopt.measurement.endpoint.frames.own import encode_picture
from edgeopt.system.text import short, shorten

TYPES: Mapping[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}
"""Element types of the protocol, and NumPy's words for them."""
NAMES = {dtype: name for name, dtype in TYPES.items()}
_BINARY_ONLY = ("FP16",)
"""Types that JSON has no numbers for, as the protocol has it."""
_MOST_RANK, _MOST_SIZE = 64, 2**40
"""Dimensions of an array of NumPy, and a size beyond that of any tensor."""
_HEAD = "Inference-Header-Content-Length"
_PICTURE = "BYTES"


def specs_of(rows: Any, model: str) -> tuple[TensorSpec, ...]:
    """Return what a model takes, of the metadata's `name`, `datatype` and `shape`.

    Raises:
        UnsupportedError: If a type is none that is sent here.
        ValueError: If it is no such list.
    """
    specs = []
    for row in rows:
        name, datatype = str(row["name"]), str(row["datatype"])
        if datatype not in TYPES:
            raise UnsupportedError(
                f"input {short(name)} of {model} is of type {short(datatype)}, which is not sent",
                remedy=f"measure a model whose inputs are of {', '.join(TYPES)}",
            )
        shape = tuple(size if size > 0 else None for size in _sizes(row["shape"]))
        specs.append(TensorSpec(name, TYPES[datatype], shape))
    return tuple(specs)


def _sizes(shape: Any) -> list[int]:
    """Return the sizes of a shape, which some servers write as texts.

    Raises:
        ValueError: If it is none.
    """
    sizes = [int(size) if isinstance(size, int | str) else size for size in shape]
    if len(sizes) > _MOST_RANK or not all(type(size) is int and abs(size) < _MOST_SIZE for size in sizes):
        raise ValueError(f"{short(shape)} is no shape")
    return sizes


def tensor_encodings(inputs: tuple[TensorSpec, ...], plain: str, raw: str) -> tuple[str, ...]:
    """Return how tensors may be sent: as numbers of the message itself, and as raw bytes behind it."""
    needs_raw = any(NAMES[spec.dtype] in _BINARY_ONLY for spec in inputs)
    return (raw,) if needs_raw else (plain, raw)


def picture_input(inputs: tuple[TensorSpec, ...]) -> TensorSpec | None:
    """Return the input that takes a picture as a file: the only one, of bytes."""
    return inputs[0] if len(inputs) == 1 and NAMES[inputs[0].dtype] == _PICTURE else None


def shape_of_picture(spec: TensorSpec) -> list[int]:
    """Return the shape of an input that holds one element."""
    return [1] * max(len(spec.shape), 1)


@dataclass(frozen=True, slots=True)
class KServeModel:
    """One model of a server, whatever it is asked over."""

    place: ServerPlace
    model: str
    inputs: tuple[TensorSpec, ...]
    timeout_s: float

    @property
    def takes_files(self) -> bool:
        """Whether a picture goes as a file."""
        return picture_input(self.inputs) is not None


@dataclass(frozen=True, slots=True)
class KServeServer(KServeModel):
    """One model of a server that is asked over HTTP."""

    interface: str = "KServe v2 over HTTP"
    smallest: str = "GET /v2/health/live"
    tells_sending: bool = True

    @property
    def smallest_path(self) -> str:
        """The path of the smallest request."""
        return f"{self.place.path}/health/live"

    @property
    def encodings(self) -> tuple[str, ...]:
        """How samples may be sent."""
        return ("jpeg", "png", "base64") if self.takes_files else tensor_encodings(self.inputs, "json", "binary")

    def client(self) -> HttpFrames:
        """Return a connection of its own; nothing is connected yet."""
        return HttpFrames(self.place, self.timeout_s, self)

    def encode(self, sample: Sample, encoding: str) -> HttpMessage:
        """Return a sample as a request."""
        if isinstance(sample, np.ndarray):
            spec = picture_input(self.inputs)
            assert spec is not None
            data = encode_picture(sample, "jpeg" if encoding == "base64" else encoding)
            tensor = {"name": spec.name, "shape": shape_of_picture(spec), "datatype": _PICTURE}
            if encoding == "base64":
                content = {"parameters": {"content_type": "base64"}, "data": [b64encode(data).decode()]}
                return self._message({"inputs": [{**tensor, **content}]}, [])
            return self._message({"inputs": [tensor]}, [len(data).to_bytes(4, "little") + data])
        inputs = [
            {"name": name, "shape": list(array.shape), "datatype": NAMES[str(array.dtype)]}
            for name, array in sample.items()
        ]
        if encoding == "json":
            values = zip(inputs, sample.values(), strict=True)
            return self._message({"inputs": [{**each, "data": array.ravel().tolist()} for each, array in values]}, [])
        return self._message({"inputs": inputs}, [array.tobytes() for array in sample.values()])

    def _message(self, request: dict[str, Any], parts: list[bytes]) -> HttpMessage:
        """Return a request; each part is the bytes of an input, in their order."""
        path, headers = f"{self.place.path}/models/{quote(self.model)}/infer", {"Content-Type": "application/json"}
        if not parts:
            return HttpMessage(path, headers, json.dumps(request).encode())
        for tensor, part in zip(request["inputs"], parts, strict=True):
            tensor["parameters"] = {"binary_data_size": len(part)}
        head = json.dumps({**request, "parameters": {"binary_data_output": True}}).encode()
        headers = {"Content-Type": "application/octet-stream", _HEAD: str(len(head))}
        return HttpMessage(path, headers, b"".join((head, *parts)))

    def decode(self, headers: Mapping[str, str], body: bytes) -> Tensors | None:
        """Return the outputs of a reply.

        Raises:
            ValueError: If it is no whole answer.
        """
        length = headers.get(_HEAD.lower(), "")
        end = int(length) if length.isdecimal() else len(body)
        value, rest = read_json(body[:end]), memoryview(body)[end:]
        if not isinstance(value, dict) or not value.get("outputs"):
            raise ValueError("it holds no outputs")
        outputs = dict[str, NDArray[Any]]()
        for row in value["outputs"]:
            size = (row.get("parameters") or {}).get("binary_data_size")
            if size is not None and not (type(size) is int and 0 <= size <= len(rest)):
                raise ValueError(f"an output has {short(size)} bytes of {len(rest)}")
            if size is None:
                outputs[str(row["name"])] = typed(row, row["data"])
            else:
                outputs[str(row["name"])], rest = raw_tensor(row["datatype"], row["shape"], rest[:size]), rest[size:]
        return outputs


def typed(row: Mapping[str, Any], data: Any) -> NDArray[Any]:
    """Return an output whose numbers stand in JSON, flat or nested.

    Raises:
        ValueError: If there are more or fewer than its shape says.
    """
    array = np.array(data, TYPES.get(str(row["datatype"]), "object"))
    return array if array.dtype == object else array.reshape(whole(row["shape"]))


def raw_tensor(datatype: str, shape: Any, data: memoryview | bytes) -> NDArray[Any]:
    """Return an output whose bytes came; of texts only how many bytes there are is read.

    Raises:
        ValueError: If there are more or fewer than its shape says.
    """
    dtype, sizes = TYPES.get(str(datatype), "object"), whole(shape)
    if dtype == "object":
        return np.frombuffer(data, np.uint8)
    wanted = math.prod(sizes) * np.dtype(dtype).itemsize
    if len(data) != wanted:
        raise ValueError(f"an output has {len(data)} bytes, its shape says {wanted}")
    return np.frombuffer(data, dtype).reshape(sizes)


def whole(shape: Any) -> list[int]:
    """Return the sizes of an output.

    Raises:
        ValueError: If one is free.
    """
    sizes = _sizes(shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"an output has the shape {short(shape)}")
    return sizes


def open_kserve(place: ServerPlace, model: str, timeout_s: float) -> KServeServer:
    """Return a model of a server, with what it says of its inputs.

    Args:
        place: Its path ends in `/v2`.
        model: Empty: the only one that is ready.
        timeout_s: Of each request.

    Raises:
        UnavailableError: If there is no such model, or none is named and it is not the only one.
        UnsupportedError: If an input has a type that is not sent here.
    """
    connection = HttpFrames(place, timeout_s)
    try:
        known = _ready(connection, place)
        name = choose_model(model, known, str(place))
        status, body = connection.get(f"{place.path}/models/{quote(name)}")
        if status != OK:
            raise no_such_model(name, known, str(place), f"status {status}")
        inputs = specs_of(read_json(body).get("inputs") or (), name)
    except OSError as error:
        raise unreachable(place, error) from error
    except WRONG as error:
        raise UnavailableError(
            f"{place} says of its models what is no metadata: {wrong(error)}",
            remedy="see the server's log",
        ) from error
    finally:
        connection.close()
    return KServeServer(place, name, inputs, timeout_s)


def choose_model(model: str, known: list[str], where: str) -> str:
    """Return the model that is asked: the one that is named, or the only one.

    Raises:
        UnavailableError: If none is named and it is not the only one.
    """
    if model or len(known) == 1:
        return model or known[0]
    count = f"{len(known)} models" if known else "models that it does not list"
    choice = f": choose from {_listed(known)}" if known else ""
    raise UnavailableError(f"{where} serves {count}, and none is named", remedy=f"name one with --model{choice}")


def _listed(known: list[str]) -> str:
    return ", ".join(shorten(name, 60) for name in known[:9])


def no_such_model(name: str, known: list[str], where: str, problem: str) -> UnavailableError:
    """Return the error of a model that a server does not know."""
    remedy = f"choose from: {_listed(known)}" if known else "correct --model"
    return UnavailableError(f"no model {short(name)} is at {where}: {problem}", remedy=remedy)


def _ready(connection: HttpFrames, place: ServerPlace) -> list[str]:
    """Return the models that are ready, by the extension for repositories; none where the server has it not."""
    message = HttpMessage(f"{place.path}/repository/index", {"Content-Type": "application/json"}, b"{}")
    status, body = connection.request("POST", message)
    rows = read_json(body) if status == OK else []
    if not isinstance(rows, list):
        return []
    return [str(row["name"]) for row in rows if str(row.get("state", "READY")) == "READY"]
