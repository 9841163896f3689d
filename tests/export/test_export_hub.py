"""A language model by its id: the hub's own client fetches it, here from a server that answers as the hub does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from served import running
from small_decoders import write_decoder, write_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub_of(folder: Path, name: str) -> Iterator[str]:
    """Serve a folder as the hub serves a repository."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            file = folder / path.rpartition("/")[2]
            if path.startswith(f"/api/models/{name}/tree/"):
                listed = [(one.name, one.stat().st_size) for one in sorted(folder.iterdir())]
                told = [{"type": "file", "path": one, "size": size, "oid": COMMIT} for one, size in listed]
                self._send(200, json.dumps(told).encode())
            elif path.startswith(f"/api/models/{name}"):
                files = [{"rfilename": one.name} for one in sorted(folder.iterdir())]
                told = {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "private": False, "tags": []}
                self._send(200, json.dumps(told).encode())
            elif path.startswith(f"/{name}/resolve/") and file.is_file():
                self._send(200, file.read_bytes())
            else:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound" if name in path else "RepoNotFound"})

        def _send(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
            self.send_response(status)
            headers = {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT}
            headers |= {"ETag": f'"{hashlib.sha1(body).hexdigest()}"'} | (more or {})
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with running(Hub) as address:
        yield address


def edgeopt(place: Path, endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
    told = {"HF_ENDPOINT": endpoint, "HF_HOME": str(place / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"}
    own = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    command = [sys.executable, "-m", "edgeopt", *words]
    return subprocess.run(command, env=own | told, cwd=place, capture_output=True, text=True, timeout=120, check=False)


def test_a_language_model_is_fetched_by_its_id_and_exported(tmp_path):
    pytest.importorskip("huggingface_hub", reason="the hub's client is not installed")
    source = write_decoder(tmp_path / "source")
    write_tokenizer(source)
    with hub_of(source, "someone/small") as endpoint:
        done = edgeopt(tmp_path, endpoint, "export", "hf:someone/small", "-o", "out/model.onnx")
        assert done.returncode == 0, done.stdout + done.stderr
        assert {"model.onnx", "recipe.toml", "tokenizer.json"} <= {one.name for one in (tmp_path / "out").iterdir()}
        assert 'source = "someone/small"' in (tmp_path / "out" / "recipe.toml").read_text("utf-8")
    gone = edgeopt(tmp_path, "http://127.0.0.1:1", "optimize", "hf:someone/other", "--target", "cpu")
    assert gone.returncode == 1
    assert "hf:someone/other is no folder here, and cannot be fetched as an id" in gone.stderr
    assert "Traceback" not in gone.stderr
    assert len(gone.stderr.strip().splitlines()) == 2, gone.stderr
