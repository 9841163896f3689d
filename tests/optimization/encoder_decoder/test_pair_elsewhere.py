"""Forms of an encoder and of a decoder made here for a device elsewhere, which puts pairs of them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from exported_pairs import unpacked

from edgeopt.errors import EdgeoptError
from edgeopt.optimization.encoder_decoder import workplace
from edgeopt.optimization.encoder_decoder.forms import DECODER_FORMS, FLOAT
from edgeopt.optimization.encoder_decoder.optimize import make_pair_forms_for, optimize_encoder_decoder
from edgeopt.optimization.folder.handover import MadeHere, read_handover
from edgeopt.optimization.generation.options import LanguageOptions
from edgeopt.optimization.generation.result import BASELINE, LanguageReport
from edgeopt.optimization.run import Silence
from edgeopt.recipes.texts.encoder_decoder import DECODER, ENCODER
from edgeopt.runtime.bundle import read_bundle
from edgeopt.runtime.devices.availability import find_device_elsewhere
from edgeopt.system.machine.processor import this_processor

MADE = ("fp32-fp32", "w8a8-fp32", "w8-fp32", "fp32-w8", "fp32-w4", "fp32-w4+head")
"""It comes in more graphs than two."""


@pytest.fixture(scope="module", autouse=True)
def _tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeopt.steps.convert.weight_only.LEAST_ROWS", 16)  # these matrices are tiny
        yield


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("marian", tmp_path_factory.mktemp("pair") / "marian")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> LanguageOptions:
    file = tmp_path_factory.mktemp("texts") / "lines.txt"
    file.write_text("import os\n\nthe quick brown fox\njumps over\nthe lazy dog\nhello\n", "utf-8")
    return LanguageOptions(output_tokens=4, threads=1, seconds=0.0, processes=2, eval=str(file))


def made_for_a_board(marian: Path, out: Path, options: LanguageOptions, listener: Silence | None = None) -> MadeHere:
    device, heard = find_device_elsewhere("cpu", "ssh://pi@board", this_processor()), listener or Silence()
    return make_pair_forms_for(str(marian), device, named="cpu", out=out, options=options, listener=heard)


def hashes(folder: Path) -> dict[str, tuple[str, ...]]:
    return {
        place.name: tuple(sha256((place / graph).read_bytes()).hexdigest() for graph in (ENCODER, DECODER))
        for place in (folder / "candidates").iterdir()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, marian: Path, options: LanguageOptions) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    assert made_for_a_board(marian, out, options) == MadeHere(str(marian), out)
    return out


@pytest.fixture(scope="module")
def sent(folder: Path) -> dict[str, tuple[str, ...]]:
    return hashes(folder)


@pytest.fixture(scope="module")
def report(folder: Path, sent: dict[str, tuple[str, ...]], marian: Path, options: LanguageOptions) -> LanguageReport:
    """The board makes the forms: it joins no graphs, and stores no matrix in another way."""

    def refuse(*_: object) -> None:
        raise AssertionError("the board makes a form")

    assert sent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workplace, "read_pair", refuse)
        return optimize_encoder_decoder(
            str(marian), target="cpu", out=folder, options=replace(options, resume=True), listener=Silence()
        )


def test_the_parts_are_made_once_each_beside_the_other_in_float(sent):
    assert {*sent} == {*MADE}
    assert len({encoder for encoder, _ in sent.values()}) == 3
    assert len({decoder for _, decoder in sent.values()}) == 4


def test_the_board_puts_its_fastest_encoder_beside_each_decoder(report, folder, sent):
    now = hashes(folder)
    assert {name: now[name] for name in sent} == sent
    names = [form.name for form in report.candidates]
    assert names[:4] == [BASELINE, *MADE[:3]]
    encoder = names[4].partition("-")[0]
    assert names[4:] == [f"{encoder}-{form.name}" for form in DECODER_FORMS]
    for form in DECODER_FORMS:
        made = sent[f"{encoder}-{FLOAT}"][0], sent[f"{FLOAT}-{form.name}"][1]
        assert now[f"{encoder}-{form.name}"] == made
    assert read_bundle(folder).expected["form"] == report.chosen
    assert any("candidates were made on another machine" in note.detail for note in report.notes)


def test_the_result_is_that_of_the_board_alone(report, folder, marian, options, tmp_path):
    alone = optimize_encoder_decoder(
        str(marian), target="cpu", out=tmp_path / "alone", options=options, listener=Silence()
    )
    made, ours = hashes(tmp_path / "alone"), hashes(folder)
    shared = made.keys() & ours.keys()
    assert shared >= {"fp32-fp32", "w8a8-fp32", "w8-fp32"}
    assert {name: made[name] for name in shared} == {name: ours[name] for name in shared}
    scores, others = ({form.name: form.rise for form in each.candidates} for each in (report, alone))
    judged = scores.keys() & others.keys()  # which encoder decoders are beside is a matter of times
    assert judged >= {"fp32-fp32", "w8a8-fp32", "w8-fp32"}
    assert {name: scores[name] for name in judged} == {name: others[name] for name in judged}


def test_an_interrupted_search_goes_on_where_it_ended(marian, options, tmp_path, sent):
    class Cuts(Silence):
        def say(self, text: str) -> None:
            if text.startswith("w8-fp32"):
                raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        made_for_a_board(marian, out, options, Cuts())
    assert read_handover(out) is None
    before = {name: (out / "candidates" / name / ENCODER).stat().st_mtime_ns for name in MADE[:3]}
    made_for_a_board(marian, out, replace(options, resume=True))
    assert {name: (out / "candidates" / name / ENCODER).stat().st_mtime_ns for name in MADE[:3]} == before
    assert hashes(out) == sent
    (out / "candidates" / "fp32-w4" / DECODER).write_bytes(b"torn")
    made_for_a_board(marian, out, replace(options, resume=True))
    assert hashes(out) == sent, "what was damaged is made again"


def test_a_form_that_came_damaged_is_left_out_by_the_board(marian, options, tmp_path, sent):
    out = tmp_path / "out"
    made_for_a_board(marian, out, options)
    for name in MADE[1:]:
        (out / "candidates" / name / DECODER).write_bytes(b"torn")
    resumed = replace(options, resume=True)
    report = optimize_encoder_decoder(str(marian), target="cpu", out=out, options=resumed, listener=Silence())
    assert [form.name for form in report.candidates] == [BASELINE, "fp32-fp32"]
    left_out = next(note.detail for note in report.notes if note.detail.startswith("left out: "))
    assert left_out.endswith("the machine that made the forms ran out of time, or it was changed on the way")


def test_what_is_wrong_with_the_texts_is_said_before_any_form_is_made(marian, options, tmp_path):
    with pytest.raises(EdgeoptError, match="no text judges"):
        made_for_a_board(marian, tmp_path / "out", replace(options, eval=""))
    assert not (tmp_path / "out").exists()
