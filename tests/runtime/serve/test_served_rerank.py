"""Documents in the order in which they answer a query: scores of a cross-encoder are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")

from served import serving
from served_bundles import bundle_of_cross_encoder, bundle_of_meanings

from edgeopt import Runtime
from edgeopt.runtime.serve.limits import Limits

QUERY = "was the tea good"
DOCUMENTS = ("the soup was cold", "the tea was good and the staff kind", "this bus is loud", "Mr Karo met the staff")


@pytest.fixture(scope="module")
def cross(tmp_path_factory) -> Path:
    return bundle_of_cross_encoder(tmp_path_factory.mktemp("cross"))


@pytest.fixture(scope="module")
def server(cross, tmp_path_factory):
    meanings = bundle_of_meanings(tmp_path_factory.mktemp("meanings"))
    with serving(str(cross), Limits(body_bytes=100_000), beside=(str(meanings),)) as running:
        yield running


def scores_of_transformers(folder: Path) -> list[float]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.BertForSequenceClassification.from_pretrained(folder / "transformers").eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    read = tokenizer(
        [QUERY] * len(DOCUMENTS), list(DOCUMENTS), padding=True, return_token_type_ids=True, return_tensors="pt"
    )
    with torch.no_grad():
        return torch.sigmoid(model(**read).logits[:, 0]).tolist()


def test_scores_of_a_cross_encoder_are_those_of_transformers(server, cross):
    openai = pytest.importorskip("openai")
    expected = scores_of_transformers(cross.parent.parent)
    assert np.ptp(expected) > 0.01  # else any order would do
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        body = {"model": "cross", "query": QUERY, "documents": list(DOCUMENTS), "return_documents": True}
        reply = client.post("/rerank", body=body, cast_to=dict)
        best = client.post("/rerank", body=body | {"top_n": 2}, cast_to=dict)
    order = sorted(range(len(DOCUMENTS)), key=lambda place: -expected[place])
    assert [result["index"] for result in reply["results"]] == order
    found = [result["relevance_score"] for result in reply["results"]]
    np.testing.assert_allclose(found, [expected[place] for place in order], atol=1e-5)
    assert [result["document"]["text"] for result in reply["results"]] == [DOCUMENTS[place] for place in order]
    assert best["results"] == reply["results"][:2]
    assert reply["usage"]["total_tokens"] > 4 * len(DOCUMENTS)


def test_a_model_that_embeds_ranks_by_cosine(server):
    body = {"model": "meanings", "query": QUERY, "documents": [*DOCUMENTS[:2], {"text": QUERY}]}
    results = server.json("/v1/rerank", body)["results"]
    vectors = server.json("/v1/embeddings", {"model": "meanings", "input": [QUERY, *DOCUMENTS[:2]]})["data"]
    query, *documents = (np.array(entry["embedding"]) for entry in vectors)
    scores = {result["index"]: result["relevance_score"] for result in results}
    assert results[0]["index"] == 2
    assert scores == pytest.approx({0: query @ documents[0], 1: query @ documents[1], 2: 1.0}, abs=1e-6)
    assert all("document" not in result for result in results)


def test_a_pair_that_is_too_long_is_refused_unless_it_may_be_cut(server):
    body = {"model": "cross", "query": QUERY, "documents": ["good", "good " * 60]}
    status, _, data = server.ask("POST", "/v1/rerank", body)
    assert status == 400
    assert "query with documents[1] has more than 48 tokens" in json.loads(data)["error"]["message"]
    assert server.json("/v1/rerank", body | {"truncate": True})["edgeopt"]["cut"] == [1]


def test_a_tab_in_the_query_parts_nothing(server):
    body = {"model": "cross", "documents": list(DOCUMENTS)}
    plain, tabbed = (server.json("/v1/rerank", body | {"query": query}) for query in (QUERY, QUERY.replace(" ", "\t")))
    assert plain["results"] == tabbed["results"]


@pytest.mark.parametrize(
    ("more", "status", "told"),
    [
        ({"model": "other"}, 404, "only 'cross', 'meanings'"),
        ({"query": ""}, 400, "query: a text that is not empty"),
        ({"documents": []}, 400, "documents: a list of one text or more"),
        ({"documents": ["good", 3]}, 400, "documents[1]: a text that is not empty"),
        ({"documents": ["a"] * 2049}, 400, "up to 2048 texts"),
        ({"top_n": 0}, 400, "top_n: a whole number from 1 on, not 0"),
        ({"return_documents": "yes"}, 400, "return_documents: true or false"),
        ({"max_tokens_per_doc": 7}, 400, "max_tokens_per_doc: not done here"),
        ({"docs": ["a"]}, 400, "docs: unknown field"),
        ({"top_n": 9, "documents": ["\ud800 good"]}, 200, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_request_is_told_in_one_line(server, more, status, told):
    body = {"model": "cross", "query": QUERY, "documents": ["good"], **more}
    found, _, data = server.ask("POST", "/v1/rerank", body)
    assert found == status, data
    assert status == 200 or told in json.loads(data)["error"]["message"]


def test_a_cross_encoder_answers_in_the_app_with_its_number(cross):
    with Runtime.load(cross, threads=1) as runtime:
        (logit,) = runtime.predict(f"{QUERY}\t{DOCUMENTS[0]}").values()
    assert logit.shape == (1, 1)
