"""Vectors of texts over HTTP, as OpenAI's own client asks for them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")

from served import serving
from served_bundles import bundle_of_meanings

from edgeopt import Runtime
from edgeopt.runtime.serve.limits import Limits

TEXTS = ("the tea was good", "Mr Karo met the staff in Roma", "not good")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return bundle_of_meanings(tmp_path_factory.mktemp("meanings"))


@pytest.fixture(scope="module")
def server(bundle):
    with serving(str(bundle), Limits(body_bytes=100_000)) as running:
        yield running


@pytest.fixture(scope="module")
def vectors(bundle) -> np.ndarray:
    with Runtime.load(bundle, threads=1) as runtime:
        return np.stack([runtime.predict(text).vector for text in TEXTS])


def test_openais_client_gets_the_vectors_that_the_app_gets(server, vectors):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        (model,) = client.models.list()
        reply = client.embeddings.create(model=model.id, input=list(TEXTS))  # it asks for base64 by itself
        np.testing.assert_array_equal(np.array([entry.embedding for entry in reply.data], np.float32), vectors)
        assert [entry.index for entry in reply.data] == [0, 1, 2]
        assert reply.usage.prompt_tokens == reply.usage.total_tokens > len(TEXTS)
        single = client.embeddings.create(model=model.id, input=TEXTS[1], encoding_format="float")
        np.testing.assert_array_equal(np.float32(single.data[0].embedding), vectors[1])
        with pytest.raises(openai.BadRequestError, match="dimensions: not done here"):
            client.embeddings.create(model=model.id, input="a", dimensions=8)


def test_openais_client_sends_tokens_in_place_of_texts(server, vectors, bundle):
    openai = pytest.importorskip("openai")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    tokens = [tokenizer.encode(text).ids for text in TEXTS]
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        several = client.embeddings.create(model="meanings", input=tokens)
        np.testing.assert_array_equal(np.array([entry.embedding for entry in several.data], np.float32), vectors)
        assert several.usage.prompt_tokens == sum(map(len, tokens))
        single = client.embeddings.create(model="meanings", input=tokens[1])
        np.testing.assert_array_equal(np.float32(single.data[0].embedding), vectors[1])
        for wrong, told in (
            ([[1], [99_999]], r"input\[1\]: .* has no token 99999"),
            ([-1], r"input\[0\]: .* has no token -1"),
            ([1] * 500, "truncate: true cuts it"),
            ([[1], []], "none is empty"),
            ([1, "a"], "a text, a list of its tokens"),
        ):
            with pytest.raises(openai.BadRequestError, match=told):
                client.embeddings.create(model="meanings", input=wrong)
        cut = client.embeddings.create(model="meanings", input=tokens[0] * 50, extra_body={"truncate": True})
        assert cut.model_extra["edgeopt"]["cut"] == [0]


def test_a_vector_comes_as_numbers_or_as_bytes(server, vectors):
    body = {"model": "meanings", "input": TEXTS[0]}
    plain = server.json("/v1/embeddings", body)
    packed = server.json("/v1/embeddings", body | {"encoding_format": "base64"})
    read = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(read, vectors[0])
    np.testing.assert_array_equal(np.float32(plain["data"][0]["embedding"]), read)
    assert plain["edgeopt"]["execute_ms"] > 0
    assert plain["edgeopt"]["cut"] == []


def test_a_text_that_is_too_long_is_refused_unless_it_may_be_cut(server):
    body = {"model": "meanings", "input": ["good", "good " * 200]}
    status, _, data = server.ask("POST", "/v1/embeddings", body)
    assert status == 400
    assert "input[1] has more than 32 tokens" in json.loads(data)["error"]["message"]
    reply = server.json("/v1/embeddings", body | {"truncate": True})
    assert reply["edgeopt"]["cut"] == [1]
    assert len(reply["data"]) == 2


@pytest.mark.parametrize(
    ("more", "status", "told"),
    [
        ({"model": "other"}, 404, "only 'meanings'"),
        ({"model": None}, 404, "no model named"),
        ({"input": ""}, 400, "input: a text"),
        ({"input": []}, 400, "input: a text"),
        ({"input": [1, 2]}, 200, ""),
        ({"input": [1.5]}, 400, "a text, a list of its tokens"),
        ({"input": ["a"] * 2049}, 400, "up to 2048 texts"),
        ({"encoding_format": "int8"}, 400, "encoding_format: one of float, base64"),
        ({"truncate": 1}, 400, "truncate: true or false"),
        ({"inputs": "a"}, 400, "inputs: unknown field"),
        ({"input": "\ud800 good"}, 200, ""),
        ({"user": "u"}, 200, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_said_in_one_line(server, more, status, told):
    found, _, data = server.ask("POST", "/v1/embeddings", {"model": "meanings", "input": "good", **more})
    assert found == status, data
    assert status == 200 or told in json.loads(data)["error"]["message"]


def test_it_is_counted_and_texts_are_not_completed(server):
    before = server.metric('edgeopt_tokens_total{kind="prompt"}')
    reply = server.json("/v1/embeddings", {"model": "meanings", "input": "good"})
    assert server.metric('edgeopt_tokens_total{kind="prompt"}') - before == reply["usage"]["prompt_tokens"]
    assert server.ask("POST", "/v1/completions", {"model": "meanings", "prompt": "a"})[0] == 404
