"""The cache of one text gets memory as the text gets longer, and its numbers are those of a cache with all of it."""

from __future__ import annotations

import numpy as np
import pytest
from small_decoders import SHIPPED

from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.decoder import ROOM, Decoder, cache_parts
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

CAPACITY = 1024


@pytest.fixture(scope="module")
def session():
    opened = EXECUTOR.open(SHIPPED / "model.onnx", SessionOptions(threads=1))
    yield opened
    opened.close()


def decoder(session, room: int = 0, capacity: int = CAPACITY) -> Decoder:
    return Decoder(session.engine, cache_parts(session.inputs, session.outputs), capacity, shares=True, room=room)


def test_a_cache_that_grows_gives_the_numbers_of_one_that_has_room(session):
    whole, small = decoder(session), decoder(session, 4)
    chance, sizes = np.random.default_rng(0), []
    for count in (3, 1, 1, 40, 1, 1, 300, 2, 1):
        tokens = chance.integers(0, 1000, count).tolist()
        assert np.array_equal(small.run(tokens), whole.run(tokens))
        sizes.append(small.cache_bytes)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] < whole.cache_bytes
    assert sizes[-1] == 2 * ROOM * whole.cache_bytes // CAPACITY
    small.rewind(5)
    whole.rewind(5)
    assert np.array_equal(small.run([1, 2]), whole.run([1, 2]))
    assert all(np.array_equal(*pair) for pair in zip(small.stored(), whole.stored(), strict=True))


def test_what_was_stored_is_restored_where_there_was_no_room_for_it(session):
    whole, small = decoder(session), decoder(session, 2)
    whole.run(list(range(500)))
    small.restore(whole.stored(), 400)
    whole.rewind(400)
    assert np.array_equal(small.run([7]), whole.run([7]))


def test_it_never_has_more_room_than_its_capacity(session):
    small = decoder(session, 2, 10)
    small.run(list(range(10)))
    assert small.cache_bytes == decoder(session, 0, 10).cache_bytes
    with pytest.raises(ValueError, match="do not fit in 10"):
        small.run([1])


def test_an_answer_reserves_what_it_may_take_before_it_is_waited_for():
    model, _ = open_language_model(SHIPPED / "model.onnx", threads=1)
    with model:
        answer = model.generate([1, 2, 3], AnswerOptions(most_tokens=ROOM, ends=False))
        before = answer._decoder.cache_bytes
        assert before < model.decoder(model.context).cache_bytes
        answer.text()
        ((held, _),) = model._idle
        assert held.cache_bytes == before
        assert len(answer.account.token_at_ns) == ROOM
