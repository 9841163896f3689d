"""One request to a server that speaks OpenAI's interface, and when each part of its reply was there."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPException, HTTPResponse
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

from edgeopt.errors import UnavailableError
from edgeopt.measurement.endpoint.connection import (
    MOST_NUMBER,
    EndlessError,
    NoHttpError,
    ServerPlace,
    TimedConnection,
    TimedReply,
    read_json,
    server_timing,
    unreachable,
    why,
)

_MOST_LINE = 1 << 20
_MOST_BODY = 1 << 22
_MOST_PIECES, _MOST_STREAM = 1 << 17, 1 << 26
"""Pieces of an answer, and bytes of its stream: what is longer does not end."""
_LONGEST_NAME = 500
"""Letters of the name of a model: it stands in each request."""
_OK = 200


@dataclass(frozen=True, slots=True)
class Exchange:
    """One answer, or why there is none; nanoseconds since the request should have been sent."""

    begun_ns: int
    """When it should have been sent, by `perf_counter_ns`."""
    connect_ns: int = 0
    """Until the connection stood: 0 where it did before."""
    headers_ns: int = 0
    """Until the head of the reply was there."""
    queue_ns: int | None = None
    """Nanoseconds that the request waited, as the server says; None: it does not say."""
    server_ttft_ms: float | None = None
    """Milliseconds from the queue's end to the first token, where the server says it."""
    server_tpot_ms: float | None = None
    """As it wrote them, where the server says it."""
    pieces_ns: tuple[int, ...] = ()
    """When each piece of text was there; alike for pieces of one read."""
    end_ns: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    """As the server counts them; where it does not, pieces."""
    is_counted: bool = False
    """Whether the server counted tokens."""
    text: str = ""
    """Words of the answer, without what the model thought or called."""
    problem: str = ""
    """Why there is no whole answer, in a few words that are alike for alike reasons; empty: there is."""

    @property
    def is_whole(self) -> bool:
        """Whether it was answered to its end."""
        return not self.problem

    @property
    def ttft_ns(self) -> int:
        """Until the first piece of text."""
        return self.pieces_ns[0]

    @property
    def tpot_ns(self) -> int:
        """Mean time of each token after the first; 0 where there is none."""
        return (self.pieces_ns[-1] - self.pieces_ns[0]) // max(self.output_tokens - 1, 1)

    @property
    def burst_ratio(self) -> float:
        """Share of its pieces that one read brought, at most."""
        return max(Counter(self.pieces_ns).values()) / len(self.pieces_ns)

    @property
    def gaps_ns(self) -> list[int]:
        """Times between its arrivals: pieces that one read brought are one."""
        arrivals = sorted(set(self.pieces_ns))
        return [after - before for before, after in pairwise(arrivals)]


class Client:
    """One connection, which stays open from request to request; one thread uses it."""

    def __init__(self, place: ServerPlace, timeout_s: float) -> None:
        """Prepare; nothing is connected yet."""
        self._place, self._timeout_s = place, timeout_s
        self._connection: TimedConnection | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def connect(self) -> int:
        """Connect anew; return how many nanoseconds it took, with the handshake where it is encrypted.

        Raises:
            OSError: If nobody answers there.
        """
        self.close()
        begun_ns = perf_counter_ns()
        self._connection = TimedConnection(self._place, self._timeout_s)
        self._connection.connect()
        return perf_counter_ns() - begun_ns

    def models(self) -> list[str]:
        """Return the names of the models that are there.

        Raises:
            UnavailableError: If no such server answers.
        """
        try:
            status, body = self._get("/models")
            result = read_json(body)["data"] if status == _OK else []
            return [name for value in result if len(name := str(value["id"])) <= _LONGEST_NAME]
        except OSError as error:
            raise unreachable(self._place, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise UnavailableError(
                f"{self._place}/models lists no models", remedy="name a server that speaks OpenAI's interface"
            ) from error

    def round_trip_ns(self) -> int:
        """Return what a request for the list of models takes on an open connection.

        Raises:
            OSError: If nobody answers.
        """
        if self._connection is None:
            self.connect()
        begun_ns = perf_counter_ns()
        self._get("/models")
        return perf_counter_ns() - begun_ns

    def ask(self, path: str, body: dict[str, Any], begun_ns: int = 0) -> Exchange:
        """Return one streamed answer, with the instants of its pieces; nothing that goes wrong is raised.

        Args:
            path: `/completions` or `/chat/completions`.
            body: Of the request; it asks for a stream with usage.
            begun_ns: When it should have been sent, by `perf_counter_ns`; 0: now.
        """
        begun_ns, connect_ns, headers_ns = begun_ns or perf_counter_ns(), 0, 0
        try:
            connect_ns, reply = self._post(f"{self._place.path}{path}", json.dumps(body))
            headers_ns = perf_counter_ns() - begun_ns
            if reply.status != _OK:
                text = _message(reply.read(_MOST_BODY))
                self.close()
                problem = f"status {reply.status}{f': {text}' if text else ''}"
                return Exchange(begun_ns, connect_ns, headers_ns, end_ns=perf_counter_ns() - begun_ns, problem=problem)
            assert isinstance(reply, TimedReply)
            return _read(reply, begun_ns, connect_ns, headers_ns)
        except (OSError, HTTPException, ValueError, ArithmeticError, MemoryError) as error:
            self.close()  # the last two where parts of a body have lengths that are none
            end_ns = perf_counter_ns() - begun_ns
            return Exchange(begun_ns, connect_ns, headers_ns, end_ns=end_ns, problem=why(error))

    def _post(self, path: str, body: str) -> tuple[int, HTTPResponse]:
        """Send a request; return what connecting took, 0 where that was not needed, and the reply."""
        if self._connection is not None:
            try:
                self._connection.request("POST", path, body, self._headers())
                return 0, self._connection.getresponse()
            except (ConnectionError, BadStatusLine):  # the server closed it while nobody asked, as it may
                pass
        connect_ns = self.connect()
        assert self._connection is not None
        self._connection.request("POST", path, body, self._headers())
        return connect_ns, self._connection.getresponse()

    def _headers(self) -> dict[str, str]:
        key = {"Authorization": f"Bearer {self._place.key}"} if self._place.key else {}
        return {"Content-Type": "application/json", "Accept": "text/event-stream", **key}

    def _get(self, path: str) -> tuple[int, bytes]:
        if self._connection is None:
            self.connect()
        assert self._connection is not None
        try:
            self._connection.request("GET", f"{self._place.path}{path}", headers=self._headers())
            reply = self._connection.getresponse()
            return reply.status, reply.read(_MOST_BODY)
        except (HTTPException, ValueError, ArithmeticError, MemoryError) as error:
            self.close()
            raise error if isinstance(error, OSError) else NoHttpError from error


def _message(body: bytes) -> str:
    try:
        return " ".join(str(read_json(body)["error"]["message"]).split())[:200]
    except (ValueError, KeyError, TypeError):
        return ""


def _read(reply: TimedReply, begun_ns: int, connect_ns: int, headers_ns: int) -> Exchange:
    """Read the events of a stream to its end."""
    pieces, problem, ttft_ms, tpot_ms, is_done = list[int](), "", None, None, False
    words = list[str]()
    usage, queue_ms = dict[str, Any](), server_timing(reply.getheader("Server-Timing", "")).get("queue")
    reply.reads.most_bytes = reply.reads.count + _MOST_STREAM
    while line := reply.readline(_MOST_LINE):
        if not line.startswith(b"data:"):
            continue
        at_ns = reply.reads.at_ns - begun_ns
        data = line[5:].strip()
        if data == b"[DONE]":
            is_done = True
            continue
        event = read_json(data)
        if not isinstance(event, dict):
            raise ValueError("an event is no object")
        if "error" in event:
            problem = f"broken off: {_message(data) or 'the server failed'}"
        pieces += [at_ns] * _has_text(event)
        if len(pieces) > _MOST_PIECES:
            raise EndlessError
        words += _words_of(event)
        if isinstance(event.get("usage"), dict):
            usage = event["usage"]
        if isinstance(own := event.get("edgeopt"), dict):
            queue_ms, ttft_ms = _number(own, "queue_ms", queue_ms), _number(own, "ttft_ms", ttft_ms)
            tpot_ms = _number(own, "tpot_ms", tpot_ms)
    end_ns = perf_counter_ns() - begun_ns
    reply.close()  # a body of a told length ends before http.client sees it, which then refuses the next request
    problem = problem or ("" if is_done else "the reply broke off") or ("" if pieces else "an answer without a text")
    return Exchange(
        begun_ns,
        connect_ns,
        headers_ns,
        None if queue_ms is None else int(queue_ms * 1e6),
        ttft_ms,
        tpot_ms,
        tuple(pieces),
        end_ns,
        int(_number(usage, "prompt_tokens", 0) or 0),
        int(_number(usage, "completion_tokens", 0) or len(pieces)),
        bool(usage),
        "".join(words),
        problem,
    )


def _number(values: dict[str, Any], key: str, otherwise: float | None) -> float | None:
    """Return a finite number that is not negative; what a server writes otherwise under that key tells nothing."""
    value = values.get(key)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MOST_NUMBER
    return float(value) if is_number else otherwise  # type: ignore[arg-type]


_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")
"""Fields of a delta that hold words a model wrote. vLLM, Ollama and OpenRouter send thinking as `reasoning`; DeepSeek,
SGLang and llama.cpp as `reasoning_content`."""
_PARTS = ("tool_calls", "function_call", "reasoning_details")
"""Fields of a delta that hold words of a model inside lists or objects: any that is not empty counts."""


def _has_text(event: dict[str, Any]) -> bool:
    """Return whether an event brings something that the model wrote, whether a reader is shown it or not."""
    choices = event.get("choices") or ()
    if not isinstance(choices, (list, tuple)):
        raise ValueError("choices are no list")
    has_text = False
    for choice in choices:
        if not isinstance(choice, dict):
            raise ValueError("a choice is no object")
        delta = choice.get("delta") or {}
        if not isinstance(delta, dict):
            raise ValueError("a delta is no object")
        has_text |= bool(choice.get("text") or any(delta.get(field) for field in (*_TEXTS, *_PARTS)))
    return has_text


def _words_of(event: dict[str, Any]) -> list[str]:
    """Return the words of an event that a reader is shown; its form was looked at before."""
    choices = event.get("choices") or ()
    texts = [choice.get("text") or (choice.get("delta") or {}).get("content") for choice in choices]
    return [text for text in texts if isinstance(text, str)]
