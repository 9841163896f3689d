"""`bench --endpoint` at servers of frames: is each stage attributed rightly?

    python benchmarks/endpoint_frames.py [--seconds 4] [--mlserver ENVIRONMENT/bin/python]

A server written here waits in one stage after the other for as long as a script says; it runs in a process of its own,
by the same clock. What is printed beside the script: the server's own log where it can see a stage, and the median that
`bench` told; right is within 5 % or 0.2 ms of the log: the median of the differences, frame by frame.

With `--mlserver`, a Python that has MLServer and tritonclient (`pip install mlserver 'tritonclient[http,grpc]'`): a
model that logs how long it takes is served over HTTP and gRPC. The whole of a frame is compared with that of Triton's
own client in turns, and `server` with what the model itself took.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fixtures"))

from scripted_server import SHAPE, Script, make_certificate, scripted

from edgeopt.measurement.endpoint.connection import parse_place
from edgeopt.measurement.endpoint.frames.bench import bench_frames
from edgeopt.measurement.endpoint.frames.http import HttpFrames, HttpMessage
from edgeopt.measurement.endpoint.frames.result import FrameServerResult, times_of_frames
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.measurement.endpoint.probing import find_frames
from edgeopt.measurement.statistics.quantile import Quantile, quantile

RELATIVE, ABSOLUTE_MS = 0.05, 0.2
WAITS_MS = {"wire": 12.0, "server": 20.0, "download": 8.0}


def measured(address: str, seconds: float, **wishes: Any) -> FrameServerResult:
    options = EndpointOptions(address, seconds=seconds, **wishes)
    server = find_frames(parse_place(address), options.model, options.timeout_s)
    assert server is not None
    return bench_frames(server, options)


def row(name: str, script_ms: float, log_ms: float, told: Quantile, off_ms: float | None = None) -> bool:
    """Print a stage; return whether it is right."""
    value = told.value_ms
    assert value is not None
    off = value - log_ms if off_ms is None else off_ms
    is_right = abs(off) <= max(ABSOLUTE_MS, RELATIVE * log_ms)
    verdict = "right" if is_right else "WRONG"
    print(f"| {name} | {script_ms:.3f} | {log_ms:.3f} | {told} | {off:+.3f} | {verdict} |", flush=True)
    return is_right


def heads(title: str) -> None:
    print(f"\n{title}\n\n| stage | script ms | log p50 ms | bench p50 ms | off ms | |\n|---|--:|--:|--:|--:|---|")


@contextmanager
def apart(script: dict[str, Any], kind: str = "http") -> Iterator[tuple[str, Callable[[], list[dict[str, int]]]]]:
    """Serve in a process of its own; yield its address, and what ends it and returns its log."""
    command = [sys.executable, __file__, "--serve", kind, json.dumps(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()

        def end() -> list[dict[str, int]]:
            logged, _ = process.communicate("\n")
            rows: list[dict[str, int]] = json.loads(logged)
            return rows

        try:
            yield address, end
        finally:
            process.kill()


def serve(kind: str, script: dict[str, Any]) -> None:
    """Serve until a line comes; write the log."""
    if kind == "grpc":
        import grpc
        from scripted_grpc import grpc_server

        log = list[dict[str, int]]()

        def wait(_: bytes) -> None:
            begun_ns = time.perf_counter_ns()
            time.sleep(script["server_s"])
            log.append({"read_ns": begun_ns, "first_ns": time.perf_counter_ns()})

        server, address = grpc_server(grpc, wait, shape=tuple(script["shape"]))
        server.start()
        print(address, flush=True)
        sys.stdin.readline()
        server.stop(None).wait()
        print(json.dumps(log), flush=True)
        return
    if certificate := script.get("certificate"):
        script["certificate"] = Path(certificate)
    with scripted(Script(**script)) as server:
        print(server.address, flush=True)
        sys.stdin.readline()
        rows = [{name: getattr(seen, name) for name in seen.__annotations__} for seen in server.seen]
        print(json.dumps(rows + [{"tls_ns": each} for each in server.handshakes_ns]))
        sys.stdout.flush()


def stages_of_requests(seconds: float) -> Iterator[bool]:
    parts = {"wire": ("begun_ns", "read_ns"), "server": ("read_ns", "first_ns"), "download": ("first_ns", "last_ns")}
    keys = {"wire": "read_s", "server": "server_s", "download": "download_s"}
    plans = [{}, *({stage: wait} for stage, wait in WAITS_MS.items()), WAITS_MS]
    for plan in plans:
        script = {keys[stage]: wait / 1e3 for stage, wait in plan.items()}
        with apart(script) as (address, end):
            result = measured(address, seconds, encodings=("binary",))
            log = end()[1:]  # the first one tries the encoding
        samples = result.alone[0].samples
        heads(f"Waits in {', '.join(plan) or 'no stage'}; 900 KiB a request, {result.alone[0].answers} frames")
        for stage, (begin, until) in parts.items():
            told, logged = samples.stage(stage), np.array([each[until] - each[begin] for each in log], np.int64)
            off_ms = float(np.median(told - logged)) / 1e6
            yield row(stage, plan.get(stage, 0.0), float(np.median(logged)) / 1e6, quantile(told, 0.5), off_ms)


class Logged:
    """A function that waits first, and logs how long it took in all."""

    def __init__(self, function: Callable[..., Any], wait_s: float) -> None:
        self._function, self._wait_s, self.took_ns = function, wait_s, list[int]()

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Wait, and call it."""
        begun_ns = time.perf_counter_ns()
        time.sleep(self._wait_s)
        try:
            return self._function(*args, **options)
        finally:
            self.took_ns.append(time.perf_counter_ns() - begun_ns)

    @property
    def median_ms(self) -> float:
        """The median of what it took."""
        return float(np.median(self.took_ns)) / 1e6


def stages_of_connections(seconds: float, folder: Path) -> Iterator[bool]:
    certificate = make_certificate(folder)
    resolve, connect = Logged(socket.getaddrinfo, 0.01), Logged(socket.socket.connect, 0.005)
    script = {"tls_s": 0.015, "certificate": str(certificate) if certificate else None, "shape": [1, 8]}
    os.environ["SSL_CERT_FILE"] = str(certificate)
    with apart(script) as (address, end), mock.patch.object(socket, "getaddrinfo", resolve):
        with mock.patch.object(socket.socket, "connect", lambda *args: connect(*args)):
            result = measured(address, min(seconds, 1.0), encodings=("binary",))
        handshakes = [each["tls_ns"] for each in end() if "tls_ns" in each]
    heads(f"A new connection, {result.once['dns'].n} of them")
    yield row("dns", 10.0, resolve.median_ms, result.once["dns"].p50)
    yield row("connect", 5.0, connect.median_ms, result.once["connect"].p50)
    if certificate:
        yield row("tls", 15.0, float(np.median(handshakes)) / 1e6, result.once["tls"].p50)


class SlowDialect:
    """A client that waits before it sends, and when it has the reply."""

    smallest_path = "/v2/health/live"

    def __init__(self) -> None:
        message = HttpMessage("/v2/models/m/infer", {}, b"{}")
        self.encode, self.decode = Logged(lambda *_: message, 0.01), Logged(lambda *_: None, 0.006)


def stages_of_the_client(seconds: float) -> Iterator[bool]:
    dialect = SlowDialect()
    with apart({}) as (address, end):
        client, exchanges = HttpFrames(parse_place(address), 20.0, dialect), []
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < seconds:
            exchanges.append(client.ask(np.zeros((2, 2, 3), np.uint8), "json"))
        client.close()
        end()
    times = times_of_frames("json", exchanges, 0, seconds).times
    heads(f"A client that waits itself, {len(exchanges)} frames")
    yield row("serialize", 10.0, dialect.encode.median_ms, times["serialize"].p50)
    yield row("parse", 6.0, dialect.decode.median_ms, times["parse"].p50)


def stages_over_grpc(seconds: float) -> Iterator[bool]:
    for shape, size in (((1, 8), "32 B"), (SHAPE, "900 KiB, whose sending is not told apart")):
        with apart({"server_s": 0.02, "shape": shape}, "grpc") as (address, end):
            result = measured(address, seconds, encodings=("raw",))
            logged_ms = float(np.median([each["first_ns"] - each["read_ns"] for each in end()[4:]])) / 1e6
        heads(f"gRPC, waits in server; {size}; {result.alone[0].answers} frames")
        is_right = row("server", 20.0, logged_ms, result.alone[0].times["server"].p50)
        if shape != SHAPE:
            yield is_right
        print(f"| | | | {result.smallest_time.p50} | | the smallest request, which counts as wire |")


RUNTIME = """
import asyncio, os, time
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Waiting(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        begun = time.perf_counter_ns()
        array = NumpyCodec.decode_input(payload.inputs[0])
        await asyncio.sleep(0.02)
        output = NumpyCodec.encode_output("y", array.reshape(array.shape[0], -1)[:, :10].astype(np.float32))
        with open(os.environ["WAITING_LOG"], "a") as file:
            file.write(f"{time.perf_counter_ns() - begun}\\n")
        return InferenceResponse(model_name=self.name, outputs=[output])
"""
CLIENT = """
import json, sys, time
import numpy as np

kind, address, encoding, count = sys.argv[1:]
if kind == "http":
    import tritonclient.http as client
else:
    import tritonclient.grpc as client
server = client.InferenceServerClient(address)
array, times = np.random.default_rng(0).random((1, 3, 96, 96)).astype(np.float32), []
for _ in range(int(count)):
    begun = time.perf_counter_ns()
    tensor = client.InferInput("images", array.shape, "FP32")
    options = {"binary_data": encoding == "binary"} if kind == "http" else {}
    tensor.set_data_from_numpy(array, **options)
    wanted = [client.InferRequestedOutput("y", **options)]
    server.infer("m", [tensor], outputs=wanted).as_numpy("y")
    times.append(time.perf_counter_ns() - begun)
print(json.dumps(times[3:]))
"""
SETTINGS = {
    "name": "m",
    "implementation": "waiting.Waiting",
    "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 96, 96]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 10]}],
}


def free_ports(count: int) -> list[int]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    return ports


def at_mlserver(python: str, seconds: float, folder: Path) -> None:
    http, grpc, metrics = free_ports(3)
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (folder / "m").mkdir()
    (folder / "settings.json").write_text(json.dumps({"parallel_workers": 0, "debug": False, **ports}))
    (folder / "m" / "model-settings.json").write_text(json.dumps(SETTINGS))
    (folder / "m" / "waiting.py").write_text(RUNTIME)
    (folder / "client.py").write_text(CLIENT)
    log = folder / "log.txt"
    env = {**os.environ, "PYTHONPATH": str(folder / "m"), "WAITING_LOG": str(log)}
    env.pop("SSL_CERT_FILE", None)
    code = "from mlserver.cli.main import main; main()"
    command = [python, "-c", code, "start", str(folder)]
    with (folder / "out.txt").open("w") as out, subprocess.Popen(command, env=env, stdout=out, stderr=out) as process:
        try:
            wait_for(http, process)
            print("\nMLServer, a model that waits 20 ms; Triton's client and bench in turns, 108 KiB of numbers\n")
            print("| over | encoding | Triton's client p50 ms | bench p50 ms | model's log p50 ms | server p50 ms |")
            print("|---|---|--:|--:|--:|--:|")
            for kind, encoding, place in (
                ("http", "json", f"http://127.0.0.1:{http}"),
                ("grpc", "contents", f"grpc://127.0.0.1:{grpc}"),
                ("grpc", "raw", f"grpc://127.0.0.1:{grpc}"),
            ):
                compare(python, kind, encoding, place, seconds, folder, log)
        finally:
            process.terminate()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None, "MLServer ended; see its environment"
        client = HttpFrames(parse_place(f"http://127.0.0.1:{port}"), 5.0)
        try:
            if client.get("/v2/models/m/ready")[0] == 200:
                return
        except OSError:
            pass
        finally:
            client.close()
        time.sleep(0.2)
    raise SystemExit("MLServer did not become ready")


def compare(python: str, kind: str, encoding: str, place: str, seconds: float, folder: Path, log: Path) -> None:
    """Print one line: four turns of both clients."""
    theirs, ours, model, server = list[int](), list[int](), list[int](), list[int]()
    for _ in range(4):
        if encoding != "contents":  # Triton's client has no way to send numbers in the message
            address = place.partition("://")[2]
            done = subprocess.run(
                [python, str(folder / "client.py"), kind, address, encoding, "83"],
                capture_output=True,
                text=True,
                check=True,
            )
            theirs += json.loads(done.stdout)
        before = len(log.read_text().splitlines()) if log.exists() else 0
        samples = measured(place, seconds / 4, encodings=(encoding,)).alone[0].samples.steady().served()
        ours += samples.frame_ns.tolist()
        server += samples.stage("server").tolist()
        model += list(map(int, log.read_text().splitlines()[before + 4 :]))
    cells = [
        str(quantile(np.array(values, np.int64), 0.5)) if values else "-" for values in (theirs, ours, model, server)
    ]
    print(f"| {kind} | {encoding} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--mlserver", metavar="PYTHON", help="a Python that has MLServer and tritonclient")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.serve:
        serve(wanted.serve[0], json.loads(wanted.serve[1]))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        right = [*stages_of_requests(wanted.seconds), *stages_of_the_client(wanted.seconds)]
        right += stages_over_grpc(wanted.seconds)
        right += stages_of_connections(wanted.seconds, folder)
        print(f"\n{sum(right)} of {len(right)} stages within {RELATIVE:.0%} or {ABSOLUTE_MS} ms")
        if wanted.mlserver:
            at_mlserver(wanted.mlserver, wanted.seconds, folder)


if __name__ == "__main__":
    main()
