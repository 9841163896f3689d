"""Fifty clients at a server for a minute: readers, slow readers, clients that leave, and bad requests, all at once.

    python benchmarks/serve_soak.py [--seconds 60] [--clients 50] [--slots 4] [--model tiny_lm]

Shows that every client who asks properly gets the whole and right answer, that answers by a schema keep to it, and that
the server's memory stays flat. Prompts have 4 to some 400 tokens. It needs the extras `serve` and `grammar`.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from threading import Lock, Thread

import numpy as np
import psutil

PROMPTS = ("import os\nimport ", "def f(x):\n", "class A:\n    def ", "for i in range(", "return self.")
PROMPTS += tuple("".join(f"value_{i} = {i * i}\n" for i in range(lines)) for lines in (4, 12, 30))
KINDS = ("whole", "stream", "stream", "stream", "slow", "leaves", "schema")
KINDS += ("bad json", "wrong type", "too long", "too large")
TOKENS = 48
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
SCHEMA["additionalProperties"] = False


class Soak:
    """Answers and errors that clients saw."""

    def __init__(self, port: int, end_s: float, kinds: list[str]) -> None:
        self.port, self.end_s, self.kinds = port, end_s, kinds
        self.counts, self.ttft_ms, self.turn = Counter(), [], Lock()
        self.right = {prompt: self.text(prompt) for prompt in PROMPTS}

    def count(self, what: str) -> None:
        """Count what happened."""
        with self.turn:
            self.counts[what] += 1

    def body(self, prompt: str, *, stream: bool) -> bytes:
        """Return a request."""
        asked = {"model": "soaked", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        return json.dumps(asked | {"stream": stream, "ignore_eos": True}).encode()

    def post(self, body: bytes, timeout: float = 120) -> tuple[HTTPConnection, object]:
        """Send a request."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def text(self, prompt: str) -> str:
        """Return a whole answer."""
        connection, reply = self.post(self.body(prompt, stream=False))
        found = json.loads(reply.read())
        connection.close()
        return found["choices"][0]["text"]

    def stream(self, prompt: str, *, slow: bool) -> None:
        """Read a stream, and compare it."""
        begun_s = time.monotonic()
        connection, reply = self.post(self.body(prompt, stream=True))
        said, first = [], True
        for line in reply:
            if slow:
                time.sleep(0.05)
            if line.startswith(b"data: {"):
                found = json.loads(line[6:])
                said += [one["text"] for one in found["choices"]]
                if first and not slow:
                    with self.turn:
                        self.ttft_ms.append(1e3 * (time.monotonic() - begun_s))
                first = False
        connection.close()
        name = "slow reader" if slow else "stream"
        self.count(f"{name}: whole and right" if "".join(said) == self.right[prompt] else f"{name}: WRONG OR LOST")

    def leave(self, prompt: str, chance: random.Random) -> None:
        """Go away in the midst of an answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as opened:
            body = self.body(prompt, stream=True)
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            opened.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            time.sleep(chance.random() * 0.3)
        self.count("left before the end")

    def schema(self, prompt: str) -> None:
        """Ask for an answer by a schema."""
        form = {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA}}
        asked = {"model": "soaked", "prompt": prompt, "max_tokens": TOKENS, "response_format": form}
        connection, reply = self.post(json.dumps(asked).encode())
        found = json.loads(json.loads(reply.read())["choices"][0]["text"])
        connection.close()
        keeps = found.keys() == {"a", "b"} and found["a"] in (1, 2) and found["b"] in ("x", "y")
        self.count("schema: kept" if keeps else "schema: BROKEN")

    def refused(self, what: str, body: bytes, status: int) -> None:
        """Send what must be refused."""
        connection, reply = self.post(body)
        reply.read()
        connection.close()
        self.count(f"{what}: refused" if reply.status == status else f"{what}: WRONG STATUS {reply.status}")

    def client(self, number: int) -> None:
        """Ask until the end."""
        chance = random.Random(number)
        while time.monotonic() < self.end_s:
            kind, prompt = self.kinds[(number + chance.randrange(3)) % len(self.kinds)], chance.choice(PROMPTS)
            try:
                if kind == "whole":
                    self.count("whole: right" if self.text(prompt) == self.right[prompt] else "whole: WRONG")
                elif kind in ("stream", "slow"):
                    self.stream(prompt, slow=kind == "slow")
                elif kind == "leaves":
                    self.leave(prompt, chance)
                elif kind == "schema":
                    self.schema(prompt)
                elif kind == "bad json":
                    self.refused(kind, b'{"model": ' + bytes(chance.randrange(256) for _ in range(50)), 400)
                elif kind == "wrong type":
                    self.refused(kind, json.dumps({"model": "soaked", "prompt": {"a": chance.random()}}).encode(), 400)
                elif kind == "too long":
                    words = " ".join(str(chance.random()) for _ in range(2000))
                    self.refused(kind, self.body(words, stream=False), 400)
                else:
                    self.refused(kind, b" " * (9 << 20), 413)
            except (OSError, ValueError, KeyError) as error:
                self.count(f"{kind}: BROKE {type(error).__name__}")
            time.sleep(0.05 if kind in ("whole", "stream", "slow", "leaves", "schema") else 0.5)


def own_mib(pid: int) -> float:
    """Return resident memory that is no file's, in MiB; elsewhere than on Linux 0."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def main() -> None:
    """Run the soak and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--model", default="tiny_lm")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--kinds", default=",".join(KINDS), help="What clients do, by turns.")
    given = parser.parse_args()
    command = [sys.executable, "-m", "edgeopt", "serve", given.model, "--port", "0", "--threads", "1"]
    command += ["--slots", str(given.slots), "--name", "soaked", "--context", str(given.context)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    line = server.stderr.readline()
    port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
    soak = Soak(port, time.monotonic() + given.seconds, given.kinds.split(","))
    threads = [Thread(target=soak.client, args=(number,)) for number in range(given.clients)]
    process, memory, own = psutil.Process(server.pid), list[float](), list[float]()
    for one in threads:
        one.start()
    while time.monotonic() < soak.end_s:
        time.sleep(1)
        memory.append(process.memory_info().rss / 2**20)
        own.append(own_mib(process.pid))
    for one in threads:
        one.join(180)
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/healthz")
    health = json.loads(connection.getresponse().read())
    right = soak.text(PROMPTS[0]) == soak.right[PROMPTS[0]]
    threads_left, files = process.num_threads(), process.num_fds() if hasattr(process, "num_fds") else 0
    server.terminate()
    code = server.wait(60)
    for name, count in sorted(soak.counts.items()):
        print(f"{count:6}  {name}")
    third = max(len(memory) // 3, 1)
    for name, sizes in (("memory", memory), ("own", own)):
        early, late = float(np.median(sizes[third : 2 * third])), float(np.median(sizes[2 * third :]))
        print(f"{name:<7} {early:.1f} MiB in the middle third, {late:.1f} in the last: {late - early:+.1f}; over time:")
        print("       ", " ".join(f"{one:.0f}" for one in sizes[:: max(len(sizes) // 12, 1)]))
    if soak.ttft_ms:
        p50, p99 = np.percentile(soak.ttft_ms, (50, 99))
        print(f"TTFT    p50 {p50:.0f} ms, p99 {p99:.0f} ms, waiting included")
    print(f"after   {health}, answers still right: {right}")
    print(f"        {threads_left} threads, {files} open files, exit code {code}")
    print(server.stderr.read().strip())


if __name__ == "__main__":
    main()
