"""Servers that are broken or mean harm: each ends in one line, in time and in little memory."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from time import sleep
from typing import Any

import numpy as np
import pytest

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.measurement.bench.run import bench as bench_block
from edgeopt.measurement.endpoint import client as texts
from edgeopt.measurement.endpoint import connection
from edgeopt.measurement.endpoint.client import Client
from edgeopt.measurement.endpoint.connection import parse_place, server_timing
from edgeopt.measurement.endpoint.frames import kserve_grpc
from edgeopt.measurement.endpoint.frames.kserve import KServeServer, open_kserve, specs_of
from edgeopt.measurement.endpoint.frames.kserve_grpc import make_message
from edgeopt.measurement.endpoint.frames.samples import samples_for
from edgeopt.workloads.endpoint import bench as endpoint_bench
from edgeopt.workloads.endpoint.options import EndpointBench

Reply = bytes | Iterable[bytes]
TIMEOUT_S = 0.5
MODELS = json.dumps({"data": [{"id": "m", "owned_by": "me"}]}).encode()
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
META = json.dumps({"name": "m", "inputs": [TENSOR], "outputs": []}).encode()
INDEX = json.dumps([{"name": "m", "state": "READY"}]).encode()
OUTPUT = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 0.25]}


def http(body: bytes, *headers: str, status: int = 200) -> bytes:
    lines = "".join(f"{line}\r\n" for line in headers)
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def raw(head: str, *parts: Iterable[bytes]) -> Iterator[bytes]:
    return itertools.chain([f"HTTP/1.1 200 X\r\n{head}\r\n\r\n".encode()], *parts)


def slowly(data: bytes = b"x") -> Iterator[bytes]:
    while True:
        sleep(TIMEOUT_S / 4)
        yield data


@contextmanager
def serving(answer: Callable[[str], Reply]) -> Iterator[str]:
    """Serve what a function makes of the path of each request, until the block ends."""
    listening, is_over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def one(accepted: socket.socket) -> None:
        with suppress(OSError), accepted:
            while not is_over.is_set():
                data = b""
                while b"\r\n\r\n" not in data:
                    if not (part := accepted.recv(1 << 16)):
                        return
                    data += part
                head, _, rest = data.partition(b"\r\n\r\n")
                length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
                while len(rest) < length:
                    rest += accepted.recv(1 << 16)
                reply = answer(head.split(b" ")[1].decode())
                if isinstance(reply, bytes):
                    accepted.sendall(reply)
                    continue
                for part in reply:
                    accepted.sendall(part)
                    if is_over.is_set():
                        return
                return

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        is_over.set()
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def bench(url: str, timeout_s: float = 20.0) -> Any:
    return bench_block(endpoint_bench, url, EndpointBench(timeout_s=timeout_s, seconds=0.05))


def refusal(answer: Callable[[str], Reply]) -> str:
    with serving(answer) as url, pytest.raises(EdgeoptError) as refused:
        bench(url, TIMEOUT_S)
    assert "\n" not in refused.value.problem
    assert len(refused.value.problem) < 400
    return refused.value.problem


@pytest.fixture
def small(monkeypatch):
    """Limits that are reached at once."""
    monkeypatch.setattr(connection, "MOST_REPLY", 1 << 20)
    monkeypatch.setattr(connection, "_MOST_TIMEOUTS", 2)
    monkeypatch.setattr(texts, "_MOST_STREAM", 1 << 20)
    monkeypatch.setattr(texts, "_MOST_PIECES", 1 << 10)


ENDLESS = raw("Transfer-Encoding: chunked", itertools.repeat(b"400\r\n" + b"x" * 1024 + b"\r\n"))
FIRST = {
    "nothing": lambda: iter(()),
    "garbage": lambda: iter([b"\x16\x03\x01" * 100]),
    "a head without end": lambda: itertools.chain([b"HTTP/1.1 200 X\r\n"], (b"a%d: b\r\n" % i for i in range(10**9))),
    "a line without end": lambda: itertools.chain([b"HTTP/1.1 200 "], itertools.repeat(b"x" * 65536)),
    "continue without end": lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "a head that drips": lambda: itertools.chain([b"HTTP/1.1 200 X\r\n"], slowly(b"a: b\r\n")),
    "a body that drips": lambda: raw("Content-Length: 1000", slowly()),
    "silence": lambda: raw("Content-Length: 9", slowly_nothing()),
    "a length of 10^30": lambda: raw(f"Content-Length: {10**30}", [b"{}"]),
    "a negative length": lambda: raw("Content-Length: -5", [b"{}"]),
    "a short body": lambda: raw("Content-Length: 99", [b"{}"]),
    "a length that is a word": lambda: raw("Content-Length: many", [b"{}"]),
    "chunks of no length": lambda: raw("Transfer-Encoding: chunked", [b"zz\r\n{}\r\n"]),
    "chunks of negative length": lambda: raw("Transfer-Encoding: chunked", [b"-5\r\n{}\r\n"]),
    "chunks of huge length": lambda: raw("Transfer-Encoding: chunked", [b"f" * 40 + b"\r\n{}\r\n"]),
    "chunks without end": lambda: raw("Transfer-Encoding: chunked", itertools.repeat(b"9\r\n" + b"[" * 9 + b"\r\n")),
    "a redirect": lambda: iter([http(b"", "Location: /v1/models", status=302)]),
    "a bomb": lambda: iter([http(gzip.compress(bytes(1 << 24)), "Content-Encoding: gzip")]),
    "deep json": lambda: iter([http(b"[" * 100_000)]),
    "long numbers": lambda: iter([http(b'{"data": [{"id": 1' + b"0" * 5000 + b"}]}")]),
    "models that are none": lambda: iter([http(b'{"data": [1, null, {"id": []}, {"owned_by": "edgeopt"}]}')]),
}


@pytest.mark.parametrize("make", FIRST.values(), ids=FIRST.keys())
def test_the_first_answer_may_be_anything(make, small):
    refusal(lambda _: make())


def stream(*events: object, head: tuple[str, ...] = ()) -> bytes:
    lines = b"".join(
        b"data: %s\n\n" % (each if isinstance(each, bytes) else json.dumps(each).encode()) for each in events
    )
    return http(lines, *head)


def text_server(answer: Callable[[], Reply]) -> Callable[[str], Reply]:
    def reply(path: str) -> Reply:
        if path.endswith("/models"):
            return http(MODELS)
        return answer() if "completions" in path else http(b"", status=404)

    return reply


WORD = {"choices": [{"text": "a"}]}
STREAMS = {
    "events without end": (lambda: raw("", itertools.repeat(b'data: {"choices": [{"text": "a"}]}\n')), "does not end"),
    "a line without end": (lambda: raw("", itertools.repeat(b"x" * 65536)), "does not end"),
    "comments that drip": (lambda: raw("", slowly(b": ping\n\n")), "no reply in time"),
    "choices that are mixed": (lambda: stream({"choices": [{"text": "a"}, 5]}, b"[DONE]"), "a choice is no object"),
    "deltas that are mixed": (
        lambda: stream({"choices": [{"text": "a"}, {"delta": "b"}]}, b"[DONE]"),
        "a delta is no object",
    ),
    "deep events": (lambda: stream(b"[" * 100_000), "nested too deeply"),
    "no json": (lambda: stream(b"{"), "no stream of events"),
    "chunks of huge length": (lambda: raw("Transfer-Encoding: chunked", [b"f" * 40 + b"\r\nx"]), "broke off|no stream"),
    "chunks of negative length": (lambda: raw("Transfer-Encoding: chunked", [b"-1\r\nx"]), "broke off|no stream"),
    "an error of several lines": (
        lambda: http(json.dumps({"error": {"message": "a\n\x1b[2Jb"}}).encode(), status=500),
        "status 500: a ",
    ),
}


@pytest.mark.parametrize(("make", "problem"), STREAMS.values(), ids=STREAMS.keys())
def test_a_stream_may_be_anything(make, problem, small):
    assert re.search(problem, refusal(text_server(make)))


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": -5, "completion_tokens": "many"}, {"prompt_tokens": 10**400}])
@pytest.mark.parametrize("timing", ["queue;dur=nan", "queue;dur=inf", "queue;dur=-5", "queue;dur=1e999", ";;;=,,"])
def test_numbers_that_are_none_tell_nothing_and_cost_no_answer(usage, timing):
    own = {"edgeopt": {"queue_ms": float("nan"), "ttft_ms": -1, "tpot_ms": float("inf")}}
    reply = stream(WORD, WORD, {"choices": [], "usage": usage, **own}, b"[DONE]", head=(f"Server-Timing: {timing}",))
    with serving(text_server(lambda: reply)) as url:
        exchange = Client(parse_place(url), TIMEOUT_S).ask("/completions", {})
    assert exchange.is_whole
    assert exchange.queue_ns is exchange.server_ttft_ms is exchange.server_tpot_ms is None
    assert exchange.output_tokens == 2


def test_a_name_of_megabytes_is_none():
    names = json.dumps({"data": [{"id": "x" * (1 << 20)}, {"id": "m"}]}).encode()
    with serving(lambda _: http(names)) as url:
        assert Client(parse_place(url), 20.0).models() == ["m"]


def test_a_server_that_counts_a_billion_tokens_a_word_is_not_believed():
    counts = itertools.count(1)

    def reply() -> bytes:
        usage = {"prompt_tokens": 10**9 * next(counts), "completion_tokens": 2}
        return stream(WORD, WORD, {"choices": [], "usage": usage}, b"[DONE]")

    with serving(text_server(reply)) as url:
        result = bench(url)
    assert any("lengths of prompts are guesses" in str(note) for note in result.notes)


@pytest.mark.parametrize(
    ("header", "stages"),
    [
        ('queue;dur=1.5, total;desc="a b";dur=3', {"queue": 1.5, "total": 3.0}),
        ("a;dur=1" + "0" * 400 + ", b;dur=, c, d;dur=-1, e;dur=nan", {}),
        ("a" * 60_000 + ";" * 5000, {}),
        (",".join(f"s{i};dur=1" for i in range(5000)), {f"s{i}": 1.0 for i in range(32)}),
    ],
)
def test_durations_of_a_header(header, stages):
    assert server_timing(header) == stages


def kserve(infer: Callable[[], Reply], meta: bytes = META, index: bytes = INDEX) -> Callable[[str], Reply]:
    def reply(path: str) -> Reply:
        known = {"/v2/health/live": b"{}", "/v2/repository/index": index, "/v2/models/m": meta}
        if path in known:
            return http(known[path])
        return infer() if path.endswith("/infer") else http(b"{}", status=404)

    return reply


def outputs(**more: Any) -> bytes:
    return http(json.dumps({"outputs": [{**OUTPUT, **more}]}).encode())


INFERS = {
    "no json": lambda: http(b"x"),
    "no object": lambda: http(b"[1]"),
    "no outputs": lambda: http(b"{}"),
    "outputs that are numbers": lambda: http(b'{"outputs": [1]}'),
    "outputs that are a word": lambda: http(b'{"outputs": "yes"}'),
    "an output without a name": lambda: http(b'{"outputs": [{}]}'),
    "a shape of 10^12": lambda: outputs(shape=[10**12]),
    "a shape of infinity": lambda: outputs(shape=[float("inf")]),
    "a negative shape": lambda: outputs(shape=[-1, -2]),
    "a shape of words": lambda: outputs(shape=["a"]),
    "a shape of many dimensions": lambda: outputs(shape=[1] * 10_000),
    "numbers out of range": lambda: outputs(datatype="INT8", data=[10**30, 1]),
    "numbers that are words": lambda: outputs(data=["a", "b"]),
    "numbers of another count": lambda: outputs(data=[1.0] * 3),
    "bytes that are not there": lambda: outputs(data=None, parameters={"binary_data_size": 10**12}),
    "bytes of a negative size": lambda: outputs(data=None, parameters={"binary_data_size": -8}),
    "bytes of a size that is a word": lambda: outputs(data=None, parameters={"binary_data_size": "8"}),
    "parameters that are a word": lambda: outputs(parameters="all"),
    "a body without end": lambda: raw("Content-Type: x", itertools.repeat(b"x" * 65536)),
    "a body that drips": lambda: raw("Content-Length: 1000", slowly()),
    "a bomb": lambda: http(zlib.compress(bytes(1 << 24)), "Content-Encoding: deflate"),
    "nothing": lambda: iter(()),
    "a refusal in several lines": lambda: http(json.dumps({"error": "a\nb\x1b[2J"}).encode(), status=400),
}


@pytest.mark.parametrize("make", INFERS.values(), ids=INFERS.keys())
def test_an_answer_to_a_frame_may_be_anything(make, small):
    assert "m answers no frame: " in refusal(kserve(make))


METAS = {
    "no object": b"[]",
    "inputs that are a word": b'{"inputs": "x"}',
    "inputs without a type": b'{"inputs": [{"name": "x"}]}',
    "a type that is none": json.dumps({"inputs": [{**TENSOR, "datatype": "FP4"}]}).encode(),
    "a shape of infinity": b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [Infinity]}]}',
    "a shape of 10^400": b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1' + b"0" * 400 + b"]}]}",
    "a shape of 10^12": json.dumps({"inputs": [{**TENSOR, "shape": [1, 10**12]}]}).encode(),
    "a shape of 10^10": json.dumps({"inputs": [{**TENSOR, "shape": [10**5, 10**5]}]}).encode(),
    "a shape that is a number": json.dumps({"inputs": [{**TENSOR, "shape": 5}]}).encode(),
    "a shape of many dimensions": json.dumps({"inputs": [{**TENSOR, "shape": [1] * 10_000}]}).encode(),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("meta", METAS.values(), ids=METAS.keys())
def test_what_a_server_says_of_its_inputs_may_be_anything(meta):
    refusal(kserve(lambda: outputs(), meta))


@pytest.mark.parametrize("index", [b"5", b"[1]", b"[{}]", b'[{"name": "' + b"n" * 9999 + b'"}]', b"x", b"[" * 100_000])
def test_what_a_server_says_of_its_models_may_be_anything(index):
    refusal(kserve(lambda: outputs(), index=index))


def test_a_right_server_is_measured():
    with serving(kserve(outputs)) as url:
        result = bench(url)
    assert result.alone[0].answers > 5
    assert not result.alone[0].problems


def test_a_sample_that_memory_does_not_hold_is_not_made_up(tmp_path):
    spec = specs_of([{**TENSOR, "shape": [1, 2**36]}], "m")
    server = KServeServer(parse_place("http://127.0.0.1:1/v2"), "m", spec, 1.0)
    with pytest.raises(UnsupportedError, match="are free") as refused:
        samples_for(server, None, None, {})
    assert "--shape" in refused.value.remedy
    assert np.prod(server.inputs[0].shape) == 2**36


def test_names_of_models_of_any_length_fit_into_a_line():
    rows = json.dumps([{"name": letter * 5000, "state": "READY"} for letter in "ab"]).encode()
    with serving(kserve(outputs, index=rows)) as url, pytest.raises(EdgeoptError) as refused:
        open_kserve(parse_place(f"{url}/v2"), "", TIMEOUT_S)
    assert len(refused.value.remedy) < 300


def message(name: str, **values: Any) -> bytes:
    return bytes(make_message(name, **values).SerializeToString())


def grpc_outputs(shape: Iterable[int], datatype: str = "FP32", **more: Any) -> list[bytes]:
    output = {"name": "y", "datatype": datatype, "shape": list(shape), **more}
    return [message("ModelInferResponse", outputs=[output])]


GRPC_INFERS: dict[str, tuple[Callable[[], Iterable[bytes]], str]] = {
    "nothing": (list, "it is no message"),
    "two messages": (lambda: grpc_outputs([0]) * 2, "more than one message"),
    "messages without end": (lambda: itertools.repeat(b""), "more than one message"),
    "garbage": (lambda: [b"\xff" * 99], "it is no ModelInferResponse"),
    "no outputs": (lambda: [b""], "it holds no outputs"),
    "a shape of 10^12": (
        lambda: grpc_outputs([10**12], contents={"fp32_contents": [1.0]}),
        "is no shape|cannot reshape",
    ),
    "a negative shape": (lambda: grpc_outputs([-1], contents={"fp32_contents": [1.0]}), "has the shape"),
    "a message that is too long": (lambda: [bytes(2 << 20)], "larger than max"),
    "silence": (lambda: slowly_nothing(), "deadline_exceeded"),
}


def saying(make: Callable[[], Iterable[bytes]]) -> Callable[..., Iterator[bytes]]:
    return lambda *_: iter(make())


def slowly_nothing() -> Iterator[bytes]:
    sleep(4 * TIMEOUT_S)
    yield b""


@pytest.mark.parametrize(("make", "problem"), GRPC_INFERS.values(), ids=GRPC_INFERS.keys())
def test_an_answer_over_grpc_may_be_anything(make, problem, monkeypatch):
    grpc = pytest.importorskip("grpc")
    options = [(name, 1 << 20 if "receive" in name else value) for name, value in kserve_grpc._OPTIONS]
    monkeypatch.setattr(kserve_grpc, "_OPTIONS", tuple(options))
    model = {"name": "m", "state": "READY"}
    said = {
        "ServerLive": [b""],
        "RepositoryIndex": [message("RepositoryIndexResponse", models=[model])],
        "ModelMetadata": [message("ModelMetadataResponse", inputs=[TENSOR])],
    }
    methods = {name: saying(partial(list, parts)) for name, parts in said.items()} | {"ModelInfer": saying(make)}
    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {name: grpc.unary_stream_rpc_method_handler(method) for name, method in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(EdgeoptError) as refused:
            bench(f"grpc://127.0.0.1:{port}", TIMEOUT_S)
    finally:
        server.stop(0)
    assert re.search(problem, refused.value.problem)
    assert "\n" not in refused.value.problem


def test_what_answers_may_be_no_grpc():
    pytest.importorskip("grpc")
    with serving(lambda _: b"") as url, pytest.raises(EdgeoptError, match="does not speak KServe's v2 interface"):
        bench(url.replace("http", "grpc"), TIMEOUT_S)
