"""Models of texts keep their free sizes through `optimize`: bundles read by length, and answers stay what they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("tokenizers", reason="the extra edgeopt[text] is not installed")

from made_texts import MOODS, moods, write_moods, write_tokenizer
from served import serving
from served_bundles import classifier_of_free_sizes, cross_encoder_of_free_sizes, embedder_of_free_sizes
from tokenizers import Tokenizer

from edgeopt import Runtime, optimize
from edgeopt.errors import EdgeoptError, NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.model import load_model, save_model
from edgeopt.measurement.accuracy.evaluate import answers
from edgeopt.measurement.check.accuracy import _task as task_of
from edgeopt.measurement.check.accuracy import check_accuracy
from edgeopt.measurement.check.result import CheckVerdict
from edgeopt.measurement.opening import given
from edgeopt.measurement.opening.given import OpenedModel, open_given, reading_of
from edgeopt.measurement.turns.side_by_side import close, open_sides
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.text_input import TextInput
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.runtime.bundle import read_bundle
from edgeopt.steps.convert.precisions import CONVERSIONS
from edgeopt.system.declared.target import find_target
from edgeopt.system.machine.processor import cpu_architecture
from edgeopt.tasks import make_task, tensors

TEXTS = [
    "good",
    "the tea was good",
    *[f"the {word} was not good and the staff seemed rude" for word in ("bus", "soup", "bed", "room")] * 3,
    "Mr Karo met the staff in Roma . " * 4,
]
RECIPE = """name = "small"
task = "embedding"
description = "made here"
license = "ours"
source = "tests"
[tokenizer]
file = "tokenizer.json"
length = 24
{more}
[postprocess]
decoder = "none"
[evaluation]
metric = "cosine"
"""


def calibration(folder: Path) -> Path:
    write_moods(folder / "moods.csv", 64, 2)
    lines = (folder / "moods.csv").read_text().splitlines()[1:]
    (folder / "calib.txt").write_text("\n".join(line.rpartition(",")[0].replace('"', "") for line in lines) + "\n")
    return folder / "calib.txt"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Path:
    return embedder_of_free_sizes(tmp_path_factory.mktemp("free"))


@pytest.fixture
def bundle(embedder, one_form, tmp_path) -> Path:
    """The bundle of a form whose graph was rewritten, with free sizes all the same."""
    told = {"calib": calibration(tmp_path), "threads": 1}
    report = optimize(embedder, out=tmp_path / "out", steps=("simplify", "fuse", "quantize"), **told)
    assert [one.name for one in report.candidates][:2] == ["baseline", "simplify"]
    assert any("own length, up to 48 tokens" in note.detail for note in report.notes)
    assert not [note.detail for note in report.notes if "failed" in note.detail], "texts have other lengths each"
    assert "w8a8" in {candidate.precision for candidate in report.candidates}, "it is calibrated on them"
    return report.folder / "bundle"


def own_vectors(embedder: Path) -> np.ndarray:
    """Return the original's vectors of the texts, each read by itself."""
    given = open_given(str(embedder), "cpu", None)
    session = EXECUTOR.open(given.path, SessionOptions(threads=1))
    task = make_task(given.recipe, session.inputs, session.outputs, evaluating=False)
    vectors = []
    for text in TEXTS:
        tensors, mask = task.preprocess(text)
        assert tensors["input_ids"].shape[1] == task.length_of(text).tokens < 48 or "Karo" in text
        vectors.append(task.postprocess(session.run(tensors), mask).vector)
    session.close()
    return np.stack(vectors)


def test_a_bundle_reads_each_text_at_its_length_and_several_together(bundle, embedder):
    written = read_bundle(bundle)
    assert written.recipe.tokenizer.fill in (Fill.TOGETHER, Fill.ALONE)
    assert {port.shape for port in written.artefacts[0].inputs} == {(None, None)}
    expected = own_vectors(embedder)
    with Runtime.load(bundle, threads=1) as runtime:
        alone = np.stack([runtime.predict(text).vector for text in TEXTS])
    assert (alone * expected).sum(axis=1).min() > 0.98
    with serving(str(bundle)) as server:
        data = server.json("/v1/embeddings", {"model": written.recipe.name, "input": TEXTS})["data"]
    served = np.array([entry["embedding"] for entry in data])
    np.testing.assert_allclose(served, alone, atol=1e-5)
    assert np.abs(expected - expected[0]).max() > 0.1  # else any order would do
    require_free_candidates(bundle)


def test_matrices_in_blocks_are_tried_of_a_model_of_any_length(embedder, tmp_path):
    model, target = load_model(embedder), find_target("cpu-x86-vnni")
    recipe = open_given(str(embedder), "cpu", None).recipe
    (made,) = CONVERSIONS["w8"](model, target, [])  # too small for blocks
    assert made.model.op_counts["MatMulIntegerToFloat"] == 12
    save_model(made.model, tmp_path / "w8.onnx")
    session = EXECUTOR.open(tmp_path / "w8.onnx", SessionOptions(threads=1))
    tensors = TextInput(recipe, session.inputs).filled_to("the tea was good", 9)
    assert session.run(tensors)["last_hidden_state"].shape[:2] == (1, 9)
    session.close()


def require_free_candidates(bundle: Path) -> None:
    """Every candidate takes texts of any length, and several."""
    recipe, seen = read_bundle(bundle).recipe, 0
    for file in sorted((bundle.parent / "candidates").rglob("*.onnx")):
        session = EXECUTOR.open(file, SessionOptions(threads=1))
        assert not any(isinstance(size, int) for spec in session.inputs for size in spec.shape), file
        feed = TextInput(recipe, session.inputs)
        together = session.run(feed.together(TEXTS)[0])
        assert len(next(iter(together.values()))) == len(TEXTS)
        assert reading_of(session, recipe).fill in (Fill.TOGETHER, Fill.ALONE)
        session.close()
        seen += 1
    assert seen > 1


def test_a_cross_encoder_ranks_by_length_as_it_does_one_by_one(one_form, tmp_path):
    model = cross_encoder_of_free_sizes(tmp_path)
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("\n".join(f"was the tea good\t{text}" for text in TEXTS) + "\n")
    report = optimize(model, out=tmp_path / "out", steps=("simplify",), calib=pairs, threads=1)
    bundle = report.folder / "bundle"
    assert read_bundle(bundle).recipe.tokenizer.fill is Fill.TOGETHER
    with Runtime.load(bundle, threads=1) as runtime:
        alone = [float(runtime.predict(f"was the tea good\t{text}")["logits"].reshape(-1)[0]) for text in TEXTS]
    with serving(str(bundle)) as server:
        body = {"model": "cross", "query": "was the tea good", "documents": TEXTS}
        results = server.json("/v1/rerank", body)["results"]
    scores = {result["index"]: result["relevance_score"] for result in results}
    expected = 1 / (1 + np.exp(-np.array(alone)))
    np.testing.assert_allclose([scores[place] for place in range(len(TEXTS))], expected, atol=1e-5)


def test_a_classifier_with_labels_gets_int8_that_they_judge_at_the_texts_own_lengths(one_form, tmp_path):
    model = classifier_of_free_sizes(tmp_path, MOODS)
    given = open_given(str(model), "cpu", None)
    session = EXECUTOR.open(given.path, SessionOptions(threads=1))
    task = make_task(given.recipe, session.inputs, session.outputs, evaluating=False)
    texts, rows, lengths = [text for text, _ in moods(96, 3)], ["text,label"], set()
    for text in texts:
        tensors, mask = task.preprocess(text)
        lengths.add(tensors["input_ids"].shape)
        best = task.postprocess(session.run(tensors), mask).indices[0]
        rows.append(f"{text},{MOODS[best]}")
    session.close()
    assert len(lengths) > 5
    assert len({row.rpartition(",")[2] for row in rows[1:]}) > 1, "else any answer would do"
    (tmp_path / "eval.csv").write_text("\n".join(rows) + "\n")
    told = {"calib": calibration(tmp_path), "eval": str(tmp_path / "eval.csv"), "threads": 1, "max_drop": 0.5}
    # for another processor no time decides which forms the labels judge
    other = "cpu-arm64" if cpu_architecture() == "x86-64" else "cpu-x86-avx2"
    report = optimize(model, target=other, out=tmp_path / "out", steps=("simplify", "fuse", "quantize"), **told)
    assert not [note.detail for note in report.notes if "failed" in note.detail]
    assert report.candidates[0].score.value == 1.0, "they are its own answers"
    (int8,) = [candidate for candidate in report.candidates if candidate.precision == "w8a8"]
    assert report.best is int8
    assert int8.score is not None
    assert int8.score.value > 0.8
    assert report.best.judgement.samples == len(texts)
    require_free_candidates(report.folder / "bundle")


def test_a_length_that_is_asked_for_is_fixed(embedder, one_form, tmp_path):
    shapes = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 48))
    report = optimize(embedder, out=tmp_path / "out", steps=("simplify",), calib=calibration(tmp_path), shapes=shapes)
    written = read_bundle(report.folder / "bundle")
    assert written.recipe.tokenizer.fill is Fill.LENGTH
    with Runtime.load(report.folder / "bundle", threads=1) as runtime:
        tensors, _ = runtime.task.preprocess("good")
    assert tensors["input_ids"].shape == (1, 48)


def test_engines_that_are_made_for_texts_of_one_length_are_not_looked_at(embedder, one_form, tmp_path, monkeypatch):
    looked = list[str]()
    monkeypatch.setattr(OpenedModel, "fault_of", lambda _, target: looked.append(target.name) or "")
    report = optimize(embedder, out=tmp_path / "out", steps=("simplify",), calib=calibration(tmp_path), threads=1)
    assert looked == []
    (note,) = [note for note in report.notes if note.detail.endswith("made for texts of one length")]
    assert "openvino-cpu" in note.detail
    assert note.hint.startswith("--shape input_ids=1x48 ")


def test_an_interrupt_while_it_is_found_out_how_texts_are_read_leaves_what_an_earlier_run_made(
    embedder, one_form, tmp_path, monkeypatch
):
    asked = {"out": tmp_path / "out", "steps": ("simplify",), "calib": calibration(tmp_path), "threads": 1}
    optimize(embedder, **asked)
    made = {path: path.read_bytes() for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(given, "reading_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimize(embedder, **asked, resume=True)
    assert {path: path.read_bytes() for path in made} == made
    report = optimize(embedder, **asked, resume=True)
    assert not [note for note in report.notes if "nothing is taken up" in note.detail]
    assert [candidate.name for candidate in report.candidates][:2] == ["baseline", "simplify"]
    simplified = tmp_path / "out" / "candidates"
    kept = [path for path in made if simplified in path.parents and path.suffix == ".onnx"]
    assert kept
    assert all(path.read_bytes() == made[path] for path in kept)


def small(folder: Path, *, mask: bool = True, more: str = "", mixing: str = "") -> Path:
    """Write a model that embeds by a table and a mean; `mixing` makes it one whose sizes are free in name only."""
    write_tokenizer(folder / "tokenizer.json")
    size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    chance = np.random.default_rng(0)
    constants = {"table": chance.standard_normal((size, 16)).astype(np.float32), "axis": np.array([1], np.int64)}
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["rows"])]
    if mixing == "positions":  # traced with 24 tokens, whose positions it adds
        constants["positions"] = chance.standard_normal((24, 16)).astype(np.float32)
        nodes.append(helper.make_node("Add", ["rows", "positions"], ["placed"]))
    else:
        nodes.append(helper.make_node("Identity", ["rows"], ["placed"]))
    if mixing == "unmasked":  # it takes a mask, and heeds it nowhere
        constants["none"] = np.array(0.0, np.float32)
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["there"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["there", "none"], ["nothing"]),
            helper.make_node("Unsqueeze", ["nothing", "two"], ["column"]),
            helper.make_node("Add", ["placed", "column"], ["kept"]),
        ]
        constants["two"] = np.array([2], np.int64)
    elif mask:
        constants["last"] = np.array([2], np.int64)
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["there"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["there", "last"], ["column"]),
            helper.make_node("Mul", ["placed", "column"], ["kept"]),
        ]
    sums = "kept" if mask else "placed"
    if mixing == "neighbours":  # each answer has something of all texts of its run
        constants["axes"] = np.array([0, 1], np.int64)
        nodes += [
            helper.make_node("ReduceSum", [sums, "axis"], ["own"], keepdims=0),
            helper.make_node("ReduceSum", [sums, "axes"], ["all"], keepdims=0),
            helper.make_node("Add", ["own", "all"], ["sentence_embedding"]),
        ]
    else:
        nodes.append(helper.make_node("ReduceSum", [sums, "axis"], ["sentence_embedding"], keepdims=0))
    inputs = ["input_ids", *(["attention_mask"] if mask else [])]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["texts", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["texts", 16])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")
    (folder / "recipe.toml").write_text(RECIPE.format(more=more))
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("how", "fill", "told"),
    [
        ({}, Fill.TOGETHER, "read at their own length, up to 24 tokens"),
        ({"mask": False}, Fill.LENGTH, "no input attention_mask that tells which tokens are filled"),
        ({"mask": False, "more": 'fill = "alone"'}, Fill.ALONE, "read at their own length, up to 24 tokens"),
        ({"mixing": "unmasked"}, Fill.LENGTH, "tokens that fill a text change its answer"),
        ({"mixing": "positions"}, Fill.LENGTH, "does not read each at its own length"),
        ({"mixing": "neighbours"}, Fill.ALONE, "an answer depends on the texts beside it"),
        ({"more": 'fill = "length"'}, Fill.LENGTH, ""),
        ({"more": 'fill = "alone"'}, Fill.ALONE, "read at their own length, up to 24 tokens"),
    ],
)
def test_a_model_that_cannot_is_read_as_before_and_told_so(how, fill, told, tmp_path):
    given = open_given(str(small(tmp_path, **how)), "cpu", None)
    assert given.recipe.tokenizer.fill is fill
    notes = [note for note in given.choice.notes if "fill" in note.detail or "length" in note.detail]
    assert [told in note.detail for note in notes] == ([True] if told else [])
    assert all(note.hint for note in notes if note.kind is NoteKind.WARNING)
    expected = 24 if fill is Fill.LENGTH else 3
    tensors, encoded = TextInput(given.recipe, given.model.inputs)("good")
    assert tensors["input_ids"].shape == (1, expected) == (1, len(encoded.mask))


def test_a_model_whose_texts_mix_is_served_one_by_one(tmp_path):
    model = small(tmp_path, mixing="neighbours")
    with serving(str(model)) as server:
        body = {"model": "small", "input": ["good", "the tea was good and the staff kind", "bad"]}
        together = [entry["embedding"] for entry in server.json("/v1/embeddings", body)["data"]]
        alone = [
            server.json("/v1/embeddings", {**body, "input": text})["data"][0]["embedding"] for text in body["input"]
        ]
    assert together == alone


@pytest.mark.parametrize("most_elements", [2**18, 100])
def test_tensors_of_texts_at_a_fixed_and_at_their_own_length_are_compared_on_the_tokens_of_the_texts(
    most_elements, embedder, tmp_path, monkeypatch
):
    monkeypatch.setattr(tensors, "_MOST_ELEMENTS", most_elements)  # of more a part is drawn, by its place
    recipe = (embedder.parent / "recipe.toml").read_text().replace('"embedding"', '"tensors"')
    for name, more in (("own", ""), ("fixed", 'length = 48\nfill = "length"')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text(recipe.replace("length = 48", more or "length = 48"))
        for file in ("model.onnx", "tokenizer.json"):
            shutil.copy(embedder.parent / file, tmp_path / name)
    files = [str(tmp_path / name / "model.onnx") for name in ("own", "fixed")]
    sides = open_sides(files, target="cpu", recipe=None, threads=1)
    samples = open_frames(calibration(tmp_path))
    for now, then in (sides, sides[::-1]):
        result = check_accuracy(now, then, None, None, samples, 0.0, why_gone="")
        assert result.verdict is CheckVerdict.PASS, result.detail
        assert "agree in 1.000 with the baseline's on 64 samples" in result.detail
    found = [answers(side.subject.session, task_of(side), samples) for side in sides]
    assert task_of(sides[0]).agreement(found[0], [*found[1][1:], found[1][0]]) < 0.9, "else any order would do"
    close(sides)


def test_a_wrong_word_for_filling_is_refused(tmp_path):
    with pytest.raises(EdgeoptError, match="fill") as caught:
        open_given(str(small(tmp_path, more='fill = "longest"')), "cpu", None)
    assert "together" in str(caught.value)
