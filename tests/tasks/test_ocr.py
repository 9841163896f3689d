"""OCR: scores become text as CTC has it, texts are judged by their characters, and the answer is told and drawn."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.preprocess import Input
from edgeopt.recipes.labels import read_labels
from edgeopt.recipes.labels.classes import ClassLabels
from edgeopt.recipes.labels.transcripts import Transcripts
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.outputs.learned import Scale
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe, Scores, find_recipe, read_recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.recipes.scoring.spelling import spelling_of
from edgeopt.recipes.texts.alphabet import Alphabet, Blank
from edgeopt.tasks import make_task
from edgeopt.tasks.ocr import Line

ABC = Alphabet(characters="abc")
PICTURE = TensorSpec("x", "float32", (1, 3, 48, 320))
BOUND = Recipe("net", "ocr", "", "", "", Postprocess("ctc"), Evaluation("character_accuracy"), Input(size=(48, 320)))


def reader(alphabet: Alphabet = ABC, shape: tuple[int | str, ...] = (1, 9, 4), scores: Scores = Scores.USUAL):
    recipe = replace(BOUND, alphabet=alphabet, postprocess=Postprocess("ctc", scores=scores))
    return make_task(recipe, [PICTURE], [TensorSpec("y", "float32", shape)], evaluating=True)


def steps(best: list[int], count: int, sure: float = 0.9) -> np.ndarray:
    """Return (1, steps, count) probabilities whose best are these."""
    made = np.full((1, len(best), count), (1 - sure) / (count - 1), np.float32)
    made[0, np.arange(len(best)), best] = sure
    return made


def test_repetitions_are_one_character_and_blanks_part_them() -> None:
    answer = reader().postprocess({"y": steps([0, 1, 1, 0, 1, 2, 2, 3, 0], 4)})
    assert answer.text == "aabc"
    assert answer.confidence == pytest.approx(0.9)
    assert reader().postprocess({"y": steps([0] * 9, 4)}) == Line("", 0.0)
    assert reader().postprocess({"y": steps([1] * 9, 4) * np.float32(np.nan)}) == Line("", 0.0)


def test_blank_and_space_lie_where_the_alphabet_says() -> None:
    last = replace(ABC, blank=Blank.LAST)
    assert reader(last).postprocess({"y": steps([0, 3, 1, 1, 3, 2, 3, 3, 3], 4)}).text == "abc"
    assert reader(last, (1, 9, 5)).postprocess({"y": steps([0, 3, 1, 4, 1, 2, 4, 4, 4], 5)}).text == "a bbc"
    assert reader(ABC, (1, 9, 5)).postprocess({"y": steps([1, 4, 2, 0, 2, 3, 0, 0, 0], 5)}).text == "a bbc"


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (0, 2, 1)], ids=["Paddle", "PyTorch", "LPRNet"])
def test_steps_and_scores_may_lie_in_any_order(axes: tuple[int, ...]) -> None:
    made = steps([0, 1, 1, 0, 1, 2, 2, 3, 0], 4).transpose(axes)
    assert reader(shape=made.shape).postprocess({"y": made}).text == "aabc"
    free = tuple(size if size == 4 else "t" for size in made.shape)
    assert reader(shape=free).postprocess({"y": made}).text == "aabc"


def test_logits_become_probabilities() -> None:
    logits = np.log(steps([1, 2, 3], 4, 0.7)) + 5
    assert reader(shape=(1, 3, 4)).postprocess({"y": logits}).confidence == pytest.approx(0.7, abs=1e-5)
    flat = np.full((1, 3, 4), 0.25, np.float32)
    flat[0, :, 1] += 0.001
    sure = [reader(shape=(1, 3, 4), scores=one).postprocess({"y": flat}).confidence for one in Scores]
    assert sure == pytest.approx([0.251, 0.251, 0.2502], abs=1e-3)


@pytest.mark.parametrize("shape", [(1, 9, 3), (1, 9, 6), (1, 4)])
def test_scores_that_are_not_the_alphabets_are_refused(shape: tuple[int, ...]) -> None:
    if shape == (1, 4):
        assert reader(shape=shape)
        return
    with pytest.raises(UnsupportedError, match="alphabet of 3 characters needs 4 scores a step, 5 with a space"):
        reader(shape=shape)


def test_a_recipe_without_an_alphabet_is_refused_by_a_model_that_tells_none() -> None:
    with pytest.raises(UnsupportedError, match="names no alphabet") as refused:
        reader(Alphabet())
    assert "[alphabet] file" in refused.value.remedy


def test_rapidocr_tells_the_dictionary_in_the_metadata() -> None:
    output = TensorSpec("softmax", "float32", ("b", "t", 5), "Softmax")
    given = TensorSpec("x", "float32", ("b", 3, 48, "w"))
    choice = choose_recipe(None, None, [given], [output], {"character": "a\nb\nc"})
    assert (choice.recipe.name, choice.recipe.input.size) == ("paddleocr_rec", (48, 320))
    assert choice.reason.startswith("the exporter's metadata, the operators that make the outputs and the shapes")
    made = make_task(choice.recipe, [given], [output], evaluating=True)
    assert made.postprocess({"softmax": steps([1, 4, 2], 5)}).text == "a b"
    assert find_recipe("paddleocr_rec").alphabet == Alphabet()


def test_a_dictionary_is_read_line_by_line(tmp_path: Path) -> None:
    text = find_recipe("paddleocr_rec").folder.joinpath("recipe.toml").read_text("utf-8").split("[[match]]")[0]
    (tmp_path / "dict.txt").write_bytes("'\n\u3000\n疗\n#\r\nfi\n".encode())
    (tmp_path / "recipe.toml").write_text(text + '[alphabet]\nfile = "dict.txt"\nblank = "last"\n', "utf-8")
    read = read_recipe(tmp_path / "recipe.toml").alphabet
    assert read.symbols == ("'", "\u3000", "疗", "#", "fi")
    assert read.of_scores(7) == ("'", "\u3000", "疗", "#", "fi", " ", "")
    both = '[alphabet]\nfile = "dict.txt"\ncharacters = "abc"\n'
    (tmp_path / "recipe.toml").write_text(text + both, "utf-8")
    with pytest.raises(InvalidFileError, match="a file and characters"):
        read_recipe(tmp_path / "recipe.toml")
    (tmp_path / "recipe.toml").write_text(text + '[alphabet]\nfile = "../dict.txt"\n', "utf-8")
    with pytest.raises(InvalidFileError, match="outside the recipe's folder"):
        read_recipe(tmp_path / "recipe.toml", stays_inside=True)


def distance(found: str, true: str) -> int:
    """The textbook's table."""
    row = list(range(len(true) + 1))
    for i, a in enumerate(found, start=1):
        above, row = row, [i]
        for j, b in enumerate(true, start=1):
            row.append(min(above[j - 1] + (a != b), above[j] + 1, row[-1] + 1))
    return row[-1]


@settings(max_examples=60, deadline=None)
@given(st.text("abä", max_size=12), st.text("abä", max_size=12))
def test_edits_are_counted_as_the_textbook_does(found: str, true: str) -> None:
    assert spelling_of([found], [true]).errors.tolist() == [distance(found, true)]


def test_the_error_rate_is_that_of_all_lines_together() -> None:
    found, true = ["abcd", " xyz ", "", "longer than it"], ["abce", "xyz", "q", "l"]
    spelling = spelling_of(found, true)
    assert spelling.errors.tolist() == [1, 0, 1, 13]
    for metric, value in (("character_accuracy", 0.0), ("exact_match", 0.25)):
        assert find_metric(metric).score(spelling, 4) == pytest.approx(value)
    first = np.array([[1, 1, 0, 0], [3, 0, 1, 0]])
    assert find_metric("character_accuracy").resample(spelling, first) == pytest.approx([1 - 1 / 7, 1 - 4 / 13])
    assert find_metric("exact_match").resample(spelling, first) == pytest.approx([0.5, 0.0])


def test_answers_to_labels_and_to_each_other() -> None:
    made, lines = reader(), [Line("abc", 0.9), Line("cab", 0.5)]
    labels = Transcripts(("0.png", "1.png"), Path("gt.txt"), ("abc", "cbb"))
    scored = made.score(lines, labels)
    assert (scored.value, scored.others) == (pytest.approx(5 / 6), {"exact_match": 0.5})
    assert scored.by_chance == pytest.approx(3 / 6)
    assert made.score_resamples(lines, labels, np.array([[1, 0], [0, 1]])) == pytest.approx([1, 2 / 3])
    assert made.agreement(lines, lines) == 1
    assert made.agreement([Line("abc", 0.9), Line("", 0.0)], lines) == 0.5
    assert made.sureness(lines).tolist() == [0.9, 0.5]
    with pytest.raises(InvalidFileError, match="holds no texts"):
        made.score(lines, ClassLabels(("0.png", "1.png"), Path("a.csv"), (0, 1)))


def test_the_loss_grows_with_the_noise_before_a_character_changes() -> None:
    made, whole = reader(), [{"y": steps([0, 1, 1, 0, 1, 2, 2, 3, 0], 4)}]
    chance, previous = np.random.default_rng(0).normal(size=(1, 9, 4)).astype(np.float32), 0.0
    assert made.loss(whole, whole) == pytest.approx(0)
    for noise in (0.02, 0.1, 0.3):
        logits = [{"y": np.log(whole[0]["y"]) + noise * chance}]
        assert made.postprocess(logits[0]).text == made.postprocess(whole[0]).text
        lost = made.loss(logits, whole)
        assert lost > previous
        previous = lost
    assert made.loss([{"y": whole[0]["y"] * np.float32(np.nan)}], whole) == np.inf


def test_a_student_learns_the_scores_of_each_step() -> None:
    (head,) = reader(shape=(1, 4, 9)).heads
    assert (head.scores.axis, head.scale, head.background) == (1, Scale.SOFTMAX, 0)
    (head,) = reader(replace(ABC, blank=Blank.LAST), scores=Scores.PROBABILITIES).heads
    assert (head.scores.axis, head.scale, head.background) == (2, Scale.SHARES, 3)
    assert reader(shape=("b", "t", "n")).heads == ()


def test_an_answer_is_told_and_drawn() -> None:
    made, answer = reader(), Line("ab\nc", 0.98765)
    assert made.as_text(answer) == "ab\\nc (0.988)"
    assert made.as_json(answer) == {"text": "ab\nc", "confidence": 0.9877}
    assert (made.as_text(Line("", 0.0)), made.count(answer), made.count(Line("", 0.0))) == ("nothing", 4, 0)
    drawn = made.draw(np.full((20, 60, 3), 200, np.uint8), answer, 90)
    assert drawn.shape == (90, 180, 3)
    assert drawn[60:].max() > 150
    assert (drawn[:60] == 200).all()


def test_texts_are_read_as_paddleocr_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "rec_gt.txt"
    path.write_bytes("a/1.jpg\t简单 可\r\na/2.jpg\t\n\nb.png\twith\ttab\n".encode())
    found = read_labels(path)
    assert isinstance(found, Transcripts)
    assert (found.files, found.lines) == (("a/1.jpg", "a/2.jpg", "b.png"), ("简单 可", "", "with\ttab"))
    assert found.select([2]).lines == ("with\ttab",)
    for wrong, told in (("a.png text\n", "line 1: no file and text"), ("a\tb\na\tc\n", "twice"), ("\n", "no picture")):
        path.write_text(wrong)
        with pytest.raises(InvalidFileError, match=told):
            read_labels(path)


def test_a_csv_of_texts_is_told_from_one_of_classes_by_its_head(tmp_path: Path) -> None:
    path = tmp_path / "lines.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("n", "text", "file"), (1, 'say "a, b"', "0.png"), (2, "ü", "1.png")])
    found = read_labels(path)
    assert isinstance(found, Transcripts)
    assert (found.files, found.lines) == (("0.png", "1.png"), ('say "a, b"', "ü"))
    path.write_text("file,class_index\n0.png,3\n")
    assert isinstance(read_labels(path), ClassLabels)
    path.write_text("file,text\n0.png\n")
    with pytest.raises(InvalidFileError, match="line 2"):
        read_labels(path)
