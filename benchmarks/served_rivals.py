"""Our server of a language model beside llama.cpp's: throughput and time to the first token under many clients.

    python benchmarks/served_rivals.py MODEL --gguf FILE --llama-server PATH [--clients 8] [--slots 8] [--seconds 30]
    python benchmarks/served_rivals.py MODEL --gguf FILE --llama-server PATH --check
    python benchmarks/served_rivals.py MODEL --beside "NAME=MODEL [OPTIONS]" [--beside ...]

Both servers are open all the time and asked in turns (ours, theirs, theirs, ours, ...), with the same prompts of random
tokens, each asked once, so that no cache of prompts helps anybody. A client asks anew as soon as its answer is whole.
All answers are kept in the work folder; `--check` opens both servers anew, asks each prompt alone and compares, as a
right answer is the one that the same request gets alone. Without `--llama-server`, ours alone is measured; with
`--beside` further forms of ours, each in a server of its own with options of its own.

The file of the same weights for llama.cpp: `export.decoder.gguf.writing`, then `llama-quantize FILE OUT Q4_0`.
"""

from __future__ import annotations

import argparse
import json
import selectors
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import psutil

OURS, THEIRS = "edgeopt", "llama.cpp"
_OPEN_S = 60.0


@dataclass
class Answer:
    """One request on its way."""

    number: int
    begun_s: float
    raw: bytearray = field(default_factory=bytearray)
    event_s: list[float] = field(default_factory=list)
    """When each event with a token came."""
    end_s: float = 0.0


class Served:
    """A server in a process of its own."""

    def __init__(self, name: str, command: Sequence[str], port: int, log: Path) -> None:
        self.name, self.port = name, port
        self._log = log.open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self.process = psutil.Process(self._process.pid)
        end_s = time.monotonic() + _OPEN_S
        while not self._answers():
            if time.monotonic() > end_s or self._process.poll() is not None:
                raise SystemExit(f"{name} does not open; see {log}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as opened:
                opened.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return opened.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            return False

    @property
    def rss_mib(self) -> float:
        """Resident memory."""
        return self.process.memory_info().rss / 2**20

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(60)
        self._log.close()


class Load:
    """Clients in one thread: each asks for the next prompt as soon as its answer is whole."""

    def __init__(self, server: Served, prompt_tokens: int, output_tokens: int, vocabulary: int) -> None:
        self._server, self._count, self._output, self._vocabulary = server, prompt_tokens, output_tokens, vocabulary
        self.memory_mib = list[float]()

    def request(self, number: int) -> bytes:
        """Return the request of a prompt, which its number alone decides."""
        prompt = np.random.default_rng(number).integers(1, self._vocabulary, self._count).tolist()
        values = {
            "model": self._server.name, "prompt": prompt, "max_tokens": self._output, "temperature": 0, "stream": True,
            "ignore_eos": True, **({"cache_prompt": False} if self._server.name == THEIRS else {}),
        }  # fmt: skip
        body = json.dumps(values).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def run(self, numbers: Iterator[int], clients: int, seconds: float) -> tuple[list[Answer], list[Answer], float]:
        """Return whole answers, those that the end cut off, and when it began; `seconds` 0: until none is left."""
        begun_s, whole = time.perf_counter(), list[Answer]()
        looked_s, self.memory_mib = 0.0, []
        with selectors.DefaultSelector() as waiting:

            def ask() -> None:
                number = next(numbers, None)
                if number is None:
                    return
                request, now_s = self.request(number), time.perf_counter()
                opened = socket.create_connection(("127.0.0.1", self._server.port))
                opened.sendall(request)
                waiting.register(opened, selectors.EVENT_READ, Answer(number, now_s))

            for _ in range(clients):
                ask()
            while waiting.get_map() and (not seconds or time.perf_counter() - begun_s < seconds):
                for key, _ in waiting.select(0.5):
                    opened, answer = key.fileobj, key.data
                    more, now_s = opened.recv(1 << 16), time.perf_counter()
                    answer.raw += more
                    answer.event_s += [now_s] * more.count(b"data: {")
                    if not more or b"[DONE]" in answer.raw[-64:]:
                        answer.end_s = now_s
                        whole.append(answer)
                        waiting.unregister(opened)
                        opened.close()
                        ask()
                if time.perf_counter() - looked_s > 1:
                    looked_s = time.perf_counter()
                    self.memory_mib.append(self._server.rss_mib)
            cut = [key.data for key in waiting.get_map().values()]
            for key in list(waiting.get_map().values()):
                key.fileobj.close()
        return whole, cut, begun_s


def text_of(answer: Answer) -> tuple[str, int]:
    """Return what an answer says, and in how many events; what is no answer says what it is instead."""
    if not answer.raw.startswith(b"HTTP/1.1 200") or b"[DONE]" not in answer.raw[-64:]:
        return f"BROKE: {bytes(answer.raw[:300])!r}", 0
    parts = list[str]()
    for line in answer.raw.split(b"\n"):
        if line.startswith(b"data: {"):
            parts += [choice["text"] for choice in json.loads(line[6:])["choices"] if choice.get("text")]
    return "".join(parts), len(parts)


@dataclass
class Turn:
    """Figures of one turn of a server."""

    name: str
    tokens_per_s: float
    ttft_ms: list[float]
    tpot_ms: list[float]
    memory_mib: list[float]


def measured(load: Load, name: str, numbers: Iterator[int], given: argparse.Namespace, kept: dict[str, str]) -> Turn:
    """Run a turn; texts of whole answers are added to `kept`, under the numbers of their prompts."""
    whole, cut, begun_s = load.run(numbers, given.clients, given.seconds)
    texts = {answer.number: text_of(answer) for answer in whole}
    kept |= {str(number): text for number, (text, _) in texts.items()}
    events = np.mean([count for _, count in texts.values()])
    first_s, last_s = begun_s + given.settle, begun_s + given.seconds
    times = [at_s for answer in [*whole, *cut] for at_s in answer.event_s if first_s <= at_s < last_s]
    rate = len(times) / (last_s - first_s) * given.output_tokens / events
    # by when the first token came: a request that began in the turn and waited beyond its end would be left out
    seen = [answer for answer in [*whole, *cut] if answer.event_s and first_s <= answer.event_s[0] < last_s]
    ttft = [1e3 * (answer.event_s[0] - answer.begun_s) for answer in seen]
    tpot = [1e3 * (a.end_s - a.event_s[0]) / (given.output_tokens - 1) for a in seen if a.end_s]
    return Turn(name, float(rate), ttft, tpot, load.memory_mib)


def told(turn: Turn) -> str:
    """Return a turn in a line."""
    p50, p95 = np.percentile(turn.ttft_ms, (50, 95))
    tpot50, tpot95 = np.percentile(turn.tpot_ms, (50, 95))
    memory = f"{turn.memory_mib[0]:.0f} to {turn.memory_mib[-1]:.0f} MiB"
    return (
        f"{turn.name:<10} {turn.tokens_per_s:7.1f} tokens/s   TTFT p50 {p50:7.0f} p95 {p95:7.0f} ms   "
        f"TPOT p50 {tpot50:6.1f} p95 {tpot95:6.1f} ms   {len(turn.ttft_ms):4} answers   {memory}"
    )


def opened(given: argparse.Namespace, slots: int) -> list[Served]:
    """Open the servers that are measured."""
    forms = [(OURS, str(given.model)), *(text.split("=", 1) for text in given.beside)]
    servers = list[Served]()
    for i, (name, text) in enumerate(forms):
        model, *options = shlex.split(text)
        ours = [sys.executable, "-m", "edgeopt", "serve", model, "--port", str(given.port + 2 * i), "--name", name]
        ours += ["--threads", str(given.threads), "--slots", str(slots), "--context", str(given.context)]
        log = given.work / f"{name}.log"
        servers.append(Served(name, [*ours, *given.own, *options], given.port + 2 * i, log))
    if given.llama_server:
        theirs = [str(given.llama_server), "-m", str(given.gguf), "--port", str(given.port + 1)]
        theirs += ["-np", str(slots), "-c", str(slots * given.context), "-t", str(given.threads), "-cram", "0"]
        servers.append(Served(THEIRS, theirs, given.port + 1, given.work / "llama.log"))
    return servers


def measure(given: argparse.Namespace) -> None:
    """Measure both in turns, and keep what they answered."""
    servers = opened(given, given.slots)
    kept = {server.name: dict[str, str]() for server in servers}
    turns, numbers = list[Turn](), iter(range(1, 1 << 30))
    order = [*servers, *reversed(servers)] if len(servers) > 1 else servers
    try:
        for server in servers:  # a short turn before those that count
            load = Load(server, given.prompt_tokens, given.output_tokens, given.vocabulary)
            load.run(iter(range(1 << 40, (1 << 40) + 8)), 4, 0)
        for i in range(given.turns):
            server = order[i % len(order)]
            load = Load(server, given.prompt_tokens, given.output_tokens, given.vocabulary)
            turns.append(measured(load, server.name, numbers, given, kept[server.name]))
            print(told(turns[-1]), flush=True)
            time.sleep(1)
    finally:
        for server in servers:
            server.close()
    for name in dict.fromkeys(turn.name for turn in turns):
        mine = [turn for turn in turns if turn.name == name]
        rate = np.mean([turn.tokens_per_s for turn in mine])
        ttft, tpot, memory = (
            list(chain.from_iterable(getattr(turn, figure) for turn in mine))
            for figure in ("ttft_ms", "tpot_ms", "memory_mib")
        )
        joined = Turn(name, float(rate), ttft, tpot, memory)
        print("all:", told(joined))
    given.work.joinpath("answers.json").write_text(json.dumps(kept), "utf-8")


def check(given: argparse.Namespace) -> None:
    """Ask each prompt alone, and compare."""
    kept = json.loads(given.work.joinpath("answers.json").read_text("utf-8"))
    for server in opened(given, 1):
        texts = kept[server.name]
        load = Load(server, given.prompt_tokens, given.output_tokens, given.vocabulary)
        whole, _, _ = load.run(iter(sorted(map(int, texts))), 1, 0)
        server.close()
        alike = sum(text_of(answer)[0] == texts[str(answer.number)] for answer in whole)
        broke = sum(text.startswith("BROKE") for text in texts.values())
        print(f"{server.name}: {alike} of {len(texts)} answers are those of the same request alone; {broke} broke")


def main() -> None:
    """Measure or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--beside", action="append", default=[], help="NAME=MODEL [OPTIONS] of another form of ours.")
    parser.add_argument("--check", action="store_true", help="Compare kept answers with those of requests alone.")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "served-rivals")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0, help="Of each turn.")
    parser.add_argument(
        "--settle", type=float, default=3.0, help="Of each turn, not counted: clients that began together spread."
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--context", type=int, default=256, help="Of each slot.")
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("own", nargs="*", help="Behind --: further options of edgeopt serve.")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    (check if given.check else measure)(given)


if __name__ == "__main__":
    main()
