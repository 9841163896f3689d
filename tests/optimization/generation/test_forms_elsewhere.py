"""Forms of a language model made here for a device elsewhere, which takes them up, judges and measures them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_decoders import write_decoder, write_tokenizer

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.folder.handover import MadeHere, read_handover
from edgeopt.optimization.generation import optimize, workplace
from edgeopt.optimization.generation.forms.kinds import FORMS, MatrixForm
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.generation.optimize import make_language_forms_for, optimize_language_model
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE, LanguageReport
from edgeopt.optimization.generation.time_shares import TimeShare
from edgeopt.optimization.run import Silence
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.devices.availability import find_device_elsewhere
from edgeopt.system.machine.processor import Processor, cpu_architecture, this_processor

BOARD = "ssh://pi@board"
TEXT = Path(__file__).parents[3] / "models" / "tiny_lm" / "held_out.txt"
NAMES = ("w8a8", "w8a8+parts", "w8", "w4", "w4+head")
"""With a form that is of no use to a small model, and one that calibrates."""
TAKEN_UP = [name for name in NAMES if name != "w8a8+parts"]


class Lines(Silence):
    """A listener that keeps what it is told, and interrupts where a line begins so."""

    def __init__(self, cut_at: str = "") -> None:
        self.lines: list[str] = []
        self.pieces: set[str] = set()
        self._cut_at = cut_at

    def say(self, text: str) -> None:
        self.lines.append(text)
        if self._cut_at and text.startswith(self._cut_at):
            raise KeyboardInterrupt

    def progress(self, what: str, done: int, of: int) -> None:
        del done, of
        self.pieces.add(what)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> LanguageOptions:
    folder, text = tmp_path_factory.mktemp("text"), TEXT.read_text("utf-8")
    (folder / "judge.txt").write_text(text[:6500], "utf-8")
    (folder / "calibrate.txt").write_text(text[6500:9500], "utf-8")
    judge, calib = str(folder / "judge.txt"), str(folder / "calibrate.txt")
    return LanguageOptions(
        prompt_tokens=8, output_tokens=4, threads=1, seconds=0.0, eval=judge, calib=calib, processes=2
    )


@pytest.fixture(scope="module", autouse=True)
def made() -> Iterator[list[str]]:
    """Names of the forms that were made, in their order; there are few of them here, and none by OpenVINO."""
    names: list[str] = []

    def counted(form: MatrixForm) -> MatrixForm:
        def make(material: DecoderMaterial) -> Outcome:
            names.append(form.name)
            return form.make(material)

        return replace(form, make=make)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "openvino", None)  # as if it were not installed
        patch.setattr(optimize, "FORMS", tuple(counted(form) for form in FORMS if form.name in NAMES))
        yield names


def made_for_a_board(
    out: Path, options: LanguageOptions, listener: Silence | None = None, processor: Processor | None = None
) -> MadeHere:
    device = find_device_elsewhere("cpu", BOARD, processor or this_processor())
    heard = listener or Silence()
    return make_language_forms_for("tiny_lm", device, named="cpu", out=out, options=options, listener=heard)


def on_the_board(out: Path, options: LanguageOptions, listener: Silence | None = None) -> LanguageReport:
    resumed = replace(options, resume=True)
    return optimize_language_model("tiny_lm", target="cpu", out=out, options=resumed, listener=listener or Silence())


def hashes(folder: Path) -> dict[str, str]:
    return {
        file.parent.name: sha256(file.read_bytes()).hexdigest()
        for file in folder.glob("candidates/*/model.onnx")
        if not file.parent.name.endswith("+cache8") and not (file.parent / "prefill.onnx").is_file()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, options: LanguageOptions) -> Path:
    """An output folder whose forms were made for a board."""
    out = tmp_path_factory.mktemp("made") / "lm"
    assert made_for_a_board(out, options) == MadeHere("tiny_lm", out)
    assert {path.name for path in out.glob("[!.]*")} == {"candidates", "handover.json", "language-run.json"}
    return out


@pytest.fixture(scope="module")
def sent(folder: Path) -> dict[str, str]:
    return hashes(folder)


@pytest.fixture(scope="module")
def board(
    folder: Path, sent: dict[str, str], options: LanguageOptions, made: list[str]
) -> tuple[LanguageReport, Lines]:
    """The board makes the forms: it reads no calibration text, and rewrites no model."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the board makes a form")

    lines, before = Lines(), [*made]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fuse_decoder", "answers_last", "DecoderMaterial"):
            patch.setattr(workplace, name, refuse)
        report = on_the_board(folder, options, lines)
    assert made == before
    assert sent
    return report, lines


def test_the_board_takes_every_form_up_and_makes_none(board, folder, sent):
    report, lines = board
    assert {*sent} == {*TAKEN_UP}
    assert hashes(folder) == sent
    assert [line.split()[0] for line in lines.lines if line.endswith("from disk")] == TAKEN_UP
    assert "fit matrices to the calibration text" not in lines.pieces
    small = [form.name for form in report.candidates if form.name.endswith("+cache8")]
    split = [form.name for form in report.candidates if form.prompts_by and form.name not in small]
    assert [form.name for form in report.candidates] == [BASELINE, *TAKEN_UP, *split, *small]
    # the cache was measured here; the form that is fastest there gets it, and behind two graphs the fastest of one too
    (first, *beside) = small
    assert len(beside) == (first.removesuffix("+cache8") in split)
    assert all(form.windows for form in report.candidates[1:])


def test_the_board_judges_measures_and_writes_the_bundle(board, folder):
    report, _ = board
    assert any(form.speed for form in report.candidates)
    assert read_bundle(folder).expected["form"] == report.chosen
    notes = [note.detail for note in report.notes]
    assert any("candidates were made on another machine" in note for note in notes)
    assert any("left out: w8a8+parts: no layer has more than 2048 neurons" in note for note in notes)


def test_the_result_is_that_of_the_board_alone(board, sent, options, tmp_path):
    report, _ = board
    out = tmp_path / "lm"
    alone = optimize_language_model("tiny_lm", target="cpu", out=out, options=options, listener=Silence())
    assert hashes(out) == sent
    assert report.windows <= 12, "all windows judge a form as it enters, however fast it is"
    scores = [{form.name: form.rise for form in each.candidates if form.name in TAKEN_UP} for each in (report, alone)]
    assert scores[0] == scores[1]
    assert report.calibrated_on == alone.calibrated_on


def test_what_was_made_is_not_made_again_so_that_a_command_is_the_same_to_the_board(folder, board, options, made):
    before, handover = [*made], (folder / "handover.json").read_bytes()
    made_for_a_board(folder, replace(options, resume=True))
    assert made == before
    assert (folder / "handover.json").read_bytes() == handover


def test_an_interrupted_search_goes_on_where_it_ended(tmp_path, options, made):
    out = tmp_path / "lm"
    with pytest.raises(KeyboardInterrupt):
        made_for_a_board(out, options, Lines(cut_at="w8 "))
    assert read_handover(out) is None, "the board gets what is whole"
    before, lines = len(made), Lines()
    made_for_a_board(out, replace(options, resume=True), lines)
    assert made[before:] == ["w8a8+parts", "w4", "w4+head"]
    assert [line.split()[0] for line in lines.lines if line.endswith("from disk")] == ["w8a8", "w8"]
    handover = read_handover(out)
    assert handover is not None
    assert handover.steps == (*TAKEN_UP,)


def test_what_there_was_no_time_for_is_said_and_not_made_on_the_board(tmp_path, options, made, monkeypatch):
    monkeypatch.setattr(TimeShare.MADE, "_value_", 0.0)
    lines, out, before = Lines(), tmp_path / "lm", len(made)
    made_for_a_board(out, replace(options, time_limit_s=600.0), lines)
    assert any("time limit reached: not made: w8a8, w8a8+parts, w8, w4, w4+head" in line for line in lines.lines)
    report = on_the_board(out, options)
    assert len(made) == before
    assert [form.name for form in report.candidates] == [BASELINE]
    assert any("the machine that made the forms ran out of time" in note.detail for note in report.notes)
    monkeypatch.undo()
    made_for_a_board(out, replace(options, resume=True))
    assert made[before:] == [*NAMES], "a search with more time goes on"


def test_forms_for_another_text_are_not_taken_up(folder, board, options, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(TEXT.read_text("utf-8")[9500:12500], "utf-8")
    with pytest.raises(InvalidFileError, match="another model, target, text or software"):
        on_the_board(folder, replace(options, calib=str(other)))


def test_integers_follow_the_processor_of_the_board(tmp_path, options, monkeypatch):
    """Without VNNI two products must fit 16 bits together, so that weights of a pair are small: whatever is here."""
    monkeypatch.setattr(optimize, "FORMS", tuple(form for form in FORMS if form.name == "w8a8"))
    largest = []
    for i, flags in enumerate(({"avx2"}, {"avx2", "avx512_vnni"})):
        made_for_a_board(tmp_path / str(i), options, processor=Processor("x86-64", flags))
        model = onnx.load(tmp_path / str(i) / "candidates" / "w8a8" / "model.onnx")
        arrays = [onnx.numpy_helper.to_array(each) for each in model.graph.initializer]
        weights = [array.astype(int) for array in arrays if array.dtype == np.int8 and array.ndim == 2]
        largest.append(max(np.abs(array[::2] + array[1::2]).max() for array in weights))
    assert largest[0] <= 128 < largest[1]


def test_a_network_of_hugging_face_is_exported_here_and_the_board_gets_what_was_exported(tmp_path, options, made):
    source, out, before = write_decoder(tmp_path / "source", is_tied=True), tmp_path / "out" / "lm", len(made)
    write_tokenizer(source)
    device = find_device_elsewhere("cpu", BOARD, this_processor())
    mine = replace(options, max_drop=1.0)
    sent = make_language_forms_for(f"hf:{source}", device, named="cpu", out=out, options=mine, listener=Silence())
    assert sent == MadeHere(str(tmp_path / "out" / "source" / "model.onnx"), out)
    assert Path(sent.model).is_file()
    forms, resumed = made[before:], replace(mine, resume=True)
    assert {*forms} >= {"w8a8", "w8", "w4"}
    report = optimize_language_model(sent.model, target="cpu", out=out, options=resumed, listener=Silence())
    assert made[before:] == forms
    assert {form.name for form in report.candidates} > {"w8a8", "w8", "w4"}


def test_a_target_that_runs_no_language_model_is_refused_before_anything_is_sent(tmp_path, options):
    device = replace(find_device_elsewhere("cpu", BOARD, this_processor()), executor="reference")
    with pytest.raises(UnsupportedError, match="on a processor so far"):
        make_language_forms_for("tiny_lm", device, named="cpu", out=tmp_path, options=options, listener=Silence())


def test_a_target_of_another_processor_is_refused_as_its_times_are_not_those_of_this_machine(tmp_path, options):
    other = "cpu-arm64" if cpu_architecture() == "x86-64" else "cpu-x86-avx2"
    with pytest.raises(UnsupportedError, match="chosen by the times of their answers, and this machine is") as refused:
        optimize_language_model("tiny_lm", target=other, out=tmp_path / "o", options=options, listener=Silence())
    assert "--on ssh://USER@HOST" in refused.value.remedy
    assert not (tmp_path / "o").exists()
