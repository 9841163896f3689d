"""Each complaint is built with the real server, and recognised from what its client measures."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Thread
from time import sleep

import pytest
from served import Running, serving

from edgeopt.executors.onnxruntime.rows import SharedRows
from edgeopt.measurement.bench.finding import Finding
from edgeopt.measurement.endpoint.bench import bench_endpoint
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.reader import PromptReader

Pump = Callable[[socket.socket, socket.socket], None]


def found_at(address: str, rule: str, **asked: object) -> Finding:
    """Return the finding of a rule in one of three tries; a machine that is too busy to measure skips the test."""
    options = EndpointOptions(address, **{"prompt_tokens": (16,), "output_tokens": 12, "seconds": 0.1} | asked)
    for _ in range(3):  # a neighbour may slow one of them
        findings = bench_endpoint(options).findings
        if found := [one for one in findings if one.rule == rule]:
            return found[0]
    if "distrust" in {one.rule for one in findings}:
        pytest.skip(findings[0].what)
    raise AssertionError(findings)


@contextmanager
def between(server: Running, answers: Pump) -> Iterator[str]:
    """Stand between a client and a server, and hand its answers on as told."""

    def asks(source: socket.socket, sink: socket.socket) -> None:
        while part := source.recv(65536):
            sink.sendall(part)
        sink.close()

    def quietly(pump: Pump, *ends: socket.socket) -> None:
        with suppress(OSError):  # one end is closed: the other hears of it by its own thread
            pump(*ends)

    def accept() -> None:
        with suppress(OSError):  # nobody listens any more, at one end or the other
            while True:
                client, _ = listening.accept()
                behind = socket.create_connection(server.place)
                for pump, ends in ((asks, (client, behind)), (answers, (behind, client))):
                    Thread(target=quietly, args=(pump, *ends), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_slow_even_for_tiny_prompts(monkeypatch):
    read = PromptReader.tokens_of

    def checked(self: PromptReader, wanted):
        sleep(0.2)  # what runs before each answer: a guard, unpacking
        return read(self, wanted)

    slow_down(monkeypatch, lambda rows, count: 0.004)
    with serving("tiny_lm") as server:
        monkeypatch.setattr(PromptReader, "tokens_of", checked)
        assert "warm" in found_at(server.address, "tiny").do


def test_fine_locally_bad_in_production():
    def late(source: socket.socket, sink: socket.socket) -> None:
        while part := source.recv(65536):
            sleep(0.12 if part.startswith(b"HTTP") else 0.0)
            sink.sendall(part)

    with serving("tiny_lm") as server, between(server, late) as address:
        assert "connections open" in found_at(address, "far", output_tokens=2).do


def test_nothing_happens_then_it_answers_fast(monkeypatch):
    slow_down(monkeypatch, lambda rows, count: 0.012)

    def held(source: socket.socket, sink: socket.socket) -> None:
        kept = b""
        while part := source.recv(65536):
            kept += part
            if b"text/event-stream" not in kept or kept.endswith(b"0\r\n\r\n"):
                sink.sendall(kept)
                kept = b""

    with serving("tiny_lm") as server, between(server, held) as address:
        assert "proxy_buffering off" in found_at(address, "held back").do


def test_it_starts_then_freezes(monkeypatch):
    slow_down(monkeypatch, lambda rows, count: 0.3 if count % 40 == 0 else 0.001)
    with serving("tiny_lm") as server:
        assert "swapped memory" in found_at(server.address, "stutter").do


def test_explodes_at_peak_hours(monkeypatch):
    slow_down(monkeypatch, lambda rows, count: 0.005)
    with serving("tiny_lm", Limits(slots=1, waiting=1)) as server:
        assert "second machine" in found_at(server.address, "peak", load="closed:6").do


def test_big_customers_feel_slower(monkeypatch):
    slow_down(monkeypatch, lambda rows, count: 0.00015 * rows.past(0))  # as if each token copied the whole text
    with serving("tiny_lm") as server:
        assert "keep less in the cache" in found_at(server.address, "big", prompt_tokens=(16, 160)).do


def test_batch_works_live_feels_broken(monkeypatch):
    slow_down(monkeypatch, lambda rows, count: 0.04 + 0.01 * sum(rows.past(i) > 0 for i in range(rows.count)))
    with serving("tiny_lm", Limits(slots=6)) as server:
        limits = {"TTFT": 60_000.0, "TPOT": 74.0}  # 50 ms alone, 100 of six: a busy machine adds some
        found = found_at(server.address, "live", load="closed:6", seconds=1.0, limits_ms=limits)
        assert "fewer slots" in found.do


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[SharedRows, int], float]) -> None:
    """Let each run of next tokens take so much longer, by its rows and its number."""
    run, count = SharedRows.run_first, iter(range(10**9))

    def slower(self: SharedRows, tokens: list[int]):
        sleep(seconds(self, next(count)))
        return run(self, tokens)

    monkeypatch.setattr(SharedRows, "run_first", slower)
