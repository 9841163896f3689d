"""Findings from the figures of a server of frames, and what to do about each."""

from __future__ import annotations

from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.endpoint.frames.result import EncodedTimes, FrameServerResult
from edgeopt.measurement.statistics.ratio import Change
from edgeopt.system.text import format_bytes, format_ms

_LARGE = 0.3
"""Share of a frame from which a stage that is no computing is named: mending it changes the frame's time for sure."""
_OFTEN = 0.5
"""Share of frames with a new connection from which it is the rule."""
_TOLD = 0.5
"""Share of the server's time that its own stages leave out, from which it is named."""
_WORTH = 1.1
"""So many times as fast, for sure, is worth another client."""
_DO = {
    "serialize": "send raw bytes instead of text, or a smaller picture",
    "wire": "send fewer bytes (a JPEG, a smaller picture), or move the server nearer",
    "download": "ask for fewer outputs, or have the server decode them",
    "parse": "take binary outputs, or have the server decode them",
}


def find_slow_parts(result: FrameServerResult) -> tuple[Finding, ...]:
    """Return what stands out, the most helpful first."""
    found_parts = [_connections(result), _encoding(result), *_stages(result.fastest), _in_front(result.fastest)]
    return tuple(finding for finding in found_parts if finding is not None)


def _connections(result: FrameServerResult) -> Finding | None:
    times = result.fastest
    if times.reconnects < _OFTEN * times.answers:
        return None
    cost = times.times["connect"].p50
    return Finding(
        "keep-alive",
        "the server closes each connection: a new one is made for each frame",
        f"{times.reconnects} of {times.answers} frames, {cost} ms each",
        "let it keep connections open (HTTP/1.1 with keep-alive), a proxy before it too",
    )


def _encoding(result: FrameServerResult) -> Finding | None:
    first, fastest = result.alone[0], result.fastest
    ratio = result.ratios.get(fastest.encoding)
    if ratio is None or ratio.verdict is not Change.FASTER or ratio.low < _WORTH:
        return None
    sizes = f"{format_bytes(round(fastest.request_bytes))} against {format_bytes(round(first.request_bytes))}"
    return Finding(
        "encoding",
        f"{fastest.encoding} is {ratio} as fast as {first.encoding}",
        f"{sizes} a request",
        f"send frames as {fastest.encoding}",
    )


def _stages(times: EncodedTimes) -> list[Finding]:
    frame = times.response.p50.value_ns
    if not frame:
        return []
    result = []
    for name, do in _DO.items():
        stage = times.times.get(name)
        median = stage.p50.value_ns if stage else None
        if median and median >= _LARGE * frame:
            evidence = f"{format_ms(median)} of {format_ms(frame)} ms, sent as {times.encoding}"
            result.append(Finding(name, f"{name} takes {median / frame:.0%} of a frame", evidence, do))
    return result


def _in_front(times: EncodedTimes) -> Finding | None:
    """Return that most of the server's time passes before or behind what it tells."""
    stage = times.times.get("server")
    whole = stage.p50.value_ms if stage else None
    tells = times.server_ms.get("total")
    if not whole or tells is None or whole - tells < _TOLD * whole:
        return None
    return Finding(
        "in front",
        f"{1 - tells / whole:.0%} of the server's time passes outside its own stages",
        f"{whole:.3g} ms seen from here, {tells:.3g} ms as it says",
        "look at what stands before it: a proxy, its HTTP server, a queue of connections",
    )
