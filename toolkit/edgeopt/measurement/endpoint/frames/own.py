"""The interface of edgeopt's own server: `/v1/frames` takes a picture as a file, and says what its stages took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np

from edgeopt.graph.tensors import Tensors, TensorSpec
from edgeopt.measurement.endpoint.connection import ServerPlace, read_json
from edgeopt.measurement.endpoint.frames.exchange import Sample
from edgeopt.measurement.endpoint.frames.http import HttpFrames, HttpMessage

PICTURES: Mapping[str, tuple[str, str]] = {
    "jpeg": (".jpg", "image/jpeg"),
    "png": (".png", "image/png"),
    "bmp": (".bmp", "image/bmp"),
}
"""Files that a picture can be sent as: OpenCV's suffix and the type of the body. A BMP is raw pixels behind a head."""


def encode_picture(sample: Sample, encoding: str) -> bytes:
    """Return a picture as a file, a JPEG at OpenCV's own quality, 95."""
    assert isinstance(sample, np.ndarray)
    _, data = cv2.imencode(PICTURES[encoding][0], sample)
    return data.tobytes()


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A server of `edgeopt serve` with a model of pictures."""

    place: ServerPlace
    model: str
    timeout_s: float
    interface: str = "edgeopt's /v1/frames"
    inputs: tuple[TensorSpec, ...] = ()
    encodings: tuple[str, ...] = tuple(PICTURES)
    smallest: str = "GET /healthz"
    smallest_path: str = "/healthz"
    tells_sending: bool = True
    takes_files: bool = True

    def client(self) -> HttpFrames:
        """Return a connection of its own; nothing is connected yet."""
        return HttpFrames(self.place, self.timeout_s, self)

    def encode(self, sample: Sample, encoding: str) -> HttpMessage:
        """Return a picture as a request."""
        headers = {"Content-Type": PICTURES[encoding][1], "Accept": "application/json"}
        return HttpMessage(f"{self.place.path}/frames", headers, encode_picture(sample, encoding))

    def decode(self, headers: Mapping[str, str], body: bytes) -> Tensors | None:
        """Read an answer; it is no tensors.

        Raises:
            ValueError: If it is none.
        """
        del headers
        if not isinstance(value := read_json(body), dict) or "answer" not in value:
            raise ValueError("it holds no answer")
        return None
