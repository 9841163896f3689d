"""A server of frames from its client's side: stages that a script decides, edgeopt's own server, and servers that fail.

A wait of a script is a least time, and in at least one of many frames nothing else is slow: the slowed stage is judged
by its longest time, all others by their shortest. A busy machine turns neither round, a wait told of another does.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fixture_bundles import packed
from scripted_grpc import grpc_server
from scripted_server import Script, make_certificate, scripted
from served import serving, until

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError, UnavailableError
from edgeopt.graph.model import find_model, load_model
from edgeopt.measurement.endpoint.connection import parse_place, server_timing
from edgeopt.measurement.endpoint.frames.bench import bench_frames
from edgeopt.measurement.endpoint.frames.exchange import FrameExchange
from edgeopt.measurement.endpoint.frames.http import HttpFrames, HttpMessage
from edgeopt.measurement.endpoint.frames.result import STAGES, FrameServerResult, times_of_frames
from edgeopt.measurement.endpoint.loading import ask_under, parse_server_load
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.measurement.endpoint.probing import find_frames
from edgeopt.measurement.generation.answer_budget import parse_server_budget
from edgeopt.measurement.samples import Samples
from edgeopt.measurement.slo.run import plan_from
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.report.formats import render
from edgeopt.runtime.bundle import write_bundle
from edgeopt.system.declared.target import find_target
from edgeopt.verbs.report import read_stored_report

WAIT_S = 0.03
MOST_OTHERS_NS = 10e6
"""The quickest of all frames takes less in a stage that no script slows."""
DIGITS = find_model("digits_detector")


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr("edgeopt.measurement.endpoint.frames.bench._LEAST_ROUNDS", 6)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    both = make_certificate(tmp_path_factory.mktemp("tls"))
    if both is None:
        pytest.skip("no openssl is here that makes such a certificate")
    return both


def measured(address: str, **wishes: Any) -> FrameServerResult:
    options = EndpointOptions(address, **{"seconds": 0.2, "timeout_s": 20.0} | wishes)
    server = find_frames(parse_place(address), options.model, options.timeout_s)
    assert server is not None
    return bench_frames(server, options)


def least_ns(samples: Samples) -> dict[str, int]:
    rows = samples.steady().served()
    return {name: int(rows.stage(name).min()) for name in STAGES}


def assert_slow(samples: Samples, slow: str, least_s: float) -> None:
    """Assert that a wait is told of one stage, and of no other."""
    assert samples.steady().served().stage(slow).max() >= least_s * 1e9
    least = least_ns(samples)
    assert all(ns < MOST_OTHERS_NS for name, ns in least.items() if name != slow), least


@pytest.mark.parametrize(
    ("script", "slow"),
    [
        pytest.param(
            {"read_s": WAIT_S},
            "wire",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="the kernel may take the whole request at once"),
        ),
        ({"server_s": WAIT_S}, "server"),
        ({"download_s": WAIT_S}, "download"),
    ],
)
def test_a_wait_of_the_server_is_told_of_the_stage_in_which_it_waits(script, slow):
    with scripted(Script(**script)) as server:
        result = measured(server.address, encodings=("binary",))
    # what the receiver's buffer held, and the round trip, are in other stages
    assert_slow(result.alone[0].samples, slow, 0.9 * WAIT_S)
    assert result.exit_code == 0


def test_stages_are_those_that_the_server_logs():
    """The server's own clock, which is the same: of each frame, what it did lies within what its client saw."""
    with scripted(Script(server_s=0.01, download_s=0.01)) as server:
        samples = measured(server.address, encodings=("binary",)).alone[0].samples
        until(lambda: len(server.seen) > len(samples))  # it writes a frame down when its client has the answer already
    for row, seen in zip(range(len(samples)), server.seen[1:], strict=True):  # the first one tries the encoding
        stages = dict(zip(STAGES, samples.times_ns[row].tolist(), strict=True))
        assert stages["wire"] + stages["server"] >= seen.first_ns - seen.read_ns >= 0.01e9
        assert samples.frame_ns[row] >= sum(stages.values())
        assert samples.frame_ns[row] >= seen.first_ns - seen.begun_ns


def test_a_slow_name_and_a_slow_network_are_parts_of_a_new_connection(monkeypatch):
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def slow_name(*args: Any, **options: Any) -> Any:
        sleep(WAIT_S)
        return resolve(*args, **options)

    def slow_connect(self: socket.socket, address: Any) -> None:
        sleep(2 * WAIT_S)
        connect(self, address)

    with scripted(Script(closes=True)) as server:
        monkeypatch.setattr(socket, "getaddrinfo", slow_name)
        monkeypatch.setattr(socket.socket, "connect", slow_connect)
        result = measured(server.address, encodings=("binary",))
    assert WAIT_S * 1e9 <= result.once["dns"].min_ns < 2 * WAIT_S * 1e9
    assert result.once["connect"].max_ns >= 2 * WAIT_S * 1e9
    assert result.trip_ms >= 1800 * WAIT_S
    times = result.alone[0]
    assert times.reconnects == times.answers >= 6  # the server closes each connection
    assert_slow(times.samples, "connect", 3 * WAIT_S)
    assert "closes each connection" in result.findings[0].what


def test_a_slow_handshake_is_that_of_tls(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with scripted(Script(certificate=certificate, tls_s=WAIT_S)) as server:
        result = measured(server.address, encodings=("binary",))
    assert result.once["tls"].max_ns >= WAIT_S * 1e9
    assert max(result.once[name].min_ns for name in ("dns", "connect")) < MOST_OTHERS_NS
    assert result.alone[0].reconnects == 0


class SlowDialect:
    """An interface whose client is slow itself."""

    smallest_path = "/v2/health/live"

    def encode(self, sample: Any, encoding: str) -> HttpMessage:
        sleep(WAIT_S)
        return HttpMessage("/v2/models/m/infer", {}, b"{}")

    def decode(self, headers: Mapping[str, str], body: bytes) -> None:
        sleep(2 * WAIT_S)


def test_a_slow_client_is_told_as_serializing_and_parsing():
    with scripted(Script()) as server:
        client = HttpFrames(parse_place(server.address), 20.0, SlowDialect())
        exchanges = [client.ask(np.zeros((2, 2, 3), np.uint8), "json") for _ in range(6)]
        client.close()
    least = least_ns(times_of_frames("json", exchanges, 0, 1.0).samples)
    assert least["serialize"] >= WAIT_S * 1e9
    assert least["parse"] >= 2 * WAIT_S * 1e9
    assert max(least[name] for name in ("wire", "server", "download")) < MOST_OTHERS_NS


def test_encodings_take_turns_and_those_that_a_server_takes_not_are_named():
    with scripted(Script()) as server:
        result = measured(server.address)
    json_times, binary = result.alone
    assert [times.encoding for times in result.alone] == ["json", "binary"]
    assert json_times.request_bytes > 3 * binary.request_bytes > 3 * 900 * 1024
    assert result.fastest is binary
    assert result.ratios["binary"].speedup > 1.5
    assert result.ratios["binary"].pairs == json_times.answers == binary.answers
    begun = np.stack([times.samples.started_ns for times in result.alone])
    assert set(np.diff(begun, axis=0).ravel() > 0) == {True, False}  # each is first as often as the other
    assert [finding.rule for finding in result.findings][:1] == ["encoding"]
    with scripted(Script(takes_binary=False)) as server:
        result = measured(server.address)
    assert [times.encoding for times in result.alone] == ["json"]
    assert result.notes[0].detail == "binary: the server takes it not: status 400: the model is broken"


def test_what_the_server_says_of_itself_is_kept_apart():
    with scripted(Script(server_s=0.01, tells='queue;dur=1.5, db;desc="a";dur=2, total;dur=4')) as server:
        result = measured(server.address, encodings=("binary",))
    assert result.alone[0].server_ms == {"queue": 1.5, "db": 2.0, "total": 4.0}
    assert "in front" in [finding.rule for finding in result.findings]
    assert server_timing("miss, cache;desc=x") == {}


def test_a_load_has_connections_of_its_own_and_a_budget_judges_it():
    with scripted(Script(server_s=0.01, shape=(1, 8))) as server:
        result = measured(server.address, load="closed:4", limits_ms={"frame": 2.0})
    assert result.loaded is not None
    assert result.loaded.encoding == result.fastest.encoding
    assert result.loaded.answers >= 8
    assert 1 <= result.loaded.reconnects <= 4
    assert result.budget is not None
    assert (result.budget.misses, result.exit_code) == (result.loaded.answers, 2)


def test_a_recorded_trace_is_replayed(tmp_path):
    file = tmp_path / "times.txt"
    file.write_text("0\n0.01\n0.05\n0.06\n")
    with scripted(Script(shape=(1, 8))) as server:
        result = measured(server.address, load=f"trace:{file}", encodings=("binary",), seconds=0.15)
    rows = result.loaded.samples
    assert (rows.intended_ns / 1e6).round(1).tolist() == [0.0, 10.0, 50.0, 60.0, 80.0, 90.0, 130.0, 140.0]
    assert (rows.started_ns >= rows.intended_ns).all()


def bundle_of_digits(folder: Path) -> Path:
    net, target = load_model(DIGITS), find_target("cpu-x86-vnni")
    recipe = choose_recipe(None, DIGITS, net.inputs, net.outputs, net.metadata).recipe
    models = [packed("m.onnx", "fp32", DIGITS.read_bytes(), target, 1)]
    return write_bundle(folder, models, target, recipe, {}, {}).folder


def test_edgeopts_own_server_takes_pictures_and_tells_its_stages(tmp_path):
    with serving(str(bundle_of_digits(tmp_path / "bundle"))) as server:
        out = tmp_path / "out"
        args = ["bench", "--endpoint", server.address, "--seconds", "0.2s", "--load", "fps:50", "-o", str(out)]
        done = CliRunner().invoke(cli, [*args, "-s", str(DIGITS.parent / "calib"), "--budget", "5s"])
        assert done.exit_code in (0, 3), done.output  # passed, or too few frames to prove it
        wrong = CliRunner().invoke(cli, [*args, "--model", "other"])
    result = json.loads((out / "bench.json").read_text("utf-8"))
    data = result.get("data", result)
    assert (data["interface"], data["model"]) == ("edgeopt's /v1/frames", "digits_detector")
    assert [times["encoding"] for times in data["alone"]] == ["jpeg", "png", "bmp"]
    for times in data["alone"]:
        assert {"queue", "decode", "preprocess", "execute", "total"} <= times["server_ms"].keys()
        assert times["server_ms"]["total"] >= times["server_ms"]["execute"]
    assert Samples.read(out / "samples-load.npz").stages == STAGES
    assert all((out / f"bench.{suffix}").exists() for suffix in ("html", "md"))
    assert wrong.exit_code == 1
    assert "no model 'other' is at http://127.0.0.1:" in wrong.output


def test_a_server_of_texts_and_one_of_frames_take_options_of_their_own(tmp_path):
    with serving("tiny_lm") as server:
        for args, text in (
            (["--encodings", "json"], "--encodings is not for servers of language models"),
            (["--budget", "33ms"], "--budget 33ms is the time of a frame"),
        ):
            done = CliRunner().invoke(cli, ["bench", "--endpoint", server.address, *args])
            assert (done.exit_code, text in done.output) == (1, True), done.output
    with scripted(Script(shape=(1, 8))) as frames:
        for args, text in (
            (["--turns", "3"], "--turns is not for servers of frames"),
            (["--budget", "ttft:1s"], "--budget limits TTFT of a language model, and this server answers frames"),
            (["--encodings", "jpeg"], "sends no 'jpeg' to m"),
            (["--model", "n"], "no model 'n' is at"),
            (["--shape", "images=1x9"], "does not fit input images float32 1x8"),
            (["--shape", "image=1x8"], "no input named 'image'"),
            (["--source", str(DIGITS.parent / "calib")], "no picture becomes images float32 1x8"),
        ):
            done = CliRunner().invoke(cli, ["bench", "--endpoint", frames.address, *args])
            assert (done.exit_code, text in done.output) == (1, True), done.output
            assert "->" in done.output


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (Script(status=500), "m answers no frame: status 500: the model is broken"),
        (Script(datatype="BF16"), "is of type 'BF16', which is not sent"),
        (Script(shape=(-1, 3, -1, -1)), "leaves a size of input images float32 ?x3x?x? free"),
        (Script(datatype="FP16", shape=(1, 8), takes_binary=False), "answers no frame: status 400"),
        (Script(frames=0), "no more"),
    ],
)
def test_a_server_that_gives_no_frames_is_one_line(script, text):
    with scripted(script) as server:
        done = CliRunner().invoke(cli, ["bench", "--endpoint", server.address, "--seconds", "0.1s"])
    assert done.exit_code == 1
    assert text in done.output
    assert "->" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("load", ["closed", "closed:2"])
def test_a_server_that_ends_meanwhile_is_one_line(load):
    with scripted(Script(shape=(1, 8), frames=13)) as server, pytest.raises(UnavailableError, match="and then no more"):
        measured(server.address, load=load, encodings=("binary",), seconds=0.3)


def test_a_certificate_that_nobody_vouches_for_is_one_line(certificate):
    with scripted(Script(certificate=certificate)) as server:
        done = CliRunner().invoke(cli, ["bench", "--endpoint", server.address])
    assert done.exit_code == 1
    assert "its certificate is not trusted: self" in done.output
    assert "SSL_CERT_FILE" in done.output


@pytest.mark.parametrize("url", ["grpc://127.0.0.1", "grpc://127.0.0.1:1/v2"])
def test_an_address_of_grpc_is_a_host_and_a_port(url):
    with pytest.raises(EdgeoptError, match=r"names no port|has no path"):
        parse_place(url)


def test_pictures_become_the_tensors_of_a_server(tmp_path):
    with scripted(Script(shape=(-1, 3, 48, 64))) as server:
        pictures = measured(server.address, source=DIGITS.parent / "calib", encodings=("binary",))
        recipe = measured(server.address, source=DIGITS.parent / "calib", recipe="imagenet", encodings=("binary",))
        np.savez(tmp_path / "a.npz", images=np.zeros((2, 3, 48, 64), np.float32))
        arrays = measured(server.address, source=tmp_path / "a.npz", encodings=("json",))
    assert "no --recipe says how a picture becomes the input" in pictures.notes[0].detail
    assert not recipe.notes
    assert arrays.sent.startswith("2 samples of")
    assert 4 < arrays.alone[0].request_bytes / (3 * 48 * 64) < 6  # "0.0, " of each number


def test_a_picture_goes_as_a_file_where_the_server_takes_bytes():
    with scripted(Script(datatype="BYTES", shape=(1,))) as server:
        result = measured(server.address)
    sizes = {times.encoding: times.request_bytes for times in result.alone}
    assert sizes["jpeg"] < sizes["base64"] < sizes["png"]


def test_grpc_has_the_same_stages_but_for_sending():
    grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
    server, address = grpc_server(grpc, lambda _: sleep(WAIT_S))
    server.start()
    try:
        result = measured(address, load="closed:2")
    finally:
        server.stop(None).wait()
    assert (result.interface, result.model, result.tells_sending) == ("KServe v2 over gRPC", "m", False)
    assert [times.encoding for times in result.alone] == ["contents", "raw"]
    for times in (*result.alone, result.loaded):
        way_s = result.smallest_time.p50.value_ns / 1e9
        assert_slow(times.samples, "server", WAIT_S - way_s)
        assert not times.problems


def test_grpc_is_encrypted_by_the_certificate_that_is_trusted(certificate, monkeypatch):
    grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
    server, address = grpc_server(grpc, lambda _: None, certificate=certificate.read_bytes())
    server.start()
    try:
        with pytest.raises(UnavailableError, match="its certificate is not trusted"):
            measured(address)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        result = measured(address, encodings=("raw",))
    finally:
        server.stop(None).wait()
    assert result.address.startswith("grpcs://127.0.0.1:")
    assert result.once["tls"].min_ns > 0
    assert not result.alone[0].problems


def test_grpc_that_fails_is_one_line():
    grpc = pytest.importorskip("grpc", reason="the extra grpc is not installed")
    server, address = grpc_server(grpc, lambda _: None, is_broken=True)
    server.start()
    try:
        done = CliRunner().invoke(cli, ["bench", "--endpoint", address])
    finally:
        server.stop(None).wait()
    assert "m answers no frame: status internal: the model is broken" in done.output
    done = CliRunner().invoke(cli, ["bench", "--endpoint", address])
    assert f"no server answers at {address}: connection refused" in done.output
    with scripted(Script()) as other:
        done = CliRunner().invoke(cli, ["bench", "--endpoint", other.address.replace("http:", "grpc:")])
    assert "does not speak KServe's v2 interface" in done.output
    assert done.exit_code == 1


@pytest.mark.parametrize("load", ["closed:3", "fps:1"])
def test_who_interrupts_a_load_does_not_wait_for_its_end(load):
    """A day of requests: that it comes back at all is what is tested."""

    def ask(number: int, begun_ns: int) -> FrameExchange:
        return FrameExchange(begun_ns, begun_ns, 10**9)

    def interrupt(what: str, done: int, whole: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_under(parse_server_load(load), ask, seconds=86400.0, seed=0, tell=interrupt)


def test_figures_without_raw_samples_are_shown_on_their_own_page(tmp_path):
    (tmp_path / "bench.json").write_text('{"schema": 5, "kind": "endpoint", "raw": ""}', "utf-8")
    (tmp_path / "bench.html").write_text("<p>figures</p>", "utf-8")
    with pytest.raises(InvalidFileError, match="figures of the kind endpoint, and no raw samples") as refused:
        read_stored_report([tmp_path])
    assert refused.value.remedy == f"open {tmp_path / 'bench.html'}"


def test_reports_tell_the_verdict_of_a_load_and_other_loads_are_not_compared(tmp_path):
    wishes = {"seconds": 0.3, "timeout_s": 20.0, "encodings": ("binary",), "budget": parse_server_budget("20ms")}
    with scripted(Script(server_s=WAIT_S)) as server:
        result = edgeopt.bench(server.address, load="closed:8", out=tmp_path / "loaded", **wishes)
        edgeopt.bench(server.address, load="closed:2", out=tmp_path / "less", **wishes)
        edgeopt.bench(server.address, out=tmp_path / "alone", **wishes)
    shown = render(read_stored_report([tmp_path / "loaded"]).document, "terminal")
    assert f"20 ms {result.verdict.upper()}" in shown
    with pytest.raises(EdgeoptError, match=r"under different loads: closed:8\b.*, and closed:2"):
        edgeopt.compare(tmp_path / "loaded", tmp_path / "less")
    with pytest.raises(EdgeoptError, match="under different loads: no load, and closed:2"):
        edgeopt.compare(tmp_path / "alone", tmp_path / "less")
    assert edgeopt.compare(tmp_path / "less", tmp_path / "less").rows
    with pytest.raises(EdgeoptError, match="holds times of a server"):
        plan_from(tmp_path / "alone", within_ms=50, share=0.9, rate_per_s=1, rates=None, interval_s=60, delay_s=0)
