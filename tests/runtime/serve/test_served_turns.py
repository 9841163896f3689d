"""Conversations over HTTP: the next turn is computed while nobody asks; answers go on beyond the context."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from served import serving, until

from edgeopt.running.writing import Prompting
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.serve.limits import Limits

SHIPPED = Path(__file__).parents[3] / "models" / "tiny_lm"
THINKS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content.split('\n')[0] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)
"""A template that drops all but the first line of earlier turns, as templates of models that think do."""
TALK = [{"role": "user", "content": "def walk(top):"}]


class Watched:
    """The batches of a server, and what they were told to expect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models, self.expected = list[SharedModel](), list[list[int]]()
        expect = SharedModel.expect

        def listened(model: SharedModel, tokens: Sequence[int], behind: Sequence[int]) -> None:
            self.models.append(model)
            self.expected.append(list(tokens))
            expect(model, tokens, behind)

        monkeypatch.setattr(SharedModel, "expect", listened)

    @property
    def is_done(self) -> bool:
        return bool(self.models) and self.models[-1].is_idle


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def turn(server, talk, **more):
    return server.json(
        "/v1/chat/completions", {"model": "tiny_lm", "temperature": 0, "max_tokens": 12, "messages": talk, **more}
    )


def test_the_next_turn_begins_behind_all_that_was_said_where_its_template_writes_it_otherwise(tmp_path, watched):
    shutil.copytree(SHIPPED, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").write_text(THINKS, "utf-8")
    with serving(str(tmp_path), Limits(slots=2)) as server:
        said = turn(server, TALK)["choices"][0]["message"]["content"]
        until(lambda: watched.is_done)
        talk = [*TALK, {"role": "assistant", "content": said}, {"role": "user", "content": "class A:"}]
        usage = turn(server, talk)["usage"]
        held = usage["prompt_tokens_details"]["cached_tokens"]
        assert held >= len(watched.expected[0])
        assert usage["prompt_tokens"] - held < 16


def test_nothing_is_computed_ahead_where_the_server_is_told_so_or_no_conversation_goes_on(watched):
    with serving("tiny_lm", Limits(slots=2, looks_ahead=False)) as server:
        turn(server, TALK)
    with serving("tiny_lm", Limits(slots=2)) as server:
        server.json("/v1/completions", {"model": "tiny_lm", "prompt": "import os", "max_tokens": 4})
    assert not watched.expected


def test_an_answer_goes_on_beyond_the_context_where_the_client_asks_for_it():
    openai = pytest.importorskip("openai")
    context = 64
    with serving("tiny_lm", Limits(slots=2), prompting=Prompting(context=context)) as server:
        client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
        long = {"model": "tiny_lm", "prompt": "import os", "max_tokens": context + 40}
        cut = client.completions.create(**long, extra_body={"ignore_eos": True})
        assert cut.usage.completion_tokens < context
        shifts = {"ignore_eos": True, "context_shift": True, "n_keep": 2}
        whole = client.completions.create(**long, extra_body=shifts)
        assert whole.usage.completion_tokens == context + 40
        assert (whole.choices[0].finish_reason, whole.model_extra["edgeopt"]["ended_by"]) == ("length", "length")
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            client.chat.completions.create(model="tiny_lm", messages=TALK, extra_body={"context_shift": True})
        with pytest.raises(openai.BadRequestError, match="n_keep: 5000 first tokens fill the context of 64"):
            client.completions.create(**long, extra_body={**shifts, "n_keep": 5000})
        with pytest.raises(openai.BadRequestError, match="nothing could follow"):  # only the answer shifts
            client.completions.create(**long | {"prompt": [5] * context}, extra_body=shifts)
        client.close()
