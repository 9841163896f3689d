from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from small_decoders import VOCABULARY, byte_tokenizer, write_decoder

from edgeopt.errors import EdgeoptError, UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.rows import RowsApart, SharedRows, takes_rows
from edgeopt.export.decoder.llama import read_configuration, write_llama
from edgeopt.export.decoder.tensors_file import TensorFiles
from edgeopt.graph.model import Model
from edgeopt.runtime.decoding.batching.batch import MOST_OVERTAKEN, Batch
from edgeopt.runtime.decoding.batching.request import Request, SharedAnswer
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.steps.convert.weight_only import make_weight_only

CONTEXT = 160
PROMPTS = [[5, 17, 250, 3], [9], list(range(40, 110)), [8, 8, 8], [200, 100, 50, 25, 12, 6, 3], list(range(7, 30))]
LONG = list(range(100)) + list(range(40))
AN_ANSWER = AnswerOptions(24, ends=False)


@pytest.fixture(scope="module")
def float_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = write_decoder(tmp_path_factory.mktemp("decoder"))
    data = write_llama(read_configuration(folder), TensorFiles(folder), "small").data
    return Model(onnx.load_from_string(data), "small")


def opened(model: Model, chunk: int = 0) -> LanguageModel:
    session = EXECUTOR.open(model.proto.SerializeToString(), SessionOptions(threads=1))
    return LanguageModel(session, byte_tokenizer(), CONTEXT, end=[256], chunk=chunk)


@pytest.fixture(scope="module")
def model(float_model: Model) -> Iterator[LanguageModel]:
    with opened(float_model) as found:
        yield found


@pytest.fixture(scope="module", params=["fp32", "INT4"])
def either(request: pytest.FixtureRequest, float_model: Model) -> Iterator[LanguageModel]:
    made = float_model if request.param == "fp32" else make_weight_only(float_model, 4).model
    assert made is not None
    with opened(made) as found:
        yield found


def alone(model: LanguageModel, prompt: Any, asked: AnswerOptions = AN_ANSWER) -> list[int]:
    model.forget()
    return [piece.token for piece in model.generate(prompt, asked)]


class Bench:
    """A batch without threads, stepped by hand."""

    def __init__(
        self,
        model: LanguageModel,
        slots: int = 4,
        tokens: int = 0,
        chunk: int = 16,
        apart: bool = False,
        token_s: float = 0.0,
    ):
        tokens = tokens or slots * CONTEXT
        engine, capacity = model.session.engine, min(CONTEXT, tokens // slots)
        rows = (
            RowsApart(engine, model.parts, slots, capacity, shares=False)
            if apart
            else SharedRows(engine, model.parts, slots, capacity, tokens)
        )
        self.batch = Batch(rows, tokens, chunk, alone_tokens=64, token_s=token_s)
        self.model, self.order = model, 0

    def ask(self, prompt: Any, asked: AnswerOptions = AN_ANSWER, priority: int = 0) -> Request:
        writing = self.model.begin(prompt, asked)
        needs = min(CONTEXT, writing.prompt_tokens + asked.most_tokens)
        request = Request(writing, asked, priority, self.order, needs)
        self.order += 1
        self.batch.waiting.append(request)
        return request

    def finish(self) -> None:
        for _ in range(5000):
            if self.batch.is_idle:
                return
            self.batch.step()
        raise AssertionError("never idle")


def tokens_of(request: Request) -> list[int]:
    assert request.is_done.is_set()
    return [piece.token for piece in SharedAnswer(request)]


def count_of(request: Request) -> int:
    return len(request.writing.account.token_at_ns)


def test_answers_side_by_side_have_the_tokens_of_each_alone_in_few_runs(either: LanguageModel):
    bench = Bench(either)
    requests = [bench.ask(prompt) for prompt in PROMPTS]
    bench.finish()
    assert [tokens_of(one) for one in requests] == [alone(either, prompt) for prompt in PROMPTS]
    work = bench.batch.work
    assert work.tokens == len(PROMPTS) * 23
    assert work.token_runs <= work.tokens / 2.2  # one by one each token is a run; six in four slots are two rounds
    assert work.prompt_tokens + work.reused_tokens == sum(map(len, PROMPTS))
    assert work.answers == len(PROMPTS)


def test_threads_that_ask_at_once_share_runs(either: LanguageModel):
    with SharedModel(either, 4, chunk_tokens=8) as shared, ThreadPoolExecutor(6) as pool:
        assert shared.is_together
        with shared._change:  # none is begun before all are asked
            answers = [shared.generate(prompt, AN_ANSWER) for prompt in PROMPTS]
        found = list(pool.map(lambda answer: [piece.token for piece in answer], answers))
        work = shared.work
    assert found == [alone(either, prompt) for prompt in PROMPTS]
    assert work.token_runs <= work.tokens / 2.2
    for answer, tokens in zip(answers, found, strict=True):
        account = answer.account
        assert len(account.token_at_ns) == len(tokens)
        assert account.reason == "length"
        assert account.computed_tokens + account.reused_tokens == account.prompt_tokens + account.runs
        assert 0 <= account.queue_ns <= account.token_at_ns[0]


@pytest.mark.parametrize(("token_s", "runs_then", "runs_at_last"), [(0.0, 4, 4), (1e-9, 2, 3)])
def test_parts_of_prompts_wait_where_tokens_are_to_come_faster(model, token_s, runs_then, runs_at_last):
    bench = Bench(model, 2, chunk=4, token_s=token_s)
    writer = bench.ask([5, 17], AnswerOptions(120, ends=False))
    bench.batch.step()
    late = bench.ask(list(range(40, 52)))
    for _ in range(40):
        bench.batch.step()
    assert bench.batch.work.prompt_runs == runs_then
    for _ in range(60):
        bench.batch.step()
    assert bench.batch.work.prompt_runs == runs_at_last  # of those that wait one ran in between
    assert not writer.is_done.is_set()
    bench.finish()
    assert tokens_of(late) == alone(model, list(range(40, 52)))
    assert tokens_of(writer) == alone(model, [5, 17], AnswerOptions(120, ends=False))


def test_a_long_prompt_goes_on_in_parts_beside_those_who_write(model: LanguageModel):
    bench = Bench(model, 2, chunk=16)
    first = bench.ask([5, 17], AnswerOptions(100, ends=False))
    bench.batch.step()
    second = bench.ask(LONG, AnswerOptions(4, ends=False))
    while not count_of(second):
        tokens, prompt = count_of(first), bench.batch.work.prompt_tokens
        bench.batch.step()
        assert count_of(first) == tokens + 1
        assert bench.batch.work.prompt_tokens - prompt <= 16
    bench.finish()
    assert tokens_of(second) == alone(model, LONG, AnswerOptions(4, ends=False))
    assert tokens_of(first) == alone(model, [5, 17], AnswerOptions(100, ends=False))


@pytest.mark.parametrize(("chunk", "runs"), [(0, 1), (50, 3), (140, 1)])
def test_where_nobody_writes_a_prompt_runs_in_the_parts_that_the_model_was_made_for(float_model, chunk, runs):
    with opened(float_model, chunk) as model, SharedModel(model, 2, chunk_tokens=8) as shared:
        found = [piece.token for piece in shared.generate(LONG, AN_ANSWER)]
        assert shared.work.prompt_runs == runs
        assert found == alone(model, LONG)


def test_a_short_prompt_does_not_wait_for_a_long_one_nor_the_long_one_for_ever(model: LanguageModel):
    bench = Bench(model, 3, chunk=8)
    writer = bench.ask([1], AnswerOptions(150, ends=False))
    bench.batch.step()
    long = bench.ask(LONG, AnswerOptions(4, ends=False))
    for _ in range(3):
        bench.batch.step()
    short = bench.ask([30, 31, 32], AnswerOptions(2, ends=False))
    bench.batch.step()
    bench.batch.step()
    assert count_of(short) == 2
    assert not count_of(long)
    steps = 0
    while not count_of(long):
        bench.ask([60 + steps, 3], AnswerOptions(2, ends=False))
        bench.batch.step()
        steps += 1
    assert steps <= 4 * (len(LONG) // 8 + 1)
    writer.is_cancelled = True
    bench.finish()


def test_who_comes_first_is_decided_by_priority_and_then_by_order(model: LanguageModel):
    bench = Bench(model, 1)
    requests = [bench.ask([3 + i], AnswerOptions(2, ends=False), priority) for i, priority in enumerate([0, 0, 5, 1])]
    done = list[int]()
    while not bench.batch.is_idle:
        bench.batch.step()
        done += [i for i, one in enumerate(requests) if one.is_done.is_set() and i not in done]
    assert done == [2, 3, 0, 1]


def test_low_priority_is_overtaken_a_counted_number_of_times(model: LanguageModel):
    bench = Bench(model, 1)
    last = bench.ask([9], AnswerOptions(2, ends=False))
    for i in range(MOST_OVERTAKEN + 20):
        bench.ask([10 + i], AnswerOptions(2, ends=False), priority=7)
        bench.batch.step()
        if last.is_done.is_set():
            break
    assert last.is_done.is_set()
    assert last.overtaken == MOST_OVERTAKEN
    bench.finish()


def test_requests_wait_for_memory_and_a_large_one_gets_it_in_the_end(model: LanguageModel):
    bench = Bench(model, 4, tokens=CONTEXT + 20)
    small = [bench.ask([3 + i], AnswerOptions(20, ends=False)) for i in range(3)]
    bench.batch.step()
    assert bench.batch.work.running == 3
    large = bench.ask([77], AnswerOptions(140, ends=False))
    more = [bench.ask([80 + i], AnswerOptions(20, ends=False)) for i in range(MOST_OVERTAKEN + 6)]
    bench.batch.step()
    assert bench.batch.work.running == 4
    assert not count_of(large)
    bench.finish()
    assert large.overtaken == MOST_OVERTAKEN
    assert max(one.writing.account.token_at_ns[0] + one.writing._begun_ns for one in more) > (
        large.writing.account.token_at_ns[-1] + large.writing._begun_ns
    )
    for one in [*small, large, *more]:
        asked = AnswerOptions(len(one.writing.tokens) - 1, ends=False)
        assert tokens_of(one) == alone(model, one.writing.tokens[:1], asked)
    assert bench.batch.work.layouts >= 2


def test_more_than_the_cache_can_hold_is_refused_at_once(model: LanguageModel):
    with SharedModel(model, 2, memory_bytes=40 * model.token_bytes) as shared:
        assert shared.cache_bytes == 40 * model.token_bytes
        with pytest.raises(ValueError, match="4 prompt tokens and an answer of up to 99 need"):
            shared.generate(PROMPTS[0], AnswerOptions(99))
        assert len(list(shared.generate(PROMPTS[0], AnswerOptions(36, ends=False)))) == 36
    with pytest.raises(UnavailableError, match="hold no text"):
        SharedModel(model, 2, memory_bytes=model.token_bytes)


def test_a_prompt_that_begins_like_a_text_in_another_slot_is_not_computed_again(model: LanguageModel):
    bench = Bench(model, 3)
    first = bench.ask(LONG, AnswerOptions(20, ends=False))
    while not count_of(first):
        bench.batch.step()
    same = bench.ask([*LONG[:120], 9, 9, 9], AnswerOptions(10, ends=False))
    bench.finish()
    assert same.writing.account.reused_tokens == 120
    assert same.writing.account.computed_tokens == 3 + 9
    assert tokens_of(same) == alone(model, [*LONG[:120], 9, 9, 9], AnswerOptions(10, ends=False))
    again = bench.ask([*LONG, *tokens_of(first)[:5], 4], AnswerOptions(3, ends=False))
    bench.finish()
    assert again.writing.account.reused_tokens == len(LONG) + 5
    bench.batch.forget()
    anew = bench.ask(LONG, AnswerOptions(3, ends=False))
    bench.finish()
    assert anew.writing.account.reused_tokens == 0


def test_seeds_and_stop_texts_are_each_requests_own(model: LanguageModel):
    wishes = [
        AnswerOptions(30, Sampling(temperature=0.9, top_k=20, seed=1), ends=False),
        AnswerOptions(30, Sampling(temperature=0.9, top_k=20, seed=2), ends=False),
        AnswerOptions(30, Sampling(repetition_penalty=1.4), ends=False),
        AN_ANSWER,
    ]
    plain = model.generate(PROMPTS[0], AN_ANSWER).text()
    wishes.append(AnswerOptions(24, stop=(plain[6:8],), ends=False))
    bench = Bench(model, 4)
    requests = [bench.ask(PROMPTS[0], asked) for asked in wishes]
    bench.finish()
    assert requests[4].writing.account.reason == "stop"
    assert "".join(piece.text for piece in SharedAnswer(requests[4])) == plain[: plain.index(plain[6:8])]
    found = [tokens_of(one) for one in requests[:4]]
    assert found == [alone(model, PROMPTS[0], asked) for asked in wishes[:4]]
    assert found[0] != found[1]


def test_an_error_and_a_cancelled_answer_touch_no_other(model: LanguageModel):
    bench = Bench(model, 4)
    good = [bench.ask(prompt) for prompt in PROMPTS[:2]]
    wrong, cancelled = bench.ask([3, 7]), bench.ask(PROMPTS[3])
    wrong.writing.tokens[-1] = VOCABULARY + 7
    for _ in range(6):
        bench.batch.step()
    answer = SharedAnswer(cancelled)
    assert next(answer).token == alone(model, PROMPTS[3])[0]
    answer.cancel()
    assert list(answer) == []
    good += [bench.ask(prompt) for prompt in PROMPTS[4:]]
    bench.finish()
    assert cancelled.writing.account.reason == "cancelled"
    assert 1 <= count_of(cancelled) < 24
    with pytest.raises(UnsupportedError, match="does not run the decoder"):
        tokens_of(wrong)
    assert [tokens_of(one) for one in good] == [alone(model, PROMPTS[i]) for i in (0, 1, 4, 5)]


def test_a_failing_run_of_all_ends_only_those_who_fail_alone(model: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    bench = Bench(model, 3)
    requests = [bench.ask(prompt, AnswerOptions(12, ends=False)) for prompt in PROMPTS[:3]]
    while not all(map(count_of, requests)):
        bench.batch.step()
    requests[1].writing.tokens[-1] = VOCABULARY + 1  # as a broken choice would leave it
    bench.finish()
    with pytest.raises(UnsupportedError):
        tokens_of(requests[1])
    for i in (0, 2):
        assert tokens_of(requests[i]) == alone(model, PROMPTS[i], AnswerOptions(12, ends=False))


def test_graphs_that_take_one_text_at_a_time_write_the_same_one_run_a_token(model: LanguageModel):
    bench = Bench(model, 3, apart=True)
    requests = [bench.ask(prompt) for prompt in PROMPTS]
    bench.finish()
    assert [tokens_of(one) for one in requests] == [alone(model, prompt) for prompt in PROMPTS]
    assert bench.batch.work.token_runs == bench.batch.work.tokens == len(PROMPTS) * 23


def test_a_graph_that_takes_lengths_from_the_masks_shape_is_served_text_by_text(float_model: Model):
    proto = onnx.ModelProto()
    proto.CopyFrom(float_model.proto)
    for node in proto.graph.node:
        if node.op_type == "ReduceSum" and "attention_mask" in node.input:
            rows = onnx.helper.make_node("ReduceMax", ["all_lengths", *node.input[1:]], node.output, keepdims=0)
            node.output[0] = "own_lengths"
            break
    else:
        raise AssertionError("no lengths are taken from the mask")
    at = list(proto.graph.node).index(node) + 1
    ones = onnx.helper.make_node("Add", ["attention_mask", "not_mask"], ["whole_mask"])
    nots = onnx.helper.make_node("Sub", ["one_of_mask", "attention_mask"], ["not_mask"])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one_of_mask"))
    rows = onnx.helper.make_node("ReduceSum", ["whole_mask", node.input[1]], rows.output, keepdims=0)
    for made in (rows, ones, nots):
        proto.graph.node.insert(at, made)
    with opened(float_model) as right, opened(Model(proto, "padded")) as padded:
        assert takes_rows(right.session.engine, right.parts)
        assert not takes_rows(padded.session.engine, padded.parts)
        with SharedModel(padded, 3) as shared:
            assert not shared.is_together
            answers = [shared.generate(prompt, AN_ANSWER) for prompt in PROMPTS[:3]]
            assert [[piece.token for piece in one] for one in answers] == [alone(right, one) for one in PROMPTS[:3]]


def test_an_answer_that_nobody_holds_is_cancelled_and_nobody_waits_for_a_reader(model: LanguageModel):
    with SharedModel(model, 2) as shared:
        with shared._change:
            dropped, unread = (
                shared.generate([4], AnswerOptions(155, ends=False)),
                shared.generate([5], AnswerOptions(100, ends=False)),
            )
            request = dropped._request
            del dropped
            gc.collect()
        assert request.is_done.wait(30)
        assert request.writing.account.reason == "cancelled"
        assert shared.generate([6], AN_ANSWER).text() == model.generate([6], AN_ANSWER).text()
        assert len(list(unread)) == 100


def test_closing_ends_all_and_takes_no_more(model: LanguageModel):
    shared = SharedModel(model, 1)
    answers = [shared.generate([one], AnswerOptions(150, ends=False)) for one in (4, 5, 6)]
    next(answers[0])
    shared.close()
    for answer in answers:
        list(answer)
        assert answer.account.reason in ("cancelled", "length")
    with pytest.raises(EdgeoptError, match="closed"):
        shared.generate([4])
    assert len(alone(model, [4])) == 24


def test_a_closed_answer_gives_its_slot_back(model: LanguageModel):
    with SharedModel(model, 1) as shared:
        with shared.generate([4], AnswerOptions(150, ends=False)) as answer:
            next(answer)
        assert answer.account.reason in ("cancelled", "length")
        assert shared.work.running == 0
        with pytest.raises(ValueError, match="empty"):
            shared.generate([])
        with pytest.raises(ValueError, match="serve nobody"):
            SharedModel(model, 0)
