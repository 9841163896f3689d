"""Only changed answers need labels: they are asked blind, in an order drawn beforehand, and the answers are counted."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgeopt.errors import InvalidFileError
from edgeopt.measurement.accuracy.judgement import judge_pairs
from edgeopt.optimization.labelling.offer import make_coco, make_page, read_answers
from edgeopt.optimization.labelling.questions import (
    NEITHER,
    Question,
    as_texts,
    count_pairs,
    drawn_order,
    make_questions,
    questions_json,
)
from edgeopt.recipes.inputs.frames import open_frames

COUNT = 2000
NAMES = [f"{i:04}.jpg" for i in range(COUNT)]


def answers_of(seed: int, changed: float) -> tuple[list[str], list[str], list[str]]:
    """Return what is true, what the original answers and what a candidate answers."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 5, COUNT)
    original = np.where(rng.random(COUNT) < 0.7, truth, rng.integers(0, 5, COUNT))
    candidate = np.where(rng.random(COUNT) < changed, rng.integers(0, 5, COUNT), original)
    return truth.astype(str).tolist(), original.astype(str).tolist(), candidate.astype(str).tolist()


def test_labels_of_changed_answers_give_the_drop_that_all_labels_give() -> None:
    truth, original, candidate = answers_of(0, 0.05)
    order = drawn_order(COUNT, []).tolist()
    questions = make_questions(NAMES, order, original, [candidate])
    right = {one.sample: truth[int(one.sample[:4])] for one in questions}
    told = {name: answer if answer in questions_of(questions, name) else NEITHER for name, answer in right.items()}
    counted = count_pairs(NAMES, order, original, candidate, told)
    worse = sum(a == t != b for a, b, t in zip(original, candidate, truth, strict=True))
    better = sum(b == t != a for a, b, t in zip(original, candidate, truth, strict=True))
    assert (counted.worse, counted.better, counted.samples) == (worse, better, COUNT)
    assert counted.changed == len(questions) < COUNT / 10
    assert judge_pairs(worse, better, COUNT, 0.05).word == "KEPT"


def questions_of(questions: tuple[Question, ...], name: str) -> tuple[str, ...]:
    return next(one.options for one in questions if one.sample == name)


def test_some_answers_count_the_samples_up_to_the_first_one_that_is_missing() -> None:
    truth, original, candidate = answers_of(1, 0.05)
    order = drawn_order(COUNT, []).tolist()
    questions = make_questions(NAMES, order, original, [candidate])
    told = {one.sample: truth[int(one.sample[:4])] for one in questions[:20]}
    counted = count_pairs(NAMES, order, original, candidate, told)
    assert counted.changed == 20
    assert counted.samples == order.index(int(questions[20].sample[:4]))


def test_what_steered_the_search_is_not_asked_and_the_order_is_always_the_same() -> None:
    left_out = [*range(0, COUNT, 3)]
    order = drawn_order(COUNT, left_out).tolist()
    assert not set(order) & set(left_out)
    assert len(order) == COUNT - len(left_out)
    assert order == drawn_order(COUNT, left_out).tolist()
    assert order != sorted(order)


def test_the_order_of_options_does_not_tell_who_answered() -> None:
    names, original, candidate = NAMES[:400], ["cat"] * 400, ["dog"] * 400
    questions = make_questions(names, [*range(400)], original, [candidate])
    first = sum(one.options[0] == "cat" for one in questions)
    assert 150 < first < 250
    assert "original" not in questions_json(questions)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(3):
        cv2.imwrite(str(folder / f"{i}.png"), np.full((900, 300, 3), 60 * i, np.uint8))
    return folder


def test_the_page_is_one_file_that_runs_no_text_of_a_user(pictures: Path) -> None:
    hostile = "</script><script>alert(1)</script>"
    page = make_page([Question("1.png", ("cat", hostile))], open_frames(pictures), "run", Path("/out/label"))
    assert page.count("</script>") == 2
    assert "data:image/jpeg;base64," in page
    assert "http://" not in page
    assert "https://" not in page
    text = page.split('<script id="data" type="application/json">')[1].split("</script>")[0]
    assert json.loads(text)["questions"][0]["options"] == ["cat", hostile]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"answers": 3}', '{"answers": {"a.jpg": 3}}', '{"answers": ["a.jpg"]}']
)
def test_a_damaged_file_of_answers_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(text)
    with pytest.raises(InvalidFileError):
        read_answers(path)


def test_boxes_are_labelled_by_a_coco_file_that_proposes_none(pictures: Path) -> None:
    made = json.loads(make_coco(open_frames(pictures), [2, 0], ["person", "car"]))
    assert [one["file_name"] for one in made["images"]] == ["2.png", "0.png"]
    assert made["images"][0]["height"] == 900
    assert made["annotations"] == []
    assert [one["name"] for one in made["categories"]] == ["person", "car"]


def test_choices_become_words_and_what_is_no_single_choice_does_not() -> None:
    assert as_texts([frozenset({1}), frozenset()], lambda i: f"name {i}") == ["name 1", "nothing"]
    assert as_texts(["a line", ""], str) == ["a line", "nothing"]
    assert as_texts([frozenset({1, 2})], str) is None
    assert as_texts([None], str) is None
