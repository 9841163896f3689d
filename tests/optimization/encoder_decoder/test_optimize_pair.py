"""An encoder with a decoder goes through optimize: two graphs, forms of each, a bundle that all commands open."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from exported_pairs import EXPECTED, TONE, unpacked
from fixture_bundles import reseal

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.graph.sound import Sound
from edgeopt.measurement.accuracy.judgement import Word
from edgeopt.measurement.generation.held_out import hold_out, read_sources, read_transcripts, score_answers
from edgeopt.measurement.generation.perplexity import Rise, agreement_between
from edgeopt.optimization.encoder_decoder import forms
from edgeopt.optimization.encoder_decoder.optimize import optimize_encoder_decoder
from edgeopt.optimization.encoder_decoder.words import WrongWords, refuse_by_words, rise_of_words, wrong_words
from edgeopt.optimization.generation.contest import Entrant, FormContest
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE
from edgeopt.optimization.generation.time_shares import TimeShares
from edgeopt.optimization.run import Silence
from edgeopt.recipes.inputs.wav_files import write_wav
from edgeopt.recipes.scoring.spelling import word_errors
from edgeopt.recipes.texts.encoder_decoder import DECODER, ENCODER, read_encoder_decoder
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.decoding.encoder_decoder import open_encoder_decoder
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.decoding.selftest_pair import record_pair
from edgeopt.steps.convert.encoder_decoder_pair import read_pair
from edgeopt.system.declared.target import find_target

BRIEF = LanguageOptions(output_tokens=4, threads=1, seconds=0.0, processes=2)
TEXT = "import os and the brown fox"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "lines.txt"
    file.write_text("import os\n\nthe quick brown fox\njumps over\nthe lazy dog\nhello\n", "utf-8")
    return file


def as_pair(folder: Path) -> Path:
    """Replace the graphs of a folder by the two of a pair."""
    files = read_encoder_decoder(folder)
    pair = read_pair(files)
    for one in files.files:
        one.unlink()
    save_model(pair.encoder, folder / ENCODER)
    save_model(pair.decoder, folder / DECODER)
    return folder


@pytest.mark.parametrize("kind", ["whisper", "marian", "t5"])
def test_two_graphs_write_what_transformers_writes(kind, tmp_path):
    folder = as_pair(unpacked(kind, tmp_path / kind))
    expected = EXPECTED[kind]["detected" if kind == "whisper" else "text"]
    with open_encoder_decoder(folder, 1) as model:
        assert model.files.is_pair
        answer = model.generate(TONE if kind == "whisper" else TEXT, AnswerOptions(most_tokens=len(expected)))
        assert [piece.token for piece in answer] == expected
        assert answer.account.heard_rows == (1500 if kind == "whisper" else len(model.tokenizer.encode(TEXT)) + 1)
    assert read_pair(read_encoder_decoder(folder)).decoder.data == load_model(folder / DECODER).data


def test_weights_that_an_export_turns_in_the_graph_are_turned(tmp_path):
    folder = unpacked("t5", tmp_path / "t5")
    proto = onnx.load(folder / "decoder_model.onnx")
    stored = {one.name: one for one in proto.graph.initializer}
    for node in [one for one in proto.graph.node if one.op_type == "MatMul" and one.input[1] in stored]:
        name = f"{node.output[0]}_weight"
        rows = np.ascontiguousarray(onnx.numpy_helper.to_array(stored[node.input[1]]).T)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rows, f"{name}_rows"))
        proto.graph.node.insert(0, onnx.helper.make_node("Transpose", [f"{name}_rows"], [name], perm=[1, 0]))
        node.input[1] = name
    onnx.save(proto, folder / "decoder_model.onnx")
    with open_encoder_decoder(as_pair(folder), 1) as model:
        answer = model.generate(TEXT, AnswerOptions(most_tokens=len(EXPECTED["t5"]["text"])))
        assert [piece.token for piece in answer] == EXPECTED["t5"]["text"]


@pytest.mark.parametrize(("form", "bits"), [("w8", 8), ("w4", 4), ("w4+head", 8)])
def test_a_head_that_is_the_table_of_tokens_is_stored_in_blocks(form, bits):
    table = np.random.default_rng(0).standard_normal((96, 128)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Gather", ["table", "input_ids"], ["rows"], "look_up"),
        onnx.helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),  # as torch traces a tied head
        onnx.helper.make_node("MatMul", ["rows", "turned"], ["logits"], "head"),
    ]
    ids = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, [1, None])
    logits = onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [1, None, 96])
    stored = [onnx.numpy_helper.from_array(table, "table")]
    graph = onnx.helper.make_graph(nodes, "decoder", [ids], [logits], stored)
    opset = onnx.helper.make_opsetid("", 20)
    model = Model(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), "decoder")
    (wanted,) = [one for one in forms.DECODER_FORMS if one.name == form]
    made = wanted.make(model, find_target("cpu")).model.proto.graph
    (product,) = [node for node in made.node if node.op_type == "MatMulNBits"]
    assert next(one.i for one in product.attribute if one.name == "bits") == bits
    kinds = [one.data_type for one in made.initializer if len(one.raw_data) >= table.size // 2]
    assert kinds == [onnx.TensorProto.UINT8] * (1 if bits == 8 else 2)  # in 8 bits the table is the head's blocks


def test_keys_and_values_that_are_no_plain_products_are_refused(tmp_path):
    folder = unpacked("t5", tmp_path / "t5")
    model = load_model(folder / "decoder_model.onnx")
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for node in proto.graph.node:
        for i, name in enumerate(node.output):
            if name == "present.0.encoder.key":
                node.output[i] = "before"
    proto.graph.node.append(onnx.helper.make_node("Tanh", ["before"], ["present.0.encoder.key"]))
    save_model(Model(proto, "t5"), folder / "decoder_model.onnx")
    with pytest.raises(UnsupportedError, match=r"present\.0\.encoder\.key is no plain product"):
        read_pair(read_encoder_decoder(folder))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, lines: Path):
    folder = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeopt.steps.convert.weight_only.LEAST_ROWS", 16)  # these matrices are tiny
        return optimize_encoder_decoder(
            str(unpacked("marian", folder / "marian")),
            target="cpu",
            out=folder / "out",
            options=replace(BRIEF, eval=str(lines)),
            listener=Silence(),
        )


def test_forms_of_both_parts_are_judged_by_the_originals_answers(report, lines):
    names = [one.name for one in report.candidates]
    assert names[:4] == [BASELINE, "fp32-fp32", "w8a8-fp32", "w8-fp32"]
    encoder = names[4].partition("-")[0]
    assert names[4:] == [f"{encoder}-{one.name}" for one in forms.DECODER_FORMS]
    by_name = {one.name: one for one in report.candidates}
    assert by_name["fp32-fp32"].agreement == 1.0
    assert abs(by_name["fp32-fp32"].rise.value) < 1e-4
    assert abs(by_name["w8-fp32"].rise.value) < abs(by_name[f"{encoder}-w4"].rise.value) + 0.05
    assert by_name["fp32-fp32"].size_bytes < by_name[BASELINE].size_bytes
    assert all(
        not one.unfit or one.rise.value > report.max_drop or one.rise.low > report.max_drop
        for one in report.candidates[1:]
    )
    assert report.windows == 5
    with open_encoder_decoder(Path(by_name[f"{encoder}-w4"].file), 1) as model:
        held = hold_out(model, read_sources(str(lines), model), 4)
        assert all(len(one.answer) == 4 for one in held)
        assert agreement_between(score_answers(model, held), score_answers(model, held)) == 1.0
        likeliest = [tuple(one) for one in score_answers(model, held).likeliest]
    assert likeliest == [one.answer for one in held]


def test_the_bundle_is_opened_by_commands_and_apps(report, tmp_path):
    bundle = read_bundle(report.folder)
    graphs = {one.name for one in bundle.folder.glob("*.onnx")}
    assert graphs == {bundle.artefacts[0].file, *(one.file for one in bundle.parts)}
    with open_encoder_decoder(Path(report.best.file), 1) as model:
        expected = [piece.token for piece in model.generate(TEXT, AnswerOptions(most_tokens=8))]
    with edgeopt.Runtime.load(report.folder) as runtime:
        assert [piece.token for piece in runtime.generate(TEXT, most_tokens=8)] == expected
        assert runtime.encoder_decoder.files.name == "marian"
        with pytest.raises(UnsupportedError, match="hears no sound"):
            runtime.generate(TONE)
        with pytest.raises(UnsupportedError, match="encoder with a decoder"):
            _ = runtime.language_model
        with pytest.raises(UnsupportedError, match="answers prompts"):
            runtime.predict(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(UnsupportedError, match="is an encoder with a decoder"):
        open_language_model(report.folder)
    words = ["run", str(report.folder), "--prompt", TEXT, "--output-tokens", "8", "--json", "--beams", "1"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["token"] for line in done.stdout.splitlines()] == expected
    words = ["--output-tokens", "2", "--seconds", "0.1", "--prompt-tokens", "5", "--cold", "--repeats", "1"]
    done = CliRunner().invoke(cli, ["bench", str(bundle.folder), *words, "--format", "json"])
    assert json.loads(done.stdout)["parameters_told"] == "marian"
    starts = json.loads(done.stdout)["cold"]["runs"]
    assert [point["name"] for point in starts[0]["points"]][-2:] == ["first", "second"]
    done = CliRunner().invoke(cli, ["bench", str(bundle.folder), *words])
    assert "first token behind 5 tokens" in done.output
    done = CliRunner().invoke(cli, ["inspect", str(report.folder)])
    assert "an encoder with a decoder (marian, of its bundle" in done.output
    done = CliRunner().invoke(cli, ["optimize", str(report.folder), "-t", "cpu"])
    assert "is a bundle already" in done.output
    damaged = tmp_path / "bundle"
    shutil.copytree(bundle.folder, damaged)
    (damaged / "config.json").write_text("{}", "utf-8")
    with pytest.raises(InvalidFileError, match="differs from its hash"):
        edgeopt.Runtime.load(damaged)


def test_a_bundle_whose_numbers_are_others_here_is_refused(report, tmp_path):
    shutil.copytree(read_bundle(report.folder).folder, tmp_path / "b")
    with np.load(tmp_path / "b" / "selftest.npz") as file:
        arrays = {name: file[name] for name in file.files}
    assert arrays["expected_0_0"].shape[0] == 5
    for scale, told in ((1.0, ""), (1.5, "its numbers are wrong on this device")):
        np.savez(tmp_path / "b" / "selftest.npz", **(arrays | {"expected_0_0": arrays["expected_0_0"] * scale}))
        data = (tmp_path / "b" / "selftest.npz").read_bytes()
        changed = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
        reseal(tmp_path / "b", lambda values, changed=changed: values["selftest"].update(changed))
        done = CliRunner().invoke(cli, ["run", str(tmp_path / "b"), "--prompt", TEXT, "--output-tokens", "2"])
        assert done.exit_code == bool(told), done.output
        assert told in done.output


def test_numbers_of_a_model_that_hears_are_tested_too(tmp_path):
    with open_encoder_decoder(as_pair(unpacked("whisper", tmp_path / "whisper")), 1) as model:
        _, data, limit = record_pair(model, "w8a8-w4")
        found = np.load(io.BytesIO(data))
    assert np.isfinite(found["expected_0_0"]).all()  # though some tokens are never chosen
    assert found["input_0_0"].shape == (13,)
    assert limit.wrong >= 0.2


def test_a_resumed_run_takes_up_whole_forms(tmp_path, lines, monkeypatch):
    monkeypatch.setattr("edgeopt.steps.convert.weight_only.LEAST_ROWS", 16)
    made = []

    class Cuts(Silence):
        def say(self, text: str) -> None:
            made.append(text.split()[0])
            if text.startswith("w8-fp32") and "cut" not in made:
                made.append("cut")
                raise KeyboardInterrupt

    given, options = str(as_pair(unpacked("marian", tmp_path / "marian"))), replace(BRIEF, eval=str(lines))
    out = tmp_path / "o"
    cut = optimize_encoder_decoder(given, target="cpu", out=out, options=options, listener=Cuts())
    assert (cut.was_cut, cut.exit_code, cut.chosen) == (True, 130, BASELINE)
    assert [one.name for one in cut.candidates] == [BASELINE, "w8a8-fp32"]
    assert read_bundle(out).parts
    kept = {name: out / "candidates" / name / ENCODER for name in ("w8a8-fp32", "w8-fp32")}
    before = {name: one.stat().st_mtime_ns for name, one in kept.items()}
    again = replace(options, resume=True)
    report = optimize_encoder_decoder(given, target="cpu", out=out, options=again, listener=Cuts())
    assert not report.was_cut
    assert len(report.candidates) == 6
    assert {name: one.stat().st_mtime_ns for name, one in kept.items()} == before
    shutil.copyfile(tmp_path / "marian" / DECODER, tmp_path / "marian" / "kept")
    (tmp_path / "marian" / DECODER).write_bytes(
        (out / "candidates" / report.candidates[-1].name / DECODER).read_bytes()
    )
    with pytest.raises(InvalidFileError, match="a run of another model"):
        optimize_encoder_decoder(given, target="cpu", out=out, options=again, listener=Silence())


@pytest.mark.parametrize(
    ("found", "true", "errors"),
    [
        ("The cat sat.", "the CAT sat down", (1, 4)),
        ("the big cat", "the cat", (1, 2)),
        ("dog", "", (1, 0)),
        ("it\u2019s", "it's", (0, 1)),
        ("a b c", "c b a", (2, 3)),
    ],
)
def test_words_are_counted_as_they_are_heard(found, true, errors):
    assert word_errors(found, true) == errors


def test_few_sounds_do_not_decide_what_their_words_show():
    before = WrongWords(np.array([1.0, 0, 0, 2, 0, 0, 1, 0]), 100)
    same, worse = WrongWords(before.errors.copy(), 100), WrongWords(before.errors + 10, 100)
    more = WrongWords(before.errors + np.eye(8)[0] * 2, 100)
    assert rise_of_words(before, same).value == 0
    assert rise_of_words(before, same).word(0.02) == Word.NOT_DECIDED  # a rare sound may be lost whole
    assert rise_of_words(before, more).value == 0.02  # exactly what is allowed
    assert rise_of_words(before, worse).word(0.02) == Word.LOST
    many = [WrongWords(np.tile(each.errors, 50), 5000) for each in (before, same)]
    assert rise_of_words(*many).word(0.02) == Word.KEPT
    one = WrongWords(np.zeros(1), 12)
    assert rise_of_words(one, one).word(0.5) == Word.NOT_DECIDED


@pytest.mark.parametrize(
    ("words", "transcript", "word"),
    [
        (Rise(0.005, -0.01, 0.015), "yes", Word.KEPT),
        (Rise(0.005, -0.01, 0.03), "yes", Word.NOT_DECIDED),
        (Rise(0.05, 0.03, 0.07), "yes", Word.LOST),
        (None, "yes", Word.NOT_DECIDED),
        (None, "", Word.KEPT),
    ],
)
def test_a_form_is_kept_only_if_its_perplexity_and_its_words_are(words, transcript, word, monkeypatch):
    contest = FormContest.__new__(FormContest)
    contest.max_rise, contest.windows = 0.02, [SimpleNamespace(transcript=transcript)]
    monkeypatch.setattr(FormContest, "rise", lambda *_: Rise(0.001, 0.0, 0.002))
    assert contest.word(Entrant("form", "", "w8", Path("form"), words=words)) == word


def test_words_of_transcripts_refuse_a_form_that_hears_others(tmp_path):
    folder, sounds = as_pair(unpacked("whisper", tmp_path / "whisper")), tmp_path / "sounds"
    sounds.mkdir()
    with open_encoder_decoder(folder, 1) as model:
        for i in range(4):
            write_wav(sounds / f"{i}.wav", Sound(TONE.samples * np.float32(1 - 0.1 * i), 16000))
        assert read_transcripts(str(sounds), model) == []
        answers = [
            model.generate(one, AnswerOptions(most_tokens=16)).text() for one in read_sources(str(sounds), model)
        ]
        for i, text in enumerate(answers):
            (sounds / f"{i}.txt").write_text(f"{text} Something, more!", "utf-8")
        said = read_transcripts(str(sounds), model)
        assert len(said) == 4
        held = hold_out(model, read_sources(str(sounds), model), 4, transcripts=said)
        base = wrong_words(model, held).rate
        assert base > 0
        listener = Silence()
        one = Entrant("other", "", "w8", folder, windows=4)
        contest = SimpleNamespace(original=model, windows=held, threads=1, max_rise=0.0, listener=listener)
        (told,) = refuse_by_words(contest, [one], TimeShares(None, listener))
        assert not one.out
        assert one.words.value == 0
        assert one.words.word(0.02) == Word.NOT_DECIDED  # four sounds that are equal exclude little
        assert f"original {base:.1%}, other {base:.1%}" in told.detail
        contest.max_rise = -0.01
        refuse_by_words(contest, [one], TimeShares(None, listener))
        assert one.is_unfit
        assert "its word error rate is" in one.out
        late = Entrant("late", "", "w8", folder, windows=4)
        assert refuse_by_words(contest, [late], TimeShares(1e-9, listener))
        assert "no time to hear" in late.out
        (sounds / "0.txt").write_text(" ", "utf-8")
        with pytest.raises(InvalidFileError, match="says nothing"):
            read_transcripts(str(sounds), model)


def test_where_nothing_is_allowed_the_original_stays(tmp_path, lines):
    options = replace(BRIEF, eval=str(lines), max_drop=-1.0)
    given = as_pair(unpacked("t5", tmp_path / "t5"))
    found = optimize_encoder_decoder(str(given), target="cpu", out=tmp_path / "o", options=options, listener=Silence())
    assert found.chosen == BASELINE
    assert [one.name for one in found.candidates] == [BASELINE, "w8a8-fp32"]  # it is a pair, its matrices are small
    bundle = read_bundle(found.folder)
    assert {one.file for one in (*bundle.artefacts, *bundle.parts)} == {one.name for one in given.glob("*.onnx")}
    expected = EXPECTED["t5"]["text"]
    with edgeopt.Runtime.load(bundle) as runtime:
        assert [piece.token for piece in runtime.generate(TEXT, most_tokens=20)] == expected[:20]


def test_windows_of_sounds_judge_and_too_few_are_refused(tmp_path, lines):
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    noise = (0.1 * np.random.default_rng(0).standard_normal(100 * 16000)).astype(np.float32)
    write_wav(sounds / "long.wav", Sound(noise, 16000))
    folder = unpacked("whisper", tmp_path / "whisper")
    with open_encoder_decoder(folder, 1) as model:
        found = read_sources(str(sounds), model)
        assert sum(one.seconds for one in found) == pytest.approx(100)
        assert all(one.seconds <= 30 for one in found)
    write_wav(sounds / "long.wav", TONE)
    cases = {"": "no sound judges", str(sounds): "has 1 window of sound, 4 are needed"}
    for given, told in cases.items():
        options = replace(BRIEF, eval=given)
        with pytest.raises(EdgeoptError, match=told):
            optimize_encoder_decoder(str(folder), target="cpu", out=tmp_path / "o", options=options, listener=Silence())
    for more, told in (
        (["--prune", "off"], "--prune is for a single model of frames or a pipeline"),
        (["--skip", "fuse"], "--skip is for a single model of frames or a pipeline"),
    ):
        done = CliRunner().invoke(cli, ["optimize", str(folder), "-t", "cpu", *more])
        assert done.exit_code != 0
        assert told in done.output
    options = replace(BRIEF, eval=str(sounds), output_tokens=500)
    with pytest.raises(EdgeoptError, match="more than the 96 of the model"):
        optimize_encoder_decoder(str(folder), target="cpu", out=tmp_path / "o", options=options, listener=Silence())


def test_it_is_compared_and_guarded_like_a_language_model(report, lines, tmp_path):
    folder, baseline = unpacked("marian", tmp_path / "marian"), str(tmp_path / "b.json")
    words = ["--eval", str(lines), "--output-tokens", "4", "--seconds", "0.1", "--threads", "1", "--format", "json"]
    done = CliRunner().invoke(cli, ["compare", str(folder), report.candidates[1].file, *words])
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout)["rows"][1]
    assert row["quality"]["agreement"] == 1.0
    assert abs(row["quality"]["loss"]["value"]) < 1e-4
    assert set(row["ratios"]) == {"answer", "TTFT", "TPOT"}
    done = CliRunner().invoke(cli, ["check", str(folder), "--baseline", baseline, "--update", *words])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(
        cli, ["check", report.candidates[1].file, "--baseline", baseline, *words, "--skip", "latency"]
    )
    found = {one["name"]: one["verdict"] for one in json.loads(done.stdout)["results"]}
    assert [found[name] for name in ("perplexity", "size", "memory")] == ["PASS"] * 3
    shutil.rmtree(folder)  # the text is another one without the answers of the baseline's model
    done = CliRunner().invoke(
        cli, ["check", report.candidates[1].file, "--baseline", baseline, *words, "--skip", "latency"]
    )
    assert "perplexity" in done.stdout
    for other in ("tiny_lm", str(unpacked("whisper", tmp_path / "whisper"))):
        done = CliRunner().invoke(cli, ["compare", report.candidates[1].file, other])
        assert "reads texts" in done.output
        assert "name models that take the same" in done.output
