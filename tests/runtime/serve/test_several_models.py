"""Several models behind one port: OpenAI's own client asks for one or the other."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")

from served import serving, until
from served_bundles import bundle_of_digits, bundle_of_meanings

from edgeopt import Runtime
from edgeopt.errors import EdgeoptError
from edgeopt.runtime.serve.limits import Limits

PLAIN = {"model": "tiny_lm", "prompt": "import os", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
TEXT = "the tea was good"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return bundle_of_meanings(tmp_path_factory.mktemp("meanings"))


@pytest.fixture(scope="module")
def server(bundle):
    with serving("tiny_lm", Limits(body_bytes=100_000), beside=(str(bundle), str(bundle))) as running:
        yield running


def test_the_field_model_picks_one_and_opens_it(server, bundle):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny_lm", "meanings", "meanings-2"]
        assert client.models.retrieve("meanings-2").id == "meanings-2"
        assert server.metric_of("meanings-2", "edgeopt_loads_total") == 0
        reply = client.embeddings.create(model="meanings", input=TEXT)
        with Runtime.load(bundle, threads=1) as runtime:
            expected = runtime.predict(TEXT).vector
        np.testing.assert_array_equal(np.float32(reply.data[0].embedding), expected)
        answer = client.completions.create(model="tiny_lm", prompt="import os", max_tokens=4, temperature=0)
        assert answer.model == "tiny_lm"
        assert answer.choices[0].text
        parts = [part.choices[0].text for part in client.completions.create(**_streamed())]
        assert "".join(parts)
        with pytest.raises(openai.NotFoundError, match="only 'tiny_lm', 'meanings', 'meanings-2'") as unknown:
            client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="'meanings' does not answer /v1/completions"):
            client.completions.create(model="meanings", prompt="a")
        with pytest.raises(openai.NotFoundError, match="no model named 'nobody'"):
            client.models.retrieve("nobody")
    assert server.metric_of("meanings", "edgeopt_loads_total") == 1
    assert server.metric_of("meanings-2", "edgeopt_loaded") == 0


def _streamed() -> dict[str, object]:
    return {"model": "tiny_lm", "prompt": "import os", "max_tokens": 4, "temperature": 0, "stream": True}


def test_a_request_that_names_no_model_is_told_which_there_are(server):
    status, _, data = server.ask("POST", "/v1/embeddings", {"input": TEXT})
    assert status == 400
    assert json.loads(data)["error"]["message"] == "model: name one of 'meanings', 'meanings-2'"
    status, _, data = server.ask("POST", "/v1/completions", b"{", {"Content-Type": "application/json"})
    assert status == 400
    assert "the body is no JSON" in json.loads(data)["error"]["message"]
    assert server.ask("POST", "/v1/completions", {"model": 7, "prompt": "a"})[0] == 404
    assert server.ask("POST", "/v1/frames", b"")[0] == 404  # nobody answers it


def test_each_model_has_its_figures(server):
    server.json("/v1/completions", PLAIN)
    server.json("/v1/embeddings", {"model": "meanings", "input": TEXT})
    assert server.ask("POST", "/v1/embeddings", {"model": "nobody", "input": TEXT})[0] == 404
    page = server.ask("GET", "/metrics")[2].decode()
    for row in (
        'edgeopt_tokens_total{kind="prompt",name="meanings"}',
        'edgeopt_tokens_total{kind="output",name="tiny_lm"}',
        'edgeopt_refused_total{name="",status="404"}',
        'edgeopt_time_to_first_token_seconds_count{name="tiny_lm"}',
        'edgeopt_loaded{name="meanings-2"} 0.0',
    ):
        assert row in page, row
    assert page.count("# TYPE edgeopt_loaded gauge") == 1
    health = server.json("/healthz")["models"]
    assert health["tiny_lm"]["loaded"]
    assert not health["meanings-2"]["loaded"]


def test_models_take_turns_in_a_memory_that_holds_one():
    openai = pytest.importorskip("openai")
    with serving("tiny_lm", beside=("tiny_lm",), memory_bytes=14 << 20) as server:
        assert "opened when they are asked for, 14.00 MiB of memory at most" in server.told[0]
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)

        def written(name: str) -> str:
            asked = {"prompt": "import os", "max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}}
            return client.completions.create(model=name, **asked).choices[0].text

        first = written("tiny_lm")
        for _ in range(2):
            for name in ("tiny_lm-2", "tiny_lm"):
                assert written(name) == first
                assert _loaded(server) == {name}
        assert server.metric_of("tiny_lm", "edgeopt_loads_total") == 3
        client.close()


def _loaded(server) -> set[str]:
    return {name for name, values in server.json("/healthz")["models"].items() if values["loaded"]}


def test_an_answer_on_its_way_is_finished_before_its_model_goes():
    with serving("tiny_lm", beside=("tiny_lm",), memory_bytes=14 << 20) as server:
        whole = PLAIN | {"max_tokens": 600}
        expected = server.json("/v1/completions", whole)["choices"][0]["text"]
        written, other = list[str](), list[str]()

        def write(model: str, texts: list[str]) -> None:
            texts.append(server.json("/v1/completions", whole | {"model": model})["choices"][0]["text"])

        threads = [Thread(target=write, args=("tiny_lm", written)), Thread(target=write, args=("tiny_lm-2", other))]
        threads[0].start()
        until(lambda: server.json("/healthz")["models"]["tiny_lm"]["running"] == 1)
        threads[1].start()
        for thread in threads:
            thread.join(60)
        assert written == other == [expected]
        assert _loaded(server) == {"tiny_lm-2"}


def test_a_picture_names_its_model_in_the_address_or_in_its_form(bundle, tmp_path):
    digits = str(bundle_of_digits(tmp_path))
    data = next((Path(__file__).parents[3] / "models" / "digits_detector" / "calib").glob("*.jpg")).read_bytes()
    kind = {"Content-Type": "image/jpeg"}
    with serving("tiny_lm", beside=(digits,)) as server:  # the only one that sees need not be named
        status, _, reply = server.ask("POST", "/v1/frames", data, kind)
        assert status == 200
        answer = json.loads(reply)["answer"]
    with serving(digits, beside=(digits, str(bundle))) as server:
        status, _, reply = server.ask("POST", "/v1/frames", data, kind)
        assert status == 400
        told = "model: name one of 'digits_detector', 'digits_detector-2'; here as /v1/frames?model=NAME"
        assert json.loads(reply)["error"]["message"] == told
        status, _, reply = server.ask("POST", "/v1/frames?model=digits_detector-2", data, kind)
        assert (status, json.loads(reply)["answer"]) == (200, answer)
        head = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\ndigits_detector\r\n'
        head += b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        status, _, reply = server.ask("POST", "/v1/frames", head + data + b"\r\n--x--\r\n", form)
        assert (status, json.loads(reply)["answer"]) == (200, answer)
        assert server.ask("POST", "/v1/frames?model=meanings", data, kind)[0] == 400
        assert server.ask("POST", "/v1/frames?model=nobody", data, kind)[0] == 404


def test_a_model_that_never_fits_is_refused_at_the_start(bundle):
    with (
        pytest.raises(EdgeoptError, match=r"tiny_lm takes .* of memory, more than --memory 1.00 MiB"),
        serving("tiny_lm", beside=(str(bundle),), memory_bytes=1 << 20),
    ):
        pass


def test_a_model_that_does_not_open_leaves_the_others_alone(bundle, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in bundle.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    with serving("tiny_lm", beside=(str(broken),)) as server:
        data = (broken / "model.onnx").read_bytes()
        (broken / "model.onnx").write_bytes(data[:-1] + b"x")  # after the start: that looks at it
        for _ in range(2):
            status, _, reply = server.ask("POST", "/v1/embeddings", {"model": "meanings", "input": TEXT})
            assert status == 503
            assert "the model cannot answer" in json.loads(reply)["error"]["message"]
        (broken / "model.onnx").write_bytes(data)
        server.json("/v1/embeddings", {"model": "meanings", "input": TEXT})
        server.json("/v1/completions", PLAIN)
