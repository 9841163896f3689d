"""A server measured from its client's side: edgeopt's own, and servers that say less or break."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from threading import Semaphore, current_thread, local
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from served import running, serving

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, UnavailableError
from edgeopt.measurement.bench.summary import summarize as summarize_bench
from edgeopt.measurement.endpoint.bench import bench_endpoint
from edgeopt.measurement.endpoint.client import Client, Exchange
from edgeopt.measurement.endpoint.connection import parse_place
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.measurement.endpoint.result import count_problems
from edgeopt.measurement.endpoint.summary import text_bar, timeline_of
from edgeopt.measurement.resources.cost import cost_per_token
from edgeopt.measurement.statistics.quantile import summarize
from edgeopt.report.formats import render
from edgeopt.workloads.endpoint import bench as endpoint_bench

Wire = Callable[[dict[str, Any], Callable[[bytes], None]], int | None]


@contextmanager
def server_of(answer: Wire) -> Iterator[str]:
    """Serve what a function writes for each request; it returns a status other than 200 before it writes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, json.dumps({"data": [{"id": "m"}]}).encode())

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            written = list[bytes]()
            status = answer(asked | {"path": self.path}, written.append)
            self._send(status or 200, b"".join(written))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with running(Handler) as address:
        yield address


def event(**values: Any) -> bytes:
    return b"data: " + json.dumps(values).encode() + b"\n\n"


def chat_only(asked: dict[str, Any], write: Callable[[bytes], None]) -> int | None:
    """A server that knows chats alone, no ignore_eos, counts nothing, and writes three pieces."""
    if "chat" not in asked["path"]:
        return 404
    if "ignore_eos" in asked:
        write(json.dumps({"error": {"message": "unknown field ignore_eos"}}).encode())
        return 400
    for _ in range(3):
        sleep(0.001)
        write(event(choices=[{"delta": {"content": "a"}}]))
    write(b"data: [DONE]\n\n")
    return None


def test_its_own_server_tells_all_and_tokens_are_counted():
    with serving("tiny_lm") as server:
        options = EndpointOptions(
            server.address, prompt_tokens=(20, 60), output_tokens=9, load="closed:3", seconds=0.3, price_per_s=1e-4
        )
        found = bench_endpoint(options)
    assert found.model == "tiny_lm"
    assert [one.output_tokens for one in found.alone] == [9, 9]
    assert found.tiny.prompt_tokens < found.alone[0].prompt_tokens < found.alone[1].prompt_tokens
    for one, asked in zip(found.alone, (20, 60), strict=True):
        assert 0.65 * asked < one.prompt_tokens < 1.35 * asked
    for one in (found.tiny, *found.alone, found.loaded):
        assert one is not None
        assert one.answers >= 6
        assert one.problems == {}
        assert one.queue.n == one.answers
        assert one.itl.n <= one.answers * 15
        assert one.ttft.p50.value_ns < one.answer.p50.value_ns
        assert sum(timeline_of(one, found)) == pytest.approx(one.answer.p50.value_ms, rel=1e-6)
    assert found.loaded.server_ttft_ms is not None
    assert found.cost is not None
    assert found.cost.per_thousand == pytest.approx(1e-4 / found.loaded.tokens_per_s * 1000)


def test_a_server_that_says_little_is_measured_and_what_is_guessed_is_said():
    with server_of(chat_only) as address:
        found = bench_endpoint(EndpointOptions(address, output_tokens=3, seconds=0.1, load="poisson:40"))
    assert [note.detail.split(":")[0] for note in found.notes] == [
        "answers may be shorter than asked for",
        "the server counts no tokens",
    ]
    assert found.alone[0].output_tokens == 3
    assert found.alone[0].queue.n == 0
    assert found.loaded is not None
    assert found.loaded.answers == found.loaded.asked >= 1


@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning": "so"},
        {"content": "", "reasoning": "so", "reasoning_details": [{"type": "reasoning.text", "text": "so"}]},
        {"content": None, "reasoning_content": "so"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": ""}}]},
        {"function_call": {"arguments": "{"}},
    ],
)
def test_thoughts_refusals_and_calls_are_text_too(thought):
    """A server that thinks, waits, then answers: its first token is the first thought."""

    class Thinking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(event(choices=[{"delta": {"role": "assistant", "content": ""}}]))
            self.wfile.write(event(choices=[{"delta": thought}]))
            sleep(0.05)
            self.wfile.write(event(choices=[{"delta": {"content": "yes", "tool_calls": [], "reasoning": None}}]))
            self.wfile.write(event(choices=[{"delta": {}}]) + b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            pass

    with running(Thinking) as address:
        client = Client(parse_place(address), 5.0)
        exchange = client.ask("/chat/completions", {})
        client.close()
    assert exchange.is_whole
    assert len(exchange.pieces_ns) == 2
    assert exchange.pieces_ns[1] - exchange.ttft_ns > 25e6  # the server itself waits 50 ms between them


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (event(choices=["a"]), "a choice is no object"),
        (event(choices={"delta": 1}), "choices are no list"),
        (event(choices=[{"delta": "a"}]), "a delta is no object"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "nested too deeply"),
        (event(choices=[{"text": "a"}], usage="many", edgeopt={"queue_ms": "long"}) + b"data: [DONE]\n\n", ""),
        (event(choices=[{"text": "a"}], usage={"completion_tokens": [1]}) + b"data: [DONE]\n\n", ""),
    ],
)
def test_an_event_of_another_form_is_one_line(written, problem):
    with server_of(lambda asked, write: write(written)) as address:
        client = Client(parse_place(address), 5.0)
        exchange = client.ask("/completions", {})
        client.close()
    assert problem in exchange.problem
    assert exchange.is_whole == (not problem)


def test_times_are_those_that_the_server_takes():
    """A server that waits 30 ms, and 10 ms before each further piece; it closes each connection, and says its queue."""

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "m"}]}).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Server-Timing", "db;dur=1, queue;dur=7.5")
            self.end_headers()
            for number in range(4):
                sleep(0.01 if number else 0.03)
                self.wfile.write(event(choices=[{"text": "a"}]))
            self.wfile.write(
                event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4}) + b"data: [DONE]\n\n"
            )

        def log_message(self, *_: object) -> None:
            pass

    with running(Slow) as address:
        found = bench_endpoint(EndpointOptions(address, output_tokens=4, seconds=0.1)).alone[0]
    assert found.answers >= 6
    assert found.ttft.min_ns >= 30e6
    assert found.itl.n == 3 * found.answers
    assert found.answer.min_ns >= 60e6
    assert found.queue.p50.value_ms == 7.5
    assert found.good == found.answers or found.ttft.max_ns > 1e9


def test_pieces_that_come_together_are_one_arrival():
    """A server that writes two pieces, then three at once, then one: each time in one piece of the network's."""
    goes_on = Semaphore(1)

    class Joining(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            for number in (2, 3, 1):
                goes_on.acquire(timeout=60)
                self.wfile.write(number * event(choices=[{"text": "a"}]))
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            pass

    class Reading(socket.SocketIO):
        """Lets the server go on when what it wrote before was read."""

        def readinto(self, buffer: Any) -> int | None:
            count = super().readinto(buffer)
            if b"data:" in bytes(buffer[:count]):
                goes_on.release()
            return count

    with running(Joining) as address, pytest.MonkeyPatch.context() as patched:
        client = Client(parse_place(address), 60)
        client.connect()
        patched.setattr(socket, "SocketIO", Reading)
        found = client.ask("/completions", {})
        client.close()
    assert found.problem == ""
    first, *others = found.pieces_ns
    assert [first, *others] == [first] * 2 + [others[1]] * 3 + [others[4]]
    assert found.gaps_ns == [others[1] - first, others[4] - others[1]]
    assert min(found.gaps_ns) > 0


def test_instants_are_those_of_a_plain_client_that_reads_the_same(monkeypatch):
    """Each piece was there between the read that brought it and the next one, whatever the machine's speed is."""
    reads, read = list[tuple[int, int, bytes]](), socket.SocketIO.readinto
    mine = current_thread()

    def timed(self: socket.SocketIO, buffer: Any) -> int | None:
        before_ns = perf_counter_ns()
        count = read(self, buffer)
        if current_thread() is mine:
            reads.append((before_ns, perf_counter_ns(), bytes(buffer[:count])))
        return count

    with serving("tiny_lm") as server:
        client = Client(parse_place(server.address), 60)
        client.connect()
        monkeypatch.setattr(socket.SocketIO, "readinto", timed)
        asked = {"model": "tiny_lm", "prompt": "import os", "max_tokens": 60, "ignore_eos": True, "stream": True}
        found = client.ask("/completions", asked)
        over_ns = perf_counter_ns()
        client.close()
    assert found.problem == ""
    bounds, brought, text = list[tuple[int, int]](), list[int](), b""
    for number, (_, after_ns, data) in enumerate(reads):
        text += data
        *lines, text = text.split(b"\n")
        until_ns = reads[number + 1][0] if number + 1 < len(reads) else over_ns
        for line in lines:
            if line.startswith(b"data: {") and any(one["text"] for one in json.loads(line[6:])["choices"]):
                bounds.append((after_ns, until_ns))
                brought.append(number)
    assert len(bounds) == len(found.pieces_ns) > 0
    instants = [found.begun_ns + one for one in found.pieces_ns]
    assert all(low <= at <= high for (low, high), at in zip(bounds, instants, strict=True))
    assert len(found.gaps_ns) == len(set(brought)) - 1


def test_figures_are_those_of_a_plain_client_of_the_same_answers(monkeypatch):
    """A client of the test's own sees the same bytes with a clock of its own: each figure lies between its two bounds.

    The bounds are two instants of one thread with no wait between them: before and after a request goes, after a read
    and before the next one. No speed of the machine moves a figure out of them.
    """
    seen, mine, read, ask = dict[int, list[tuple[int, int, bytes]]](), local(), socket.SocketIO.readinto, Client.ask
    sent: dict[int, tuple[int, int]] = {}
    order = list[int]()

    def timed_read(self: socket.SocketIO, buffer: Any) -> int | None:
        before_ns = perf_counter_ns()
        count = read(self, buffer)
        if getattr(mine, "reads", None) is not None:
            mine.reads.append((before_ns, perf_counter_ns(), bytes(buffer[:count])))
        return count

    def timed_send(self: HTTPConnection, data: Any) -> None:
        mine.sent_ns = getattr(mine, "sent_ns", 0) or perf_counter_ns()
        send(self, data)

    def timed_ask(self: Client, path: str, body: dict[str, Any], begun_ns: int = 0):
        mine.reads, mine.sent_ns, before_ns = [], 0, perf_counter_ns()
        found = ask(self, path, body, begun_ns)
        over_ns = perf_counter_ns()
        seen[id(found)] = [*mine.reads, (over_ns, over_ns, b"")]
        sent[id(found)] = before_ns, mine.sent_ns
        kept.append(found)
        order.append(id(found))
        return found

    kept, send = list[Exchange](), HTTPConnection.send
    monkeypatch.setattr(socket.SocketIO, "readinto", timed_read)
    monkeypatch.setattr(HTTPConnection, "send", timed_send)
    monkeypatch.setattr(Client, "ask", timed_ask)
    with serving("tiny_lm") as server:
        found = bench_endpoint(
            EndpointOptions(server.address, prompt_tokens=(24,), output_tokens=12, seconds=0.1, load="closed:2")
        )
    assert found.loaded is not None
    # learn: 2 requests; then rounds of a tiny and a long one, the first not counted; then the load
    alone = order[4 : 4 + 2 * found.tiny.answers]
    rows = (found.tiny, alone[::2]), (found.alone[0], alone[1::2]), (found.loaded, order[4 + len(alone) :])
    for row, answers in rows:
        assert row.answers == len(answers) >= 6
        clients = [_plain_client(seen[one], *sent[one]) for one in answers]
        for name in ("ttft", "tpot", "itl"):
            figure = getattr(row, name)
            low, high = (summarize(np.array([ns for one in clients for ns in one[name][i]], np.int64)) for i in (0, 1))
            assert figure.n == low.n == high.n
            if not figure.n:
                continue  # each answer came in one read: there is no gap
            for told in (
                lambda one: one.min_ns,
                lambda one: one.mean_ns,
                lambda one: one.max_ns,
                lambda one: one.p50.value_ns,
            ):
                bounds = told(low), told(figure), told(high)
                if None not in bounds:
                    assert bounds[0] - 1 <= bounds[1] <= bounds[2] + 1, (row.name, name)


def _plain_client(
    reads: list[tuple[int, int, bytes]], before_ns: int, sent_ns: int
) -> dict[str, tuple[list[int], list[int]]]:
    """Return TTFT, TPOT and the gaps of one answer, each at least and at most, from what its reads brought."""
    arrivals, pieces, tokens, text = list[tuple[int, int]](), 0, 0, b""
    for (_, after_ns, data), (until_ns, *_) in pairwise(reads):
        text += data
        *lines, text = text.split(b"\n")
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
        tokens = next((one["usage"]["completion_tokens"] for one in events if one.get("usage")), tokens)
        if brought := sum(bool(choice["text"]) for one in events for choice in one["choices"]):
            pieces += brought
            arrivals.append((after_ns, until_ns))
    (first, first_most), (last, last_most) = arrivals[0], arrivals[-1]
    is_one = len(arrivals) == 1
    spans = [0, 0] if is_one else [last - first_most, last_most - first]
    return {
        "ttft": ([first - sent_ns], [first_most - before_ns]),
        "tpot": tuple([one // max(tokens - 1, 1)] for one in spans),
        "itl": (
            [after - before_most for (_, before_most), (after, _) in pairwise(arrivals)],
            [after_most - before for (before, _), (_, after_most) in pairwise(arrivals)],
        ),
    }


def test_an_answer_in_one_read_gives_no_time_of_a_token():
    def at_once(asked: dict[str, Any], write: Callable[[bytes], None]) -> None:
        for _ in range(16):
            write(event(choices=[{"text": "a"}]))
        usage = {"prompt_tokens": 9, "completion_tokens": 16}
        write(event(choices=[], usage=usage, edgeopt={"queue_ms": 0.0, "ttft_ms": 2.0, "tpot_ms": 1.9}))
        write(b"data: [DONE]\n\n")

    with server_of(at_once) as address:
        found = bench_endpoint(EndpointOptions(address, output_tokens=16, seconds=0.1, load="closed:2"))
    assert found.loaded is not None
    assert found.alone[0].burst_ratio == found.loaded.burst_ratio == 1.0
    assert found.alone[0].server_tpot_ms == 1.9
    first = found.findings[0]
    assert first.rule == "distrust"
    assert "100% of an answer came in one read alone" in first.what
    assert "the server wrote one in 1.9 ms" in first.what
    assert "read TPOT as the server says it" in first.do


def test_answers_that_break_are_counted_and_the_others_measured():
    calls = iter(range(10**6))

    def sometimes(asked: dict[str, Any], write: Callable[[bytes], None]) -> int | None:
        number = next(calls)
        if number > 10 and number % 3 == 0:
            return 503
        write(event(choices=[{"text": "a"}]))
        if number > 10 and number % 3 == 1:
            return None  # ends without [DONE]
        write(event(choices=[{"text": "b"}]) + event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2}))
        write(b"data: [DONE]\n\n")
        return None

    with server_of(sometimes) as address:
        found = bench_endpoint(EndpointOptions(address, output_tokens=2, seconds=0.2, load="closed:2"))
    assert found.loaded is not None
    assert set(found.loaded.problems) == {"status 503", "the reply broke off"}
    assert found.loaded.answers > 0
    assert "peak" in [one.rule for one in found.findings]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda asked, write: 401, "status 401"),
        (lambda asked, write: write(b"data: no json\n\n"), "no stream of events"),
        (lambda asked, write: write(b"<html>"), "broke off"),
        (lambda asked, write: write(event(error={"message": "no memory"}) + b"data: [DONE]\n\n"), "no memory"),
    ],
)
def test_a_server_without_an_answer_is_one_line(answer, told):
    with server_of(answer) as address:
        with pytest.raises(UnavailableError, match=told):
            bench_endpoint(EndpointOptions(address))
        done = CliRunner().invoke(cli, ["bench", "--endpoint", address])
        assert done.exit_code == 1
        assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--endpoint", "ftp://x"], "is no address of a server"),
        (["--endpoint", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1/v1"),
        (
            ["--endpoint", "http://127.0.0.1:1", "--find-capacity"],
            "and http://127.0.0.1:1 is a server",
        ),
        (["--endpoint", "http://127.0.0.1:1", "--key-from", "NO_SUCH_KEY"], "no such variable is set"),
        (["--endpoint", "http://127.0.0.1:1", "--load", "quick"], "is not a load"),
        (["tiny_lm", "--key-from", "A"], "--key-from is for a server, and tiny_lm is a language model"),
        ([], "Missing argument 'MODEL'; or --endpoint in its place"),
    ],
)
def test_what_cannot_be_measured_is_refused(args, told):
    done = CliRunner().invoke(cli, ["bench", *args])
    assert done.exit_code == 1
    assert told in done.output
    assert "Traceback" not in done.output


def test_the_command_shows_one_bar_an_answer(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    with server_of(chat_only) as address:
        args = [
            "bench",
            "--endpoint",
            address,
            "--seconds",
            "0.1s",
            "--output-tokens",
            "3",
            "-o",
            str(tmp_path / "out"),
        ]
        done = CliRunner().invoke(cli, args)
    assert done.exit_code == 0, done.output
    # quantiles that so few answers do not support have no column: how many there are is a matter of the machine
    for told in ("network", "TTFT p50 ms", "TTFT max", "TPOT p50 ms", "first token", "goodput"):
        assert told in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines())
    assert "nan" not in done.output.lower()
    assert json.loads((tmp_path / "out" / "bench.json").read_text("utf-8"))


def test_a_bar_shows_what_is_there():
    assert text_bar((1.0, 0.0, 55.0, 0.001), 56.0) == "n" + 55 * "#" + "-"
    assert text_bar((0.0, 0.0, 0.0, 0.0), 0.0) == ""


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://[::1]:8000/", "http://[::1]:8000/v1"),
        ("https://a.example/openai/v1/chat/completions", "https://a.example:443/openai/v1"),
    ],
)
def test_an_address_is_read(url, told):
    assert str(parse_place(url)) == told


@pytest.mark.parametrize("url", ["http://", "http://a:99999", "http://user:word@a/", "file:///etc", "http://a/?x=1"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(EdgeoptError, match="is no address"):
        parse_place(url)


def test_a_token_costs_what_the_machine_costs_while_it_is_written():
    assert cost_per_token(0.002, 50).per_thousand == pytest.approx(0.04)
    with pytest.raises(ValueError, match="above zero"):
        cost_per_token(1.0, 0.0)


def test_prompts_that_are_too_long_alone_too_are_no_peak_and_one_row():
    calls = iter(range(10**6))

    def too_long(asked: dict[str, Any], write: Callable[[bytes], None]) -> int | None:
        number = next(calls)
        if len(asked["prompt"].split()) > 50 and number % 2:
            told = f"the prompt has {1000 + number} tokens, the context 1024"
            write(json.dumps({"error": {"message": told}}).encode())
            return 400
        for _ in range(2):
            write(event(choices=[{"text": "b"}]))
        words = len(asked["prompt"].split())
        write(event(choices=[], usage={"prompt_tokens": words, "completion_tokens": 2}) + b"data: [DONE]\n\n")
        return None

    with server_of(too_long) as address:
        options = EndpointOptions(address, prompt_tokens=(8, 90), output_tokens=16, seconds=0.3, load="closed:2")
        found = bench_endpoint(options)
    short, long = found.alone
    assert not short.problems
    assert next(iter(long.problems)).startswith("status 400: the prompt has 1")
    assert len(long.problems) == 1
    assert 0.2 < long.lost_ratio < 0.8
    told = [one.detail for one in found.notes]
    assert any("prompt 8: answers have 2 of the 16 tokens asked for" in one for one in told)
    assert any("get no answer with nobody else asking" in one for one in told)


def test_refusals_alone_are_no_peak():
    assert count_problems(["status 400: of 12", "status 400: of 13", "status 503", "status 404: of 12"]) == {
        "status 400: of 12": 2, "status 503": 1, "status 404: of 12": 1,
    }  # fmt: skip


def remembering(asked: dict[str, Any], write: Callable[[bytes], None]) -> int | None:
    """A server of chats that answers with a word of its own, counts what it reads, and holds four messages at most."""
    if "chat" not in asked["path"]:
        words = asked["prompt"].split()
    else:
        said.append([(each["role"], each["content"]) for each in asked["messages"]])
        if len(asked["messages"]) > 5:
            write(json.dumps({"error": {"message": "the context is full"}}).encode())
            return 400
        words = " ".join(each["content"] for each in asked["messages"]).split()
    write(event(choices=[{"delta": {"content": "so "}, "text": "so "}]))
    write(event(choices=[{"delta": {"reasoning": "hm", "content": None}}]))
    write(event(choices=[{"delta": {"content": "be it"}}]))
    write(event(choices=[], usage={"prompt_tokens": len(words), "completion_tokens": 3}) + b"data: [DONE]\n\n")
    return None


said = list[list[tuple[str, str]]]()


def test_each_turn_of_a_conversation_sends_all_before_it():
    said.clear()
    with server_of(remembering) as address:
        options = EndpointOptions(address, prompt_tokens=(10,), output_tokens=3, seconds=0.05, turns=4)
        found = bench_endpoint(options)
    first, second, third, fourth = found.turns
    assert [one.name for one in found.turns] == ["turn 1", "turn 2", "turn 3", "turn 4"]
    assert (first.prompt_tokens, second.prompt_tokens, third.prompt_tokens) == (10, 23, 36)  # 10 and "so be it" more
    assert first.answers == third.answers >= 6
    assert fourth.answers == 0
    assert list(fourth.problems) == ["status 400: the context is full"]
    conversation = said[-1]
    assert [role for role, _ in conversation] == ["user", "assistant"] * 3 + ["user"]
    assert {text for role, text in conversation if role == "assistant"} == {"so be it"}
    assert said[-2] == conversation[:-2]
    page = render(summarize_bench(found, endpoint_bench), "markdown")
    assert "Turns of a conversation" in page
    assert "its prompt is 3.6x as long" in page


def test_a_server_without_chats_gets_a_conversation_as_one_text():
    with serving("tiny_lm") as server:
        options = EndpointOptions(server.address, prompt_tokens=(8,), output_tokens=4, seconds=0.1, turns=3)
        found = bench_endpoint(options)
    counts = [one.prompt_tokens for one in found.turns]
    assert counts == sorted(counts)
    assert counts[2] > 2 * counts[0]
    assert all(one.answers >= 6 for one in found.turns)


def test_a_trace_brings_its_lengths(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("time,input_length,output_length\n0,5,7\n0.02,9,7\n0.03,40,7\n")
    asked_for = list[int]()

    def counting(asked: dict[str, Any], write: Callable[[bytes], None]) -> int | None:
        if asked["max_tokens"] == 7:
            asked_for.append(len(asked["prompt"].split()))
        write(event(choices=[{"text": "a"}], usage={"prompt_tokens": len(asked["prompt"].split())}))
        write(b"data: [DONE]\n\n")
        return None

    with server_of(counting) as address:
        options = EndpointOptions(address, output_tokens=3, seconds=0.04, load=f"trace:{file}")
        found = bench_endpoint(options)
    assert sorted(asked_for) == [5, 9, 40]
    assert found.load == f"trace:{file}"
