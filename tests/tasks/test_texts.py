"""Tasks of texts: what is fed, what is answered, and how it is scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")

from made_texts import MOODS, TAGS, write_tokenizer

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ChosenRecipe, bind_recipe
from edgeopt.recipes.inputs.text_input import TextInput
from edgeopt.recipes.labels import read_labels
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe
from edgeopt.recipes.scoring.entities import spans_of
from edgeopt.recipes.texts.text import Pooling, Text
from edgeopt.recipes.texts.tokenizer import Tokenizer
from edgeopt.tasks import make_task
from edgeopt.tasks.token_classification import Span, Spans

LENGTH = 12
IDS = TensorSpec("input_ids", "int64", ("batch", LENGTH))
INPUTS = (
    IDS,
    TensorSpec("attention_mask", "int64", ("batch", LENGTH)),
    TensorSpec("token_type_ids", "int32", (1, LENGTH)),
)
METRICS = {"text_classification": "top1", "token_classification": "entity_F1", "embedding": "recall1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("texts")
    write_tokenizer(made / "tokenizer.json")
    return made


def recipe(folder: Path, task: str = "text_classification", **changes: object) -> Recipe:
    decoder = "none" if task == "embedding" else "logits"
    made = Recipe(
        "texts",
        task,
        "",
        "",
        "",
        Postprocess(decoder),
        Evaluation(METRICS[task]),
        tokenizer=Tokenizer("tokenizer.json"),
        class_names=TAGS if task == "token_classification" else MOODS,
        folder=folder,
    )
    return replace(made, **changes)


def task_of(made: Recipe, output: TensorSpec, *, evaluating: bool = True):
    bound = bind_recipe(ChosenRecipe(made), INPUTS, (output,), {}, {}).recipe
    return make_task(bound, INPUTS, (output,), evaluating=evaluating)


def test_a_text_is_cut_filled_and_fed_by_name(folder: Path) -> None:
    feed = TextInput(recipe(folder), INPUTS)
    tensors, encoded = feed("the room was good")
    assert {name: (one.dtype.name, one.shape) for name, one in tensors.items()} == {
        "input_ids": ("int64", (1, LENGTH)),
        "attention_mask": ("int64", (1, LENGTH)),
        "token_type_ids": ("int32", (1, LENGTH)),
    }
    assert tensors["attention_mask"][0].tolist() == [1] * 6 + [0] * 6
    assert tensors["input_ids"][0, 0] == 2
    assert tensors["input_ids"][0, 5:].tolist() == [3, *[0] * 6]
    assert [encoded.text[start:end] for start, end in encoded.offsets[1:5]] == ["the", "room", "was", "good"]
    whole, _ = feed("good " * 40)
    assert whole["attention_mask"].all()
    assert whole["input_ids"][0, -1] == 3
    assert feed.is_cut("good " * 40)
    assert not feed.is_cut("good")
    empty, _ = feed("")
    assert empty["attention_mask"].sum() == 2


def test_a_pair_has_types(folder: Path) -> None:
    made = recipe(folder, tokenizer=Tokenizer("tokenizer.json", pairs=True))
    tensors, _ = TextInput(made, INPUTS)("the room\twas good")
    assert tensors["token_type_ids"][0].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0]
    with pytest.raises(UnsupportedError, match="takes pairs"):
        TextInput(made, INPUTS)("the room was good")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tokenizer": Tokenizer("absent.json")}, "does not exist"),
        ({"tokenizer": Tokenizer("broken.json")}, "is no tokenizer"),
        ({"tokenizer": Tokenizer("tokenizer.json", pad="[FILL]")}, "no token \\[FILL\\]"),
        ({"tokenizer": Tokenizer("tokenizer.json", length=99)}, "takes 12 tokens, the recipe says 99"),
        ({"tokenizer": Tokenizer("tokenizer.json", ids="ids")}, "nothing feeds input_ids"),
        ({"tokenizer": Tokenizer("tokenizer.json", types="kinds")}, "nothing feeds token_type_ids"),
        ({"tokenizer": Tokenizer()}, "no tokenizer"),
    ],
)
def test_a_recipe_that_cannot_feed_texts_is_refused_in_one_line(folder: Path, change, told) -> None:
    (folder / "broken.json").write_text("{}")
    made, output = recipe(folder, **change), TensorSpec("logits", "float32", (1, 3))

    def bind() -> None:
        bound = bind_recipe(ChosenRecipe(made), INPUTS, (output,), {}, {}).recipe if made.kind == "text" else made
        make_task(bound, INPUTS, (output,), evaluating=True)

    with pytest.raises(EdgeoptError, match=told) as caught:
        bind()
    assert caught.value.remedy
    assert "\n" not in caught.value.problem


def test_a_length_that_nobody_tells_is_asked_for(folder: Path) -> None:
    free = (TensorSpec("input_ids", "int64", ("batch", "tokens")),)
    output = TensorSpec("logits", "float32", ("batch", 3))
    with pytest.raises(UnsupportedError, match="takes any number of tokens"):
        bind_recipe(ChosenRecipe(recipe(folder)), free, (output,), {}, {})
    made = recipe(folder, tokenizer=Tokenizer("tokenizer.json", length=7))
    assert bind_recipe(ChosenRecipe(made), free, (output,), {}, {}).recipe.input.shapes == {"input_ids": (1, 7)}


def test_classes_are_scored_by_name_or_index(folder: Path, tmp_path: Path) -> None:
    task = task_of(recipe(folder), TensorSpec("logits", "float32", (1, 3)))
    rows = np.eye(3, dtype=np.float32)[[0, 1, 2, 2, 0, 0]] * 4
    answers = [task.postprocess({"logits": one[None]}, None) for one in rows]
    (tmp_path / "truth.csv").write_text("text,label\na,bad\nb,even\nc,good\nd,1\ne,0\nf,2\n")
    found = task.score(answers, read_labels(tmp_path / "truth.csv"))
    assert found.value == pytest.approx(4 / 6)
    macro = find_metric("macro_F1").score(task._ranks(answers, read_labels(tmp_path / "truth.csv")), 6)
    assert found.others == {"macro_F1": macro}
    assert macro == pytest.approx(np.mean([2 * 2 / (2 + 3), 2 * 1 / (2 + 1), 2 * 1 / (2 + 2)]))
    assert task.as_json(answers[0])["classes"][0]["class"] == "bad"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("text,label\na,bad\nb,ugly\n", "1 label no class of the model, for example 'ugly'"),
        ("text,label\na,7\n", "beyond the model's 3 classes"),
        ("text,label\n,bad\n", "line 2: no text"),
        ("text,label\na,\n", "line 2: no label"),
        ("text,kind\na,bad\n", "no column label"),
    ],
)
def test_labels_of_texts_that_are_wrong_are_told(folder: Path, tmp_path: Path, content, told) -> None:
    (tmp_path / "truth.csv").write_text(content)
    task = task_of(recipe(folder), TensorSpec("logits", "float32", (1, 3)))

    def score() -> None:
        labels = read_labels(tmp_path / "truth.csv")
        task.score([task.postprocess({"logits": np.zeros((1, 3))}, None)] * len(labels.files), labels)

    with pytest.raises(InvalidFileError, match=told):
        score()


def scores(tags: list[str]) -> dict[str, np.ndarray]:
    rows = np.zeros((1, LENGTH, len(TAGS)), np.float32)
    for i, tag in enumerate(tags, 1):
        rows[0, i, TAGS.index(tag)] = 5
    return {"logits": rows}


def test_words_have_the_tag_of_their_first_token(folder: Path) -> None:
    output = TensorSpec("logits", "float32", (1, LENGTH, len(TAGS)))
    made, text = recipe(folder, "token_classification"), "Mr Karo met Zuvi Ltd."
    pieces = ["O", "B-PER", "O", "O", "B-ORG", "I-LOC", "I-ORG", "O"]  # Ka ##ro, Zu ##vi: second pieces do not count
    task = task_of(made, output, evaluating=False)
    _, encoded = task.preprocess(text)
    answer = task.postprocess(scores(pieces), encoded)
    assert [(one.text, one.kind) for one in answer.spans] == [("Karo", "PER"), ("Zuvi Ltd", "ORG")]
    assert task.as_text(answer) == "'Karo' PER 0.96; 'Zuvi Ltd' ORG 0.96"
    assert task.as_json(answer)["spans"][0] == {"text": "Karo", "kind": "PER", "start": 3, "end": 7, "score": 0.9611}
    assert [one.text for one in task_of(made, output).postprocess(scores(pieces), encoded).spans][1] == "Zuvi Ltd."
    assert task.count(task.postprocess({"logits": np.full((1, LENGTH, 7), np.nan)}, encoded)) == 0


def plain_spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """As conlleval reads IOB: straightforward, for tags with B and I only."""
    found, i = set(), 0
    while i < len(tags):
        if tags[i] == "O":
            i += 1
            continue
        kind, begun = tags[i][2:], i
        i += 1
        while i < len(tags) and tags[i] == f"I-{kind}":
            i += 1
        found.add((kind, begun, i))
    return found


def test_spans_are_those_of_conlleval() -> None:
    chance = np.random.default_rng(0)
    for _ in range(400):
        tags = chance.choice(TAGS, int(chance.integers(0, 9))).tolist()
        assert set(spans_of(tags)) == plain_spans(tags), tags
    assert spans_of(["B-A", "E-A", "S-B", "I-B"]) == [("A", 0, 2), ("B", 2, 3), ("B", 3, 4)]
    assert spans_of(["NOUN", "O", "VERB"]) == [("NOUN", 0, 1), ("VERB", 2, 3)]


def test_f1_counts_spans_of_all_texts_together(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "truth.conll").write_text(
        "-DOCSTART- -X- O O\n\nMr NN O\nKaro NN B-PER\nlu NN I-PER\n\nin\tO\nRoma\tB-LOC\n\n# id 3\nall O\n"
    )
    labels = read_labels(tmp_path / "truth.conll")
    assert labels.texts == ("Mr Karo lu", "in Roma", "all")
    task = task_of(recipe(folder, "token_classification"), TensorSpec("logits", "float32", (1, LENGTH, len(TAGS))))
    right, wrong = Span("Karo lu", "PER", 3, 10, 0.9), Span("Roma", "PER", 3, 7, 0.9)
    answers = [Spans((right,), 3), Spans((wrong,), 2), Spans((), 1)]
    found = task.score(answers, labels)
    assert (found.metric, found.value) == ("entity_F1", pytest.approx(2 * 1 / (2 + 2)))
    counts = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 2], [2, 1, 0]])
    np.testing.assert_allclose(task.score_resamples(answers, labels, counts), [1, 0, 0, 2 * 2 / (3 + 3)])
    assert task.agreement(answers, answers) == 1
    assert task.agreement(answers, [Spans((right,), 3)] * 3) == pytest.approx(2 * 1 / (2 + 3))


@pytest.mark.parametrize(
    ("content", "told"),
    [("Karo\n", "line 1: no word with a tag"), ("", "no sentence"), ("a B-X\n", "none of its kinds")],
)
def test_tagged_words_that_are_wrong_are_told(folder: Path, tmp_path: Path, content, told) -> None:
    (tmp_path / "truth.bio").write_text(content)
    task = task_of(recipe(folder, "token_classification"), TensorSpec("logits", "float32", (1, LENGTH, len(TAGS))))

    def score() -> None:
        labels = read_labels(tmp_path / "truth.bio")
        task.score([Spans((), 1)] * len(labels.files), labels)

    with pytest.raises(InvalidFileError, match=told):
        score()


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.FIRST, Pooling.USUAL])
def test_an_embedding_of_a_text_is_pooled_as_the_recipe_says(folder: Path, pooling: Pooling) -> None:
    outputs = (
        TensorSpec("last_hidden_state", "float32", (1, LENGTH, 4)),
        TensorSpec("pooler_output", "float32", (1, 4)),
    )
    made = bind_recipe(ChosenRecipe(recipe(folder, "embedding", text=Text(pooling))), INPUTS, outputs, {}, {}).recipe
    task = make_task(made, INPUTS, outputs, evaluating=True)
    hidden, pooled = np.random.default_rng(0).normal(size=(1, LENGTH, 4)), np.ones((1, 4))
    _, mask = task.preprocess("the room was good")
    found = task.postprocess({"last_hidden_state": hidden, "pooler_output": pooled}, mask).vector
    wanted = {Pooling.MEAN: hidden[0, :6].mean(axis=0), Pooling.FIRST: hidden[0, 0], Pooling.USUAL: pooled[0]}[pooling]
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), rtol=1e-5)


def test_a_pooling_that_the_model_lacks_is_refused(folder: Path) -> None:
    output = TensorSpec("last_hidden_state", "float32", (1, LENGTH, 4))
    with pytest.raises(UnsupportedError, match="no output of one vector"):
        task_of(recipe(folder, "embedding", text=Text(Pooling.MODEL)), output)
