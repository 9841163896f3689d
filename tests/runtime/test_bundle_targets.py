"""One bundle for several targets: what lies in it, which target runs here, and what is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from fixture_bundles import bundle_with_test, reseal
from fixture_models import model, numbers
from small_decoders import bundle_small, export_small

import edgeopt
from edgeopt.cli import cli
from edgeopt.errors import EdgeoptError, InvalidFileError, NoteKind, NotFoundError, UnavailableError
from edgeopt.graph.model import Model
from edgeopt.recipes.inputs.preprocess import Decode, Preprocess
from edgeopt.recipes.recipe import Recipe, find_recipe
from edgeopt.runtime.bundle import MANIFEST, Bundle, is_bundle, read_bundle, write_bundle
from edgeopt.runtime.bundles.targets import ORIGINAL, Contender, MeasuredOn, TargetFit, rank, this_machine
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.drift.figures import FigureReader
from edgeopt.runtime.drift.of_bundle import sketch_for
from edgeopt.runtime.drift.sketch import pack, sketch_of
from edgeopt.runtime.runtime import Runtime
from edgeopt.system.declared.target import Target, find_target
from edgeopt.verbs.bundle.combine import combine_bundles, extract_bundle

SAMPLES = [{"x": numbers(1, 3, 8, 8, seed=seed)} for seed in range(2)]
WEIGHTS = numbers(4, 3, 3, 3, seed=9)
ANY = replace(find_target("cpu-x86-vnni"), architectures=(), instructions=(), needs={})
HERE = this_machine()
BOARD = MeasuredOn("Cortex-A76", "arm64", ("asimddp",), "Linux")


def net(off: float = 0.0) -> Model:
    """Return a convolution whose weights are off by so much of their spread."""
    weights = WEIGHTS + np.float32(off) * numbers(4, 3, 3, 3, seed=10)
    text = "net (float[1,3,8,8] x) => (float[1,4,8,8] y) { c = Conv<pads = [1,1,1,1]>(x, w) y = Relu(c) }"
    return model(text, w=weights)


def bundle(
    folder: Path,
    target: Target,
    *,
    off: float = 0.0,
    on: MeasuredOn | None = HERE,
    ms: float | None = 5.0,
    executor: str = "onnxruntime",
    is_tested: bool = True,
    original: str = "a" * 64,
    recipe: Recipe | None = None,
    precision: str = "fp32",
) -> Path:
    """Write a bundle for one target: a model off what its test wants, and the right one to fall back to."""
    recipe = recipe or find_recipe("tensors")
    shipped = {"model.onnx": net(off).data, "fallback.onnx": net().data}
    made = bundle_with_test(folder, net(), recipe, SAMPLES, shipped)
    first, last = made.artefacts
    expected = {"frame_p50_ms": ms, ORIGINAL: original, "measured_on": on.to_json() if on else None}
    test = (made.selftest, (folder / "selftest.npz").read_bytes()) if made.selftest and is_tested else None
    models = [
        (
            replace(
                first, executor=executor, precision=precision, noise_limits=first.noise_limits if is_tested else {}
            ),
            net(off).data,
        ),
        (last, net().data),
    ]
    return write_bundle(folder, models, target, recipe, expected, {"numpy": "2"}, selftest=test).folder


def two(folder: Path) -> Bundle:
    """Return one bundle for two targets of this machine, of which the second is the faster one."""
    slow = bundle(folder / "slow", replace(ANY, name="slow"), ms=9.0)
    fast = bundle(folder / "fast", replace(ANY, name="fast"), off=1e-3, ms=3.0)
    return combine_bundles([slow, fast], folder / "all")


def answer(path: Path, **how: Any) -> np.ndarray:
    with Runtime.load(path, **how) as runtime:
        return np.array(runtime.predict(SAMPLES[0])["y"])


# What lies in it


def test_equal_files_lie_there_once_and_each_target_answers_as_its_own_bundle(tmp_path):
    whole = two(tmp_path)
    names = sorted(path.name for path in whole.folder.iterdir())
    assert len([name for name in names if name.endswith(".onnx")]) == 2, "the right model is shared three times"
    assert len(names) == 4, "the test of both, and the manifest"
    assert {path.label for path in (whole, *whole.others)} == {"slow", "fast"}
    for name in ("slow", "fast"):
        np.testing.assert_array_equal(answer(whole.folder, target=name), answer(tmp_path / name))
    assert not np.array_equal(answer(tmp_path / "slow"), answer(tmp_path / "fast"))


def test_a_target_that_is_taken_out_is_the_bundle_that_went_in(tmp_path):
    whole = two(tmp_path)
    alone = extract_bundle(whole.folder, "fast", tmp_path / "alone")
    before = read_bundle(tmp_path / "fast")
    assert replace(alone, folder=before.folder, recipe=before.recipe) == before
    assert {path.name: path.read_bytes() for path in alone.folder.iterdir() if path.name != MANIFEST} == {
        path.name: path.read_bytes() for path in before.folder.iterdir() if path.name != MANIFEST
    }


def test_of_one_target_on_equal_machines_the_faster_bundle_is_kept_and_others_get_names(tmp_path):
    target = replace(ANY, name="any")
    paths = [
        bundle(tmp_path / "a", target, ms=9.0),
        bundle(tmp_path / "b", target, ms=3.0, off=1e-3),
        bundle(tmp_path / "c", target, ms=30.0, on=BOARD),
    ]
    whole = combine_bundles(paths, tmp_path / "all")
    assert [each.expected["frame_p50_ms"] for each in (whole, *whole.others)] == [3.0, 30.0]
    assert whole.others[0].label == "any@cortex-a76"
    named = combine_bundles(paths, tmp_path / "named", devices=["d0", "d1", "d2"])
    assert [each.label for each in (named, *named.others)] == ["any@d1", "any@d2"]
    with pytest.raises(EdgeoptError, match="is for several called any") as said:
        extract_bundle(named.folder, "any", tmp_path / "one")
    assert said.value.remedy == "name one: any@d1, any@d2"
    assert extract_bundle(named.folder, "any@d2", tmp_path / "one").expected["frame_p50_ms"] == 30.0


def test_a_bundle_for_several_targets_can_be_combined_again_and_written_over(tmp_path):
    two(tmp_path)
    third = bundle(tmp_path / "third", replace(ANY, name="third"), off=2e-3, ms=1.0)
    whole = combine_bundles([tmp_path / "all", third], tmp_path / "more")
    assert [each.label for each in (whole, *whole.others)] == ["third", "fast", "slow"]
    smaller = combine_bundles([third], tmp_path / "more")
    assert (smaller.label, smaller.others) == ("third", ())
    assert not [path for path in smaller.folder.iterdir() if path.name not in smaller.files], "stale files are gone"


# Which target runs here


def test_what_was_measured_on_such_a_machine_runs_and_is_told(tmp_path):
    elsewhere = bundle(tmp_path / "board", replace(ANY, name="board"), ms=0.1, on=BOARD, off=1e-3)
    mine = bundle(tmp_path / "mine", replace(ANY, name="mine"), ms=9.0)
    whole = combine_bundles([elsewhere, mine], tmp_path / "all")
    with Runtime.load(whole.folder) as runtime:
        assert runtime.bundle.label == "mine"
        assert [(note.kind, note.detail) for note in runtime.notes] == [
            (NoteKind.CHOICE, "target mine of 2 in the bundle: measured on this processor, 9.00 ms a frame")
        ]
    with Runtime.load(whole.folder, target="board") as runtime:
        assert runtime.bundle.label == "board"
        assert [note.detail for note in runtime.notes] == ["target board of 2 in the bundle: asked for"]


def contender(on: MeasuredOn | None, ms: float | None = 1.0, **changes: Any) -> Contender:
    is_tested = changes.pop("is_tested", True)
    return Contender(replace(ANY, **changes), "w8a8", on, ms, is_tested)


def test_the_order_is_the_one_that_is_written_down():
    other = MeasuredOn("another processor", HERE.architecture, HERE.instructions, HERE.system)
    ordered = [
        contender(HERE, 2.0),
        contender(HERE, 3.0),
        contender(other, 7.0),
        contender(other, 8.0),
        contender(replace(other, instructions=(*HERE.instructions, "sve9")), 1.0),
        contender(BOARD, 1.0),
        contender(None, None),
        contender(BOARD, 1.0, architectures=("mips",)),
        contender(BOARD, 1.0, architectures=("mips",), is_tested=False),
        contender(HERE, 0.1, executor="nosuch"),
    ]
    fits = [
        *(TargetFit.MEASURED,) * 2,
        *(TargetFit.SAME_INSTRUCTIONS,) * 2,
        *(TargetFit.MADE_FOR,) * 3,
        TargetFit.BY_NUMBERS,
        *(TargetFit.NOT_HERE,) * 2,
    ]
    found = rank([*reversed(ordered)])
    assert [len(ordered) - 1 - each.index for each in found][:8] == [*range(8)]
    assert [each.fit for each in found] == fits
    assert {len(ordered) - 1 - each.index for each in found[8:]} == {8, 9}


def test_another_system_is_another_machine():
    (standing,) = rank([contender(replace(HERE, system="BeOS"))])
    assert standing.fit is TargetFit.SAME_INSTRUCTIONS
    assert "BeOS" in standing.reason


def test_a_form_for_another_processor_runs_where_its_numbers_hold(tmp_path):
    foreign = replace(ANY, name="foreign", architectures=("mips",))
    whole = combine_bundles([bundle(tmp_path / "a", foreign, on=BOARD)], tmp_path / "all")
    with Runtime.load(whole.folder) as runtime:
        assert runtime.artefact is runtime.bundle.artefacts[0]
        assert "its numbers hold here" in runtime.notes[0].detail


def test_a_form_whose_numbers_do_not_hold_leaves_the_place_to_the_next(tmp_path):
    foreign = replace(ANY, name="foreign", architectures=("mips",))
    wrong = bundle(tmp_path / "a", replace(foreign, name="wrong"), on=BOARD, off=0.5)
    right = bundle(tmp_path / "b", replace(foreign, name="right"), on=BOARD, ms=50.0)
    whole = combine_bundles([wrong, right], tmp_path / "all")
    assert whole.label == "wrong", "it was faster"
    with Runtime.load(whole.folder) as runtime:
        assert runtime.bundle.label == "right"
        assert "(wrong) not used: its numbers are wrong" in runtime.notes[0].detail
        assert runtime.notes[1].detail.startswith("target right of 2 in the bundle")
    with Runtime.load(whole.folder, strict=True) as runtime:
        assert runtime.bundle.label == "right", "it is another target, and nothing that one falls back to"
    with pytest.raises(UnavailableError, match=r"\(wrong\) cannot be used, and strict forbids the others"):
        Runtime.load(combine_bundles([wrong], tmp_path / "one").folder, strict=True)
    with Runtime.load(tmp_path / "one") as runtime:
        assert runtime.notes[-1].detail == "target wrong of 1 in the bundle: what it falls back to"


def test_without_a_test_float_runs_anywhere(tmp_path):
    foreign = replace(ANY, name="foreign", architectures=("mips",))
    whole = combine_bundles([bundle(tmp_path / "a", foreign, on=BOARD, is_tested=False)], tmp_path / "all")
    with Runtime.load(whole.folder) as runtime:
        assert runtime.artefact is runtime.bundle.artefacts[0]
        assert "in float32, which computes alike everywhere" in runtime.notes[0].detail


def test_without_a_test_a_form_for_another_processor_only_falls_back(tmp_path):
    foreign = replace(ANY, name="foreign", architectures=("mips",))
    whole = combine_bundles(
        [bundle(tmp_path / "a", foreign, on=BOARD, is_tested=False, off=0.5, precision="w8a8")], tmp_path / "all"
    )
    assert not whole.leads
    with Runtime.load(whole.folder) as runtime:
        assert runtime.artefact is runtime.bundle.artefacts[1]
    np.testing.assert_array_equal(answer(whole.folder), answer(bundle(tmp_path / "b", ANY)))
    with pytest.raises(EdgeoptError, match=r"opens here: foreign: this machine is .* and no test of its numbers"):
        Runtime.load(whole.folder, strict=True)


def test_a_faster_target_whose_engine_is_missing_is_told(tmp_path):
    missing = bundle(tmp_path / "a", replace(ANY, name="quick"), executor="nosuch", ms=1.0)
    mine = bundle(tmp_path / "b", replace(ANY, name="mine"), ms=9.0)
    whole = combine_bundles([missing, mine], tmp_path / "all")
    with Runtime.load(whole.folder) as runtime:
        assert runtime.bundle.label == "mine"
        assert runtime.notes[1].kind is NoteKind.WARNING
        assert runtime.notes[1].detail == (
            "target quick took 1.00 ms on this processor, and cannot run here: no executor 'nosuch' is installed"
        )


def test_where_no_engine_is_here_the_original_runs(tmp_path):
    whole = combine_bundles([bundle(tmp_path / "a", ANY, executor="nosuch")], tmp_path / "all")
    with Runtime.load(whole.folder) as runtime:
        assert runtime.artefact is runtime.bundle.artefacts[-1]
        assert runtime.artefact.executor == "onnxruntime"


def test_a_target_that_is_not_there_is_one_line_also_in_a_bundle_for_one(tmp_path):
    whole = two(tmp_path)
    for path, known in ((whole.folder, "fast, slow"), (tmp_path / "slow", "slow")):
        with pytest.raises(NotFoundError, match="no target in the bundle") as said:
            Runtime.load(path, target="xyz")
        assert said.value.remedy == f"choose from: {known}"
    assert Runtime.load(tmp_path / "slow", target="slow").bundle.label == "slow"
    with pytest.raises(ValueError, match="pass it to read_bundle"):
        Runtime.load(whole, target="slow")


def test_a_scheduler_takes_it_as_any_bundle(tmp_path):
    from edgeopt.runtime.schedule import ScheduledModel as Scheduled

    whole = two(tmp_path)
    with edgeopt.Scheduler({"net": Scheduled(whole.folder)}) as scheduler:
        found = scheduler.predict("net", SAMPLES[0])
    np.testing.assert_array_equal(found["y"], answer(tmp_path / "fast"))


def test_figures_of_calibration_stay_those_of_the_first_model(tmp_path):
    """A watch compares answers of that model alone, by its name, which is another in the new folder."""
    made = bundle(tmp_path / "made", ANY)
    before = read_bundle(made)
    looks = [({"brightness": float(i)}, (i % 3,)) for i in range(40)]
    sketch = sketch_of("model.onnx", "calibration", FigureReader("x", 1, 2.0, {}), looks)
    assert sketch is not None
    models = [(each, before.path_of(each).read_bytes()) for each in before.artefacts]
    write_bundle(made, models, ANY, before.recipe, before.expected, {}, sketch=("drift.json", pack(sketch)))
    whole = combine_bundles([made], tmp_path / "all")
    found = sketch_for(whole, "bundle")
    assert found is not None
    assert (found.artefact, found.values) == (whole.artefacts[0].file, sketch.values)
    assert sketch_for(extract_bundle(whole.folder, ANY.name, tmp_path / "one"), "bundle") == sketch


def test_language_models_are_combined_too(tmp_path):
    one = bundle_small(export_small(tmp_path / "made"), tmp_path / "one")
    other = tmp_path / "other"
    shutil.copytree(one, other)
    for path, ms in ((one, 9.0), (other, 3.0)):
        expected = {"tpot_p50_ms": ms, ORIGINAL: "a" * 64, "measured_on": HERE.to_json()}
        reseal(path, lambda values, expected=expected: values.update(expected=expected))
    reseal(other, lambda values: values["target"].update(name="other", architectures=[], instructions=[]))
    whole = combine_bundles([one, other], tmp_path / "all")
    assert [path.name for path in whole.folder.glob("*.onnx")] == [whole.artefacts[0].file]
    opened, recipe = open_language_model(whole.folder)
    with opened:
        assert recipe.tokenizer.file == "tokenizer.json"
        told = " ".join(note.detail for note in opened.origin.notes)
        assert "target other of 2 in the bundle" in told


def test_it_is_pushed_whole_and_signed_as_any_bundle(tmp_path):
    pytest.importorskip("cryptography")
    from edgeopt.runtime.rollout.signature import make_keys, require_signed, sign_bundle
    from edgeopt.verbs.rollout.place import open_place

    whole, public = two(tmp_path), make_keys(tmp_path / "key")
    with open_place(tmp_path / "place") as place:
        place.trust(public)
        sign_bundle(whole.folder, tmp_path / "key")
        version = place.take_in(whole.folder)
        taken = place.bundle_of(version.name)
    assert {path.name for path in taken.iterdir()} == {path.name for path in whole.folder.iterdir()}
    require_signed(taken, public)
    reseal(whole.folder, lambda values: values["targets"].reverse())
    with pytest.raises(InvalidFileError, match="was changed after it was signed"):
        require_signed(whole.folder, public)


# What is refused


def test_a_byte_of_any_file_of_any_target_ends_the_load(tmp_path):
    whole = two(tmp_path)
    for path in sorted(whole.folder.iterdir()):
        before = path.read_bytes()
        path.unlink()  # it shares its bytes with the bundle that it came from
        path.write_bytes(before[:-2] + bytes([before[-2] ^ 1]) + before[-1:])
        with pytest.raises(InvalidFileError):
            read_bundle(whole.folder, "slow")
        path.write_bytes(before)
    (whole.folder / "more.bin").write_bytes(b"1")
    with pytest.raises(InvalidFileError, match=r"more.bin' in the bundle .* is not named"):
        read_bundle(whole.folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"targets": []}, "it is for 0 targets"),
        ({"recipes": []}, "a target names no recipe or no device"),
        ({"targets": 1}, "targets is 1"),
        ({"targets": [{"recipe": 0, "device": "x"}]}, "missing artefacts"),
        ({"targets": [{"recipe": True, "device": "x"}]}, "names no recipe"),
        ({"targets": [{"recipe": 0, "device": 3}]}, "names no recipe or no device"),
        ({"more": 1}, "unknown more: it was made by a newer edgeopt"),
        ({"schema": 5}, "has schema 5, this edgeopt reads 3 and 4: it was made by a newer edgeopt"),
        ({"schema": 1}, "has schema 1, this edgeopt reads 3 and 4\n"),
    ],
)
def test_a_manifest_that_is_none_is_one_line(tmp_path, change, said):
    whole = two(tmp_path)
    reseal(whole.folder, lambda values: values.update(change))
    with pytest.raises(InvalidFileError, match=said):
        read_bundle(whole.folder)


def test_bundles_of_two_models_or_two_recipes_are_refused(tmp_path):
    one = bundle(tmp_path / "a", ANY)
    other = bundle(tmp_path / "b", replace(ANY, name="b"), original="b" * 64)
    with pytest.raises(EdgeoptError, match=r"are of two models \(aaaaaaaaaaaa and bbbbbbbbbbbb\)"):
        combine_bundles([one, other], tmp_path / "all")
    recipe = replace(find_recipe("tensors"), class_names=("cat",))
    other = bundle(tmp_path / "c", replace(ANY, name="c"), recipe=recipe)
    with pytest.raises(EdgeoptError, match=r"the recipes of .* differ in class_names"):
        combine_bundles([one, other], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_devices_may_decode_jpeg_files_at_different_parts_of_their_size(tmp_path):
    smaller = replace(find_recipe("tensors"), preprocess=Preprocess(decode=Decode.REDUCED))
    paths = [
        bundle(tmp_path / "a", ANY),
        bundle(tmp_path / "b", replace(ANY, name="b"), recipe=smaller),
    ]
    whole = combine_bundles(paths, tmp_path / "all")
    decoded = {whole.recipe.preprocess.decode, *(other.recipe.preprocess.decode for other in whole.others)}
    assert decoded == {Decode.FULL, Decode.REDUCED}


def test_older_bundles_that_do_not_name_their_model_are_known_by_their_float_form(tmp_path):
    paths = [bundle(tmp_path / name, replace(ANY, name=name), off=off) for name, off in (("a", 0.0), ("b", 1e-3))]
    for path in paths:
        reseal(path, lambda values: values["expected"].clear())
    whole = combine_bundles(paths, tmp_path / "all")
    assert len(whole.others) == 1
    assert "nothing tells where it was measured" in whole.notes_on(whole.artefacts[0])[0].detail


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    one = bundle(tmp_path / "a", ANY)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidFileError, match="holds something else"):
        combine_bundles([one], tmp_path / "mine")
    with pytest.raises(EdgeoptError, match="is one of the bundles themselves"):
        combine_bundles([one], one)
    whole = combine_bundles([one], tmp_path / "all")
    (whole.folder / "notes.txt").write_text("mine")
    with pytest.raises(InvalidFileError, match=r"notes.txt' in the bundle .* is not named"):
        combine_bundles([one], whole.folder)
    assert is_bundle(whole.folder)


def test_a_disk_that_copies_in_place_of_linking_makes_the_same(tmp_path, monkeypatch):
    linked = two(tmp_path)
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    copied = combine_bundles([tmp_path / "slow", tmp_path / "fast"], tmp_path / "copied")
    assert (copied.folder / MANIFEST).read_bytes() == (linked.folder / MANIFEST).read_bytes()
    assert copied.files == linked.files


# The command


def invoke(*words: object) -> Any:
    return CliRunner().invoke(cli, [*map(str, words)])


def test_the_command_combines_shows_and_takes_out(tmp_path):
    two(tmp_path)
    shown = invoke("bundle", tmp_path / "slow", tmp_path / "fast", "-o", tmp_path / "new")
    assert shown.exit_code == 0, shown.output
    assert "combined: this machine tries fast first, of 2 targets" in shown.output
    assert "next       edgeopt bench" in shown.output
    values: Mapping[str, Any] = json.loads(invoke("bundle", tmp_path / "new", "--json").stdout)
    assert [each["name"] for each in values["targets"]] == ["fast", "slow"]
    assert values["targets"][0]["fit"] == "measured here"
    shown = invoke("bundle", tmp_path / "new", "--target", "slow", "--out", tmp_path / "one")
    assert "slow taken out: this machine tries slow" in shown.output
    assert read_bundle(tmp_path / "one").target.name == "slow"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("slow", "fast"), "name it with --out"),
        (("slow", "-t", "slow"), "write edgeopt bundle BUNDLE --target NAME --out FOLDER"),
        (("slow", "fast", "-t", "slow", "-o", "x"), "write edgeopt bundle BUNDLE --target NAME --out FOLDER"),
        (("all", "-t", "nosuch", "-o", "x"), "choose from: fast, slow"),
        (("nothing",), "make one with edgeopt optimize"),
    ],
)
def test_a_wrong_command_is_one_line(tmp_path, monkeypatch, words, said):
    two(tmp_path)
    monkeypatch.chdir(tmp_path)
    shown = invoke("bundle", *words)
    assert shown.exit_code == 1
    assert said in shown.output
    assert not Path("x").exists()


def test_bench_and_run_pick_and_may_be_told(tmp_path):
    whole = two(tmp_path)
    np.savez(tmp_path / "frames.npz", x=SAMPLES[0]["x"])
    for words, label in (((), "fast"), (("-t", "slow"), "slow")):
        shown = invoke("bench", whole.folder, "-s", tmp_path / "frames.npz", "--seconds", 0.2, "--json", *words)
        assert shown.exit_code in (0, 4), shown.output
        assert f"target {label} of 2 in the bundle" in shown.stdout
        shown = invoke("run", whole.folder, tmp_path / "frames.npz", "--limit", 1, *words)
        assert shown.exit_code == 0, shown.output
        assert f"target {label} of 2 in the bundle" in shown.output
    shown = invoke("run", tmp_path / "slow", tmp_path / "frames.npz", "-t", "slow")
    assert "is a bundle, which brings its own" in shown.output
