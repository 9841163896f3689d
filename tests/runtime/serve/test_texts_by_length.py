"""Texts of about one length are one run, and their vectors are those of transformers with the mean of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")

from served import serving
from served_bundles import embedder_of_free_sizes

from edgeopt.runtime.serve.routes.text_models import runs_of

TEXTS = [
    "the tea was good",
    *["good " * count for count in (1, 40, 7, 23, 2, 45)],
    "Mr Karo met the staff in Roma",
    *[f"the {word} was not good" for word in ("bus", "soup", "bed", "room")] * 12,
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return embedder_of_free_sizes(tmp_path_factory.mktemp("free"))


@pytest.fixture(scope="module")
def server(model):
    with serving(str(model)) as running:
        yield running


def vectors_of_transformers(folder: Path) -> np.ndarray:
    """Return the mean of the tokens that are there, of length 1, as sentence-transformers computes it."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(folder / "transformers").eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    read = tokenizer(TEXTS, padding=True, return_token_type_ids=True, return_tensors="pt")
    with torch.no_grad():
        states, mask = model(**read).last_hidden_state, read["attention_mask"][..., None]
    mean = (states * mask).sum(dim=1) / mask.sum(dim=1)
    return torch.nn.functional.normalize(mean, dim=1).numpy()


def test_vectors_are_those_of_transformers_in_the_order_of_the_texts(server, model):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as client:
        reply = client.embeddings.create(model="free", input=TEXTS)
        single = client.embeddings.create(model="free", input=TEXTS[0])
    expected = vectors_of_transformers(model.parent)
    found = np.array([entry.embedding for entry in reply.data])
    assert np.abs(expected - expected[0]).max() > 0.1  # else any order would do
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(single.data[0].embedding, expected[0], atol=1e-5)


def test_documents_are_ranked_by_the_same_vectors(server):
    body = {"model": "free", "query": TEXTS[0], "documents": TEXTS[:9]}
    results = server.json("/v1/rerank", body)["results"]
    assert results[0]["index"] == 0
    assert results[0]["relevance_score"] == pytest.approx(1.0, abs=1e-5)


def test_a_text_beyond_the_recipes_length_is_refused_or_cut(server):
    body = {"model": "free", "input": ["good", "good " * 60]}
    status, _, data = server.ask("POST", "/v1/embeddings", body)
    assert status == 400
    assert "input[1] has more than 48 tokens" in json.loads(data)["error"]["message"]
    assert server.json("/v1/embeddings", body | {"truncate": True})["edgeopt"]["cut"] == [1]


def test_a_run_has_neighbours_in_length_and_is_bounded():
    lengths = [5, 300, 6, 5, 310, 7, *[512] * 20]
    runs = runs_of(lengths)
    assert sorted(place for run in runs for place in run) == [*range(len(lengths))]
    assert runs[0] == [0, 3, 2, 5]
    for run in runs:
        assert len(run) <= 32
        assert len(run) == 1 or len(run) * max(lengths[place] for place in run) <= 512
    assert runs_of([9000]) == [[0]]  # alone, however long
    assert len(runs_of([3] * 100)) == 4
    assert runs_of([]) == []


def test_tokens_that_fill_cost_no_more_than_the_runs_they_save():
    lengths = np.random.default_rng(0).integers(1, 200, 300).tolist()
    runs = runs_of(lengths)
    filled = sum(len(run) * max(lengths[place] for place in run) for run in runs) - sum(lengths)
    assert filled + 12 * len(runs) < 12 * len(lengths)  # cheaper than one by one
    assert runs_of([10, 30]) == [[0], [1]]  # 20 tokens that fill cost more than a run
    assert runs_of([10, 20]) == [[0, 1]]
