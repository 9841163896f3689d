"""`edgeopt serve` as a process: it says where it is, ends when it is told to, and refuses in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from edgeopt.cli import cli


def needs_the_extra() -> None:
    for package in ("starlette", "uvicorn", "python_multipart", "jinja2", "prometheus_client"):
        pytest.importorskip(package, reason="the extra serve is not installed")


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGTERM to be heard")
def test_a_service_that_is_told_to_end_finishes_its_answer():
    needs_the_extra()
    command = [sys.executable, "-m", "edgeopt", "serve", "tiny_lm", "--port", "0", "--threads", "1"]
    # an environment of its own: readline, which pytest loads, puts COLUMNS into that of C
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.match(
                r"tiny_lm: (http://127\.0\.0\.1:\d+)/v1, completions and chat in a plain form; Ctrl-C", line
            )
            assert found, line
            asked = {"model": "tiny_lm", "prompt": "import os", "max_tokens": 700, "stream": True, "ignore_eos": True}
            kind = {"Content-Type": "application/json"}
            request = Request(f"{found[1]}/v1/completions", json.dumps(asked).encode(), kind)
            with urlopen(request, timeout=60) as reply:
                first = reply.readline()
                process.send_signal(signal.SIGTERM)
                rest = reply.read()
            assert first.startswith(b"data: {")
            assert rest.endswith(b"data: [DONE]\n\n")
            assert process.wait(60) == 0
            assert process.stderr.read() == "tiny_lm: 1 answer\n"
        finally:
            process.kill()


def test_what_does_not_go_is_one_line(monkeypatch):
    needs_the_extra()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for args, told in (
            (["tiny_lm", "--port", port], f"port {port} of 127.0.0.1 cannot be used"),
            (["tiny_lm", "--port", "0", "--host", "no.such.host.invalid"], "is no address of this machine"),
            (["no_such_model", "--port", "0"], "no_such_model"),
            (["digits_detector", "--port", "0"], "digits_detector is no bundle: of such a model"),
            (["digit_detector", "--port", "0"], "did you mean 'digits_detector'?"),
            (["tiny_lm", "--port", "70000"], "0<=x<=65535"),
            (["tiny_lm", "--keep", "x"], "is not a duration"),
        ):
            done = CliRunner().invoke(cli, ["serve", *args])
            assert done.exit_code == 1, done.output
            assert told in done.output
            assert "Traceback" not in done.output


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = CliRunner().invoke(cli, ["serve", "tiny_lm", "--port", "0"])
    assert done.exit_code == 1
    assert "pip install 'edgeopt[serve]'" in done.output
    assert len(done.output.splitlines()) == 2
