"""Pictures on three axes of positions: caches, turns, slots, prefixes, guesses and shifts change no token."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from qwen_models import CLASSES, photo, write_qwen_folder

from edgeopt.errors import EdgeoptError
from edgeopt.executors.onnxruntime.image_rows import EncodedPicture, TextShifts
from edgeopt.export.export import export
from edgeopt.export.seeing.qwen import positions_of_text
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model

ASKED = AnswerOptions(most_tokens=8, ends=False)
SIZES = [(90, 120), (200, 60), (33, 70)]


@pytest.fixture(scope="module", params=[*CLASSES])
def file(request, tmp_path_factory) -> Path:
    pytest.importorskip("jinja2")
    folder = tmp_path_factory.mktemp(request.param)
    write_qwen_folder(folder / "net", request.param)
    return export(f"hf:{folder / 'net'}", out=folder / "out" / "model.onnx").file


@pytest.fixture
def model(file):
    with open_language_model(file, 1)[0] as opened:
        yield opened


def photos(count: int = 2) -> list[np.ndarray]:
    return [photo(seed, *SIZES[seed]) for seed in range(count)]


def tokens_of(answer) -> list[int]:
    with answer:
        return [piece.token for piece in answer]


def test_shifts_are_positions_less_places_however_a_text_is_cut():
    grids = [(3, 5), (2, 2), (4, 1)]
    pictures = [EncodedPicture(np.zeros((a * b, 4), np.float32), 0, (a, b)) for a, b in grids]
    tokens = [1, 2, *pictures[0].tokens(), *pictures[1].tokens(), 3, *pictures[2].tokens(), 4, 5, 6]
    wanted = positions_of_text([2, 0, 1, 3], grids) - np.arange(len(tokens))
    for step in (1, 3, 7, len(tokens)):
        text = TextShifts(len(tokens))
        parts = [text.of(at, tokens[at : at + step]) for at in range(0, len(tokens), step)]
        np.testing.assert_array_equal(np.concatenate(parts, axis=2)[:, 0], wanted)
    again = TextShifts(len(tokens))
    again.copy(text, 12)
    np.testing.assert_array_equal(again.of(12, tokens[12:])[:, 0], wanted[:, 12:])


def test_a_picture_keeps_its_proportions_and_is_encoded_once(model):
    first = model.generate("What is this?", ASKED, photos())
    alone = tokens_of(first)
    grids = [model.images.feeder.grid(*size) for size in SIZES[:2]]
    assert (first.account.images, first.account.encoded_images) == (2, 2)
    assert first.account.image_rows == sum(lines * columns for lines, columns in grids)
    again = model.generate("What is this?", ASKED, photos())
    assert tokens_of(again) == alone
    assert again.account.encoded_images == 0
    assert again.account.reused_tokens == again.account.prompt_tokens - 1
    assert tokens_of(model.generate("What is this?", ASKED, photos()[::-1])) != alone


@pytest.mark.parametrize("chunk", [1, 5])
def test_parts_of_a_prompt_and_a_cache_of_it_give_the_same_answer(model, chunk):
    prompt = model.seen("What is this?", photos())
    whole = tokens_of(model.generate(prompt, ASKED))
    model.forget()
    assert tokens_of(model.generate(prompt, ASKED.but(chunk_tokens=chunk))) == whole
    middle = len(prompt) // 2  # in a picture: what is held is cut back into it, and goes on from there
    decoder = model.decoder(len(prompt) + 4)
    tokens = model.images.read(prompt).tokens
    expected = decoder.run(tokens)[-1]
    decoder.run([7])
    decoder.rewind(middle)
    np.testing.assert_allclose(decoder.run(tokens[middle:])[-1], expected, atol=1e-4)


def test_the_next_turn_goes_on_behind_the_answer(model):
    """Positions of a second turn, with a picture of its own, are those of the whole conversation read at once."""
    said = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What?<|im_end|>\n<|im_start|>assistant\n"
    answer = model.generate(said, ASKED, photos(1))
    words = answer.text()
    more = f"{said}{words}<|im_end|>\n{said}"
    second = model.generate(more, ASKED, photos(2))
    held = tokens_of(second)
    assert second.account.reused_tokens > model.images.feeder.rows(*SIZES[0])
    model.forget()
    anew = model.generate(more, ASKED, photos(2))
    assert tokens_of(anew) == held
    assert anew.account.reused_tokens == 0


def test_slots_prefixes_and_guesses_change_no_token(model):
    prompts = [model.seen("What is this? What is this?", photos(count)) for count in (1, 2, 3)]
    alone = [tokens_of(model.generate(prompt, ASKED)) for prompt in prompts]
    assert [tokens_of(model.generate(prompt, ASKED.but(guesses=4))) for prompt in prompts] == alone
    model.forget()
    kept = model.keep_prefix(list(prompts[0])[:6])  # of the system
    assert kept.held_tokens == 6
    behind = model.generate(prompts[1], ASKED)
    assert tokens_of(behind) == alone[1]
    assert behind.account.reused_tokens >= 6
    with SharedModel(model, 2, chunk_tokens=5) as shared:
        answers = [shared.generate(prompt, ASKED) for prompt in (*prompts, prompts[0])]
        assert [tokens_of(answer) for answer in answers] == [*alone, alone[0]]
        again = shared.generate(prompts[1], ASKED)
        assert tokens_of(again) == alone[1]
        assert again.account.reused_tokens > 20


def test_a_text_is_shifted_and_pictures_are_not(file):
    """The kept part of a text is read again from its new place; an answer to pictures ends with the context."""
    asked = AnswerOptions(most_tokens=90, ends=False, shifts=True)
    with open_language_model(file, 1, context=112)[0] as model:
        seen = model.generate(model.seen("What is this?", photos(1)), asked)
        count = len(tokens_of(seen))
        assert seen.account.prompt_tokens + count in (112, 113)
        assert seen.account.shifts == 0
    with open_language_model(file, 1, context=32)[0] as model:
        shifted = model.generate("What is this?", asked)
        tokens = tokens_of(shifted)
        assert len(tokens) == 90
        assert shifted.account.shifts > 0


@pytest.mark.parametrize(
    ("prompt", "frames", "message"),
    [
        ("what", [photo(0, 4, 900)], "one side more than 200 times as long"),
        ("<|vision_start|><|video_pad|><|vision_end|> what", [photo(0, 40, 40)], "a video, which is not seen here"),
        ("a <|image_pad|> b <|image_pad|>", [photo(0, 40, 40)], "2 such marks for 1 picture"),
    ],
)
def test_what_is_not_seen_is_refused(model, prompt, frames, message):
    with pytest.raises(ValueError, match=message):
        model.generate(prompt, ASKED, frames)


def test_a_video_is_refused_by_name(model, tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"")
    with pytest.raises(EdgeoptError, match=r"clip\.mp4 is a video, and a prompt takes pictures"):
        model.generate("what", ASKED, [tmp_path / "clip.mp4"])


def test_files_are_seen_as_arrays_are(model, tmp_path):
    cv2.imwrite(str(tmp_path / "photo.png"), photos(1)[0])
    expected = tokens_of(model.generate("what", ASKED, photos(1)))
    assert tokens_of(model.generate("what", ASKED, [tmp_path / "photo.png"])) == expected
