"""A prompt with pictures: their rows stand in the text, each picture is encoded once, and prefixes know them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from seeing_models import ROWS, picture, write_exported

from edgeopt.errors import EdgeoptError, UnsupportedError
from edgeopt.executors.onnxruntime.image_rows import EncodedPicture, ImageToken
from edgeopt.graph.model import find_model
from edgeopt.recipes.texts.seen_prompt import PromptPicture, SeenPrompt
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

ASKED = AnswerOptions(most_tokens=8, ends=False)
TILES = 5
"""Tiles of a picture of 90 x 120 pixels: four parts and the whole."""


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    pytest.importorskip("jinja2")
    return write_exported(tmp_path_factory.mktemp("seeing"))


@pytest.fixture
def model(file):
    with open_language_model(file, 1)[0] as opened:
        yield opened


def tokens_of(answer) -> list[int]:
    with answer:
        return [piece.token for piece in answer]


def test_rows_of_a_picture_stand_for_the_marks_of_its_tiles(model):
    prompt = model.seen("What is this?", [picture(1)])
    assert prompt.count(model.images.marks.token) == TILES * ROWS
    text = model.tokenizer.decode([token for token in prompt if token not in model.tokenizer.special.values()])
    assert text == "User:\n\n\nWhat is this?\nAssistant:"
    read = model.images.read(prompt)
    assert [isinstance(token, ImageToken) for token in read.tokens] == [
        token == model.images.marks.token for token in prompt
    ]
    raw = model.seen("A <image> b", [picture(1)])
    assert raw.count(model.images.marks.token) == TILES * ROWS
    assert list(raw)[:1] == model.tokenizer.encode("A")


def test_logits_are_those_of_the_rows_in_place_of_embeddings(model, file):
    """The same numbers come out where the embedding itself holds the rows, as tokens of their own."""
    import onnx
    from onnx import numpy_helper

    from edgeopt.executors import SessionOptions
    from edgeopt.executors.onnxruntime import EXECUTOR
    from edgeopt.executors.onnxruntime.decoder import Decoder

    prompt = model.seen("<image>what<image>", [picture(1), picture(2)])
    read = model.images.read(prompt)
    proto = onnx.load(file)
    stored = next(one for one in proto.graph.initializer if one.name == "embedding")
    table = numpy_helper.to_array(stored)
    rows = [token.picture.rows[token.row] for token in read.tokens if isinstance(token, ImageToken)]
    stored.CopyFrom(numpy_helper.from_array(np.concatenate([table, rows]), "embedding"))
    place = iter(range(len(table), len(table) + len(rows)))
    ids = [next(place) if isinstance(token, ImageToken) else token for token in read.tokens]
    session = EXECUTOR.open(proto.SerializeToString(), SessionOptions(threads=1))
    expected = Decoder(session.engine, model.parts, len(ids), shares=model.shares).run(ids)
    session.close()
    np.testing.assert_array_equal(model.logits(read.tokens), expected)


def test_a_picture_is_encoded_once_and_another_one_is_another_prefix(model):
    first = model.generate("What is this?", ASKED, [picture(1)])
    alone = tokens_of(first)
    assert (first.account.images, first.account.encoded_images, first.account.image_rows) == (1, 1, TILES * ROWS)
    assert first.account.reused_tokens == 0
    again = model.generate("What is this?", ASKED, [picture(1)])
    assert tokens_of(again) == alone
    assert again.account.encoded_images == 0
    assert again.account.reused_tokens == again.account.prompt_tokens - 1
    other = model.generate("What is this?", ASKED, [picture(2)])
    assert tokens_of(other) != alone
    assert other.account.encoded_images == 1
    before = len(model.seen("What is this?", [picture(2)])) - other.account.prompt_tokens
    assert 0 < other.account.reused_tokens < 8 - before  # what stands before the picture
    text = model.generate("What is this?", ASKED)
    assert text.account.images == 0
    text.close()


def test_the_first_token_comes_behind_the_encoder(model):
    answer = model.generate("What is this?", ASKED, [picture(1)])
    tokens_of(answer)
    account = answer.account
    assert 0 < account.encode_ns < account.token_at_ns[0]
    assert account.encode_ns + account.prefill_ns + account.tokenize_ns <= account.token_at_ns[0]


def test_what_is_kept_is_bounded_and_can_be_forgotten(file):
    with open_language_model(file, 1)[0] as model:
        images = model.images
        images._kept_bytes = 2 * TILES * ROWS * images.width * 4
        for seed in range(5):
            images.read(model.seen("<image>", [picture(seed)]))
        assert images.kept_bytes == images._kept_bytes
        assert images.read(model.seen("<image>", [picture(4)])).encoded == 0
        assert images.read(model.seen("<image>", [picture(0)])).encoded == 1
        model.forget()
        assert images.kept_bytes == 0
        assert images.read(model.seen("<image>", [picture(0)])).encoded == 1


def test_no_number_ever_means_two_pictures():
    rows = np.zeros((3, 4), np.float32)
    first, second = EncodedPicture(rows, 5).tokens(), EncodedPicture(rows, 5).tokens()
    assert len({*first, *second}) == 6
    assert [token.row for token in second] == [0, 1, 2]
    assert min(first) > 1 << 61


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_parts_of_a_prompt_give_the_same_answer(model, chunk):
    whole = tokens_of(model.generate("What is this?", ASKED, [picture(1), picture(2)]))
    model.forget()
    answer = model.generate("What is this?", ASKED.but(chunk_tokens=chunk), [picture(1), picture(2)])
    assert tokens_of(answer) == whole


def test_slots_give_the_answers_that_come_alone(model):
    prompts = [model.seen("What is this?", [picture(seed)]) for seed in range(3)]
    alone = [tokens_of(model.generate(prompt, ASKED)) for prompt in prompts]
    with SharedModel(model, 3, chunk_tokens=5) as shared:
        answers = [shared.generate(prompt, ASKED) for prompt in prompts]
        assert [tokens_of(answer) for answer in answers] == alone
        again = shared.generate(prompts[0], ASKED)
        assert tokens_of(again) == alone[0]
        assert again.account.reused_tokens > TILES * ROWS
        assert again.account.queue_ns < again.account.token_at_ns[0]


def test_guesses_and_penalties_go_with_pictures(model):
    prompt = model.seen("What is this? What is this? What", [picture(1)])
    plain = tokens_of(model.generate(prompt, ASKED))
    guessed = model.generate(prompt, ASKED.but(guesses=4))
    assert tokens_of(guessed) == plain
    kept = tokens_of(model.generate(prompt, ASKED.but(repetition_penalty=1.3)))
    assert len(kept) == 8


def test_pictures_come_as_files_and_arrays(file, tmp_path):
    cv2.imwrite(str(tmp_path / "photo.png"), picture(1))
    with open_language_model(file, 1)[0] as model:
        from_file = tokens_of(model.generate("what", ASKED, [tmp_path / "photo.png"]))
        assert tokens_of(model.generate("what", ASKED, [picture(1)])) == from_file


def test_a_model_without_a_template_reads_pictures_before_the_text(tmp_path):
    with open_language_model(write_exported(tmp_path, template=False), 1)[0] as model:
        prompt = model.seen("what <end_of_utterance>", [picture(1)])
        assert prompt.count(model.images.marks.token) == TILES * ROWS
        assert model.tokenizer.special["<end_of_utterance>"] not in prompt
        assert list(prompt)[-1] == model.tokenizer.encode("what <end_of_utterance>")[-1]


@pytest.mark.parametrize(
    ("prompt", "images", "message"),
    [
        ("a <image> b <image>", [picture(1)], "2 such marks for 1 picture"),
        ("a <image>", [], ""),
        ("what <end_of_utterance>", [picture(1)], "the prompt holds '<end_of_utterance>'"),
        ("what", [np.zeros((4, 4), np.uint8)], "a picture is a path, or an array"),
        ("what", [np.zeros((4, 4, 3), np.float32)], "of uint8, not"),
        ([1, 2], [picture(1)], "pictures stand in a text"),
        ("what", [picture(i) for i in range(13)], "nothing could follow; pictures are never cut"),
    ],
)
def test_what_does_not_fit_is_refused(model, prompt, images, message):
    if not message:  # a mark without pictures is a word among others
        assert tokens_of(model.generate(prompt, ASKED))
        return
    with pytest.raises(ValueError, match=message):
        model.generate(prompt, ASKED, images)


def test_who_sees_nothing_says_so(file, tmp_path):
    with pytest.raises(EdgeoptError, match="does not exist"), open_language_model(file, 1)[0] as model:
        model.generate("what", ASKED, [tmp_path / "nowhere.png"])
    with open_language_model(find_model("tiny_lm"), 1)[0] as blind:
        with pytest.raises(UnsupportedError, match="sees no pictures"):
            blind.generate("what", ASKED, [picture(1)])
        seen = SeenPrompt.of([1, 2], [PromptPicture.of(picture(1))])
        with pytest.raises(UnsupportedError, match="sees no pictures"):
            blind.generate(seen, ASKED)


def test_files_that_do_not_fit_each_other_do_not_open(tmp_path):
    file = write_exported(tmp_path)
    recipe = (tmp_path / "recipe.toml").read_text("utf-8")
    for before, after, message in (
        ("rows = 4", "rows = 8", "\\[image\\] tells of tiles of 64 pixels, which become 8 rows"),
        ('token = "<image>"', 'token = "<picture>"', "the tokenizer does not know <picture>"),
        ('encoder = "image_encoder.onnx"', 'encoder = "absent.onnx"', "absent.onnx does not exist"),
        ("rows = 4\n", "", "needs token, rows, tile and longest"),
    ):
        (tmp_path / "recipe.toml").write_text(recipe.replace(before, after), "utf-8")
        with pytest.raises(EdgeoptError, match=message):
            open_language_model(file, 1)
