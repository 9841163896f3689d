"""Who may ask a server: by key, from which page, over an encrypted connection."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from click.testing import CliRunner
from scripted_server import make_certificate
from served import serving

from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError
from edgeopt.measurement.endpoint.bench import bench_endpoint
from edgeopt.measurement.endpoint.options import EndpointOptions
from edgeopt.runtime.serve.limits import Limits
from edgeopt.workloads._serving import read_key

PLAIN = {"model": "tiny_lm", "prompt": "import os", "temperature": 0, "max_tokens": 3}
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
WRONG_KEYS = [({}, "no key"), ({"Authorization": "Bearer other"}, "a wrong key"), ({"Authorization": "x"}, "no key")]


def test_a_key_is_asked_for_and_pages_of_elsewhere_are_refused_unless_allowed():
    with serving("tiny_lm", Limits(slots=1), key="s3cret", origins=("https://app.example",)) as server:
        for given, told in WRONG_KEYS:
            status, headers, data = server.ask("POST", "/v1/completions", PLAIN, given)
            assert status == 401
            assert headers["www-authenticate"] == "Bearer"
            error = json.loads(data)["error"]
            assert error["code"] == "invalid_api_key"
            assert error["message"].startswith(told)
        assert server.ask("GET", "/healthz")[0] == 200
        assert server.ask("GET", "/metrics")[0] == 401
        key = {"Authorization": "Bearer s3cret"}
        assert server.ask("POST", "/v1/completions", PLAIN, key)[0] == 200
        own = key | {"Origin": server.address, "Host": server.address.removeprefix("http://")}
        assert server.ask("POST", "/v1/completions", PLAIN, own)[0] == 200
        for page in ("https://evil.example", "null", "http://127.0.0.1:1"):
            status, _, data = server.ask("POST", "/v1/completions", PLAIN, key | {"Origin": page})
            assert (status, json.loads(data)["error"]["code"]) == (403, "wrong_origin")
        page = {"Origin": "https://app.example"}
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
        status, headers, _ = server.ask("OPTIONS", "/v1/completions", None, page | asks)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://app.example")
        status, headers, _ = server.ask("POST", "/v1/completions", PLAIN, key | page)
        assert (status, headers["access-control-allow-origin"]) == (200, "https://app.example")
        assert server.metric('edgeopt_refused_total{status="401"}', key) == 4
        openai = pytest.importorskip("openai")
        with (
            openai.OpenAI(base_url=f"{server.address}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="a wrong key"),
        ):
            client.models.list()


def test_a_form_that_a_page_of_elsewhere_sends_unasked_is_refused():
    with serving("tiny_lm", Limits(slots=1)) as server:
        status, _, data = server.ask("POST", "/v1/frames", b"--x--", FORM | {"Origin": "https://evil.example"})
        assert (status, json.loads(data)["error"]["code"]) == (403, "wrong_origin")
        assert server.ask("POST", "/v1/completions", PLAIN)[0] == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate and its key in one file, for 127.0.0.1."""
    both = make_certificate(tmp_path_factory.mktemp("tls"))
    if both is None:
        pytest.skip("no openssl is here that makes such a certificate")
    return both


def test_connections_are_encrypted_and_measured_so(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving("tiny_lm", Limits(slots=1), certificate=certificate) as server:
        assert server.address.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(certificate))
        connection = HTTPSConnection(*server.place, context=trusted, timeout=30)
        connection.request("POST", "/v1/completions", json.dumps(PLAIN), {"Content-Type": "application/json"})
        assert connection.getresponse().read().startswith(b'{"id":"cmpl-')
        connection.close()
        found = bench_endpoint(EndpointOptions(server.address, output_tokens=2, seconds=0.01))
        assert found.alone[0].answers >= 6


def test_a_certificate_that_is_none_is_one_line(tmp_path, certificate):
    wrong = tmp_path / "a.pem"
    wrong.write_text("nothing")
    for file in (wrong, tmp_path / "absent.pem", certificate.parent / "cert.pem"):
        with pytest.raises(EdgeoptError, match="is no certificate with its key"), serving("tiny_lm", certificate=file):
            pass


def test_a_key_is_read_without_what_surrounds_it_and_is_one_that_a_header_carries(monkeypatch):
    monkeypatch.setenv("A_KEY", " secret\n")
    assert read_key("A_KEY") == "secret"
    assert read_key(None) == ""
    for wrong in ("two words", "line\nline", "schlüssel"):
        monkeypatch.setenv("A_KEY", wrong)
        with pytest.raises(EdgeoptError, match="of ASCII, without spaces"):
            read_key("A_KEY")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--key-from", "NO_SUCH_VARIABLE"], "no such variable is set"),
        (["--cert-key", "a.pem"], "--cert-key belongs to --cert"),
        (["--prefixes", "a"], "--prefixes belongs to --system"),
        (["--guesses", "0", "--draft", "tiny_lm"], "leave one of them out"),
        (["--guesses", "2"], "--slots is 4"),
        (["--system", "absent.txt"], "absent.txt"),
    ],
)
def test_options_that_do_not_fit_are_one_line(args, told):
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    done = CliRunner().invoke(cli, ["serve", "tiny_lm", "--port", "0", *args])
    assert done.exit_code == 1, done.output
    assert told in done.output
    assert "Traceback" not in done.output
