"""Answers under a load: a client of the test's own sees the same, and figures follow from the requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from time import perf_counter_ns

import numpy as np
import pytest
from small_decoders import SHIPPED

from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.measurement.generation.answers.answered import Answered
from edgeopt.measurement.generation.under_load.load import LEAST_ANSWERS, LoadRun, run_load
from edgeopt.measurement.generation.under_load.load_result import summarize_run
from edgeopt.measurement.generation.under_load.load_summary import draw_slots
from edgeopt.measurement.generation.under_load.slots import notes_of
from edgeopt.measurement.load.arrivals import make_arrivals
from edgeopt.measurement.load.models import OpenLoad, parse_load
from edgeopt.measurement.statistics.budget import Verdict
from edgeopt.runtime.decoding.batching.batch import BatchWork
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Piece, Writing
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model

ASKED = AnswerOptions(12, ends=False)


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    opened, _ = open_language_model(Path(SHIPPED / "model.onnx"), 1)
    with opened:
        yield opened


class Client:
    """Stands between the measurement and the model, with a clock of its own."""

    def __init__(self, shared: SharedModel) -> None:
        self.shared, self.lock = shared, Lock()
        self.answers = list[object]()

    def __getattr__(self, name: str) -> object:
        return getattr(self.shared, name)

    def generate(self, prompt: list[int], asked: AnswerOptions) -> Watched:
        sent_ns = perf_counter_ns()
        return Watched(self, self.shared.generate(prompt, asked), sent_ns, perf_counter_ns())


class Watched:
    def __init__(self, client: Client, answer, sent_ns: int, begun_ns: int) -> None:
        self.client, self.answer, self.at_ns = client, answer, [sent_ns]
        self.begun_ns = begun_ns
        self.tokens = list[int]()
        with client.lock:
            client.answers.append(self)

    def __iter__(self) -> Iterator[Piece]:
        for piece in self.answer:
            self.at_ns.append(perf_counter_ns())
            self.tokens.append(piece.token)
            yield piece

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()

    @property
    def account(self) -> Account:
        return self.answer.account


def test_figures_agree_with_a_client_that_has_its_own_clock(model: LanguageModel, monkeypatch):
    taken, take = dict[int, list[tuple[int, int]]](), Writing.take

    def timed(self: Writing, token: int) -> Piece:
        before_ns = perf_counter_ns()
        piece = take(self, token)
        taken.setdefault(id(self), []).append((before_ns, perf_counter_ns()))
        return piece

    monkeypatch.setattr(Writing, "take", timed)
    prompts = [[5 + i, 9, 30] + [i] * (i % 3) for i in range(200)]
    with SharedModel(model, 2) as shared:
        client = Client(shared)
        run = run_load(client, prompts.__getitem__, parse_load("closed:3"), ASKED, seconds=0.2, seed=0)
    assert len(run.requests) == len(client.answers) >= LEAST_ANSWERS
    known = {one.account: one for one in client.answers}
    for one in run.requests:
        watched = known[one.account]
        client_ns = np.array(watched.at_ns[1:]) - watched.at_ns[0]
        assert len(client_ns) == len(one.account.token_at_ns) == 12
        assert one.queue_ns <= one.ttft_ns <= client_ns[0]  # a client has each token later than it was made
        times = np.array(one.account.token_at_ns)
        made = np.array(taken[id(watched.answer._request.writing)])  # just before and behind each token was taken
        assert (times <= client_ns).all()
        assert (made[:, 0] - watched.begun_ns <= times).all()
        assert (times <= made[:, 1] - watched.at_ns[0]).all()
        gaps = np.array(one.gaps_ns)
        assert (made[1:, 0] - made[:-1, 1] <= gaps).all()
        assert (gaps <= made[1:, 1] - made[:-1, 0]).all()
        assert one.end_ns == one.ttft_ns + sum(one.gaps_ns)
        assert one.tpot_ns == sum(one.gaps_ns) // 11
    alone = [[piece.token for piece in model.generate(prompt, ASKED)] for prompt in prompts[: len(run.requests)]]
    assert sorted(one.tokens for one in client.answers) == sorted(alone)
    figures = summarize_run(run, None)
    assert figures.all.answers == figures.requests == len(run.requests)
    ends_ns = [one.at_ns[-1] for one in client.answers]
    begin_ns = min(one.at_ns[0] for one in client.answers)
    assert figures.all.ttft.max_ns <= max(one.at_ns[1] - one.at_ns[0] for one in client.answers)
    assert figures.tokens_per_s <= 12 * len(ends_ns) / figures.seconds
    assert figures.seconds <= (max(ends_ns) - begin_ns) / 1e9 + 0.2
    assert run.work.tokens == 11 * len(run.requests)
    assert run.work.token_runs < run.work.tokens


def test_arrivals_are_those_of_the_seed_and_times_count_from_them(model: LanguageModel):
    load = parse_load("poisson:200")
    assert isinstance(load, OpenLoad)
    with SharedModel(model, 2) as shared:
        run = run_load(shared, lambda i: [4 + i], load, ASKED, seconds=0.3, seed=7)
    expected = make_arrivals(load, seconds=0.3, seed=7).intended_ns
    np.testing.assert_array_equal([one.intended_ns for one in run.requests], expected)
    for one in run.requests:
        assert one.late_ns >= 0
        assert one.queue_ns >= one.late_ns
        assert one.is_whole


def test_an_error_of_an_answer_is_told(model: LanguageModel):
    with SharedModel(model, 2) as shared, pytest.raises(ValueError, match="the token 70000 of the prompt"):
        run_load(shared, lambda _: [70_000], parse_load("poisson:100"), ASKED, seconds=0.1, seed=0)
    with SharedModel(model, 2) as shared, pytest.raises(ValueError, match="the token 70000 of the prompt"):
        run_load(shared, lambda _: [70_000], parse_load("closed:2"), ASKED, seconds=0.1, seed=0)


MS = 10**6


def request(
    at_ms: int, queue_ms: int, ttft_ms: int, tpot_ms: int, tokens: int = 11, *, prompt: int = 8, late_ms: int = 0
):
    times = tuple((ttft_ms + i * tpot_ms) * MS for i in range(11))
    account = Account(prompt, queue_ns=queue_ms * MS, token_at_ns=times, reason="length")
    return Answered(prompt, at_ms * MS, late_ms * MS, account)


def made(*requests: Answered, is_open: bool = True, waiting: int = 0, slots: int = 2) -> LoadRun:
    work = BatchWork(token_runs=50, tokens=120)
    return LoadRun("poisson:2", is_open, slots, True, "", 1 << 20, 1000 * MS, requests, work, waiting)


def test_figures_follow_from_the_requests():
    run = made(*(request(100 * i, 5, 20, 10, late_ms=2, prompt=8 + 8 * (i % 2)) for i in range(8)))
    found = summarize_run(run, AnswerBudget({"TTFT": 25.0, "TPOT": 10.0}))
    assert found.all.ttft.p50.value_ns == 22 * MS
    assert found.all.tpot.p50.value_ns == 10 * MS
    assert found.all.queue.p50.value_ns == 7 * MS
    assert found.all.answer.p50.value_ns == 122 * MS
    assert found.tokens_per_s == 8 * 11
    assert found.requests_per_s == 8
    assert found.prompt_tokens_per_s == 4 * 8 + 4 * 16
    assert found.texts_a_run == 2.4
    assert [one.answers for one in found.by_length] == [4, 4]
    assert found.goodput.good == 8
    assert found.growth_ratio is None


def test_late_and_unfinished_requests_are_not_good():
    cut = Answered(8, 0, 0, Account(8, token_at_ns=(5 * MS,), reason="cancelled"))
    never = Answered(8, 0, 0, Account(8, reason="cancelled"))
    run = made(request(0, 0, 24, 10), request(1, 0, 24, 10, late_ms=2), request(2, 0, 24, 11), cut, never)
    found = summarize_run(run, AnswerBudget({"TTFT": 25.0, "TPOT": 10.0}))
    assert found.goodput.good == 1
    assert (found.requests, found.unfinished) == (5, 2)
    assert found.judged.verdict is not Verdict.PASS
    assert str(found.goodput) == "1 per s (1 of 5)"


def test_a_queue_that_grows_is_told():
    run = made(*(request(10 * i, 5 * i, 5 * i + 1, 1) for i in range(90)), waiting=40)
    found = summarize_run(run, None)
    assert found.growth_ratio == pytest.approx(0.5)
    assert any("waiting grows by 0.50 s a second" in note.detail for note in notes_of([found]))
    assert summarize_run(made(*run.requests, is_open=False), None).growth_ratio is None
    assert summarize_run(made(*run.requests, waiting=1), None).growth_ratio is None


def test_the_trade_is_a_curve_over_slots():
    loads = [
        summarize_run(made(*(request(10 * i, 0, 3, tpot) for i in range(20)), slots=slots), None)
        for slots, tpot in ((1, 2), (2, 3), (4, 5))
    ]
    (figure,) = draw_slots(loads)
    assert [one.x.value for one in figure.points] == [2.0, 3.0, 5.0]
    assert figure.paths == (("1 slot", "2 slots", "4 slots"),)
    assert not draw_slots(loads[:1])
