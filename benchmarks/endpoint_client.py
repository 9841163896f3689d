"""A plain client and `bench --endpoint` at one server in turns: do TTFT, TPOT and ITL agree within their intervals?

    python benchmarks/endpoint_client.py [--model tiny_lm] [--prompt-tokens 64] [--output-tokens 32] [--rounds 6]

The client is a socket and a clock: no line of it is edgeopt's. It needs the extra `serve`. Where a model writes faster
than its client is scheduled, as `tiny_lm` does, several pieces come in one read: they are one arrival for both.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
from contextlib import closing
from time import perf_counter_ns

import numpy as np

from edgeopt.measurement.endpoint.bench import bench_endpoint
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.measurement.statistics.quantile import Quantile, quantile


def ask(port: int, body: dict[str, object]) -> list[int]:
    """Return when each piece of text was there, nanoseconds since the request was sent: when `recv` returned."""
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with closing(socket.create_connection(("127.0.0.1", port))) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun_ns, times, begun_line = perf_counter_ns(), list[int](), b""
        opened.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        while brought := opened.recv(1 << 16):
            at_ns = perf_counter_ns() - begun_ns
            *lines, begun_line = (begun_line + brought).split(b"\n")
            for line in lines:
                if line.startswith(b"data: [DONE]"):
                    return times
                if line.startswith(b"data:") and any(one.get("text") for one in json.loads(line[5:])["choices"]):
                    times.append(at_ns)
    raise SystemExit("the stream ended before [DONE]")


def told(name: str, plain: list[float], ours: Quantile) -> str:
    """Return a line: both medians, and whether their intervals meet."""
    theirs = quantile(np.array(plain, np.int64), 0.5)
    meets = theirs.low_ns <= ours.high_ns and ours.low_ns <= theirs.high_ns
    ratio = ours.value_ns / theirs.value_ns
    return f"{name:5} plain {theirs} ms, bench {ours} ms, {ratio:.3f}x: {'agree' if meets else 'DO NOT agree'}"


def main() -> None:
    """Start a server, ask it by turns, and print what both saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny_lm")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    command = [sys.executable, "-m", "edgeopt", "serve", asked.model, "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            found = re.search(r"(\S+): (http://\S+:(\d+))/v1", line)
            assert found, line
            name, address, port = found[1], found[2], int(found[3])
            ttft, tpot, itl, rounds = [], [], [], []
            chance = np.random.default_rng(0)
            for _ in range(asked.rounds):
                options = EndpointOptions(
                    address,
                    prompt_tokens=(asked.prompt_tokens,),
                    output_tokens=asked.output_tokens,
                    seconds=asked.seconds,
                )
                rounds.append(bench_endpoint(options).alone[0])
                for _ in range(rounds[-1].answers):
                    count = round(rounds[-1].prompt_tokens)
                    body = {"model": name, "prompt": chance.integers(0, 900, count).tolist(), "stream": True}
                    body |= {"max_tokens": asked.output_tokens, "ignore_eos": True, "temperature": 0}
                    times = ask(port, body)
                    ttft.append(times[0])
                    tpot.append((times[-1] - times[0]) / (asked.output_tokens - 1))
                    itl += np.diff(sorted(set(times))).tolist()
            best = sorted(rounds, key=lambda one: one.ttft.p50.value_ns)[len(rounds) // 2]
            print(f"{len(ttft)} answers each, prompts of {best.prompt_tokens:.0f} tokens, in {asked.rounds} turns")
            print(told("TTFT", ttft, best.ttft.p50))
            print(told("TPOT", tpot, best.tpot.p50))
            print(told("ITL", itl, best.itl.p50))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
