"""Do libraries do what edgeopt's own code does, as rightly and as fast?

    pip install rapidfuzz safetensors prometheus-client tokenizers msgspec cattrs httpx
    python benchmarks/libraries.py [PART ...]

A part is `spelling`, `run_lengths`, `tensors`, `histogram`, `byte_pairs`, `tables`, `requests` or `imports`; all run if
none is named. Each prints how many answers are right, on usual input and on input that is wrong or rare, and the times
of both sides in turns: medians over `ROUNDS` rounds, and the ratio with its 95 % interval, above 1 where the library is
faster. What was edgeopt's own code until the library took its place stands here as it was; tensors are read by the same
code in edgeopt again, which also looks whether the file stayed as it was.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import socket
import statistics
import string
import struct
import subprocess
import sys
import tempfile
import threading
import tomllib
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.measurement.statistics.ratio import ratio_of_rounds

ROOT = Path(__file__).parents[1]
ROUNDS = 12
TOKENIZER = ROOT / "models" / "tiny_lm" / "tokenizer.json"


def print_times(what: str, ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 1) -> None:
    """Time both in turns, whose order turns round, and print medians and ratio."""
    times_ns: dict[str, list[float]] = {"ours": [], "theirs": []}
    sides = [("ours", ours), ("theirs", theirs)]
    for _, call in sides:
        call()
    for i in range(ROUNDS):
        for name, call in sides if i % 2 else reversed(sides):
            begun_ns = perf_counter_ns()
            for _ in range(repeats):
                call()
            times_ns[name].append((perf_counter_ns() - begun_ns) / repeats)
    logs = np.log(np.array(times_ns["ours"]) / np.array(times_ns["theirs"]))
    medians = {name: statistics.median(values) / 1e3 for name, values in times_ns.items()}
    ratio = ratio_of_rounds(logs, pairs=ROUNDS)
    print(f"  {what}: ours {medians['ours']:.1f} us, theirs {medians['theirs']:.1f} us, {ratio}")


def edit_distance(found: str, true: str) -> int:
    """Return Levenshtein's distance, row by row with NumPy, as edgeopt did."""
    if found == true:
        return 0
    points = np.array([ord(name) for name in true], np.int64)
    steps = np.arange(len(true) + 1)
    row = steps
    for i, letter in enumerate(found, start=1):
        replaced, deleted = row[:-1] + (points != ord(letter)), row[1:] + 1
        open_row = np.concatenate([[i], np.minimum(replaced, deleted)])
        row = np.minimum.accumulate(open_row - steps) + steps
    return int(row[-1])


def spoilt(chance: random.Random, text: str, letters: str) -> str:
    """Return a text in which a tenth of the letters is left out or another."""
    return "".join(letter if chance.random() > 0.1 else chance.choice(["", *letters]) for letter in text)


def compare_spelling() -> None:
    """Rapidfuzz beside our own count of edits."""
    from rapidfuzz.distance import Levenshtein

    chance, letters = random.Random(0), string.ascii_lowercase + " "
    rare = ["", " ", "a", "\ud800", "\udfff", "\U0001f469\u200d\U0001f680", "e\u0301", "\u00e9", "疗法", "\x00"]
    pairs = [(a, b) for a in rare for b in rare]
    for _ in range(3000):
        text = "".join(chance.choices("abä疗\U0001f600", k=chance.randrange(90)))
        pairs.append((spoilt(chance, text, "abc"), text))
    right = sum(Levenshtein.distance(a, b) == edit_distance(a, b) for a, b in pairs)
    print(f"spelling\n  right: {right} of {len(pairs)} pairs of texts, empty ones and lone surrogates among them")
    lines = ["".join(chance.choices(letters, k=chance.randrange(5, 40))) for _ in range(200)]
    read = [spoilt(chance, line, letters) for line in lines]
    print_times(
        "200 lines of a reader of texts",
        lambda: [edit_distance(a, b) for a, b in zip(read, lines, strict=True)],
        lambda: [Levenshtein.distance(a, b) for a, b in zip(read, lines, strict=True)],
    )
    words = "".join(chr(chance.randrange(400)) for _ in range(2000))
    heard = spoilt(chance, words, words[:50])
    print_times(
        "a transcript of 2,000 words", lambda: edit_distance(heard, words), lambda: Levenshtein.distance(heard, words)
    )


_SHORT_STRINGS = (b"", b"zzzz", b"0" * 50, b"000P3", b"`o0", b"P" * 20, b"\x7f" * 100)
_DECODE = """
import sys
from pycocotools import mask
try:
    shown = mask.decode({"size": [10, 12], "counts": bytes.fromhex(sys.argv[1])})
except ValueError:
    print("refused")
else:
    print("a mask" if shown.max() <= 1 else f"memory as it lay there, up to {shown.max()}")
"""


def compare_run_lengths() -> None:
    """Pycocotools' masks beside our own run lengths."""
    from pycocotools import mask as masks

    from edgeopt.recipes.scoring.run_lengths import as_coco, mask_of, read_string, runs_of

    def their_runs(cutout: NDArray[np.bool_], corner: tuple[int, int], size: tuple[int, int]) -> list[int] | None:
        whole = np.zeros(size, np.uint8, order="F")
        whole[corner[1] : corner[1] + len(cutout), corner[0] : corner[0] + cutout.shape[1]] = cutout
        return read_string(masks.encode(whole)["counts"].decode())  # it gives no counts but as its string

    def their_mask(runs: NDArray[np.int64], size: tuple[int, int]) -> NDArray[np.bool_]:
        return np.asarray(masks.decode(masks.frPyObjects(as_coco(runs, size), *size)), bool)

    rng, right, count = np.random.default_rng(0), 0, 0
    for _ in range(500):
        height, width = (int(side) for side in rng.integers(1, 30, 2))
        top, left = int(rng.integers(height)), int(rng.integers(width))
        cutout = rng.random((height - top, width - left)) < rng.random()
        runs = runs_of(cutout, (left, top), (height, width))
        right += their_runs(cutout, (left, top), (height, width)) == runs.tolist()
        right += bool((their_mask(runs, (height, width)) == mask_of(runs, (height, width))).all())
        count += 2
    print(f"run_lengths\n  right: {right} of {count} masks, empty and full ones among them")
    for text in _SHORT_STRINGS:
        done = subprocess.run([sys.executable, "-c", _DECODE, text.hex()], capture_output=True, text=True, check=False)
        ours = read_string(text.decode("latin-1"))
        is_whole = ours is not None and sum(ours) == 120
        shown = done.stdout.strip() or f"ended with {done.returncode}"
        print(f"  the string {text[:12]!r}: theirs {shown}; ours {'a mask' if is_whole else 'refused'}")
    y, x = np.mgrid[:120, :90]
    blob = ((x - 45) / 45) ** 2 + ((y - 60) / 60) ** 2 + 0.1 * np.sin(x / 5) < 1
    size = (480, 640)
    runs = runs_of(blob, (300, 200), size)
    print_times(
        "runs of a thing of 90x120 in a frame of 640x480",
        lambda: runs_of(blob, (300, 200), size),
        lambda: their_runs(blob, (300, 200), size),
        repeats=20,
    )
    print_times("its mask", lambda: mask_of(runs, size), lambda: their_mask(runs, size), repeats=20)


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, list[int], bytes]]) -> None:
    """Write tensors: type, shape and bytes by name."""
    head, data = dict[str, Any](), b""
    for name, (dtype, shape, values) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def damaged(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what is wrong, and the bytes of a file in which it is."""
    data = path.read_bytes()
    yield "one byte", b"\x01"
    yield "a head longer than the file", b"\xff" * 64
    yield "a head that nests 100,000 deep", (100_000).to_bytes(8, "little") + b"[" * 100_000
    yield "a head with 1e400", (14).to_bytes(8, "little") + b'{"a": [1e400]}'
    yield "cut short", data[:-100]
    for name, entry in (
        ("a side below zero", {"dtype": "F32", "shape": [-1, -4], "data_offsets": [0, 16]}),
        ("another length than the shape", {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}),
        ("a place before the file", {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}),
        ("sides whose product overflows", {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}),
        ("an unknown type", {"dtype": "X9", "shape": [4], "data_offsets": [0, 16]}),
    ):
        head = json.dumps({"w": entry}).encode()
        yield name, struct.pack("<Q", len(head)) + head + bytes(16)


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor of a file, as edgeopt keeps it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    size_bytes: int


_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8"}


def places_of(file: Path) -> dict[str, _Place]:
    """Return the tensors of a file with the standard library, as edgeopt does."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        first = stream.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
        if not 0 < length <= min(100 << 20, size - 8):
            raise ValueError("no safetensors file")
        head = json.loads(stream.read(length))
    return {name: _place(file, value, 8 + length, size) for name, value in head.items() if name != "__metadata__"}


def _place(file: Path, entry: Mapping[str, Any], after: int, size: int) -> _Place:
    start, end = (int(place) for place in entry["data_offsets"])
    shape = tuple(int(side) for side in entry["shape"])
    name = _DTYPES.get(entry["dtype"])
    width, count = np.dtype(name).itemsize if name else 0, 1
    for side in shape:
        count *= side
    if min(start, *shape, 0) < 0 or after + end > size or (width and end - start != width * count):
        raise ValueError("a tensor lies beyond the file, or has another length than its shape")
    return _Place(file, entry["dtype"], shape, after + start, end - start)


def read_ours(file: Path) -> dict[str, NDArray[np.float32]]:
    """Return all tensors in float32, each read when its turn comes."""
    result = dict[str, NDArray[np.float32]]()
    for name, place in places_of(file).items():
        with place.file.open("rb") as stream:
            stream.seek(place.start)
            data: NDArray[Any] = np.frombuffer(stream.read(place.size_bytes), _DTYPES[place.dtype])
        data = data.reshape(place.shape)
        result[name] = widened(data) if place.dtype == "BF16" else np.ascontiguousarray(data, np.float32)
    return result


def widened(data: NDArray[Any]) -> NDArray[np.float32]:
    """Return bfloat16 as float32: its upper half."""
    wide = data.view(np.uint16).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def read_theirs(file: Path) -> dict[str, NDArray[np.float32]]:
    """Return all tensors in float32, by safetensors."""
    import ml_dtypes  # noqa: F401, gives NumPy the type bfloat16
    from safetensors import safe_open

    with safe_open(file, "np") as tensors:
        read = ((name, tensors.get_tensor(name)) for name in tensors.keys())  # noqa: SIM118
        return {
            name: widened(data) if data.dtype.name == "bfloat16" else np.ascontiguousarray(data, np.float32)
            for name, data in read
        }


def compare_tensors() -> None:
    """Read `.safetensors` by the library and by the standard library."""
    rng = np.random.default_rng(0)
    print("tensors")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "model.safetensors"
        values = [rng.standard_normal((576, 1536), np.float32) for _ in range(40)]
        halves = [(array.view(np.uint32) >> 16).astype(np.uint16) for array in values]
        for dtype, stored in (("BF16", halves), ("F32", values)):
            write_safetensors(file, {f"w{i}": (dtype, [576, 1536], array.tobytes()) for i, array in enumerate(stored)})
            ours, theirs = read_ours(file), read_theirs(file)
            right = sum(np.array_equal(ours[name], theirs[name]) for name in ours)
            print(f"  {dtype}: {right} of {len(ours)} tensors alike")
            print_times(f"40 matrices of 576x1536 in {dtype}", lambda: read_ours(file), lambda: read_theirs(file))
        small = {f"w{i}": ("BF16", [32, 32], halves[0].tobytes()[:2048]) for i in range(10_000)}
        write_safetensors(file, small)
        print_times("10,000 tensors of 2 KiB", lambda: read_ours(file), lambda: read_theirs(file))
        write_safetensors(file, {"w": ("F32", [64], bytes(256))})
        for what, data in list(damaged(file)):
            file.write_bytes(data)
            print(f"  {what}: ours {_outcome(read_ours, file)}; theirs {_outcome(read_theirs, file)}")


def _outcome(read: Callable[[Path], object], file: Path) -> str:
    try:
        read(file)
    except Exception as error:  # the library raises one of its own
        return f"{type(error).__name__} {str(error)[:60]!r}"
    return "read"


class TimeHistogram:
    """One series of times, as edgeopt counted it."""

    def __init__(self, limits_s: tuple[float, ...]) -> None:
        self._limits_s = limits_s
        self._counts, self._sum_s, self._turn = [0] * (len(limits_s) + 1), 0.0, threading.Lock()

    def add(self, seconds: float) -> None:
        """Count one time."""
        with self._turn:
            self._counts[bisect_left(self._limits_s, seconds)] += 1
            self._sum_s += seconds

    def lines(self) -> list[tuple[str, float]]:
        """Return buckets, count and sum, as Prometheus writes them."""
        sums = [sum(self._counts[: i + 1]) for i in range(len(self._counts))]
        return [*zip((*map(str, self._limits_s), "+Inf"), sums, strict=True), ("sum", self._sum_s)]


def compare_histogram() -> None:
    """prometheus_client's histogram beside our own."""
    from prometheus_client import Histogram

    limits_s = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
    ours = TimeHistogram(limits_s)
    family = Histogram("time_seconds", "Time.", ["name"], registry=None, buckets=limits_s)
    theirs = family.labels("model")
    times = [*np.random.default_rng(0).lognormal(-2, 2, 2000).tolist(), *limits_s, 0.0, 1e9]
    for each in times:
        ours.add(each)
        theirs.observe(each)
    read = {sample.labels.get("le", sample.name[-3:]): sample.value for sample in next(iter(family.collect())).samples}
    right = sum(read[name] == value for name, value in ours.lines())
    print(f"histogram\n  right: {right} of {len(ours.lines())} figures of {len(times)} times")
    print_times(
        f"{len(times)} times counted",
        lambda: [ours.add(each) for each in times],
        lambda: [theirs.observe(each) for each in times],
    )


def compare_byte_pairs() -> None:
    """Tokenizers beside our own byte-level BPE."""
    import tokenizers

    from edgeopt.recipes.texts.byte_pairs import read_byte_pairs

    ours, theirs = read_byte_pairs(TOKENIZER), tokenizers.Tokenizer.from_file(str(TOKENIZER))
    points = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) != "Cs"]
    chance = random.Random(0)
    texts = ["".join(points[i : i + 64]) for i in range(0, len(points), 64)]
    texts += ["".join(chance.choices(points[:0x3000], k=50)) for _ in range(2000)]
    right = sum(ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids for text in texts)
    print(f"byte_pairs\n  right: {right} of {len(texts)} texts, with every character of Unicode")
    prose = "".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    parts = [prose[i : i + 20_000] for i in range(0, len(prose), 20_000)]
    both = tuple(map(itertools.cycle, (parts, parts)))
    print_times(
        "20 kB of prose, another part each time",
        lambda: ours.encode(next(both[0])),
        lambda: theirs.encode(next(both[1])).ids,
    )
    tokens = ours.encode(parts[0])
    print_times(
        f"the text of {len(tokens)} tokens",
        lambda: ours.decode(tokens),
        lambda: theirs.decode(tokens, skip_special_tokens=False),
    )
    print_times(
        f"opening the file of {ours.size} tokens",
        lambda: read_byte_pairs(TOKENIZER),
        lambda: tokenizers.Tokenizer.from_file(str(TOKENIZER)),
    )


WRONG_TABLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("an unknown key", {"frames": 3, "lenght": 1}),
    ("a key missing", {"length": 1}),
    ("true for a number", {"frames": 3, "share": True}),
    ("a part of a whole number", {"frames": 1.7}),
    ("a text for a number", {"frames": "3"}),
    ("a text for a list", {"frames": 3, "sides": "12"}),
    ("a wrong entry in a list", {"frames": 3, "sides": [1, "a"]}),
    ("NaN", {"frames": 3, "share": float("nan")}),
    ("beyond its range", {"frames": 3, "share": 2.0}),
    ("an unknown key in a table", {"frames": 3, "inner": {"lenght": 1}}),
)


def compare_tables() -> None:
    """Msgspec and cattrs beside our own tables from files."""
    import cattrs
    import msgspec

    from edgeopt.errors import EdgeoptError
    from edgeopt.system.toml import Within, parse_table

    inner = make_dataclass("Inner", [("length", int, 0)], frozen=True)
    share = Annotated[float, Within(0, 1), msgspec.Meta(ge=0, le=1)]
    fields = [("frames", int), ("length", int, 0), ("share", share, 0.5), ("sides", tuple[int, ...], ())]
    table = make_dataclass("Table", [*fields, ("inner", inner, inner())], frozen=True)
    converter = cattrs.Converter(forbid_extra_keys=True)
    readers: dict[str, Callable[[dict[str, Any]], object]] = {
        "ours": lambda values: parse_table(table, values, "a.toml"),
        "msgspec": lambda values: msgspec.convert(values, table),
        "cattrs": lambda values: converter.structure(values, table),
    }
    print("tables")
    for what, values in WRONG_TABLES:
        shown = []
        for name, read in readers.items():
            try:
                read(values)
                shown.append(f"{name} TAKES IT")
            except Exception as error:  # each raises its own
                text = error.problem if isinstance(error, EdgeoptError) else str(error).splitlines()[0]
                shown.append(f"{name} {text[:70]!r}")
        print(f"  {what}: {'; '.join(shown)}")
    values = {"frames": 3, "length": 4, "share": 0.25, "sides": [1, 2, 3], "inner": {"length": 2}}
    print_times("a table by msgspec", lambda: readers["ours"](values), lambda: readers["msgspec"](values), 500)
    print_times("a table by cattrs", lambda: readers["ours"](values), lambda: readers["cattrs"](values), 500)
    recipes = [path.read_text("utf-8") for path in sorted(ROOT.glob("models/*/recipe.toml"))]
    print_times(
        f"{len(recipes)} recipes parsed, by msgspec",
        lambda: [tomllib.loads(text) for text in recipes],
        lambda: [msgspec.toml.decode(text) for text in recipes],  # which calls tomllib
    )


_EVENT = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_PIECES = 60


@contextmanager
def small_server() -> Iterator[tuple[int, list[int]]]:
    """Serve on a port: a GET with `{}`, a POST with a stream of events, whose instants of sending are kept."""
    sent_ns = list[int]()
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting = b""
        with connection:
            while data := connection.recv(1 << 16):
                waiting += data
                head, found, body = waiting.partition(b"\r\n\r\n")
                if not found:
                    continue
                length = re.search(rb"content-length: (\d+)", head.lower())
                if length and len(body) < int(length[1]):
                    continue
                waiting = b""
                if head.startswith(b"GET"):
                    connection.sendall(_HEAD)
                    continue
                connection.sendall(_STREAM_HEAD)
                for _ in range(_PIECES):
                    sleep(0.002)
                    sent_ns.append(perf_counter_ns())
                    connection.sendall(b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT))
                end = b"data: [DONE]\n\n"
                connection.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1], sent_ns
    finally:
        listening.close()


def compare_requests() -> None:
    """Time requests by httpx and by our own connection on the standard library."""
    import httpx

    from edgeopt.measurement.endpoint.client import Client
    from edgeopt.measurement.endpoint.connection import parse_place

    print("requests")
    with small_server() as (port, sent_ns):
        ours = Client(parse_place(f"http://127.0.0.1:{port}"), 10)
        theirs = httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", trust_env=False)
        ours.connect()
        print_times("a request on an open connection", ours.round_trip_ns, lambda: theirs.get("/models"), 100)
        late_us: dict[str, list[float]] = {"ours": [], "httpx": []}
        for i in range(6):
            for name in ("ours", "httpx") if i % 2 else ("httpx", "ours"):
                sent_ns.clear()
                if name == "ours":
                    exchange = ours.ask("/completions", {"stream": True})
                    at_ns = [exchange.begun_ns + piece_ns for piece_ns in exchange.pieces_ns]
                else:
                    at_ns = []
                    with theirs.stream("POST", "/completions", json={"stream": True}) as reply:
                        for line in reply.iter_lines():
                            if line.startswith("data: {"):
                                at_ns.append(perf_counter_ns())
                                json.loads(line[6:])
                late_us[name] += [(at - sent) / 1e3 for at, sent in zip(at_ns, sent_ns, strict=True)]
        for name, values in late_us.items():
            low, middle, high = np.percentile(values, (5, 50, 95))
            print(f"  {name} sees a piece of a stream {middle:.0f} us after it was sent ({low:.0f} to {high:.0f})")
        ours.close()
        theirs.close()


def print_imports() -> None:
    """How long each library takes to import, in fresh processes in turns."""
    names = ("rapidfuzz.distance.Levenshtein", "safetensors", "prometheus_client", "tokenizers", "msgspec", "cattrs")
    names += ("httpx", "pycocotools.mask", "edgeopt.recipes.texts.byte_pairs", "http.client")
    code = "import sys, time, importlib, numpy; t = time.perf_counter(); importlib.import_module(sys.argv[1]); "
    code += "print((time.perf_counter() - t) * 1e3)"
    times_ms: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(5):
        for name in names:
            done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
            times_ms[name].append(float(done.stdout))
    print("imports, after NumPy")
    for name, values in times_ms.items():
        print(f"  {name}: {statistics.median(values):.1f} ms ({min(values):.1f} to {max(values):.1f})")


PARTS: dict[str, Callable[[], None]] = {
    "spelling": compare_spelling,
    "run_lengths": compare_run_lengths,
    "tensors": compare_tensors,
    "histogram": compare_histogram,
    "byte_pairs": compare_byte_pairs,
    "tables": compare_tables,
    "requests": compare_requests,
    "imports": print_imports,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
