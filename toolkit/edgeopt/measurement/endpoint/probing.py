"""Which interface a server speaks: OpenAI's, KServe's v2 over HTTP or gRPC, or edgeopt's own for frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgeopt.errors import UnavailableError
from edgeopt.measurement.endpoint.connection import ServerPlace, read_json, unreachable
from edgeopt.measurement.endpoint.frames.exchange import FrameEndpoint
from edgeopt.measurement.endpoint.frames.http import OK, HttpFrames
from edgeopt.measurement.endpoint.frames.kserve import open_kserve
from edgeopt.measurement.endpoint.frames.own import OwnServer

_NOT_ALLOWED = 405
"""The status of a path that is there, for another method."""
_OWN = "edgeopt"
_KSERVE = "/v2"


def find_frames(place: ServerPlace, model: str, timeout_s: float) -> FrameEndpoint | None:
    """Return the server of frames at an address; None: it is none, and may be one of a language model.

    Args:
        place: The address.
        model: The model that is asked; empty: the only one, or the first.
        timeout_s: Of each request.

    Raises:
        UnavailableError: If nobody answers there, or has no such model.
        UnsupportedError: If the model takes what is not sent here.
    """
    if place.is_grpc:
        from edgeopt.measurement.endpoint.frames.kserve_grpc import open_grpc

        return open_grpc(place, model, timeout_s)
    before, mark, behind = f"{place.path}/".partition(f"{_KSERVE}/")
    if mark:  # the address itself says so
        named = behind.strip("/").removeprefix("models").removesuffix("/infer").strip("/")
        return open_kserve(replace(place, path=f"{before}{_KSERVE}"), model or named, timeout_s)
    connection = HttpFrames(place, timeout_s)
    try:
        rows = _listed(connection, f"{place.path}/models")
        if rows is not None:
            own = [str(row.get("id")) for row in rows if row.get("owned_by") == _OWN]
            if not own or connection.get(f"{place.path}/frames")[0] != _NOT_ALLOWED:
                return None
            if model and model not in own:
                raise UnavailableError(f"no model {model!r} is at {place}", remedy=f"choose from: {', '.join(own)}")
            return OwnServer(place, own[0], timeout_s)
        kserve = replace(place, path=f"{place.path.removesuffix('/v1')}{_KSERVE}")
        is_kserve = connection.get(f"{kserve.path}/health/live")[0] == OK
    except OSError as error:
        raise unreachable(place, error) from error
    finally:
        connection.close()
    return open_kserve(kserve, model, timeout_s) if is_kserve else None


def _listed(connection: HttpFrames, path: str) -> list[dict[str, Any]] | None:
    """Return what a list of models holds, as OpenAI's servers have it; None: there is none."""
    status, body = connection.get(path)
    try:
        rows = read_json(body)["data"] if status == OK else None
    except (ValueError, KeyError, TypeError):
        return None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else None
