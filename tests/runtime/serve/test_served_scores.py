"""Prompts that are repeated and scored: in turn, once for all their answers, and no longer than somebody waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from time import monotonic, sleep

import pytest
from served import serving, until

from edgeopt.errors import UnsupportedError
from edgeopt.runtime.decoding.batching.prompt_odds import UntoldOddsError
from edgeopt.runtime.decoding.batching.prompt_turns import PromptScores, in_turn
from edgeopt.runtime.decoding.sampling import TokenOdds
from edgeopt.runtime.serve import writers
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.writing import Echo, EchoedAnswer

PLAIN = {"model": "tiny_lm", "prompt": "import os", "temperature": 0, "max_tokens": 3}
SCORED = PLAIN | {"echo": True, "logprobs": 1, "max_tokens": 0}
ODDS = TokenOdds(-1.0, ())


@pytest.fixture(scope="module")
def server():
    with serving("tiny_lm", Limits(slots=2)) as running:
        yield running


@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize("streams", [False, True])
def test_a_repeated_prompt_has_no_probabilities_where_nobody_wants_them(server, most, streams):
    body = PLAIN | {"echo": True, "max_tokens": most, "stream": streams}
    data = server.ask("POST", "/v1/completions", body)[2].decode()
    parts = [each.removeprefix("data: ") for each in data.split("\n\n")] if streams else [data]
    choices = [each for part in parts if part and part != "[DONE]" for each in json.loads(part)["choices"]]
    assert choices
    assert [each["logprobs"] for each in choices] == [None] * len(choices)


def test_several_answers_to_a_prompt_score_it_once(server, monkeypatch):
    runs, odds = list[int](), writers.prompt_odds

    def counted(model, prompt, count):
        runs.append(len(prompt))
        return odds(model, prompt, count)

    monkeypatch.setattr(writers, "prompt_odds", counted)
    body = SCORED | {"prompt": ["import os", "x = "], "n": 3, "max_tokens": 1}
    computed = 'edgeopt_tokens_total{kind="computed"}'
    choices = server.json("/v1/completions", body)["choices"]
    assert len(runs) == 2
    for three in (choices[:3], choices[3:]):
        assert len({str(each["logprobs"]["token_logprobs"][:-1]) for each in three}) == 1
        assert three[0]["logprobs"]["token_logprobs"][-1] is not None
    before = server.metric(computed)
    single = server.json("/v1/completions", SCORED | {"n": 2})
    assert server.metric(computed) - before == single["usage"]["prompt_tokens"]
    assert choices[0]["logprobs"]["token_logprobs"][:-1] == single["choices"][0]["logprobs"]["token_logprobs"]


def test_who_waits_for_a_turn_sees_a_cancel_and_counts_the_wait_as_queue():
    turn = Lock()
    answer = EchoedAnswer(Echo("ab", [1], lambda _: b"ab", lambda: in_turn(turn, lambda: iter([ODDS])), 1), None)
    with turn, ThreadPoolExecutor(1) as pool:
        pieces = pool.submit(list, answer)
        sleep(0.25)
        assert not pieces.done()
        answer.cancel()
        assert pieces.result(10) == []
    assert answer.account.reason == "cancelled"
    assert not turn.locked()
    answer = EchoedAnswer(Echo("ab", [1], lambda _: b"ab", lambda: in_turn(turn, lambda: iter([ODDS])), 1), None)
    with ThreadPoolExecutor(1) as pool:
        with turn:
            pieces = pool.submit(list, answer)
            sleep(0.25)
        (piece,) = pieces.result(10)
    assert [each.logprob for each in piece.tokens] == [-1.0]
    assert answer.account.queue_ns >= 0.2e9
    assert answer.account.prefill_ns < 0.1e9
    assert answer.account.computed_tokens == 1


def test_scores_that_were_not_told_to_the_end_are_computed_by_the_next():
    scores, runs = PromptScores(), list[int]()

    def compute() -> Iterator[TokenOdds]:
        runs.append(1)
        yield ODDS
        yield ODDS

    broken = scores.told(compute)
    assert [next(broken), next(broken)] == [None, ODDS]
    broken.close()
    for _ in range(2):
        assert list(scores.told(compute)) == [None, ODDS, ODDS]
    assert len(runs) == 2


def test_prompts_that_wait_for_another_take_no_slots(monkeypatch):
    goes_on, begun = Event(), Event()

    def slow(model, prompt, count):
        begun.set()
        goes_on.wait(30)
        yield ODDS

    with serving("tiny_lm", Limits(slots=2, seconds=8.0)) as server, ThreadPoolExecutor(3) as pool:
        monkeypatch.setattr(writers, "prompt_odds", slow)
        first = pool.submit(server.ask, "POST", "/v1/completions", SCORED | {"n": 2})
        assert begun.wait(30)
        others = [pool.submit(server.ask, "POST", "/v1/completions", SCORED) for _ in range(2)]
        until(lambda: server.json("/healthz")["waiting"] == 3, 5)  # and the second answer of the first
        assert server.json("/v1/completions", PLAIN)["choices"]
        until(lambda: server.json("/healthz")["running"] == 1, 5)  # the slot of an answer is free a moment after it
        goes_on.set()
        assert [each.result(30)[0] for each in (first, *others)] == [200] * 3
        until(lambda: server.json("/healthz")["running"] == 0, 5)


def test_a_time_limit_ends_who_waits_for_another_prompt(monkeypatch):
    goes_on, begun = Event(), Event()

    def slow(model, prompt, count):
        begun.set()
        goes_on.wait(30)
        yield ODDS

    with serving("tiny_lm", Limits(slots=2, seconds=1.0)) as server, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(writers, "prompt_odds", slow)
        first = pool.submit(server.ask, "POST", "/v1/completions", SCORED)
        assert begun.wait(30)
        second_s = monotonic()
        status, _, data = server.ask("POST", "/v1/completions", SCORED)
        assert (status, json.loads(data)["error"]["code"]) == (503, "queue_timeout")
        assert monotonic() - second_s < 10
        goes_on.set()
        assert first.result(30)[0] == 503
        monkeypatch.undo()
        assert server.json("/v1/completions", SCORED)["choices"]


def test_only_what_a_model_does_not_tell_is_the_fault_of_a_request(server, monkeypatch):
    def raising(error):
        def odds(model, prompt, count):
            raise error
            yield

        return odds

    monkeypatch.setattr(writers, "prompt_odds", raising(UntoldOddsError("the last token alone", remedy="export it")))
    status, _, data = server.ask("POST", "/v1/completions", SCORED)
    assert (status, json.loads(data)["error"]["message"]) == (400, "echo: the last token alone")
    monkeypatch.setattr(writers, "prompt_odds", raising(UnsupportedError("the engine broke", remedy="wait")))
    assert server.ask("POST", "/v1/completions", SCORED)[0] == 503
    monkeypatch.undo()
    assert server.json("/v1/completions", SCORED)["choices"]
