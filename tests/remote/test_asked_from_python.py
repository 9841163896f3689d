"""Options from Python become words for a device, and results come back: no device is needed."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgeopt
from edgeopt.cli import cli
from edgeopt.cli._verb import read_values
from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.measurement.check.result import CheckReport, CheckResult, CheckVerdict
from edgeopt.measurement.generation.answer_budget import FRAME, AnswerBudget
from edgeopt.recipes.default_limits import Check
from edgeopt.running.live import AnswerWords, FrameAnswer
from edgeopt.runtime.pipelines.pipeline import Answer
from edgeopt.system.declared.options import Option, Syntax, default_of, options_of
from edgeopt.tasks.classification import Classes
from edgeopt.verbs.remote import SEARCHING, VERBS
from edgeopt.verbs.remote.places import PlacesThere
from edgeopt.verbs.remote.results import read_result, require_readable, store_result
from edgeopt.verbs.remote.words import line_of, written_options
from edgeopt.workloads import Kind, kinds

ROOT = Path(__file__).parents[2]
VALUES: dict[Syntax, Any] = {
    Syntax.TEXT: "closed",
    Syntax.FILE: Path("a folder/file.json"),
    Syntax.WHOLE: 3,
    Syntax.NUMBER: 0.75,
    Syntax.SHARE: 0.125,
    Syntax.SECONDS: 1.5e-05,
    Syntax.MILLISECONDS: 33.25,
    Syntax.BYTES: 2 << 30,
    Syntax.FRAME_BUDGET: 33.25,
    Syntax.ANSWER_BUDGET: AnswerBudget({"TTFT": 200.5, "TPOT": 20.0}),
    Syntax.SERVER_BUDGET: AnswerBudget({FRAME: 33.0}),
    Syntax.COUNTS: (1, 2, 8),
    Syntax.NAMES: ("latency", "size"),
    Syntax.SWITCH: False,
    Syntax.SHAPE: {"the input": (1, 3, 48, 192)},
    Syntax.TYPED_SHAPE: (("ids", (1, 128), "int64"),),
    Syntax.GUESSES: -1,
    Syntax.PRUNING: "1.5x",
    Syntax.MODEL: "other.onnx",
    Syntax.TARGET: "cpu",
    Syntax.RECIPE: "recipe.toml",
}
SOURCES = {"frames": "digits_detector", "generation": "tiny_lm", "endpoint": "http://localhost:1"}
SOURCES["pipeline"] = str(ROOT / "examples" / "pipeline" / "pipeline.toml")
DONE = CheckReport(
    name="net",
    baseline="/@/gate.json",
    results=(CheckResult("size", CheckVerdict.FAIL, 1.5, 1.0, "larger"),),
    thresholds=Check(),
    trust="TRUSTED",
    notes=(),
    seconds=2.0,
)


def kinds_by_name() -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds()}


@pytest.fixture
def one_picture() -> str:
    pictures = sorted((ROOT / "models" / "digits_detector" / "calib").iterdir())
    return str(next(path for path in pictures if path.suffix in (".png", ".jpg")))


def value_of(option: Option) -> Any:
    if option.syntax is Syntax.FLAG:
        return option.flag_value
    value = option.choices[-1] if option.syntax is Syntax.CHOICE else VALUES[option.syntax]
    return (value,) if option.repeatable and option.syntax in (Syntax.TEXT, Syntax.FILE) else value


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_every_option_reaches_the_device_with_its_value(kind, verb):
    """The command line reads from the words what Python passed."""
    if not kind.has(verb):
        pytest.skip("the kind has not this verb")
    required = {name: value_of(each) for name, each in options_of(kind.options[verb]) if each.required}
    values = {name: value_of(each) for name, each in options_of(kind.options[verb]) if not each.names_source}
    command: Any = cli.get_command(None, verb)
    sources = [SOURCES[kind.name]] * (2 if verb == "compare" else 1)
    for name, value in values.items():
        options = kind.make_options(verb, {**required, name: value})
        words = [word.text for word in line_of(written_options(options), sources)]
        if name not in required and value != default_of(kind.options[verb], name):
            assert len(words) > 2 * len(required) + len(sources)
        with command.make_context(verb, words) as ctx:
            read = read_values(ctx, *sources)
        assert kind.make_options(verb, read) == options, name


def test_what_no_option_says_is_refused():
    (kind,) = [each for each in kinds() if each.name == "frames"]
    gate = kind.options["check"]
    assert [each.flag for each in written_options(gate(baseline="b", thresholds={"size_ratio": 2.0}))] == [
        "--baseline",
        "--size-ratio",
    ]
    with pytest.raises(UnsupportedError, match="steps_of_mine"):
        written_options(gate(baseline="b", thresholds={"steps_of_mine": 2.0}))
    with pytest.raises(UnsupportedError, match="seconds=None cannot be told"):
        written_options(gate(baseline="b", seconds=None))


def test_results_that_cannot_come_back_are_refused_before_a_device_is_asked():
    pipeline = SOURCES["pipeline"]
    with pytest.raises(UnsupportedError, match="the result of bench for a pipeline does not come back") as error:
        edgeopt.bench(pipeline, on="ssh://nowhere.invalid")
    assert error.value.remedy == "run it from the command line: edgeopt bench ... --on ssh://nowhere.invalid"
    with pytest.raises(UnsupportedError, match="the result of optimize"):
        edgeopt.optimize("digits_detector", on="ssh://nowhere.invalid", dry_run=True)
    with pytest.raises(EdgeoptError, match="a comparison needs two, 1 given"):
        edgeopt.compare("digits_detector", on="ssh://nowhere.invalid")
    with pytest.raises(EdgeoptError, match="search_there= is for a device elsewhere"):
        edgeopt.optimize("digits_detector", search_there=True)
    with pytest.raises(EdgeoptError, match="resume= with on= does not know which folder"):
        edgeopt.optimize("digits_detector", on="ssh://nowhere.invalid", search_there=True, resume=True)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_all_other_results_are_read(kind):
    refused = []
    for verb in VERBS:
        if kind.has(verb):
            try:
                require_readable(kind, verb, None, "ssh://board")
            except UnsupportedError:
                refused.append(verb)
    assert refused == (["bench"] if kind.name == "pipeline" else [])


def changed(file: Path, change) -> None:
    with np.load(file) as arrays:
        held = dict(arrays)
    about = json.loads(held["about"].tobytes())
    change(about)
    held["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(file, **held)


def test_a_result_is_the_same_behind_a_file(tmp_path):
    file = tmp_path / "r.npz"
    store_result(DONE, file)
    read = read_result(file, CheckReport, None, "ssh://board", PlacesThere("/@"))
    assert read == replace(DONE, baseline="/gate.json"), "places of the mirror are those of this machine"
    assert read.exit_code == DONE.exit_code


def test_every_kind_of_answer_is_the_same_behind_a_file(tmp_path, one_picture):
    ran = edgeopt.run("digits_detector", one_picture, threads=1)
    (first,) = ran.answers
    assert isinstance(first, FrameAnswer)
    of_tasks = (
        first.answer,
        {"scores": np.arange(6, dtype=np.float32).reshape(2, 3)},
        Classes(np.array([3, 1]), np.array([0.9, 0.1], np.float32)),
        None,
    )
    of_pipeline = Answer({"find": Classes(np.array([3]), np.array([0.5], np.float32)), "count": {"all": 2}}, (1, 2), {})
    answers = tuple(
        replace(first, answer=answer, teller=AnswerWords({}, "said")) for answer in (*of_tasks, of_pipeline)
    )
    file, hint = tmp_path / "r.npz", require_readable(kinds_by_name()["frames"], "run", None, "ssh://board")
    store_result(replace(ran, answers=answers).told(), file)
    read = read_result(file, hint, None, "ssh://board", PlacesThere("/@"))
    assert (read.stats, read.source, read.exit_code) == (ran.stats, ran.source, ran.exit_code)
    detections, tensors, classes, nothing, plain = (each.answer for each in read.answers)
    assert (detections.boxes == first.answer.boxes).all()
    assert (tensors["scores"] == of_tasks[1]["scores"]).all()
    assert (type(classes), classes.indices.tolist(), nothing) == (Classes, [3, 1], None)
    assert plain["stages"]["count"] == {"all": 2}, "an app's functions return what they like: plain values come back"
    assert read.answers[0].as_text() == "0001.jpg: said"


def test_an_answer_of_no_task_is_refused(tmp_path, one_picture):
    ran, file = edgeopt.run("digits_detector", one_picture, threads=1).told(), tmp_path / "r.npz"
    hint = require_readable(kinds_by_name()["frames"], "run", None, "ssh://board")
    store_result(replace(ran, answers=(replace(ran.answers[0], answer=DONE),)), file)
    with pytest.raises(InvalidFileError, match=r"ssh://board sends no result: 'edgeopt\.measurement\.check\.result"):
        read_result(file, hint, None, "ssh://board", PlacesThere("/@"))


def test_what_a_person_does_while_it_runs_is_refused_before_a_device_is_asked(tmp_path):
    for wishes in ({"view": True}, {"chat": True}):
        workload = "tiny_lm" if "chat" in wishes else "digits_detector"
        (name,) = wishes
        with pytest.raises(EdgeoptError, match=f"{name}= is for the machine that you sit at"):
            edgeopt.run(workload, str(tmp_path), on="ssh://nowhere.invalid", **wishes)
    with pytest.raises(EdgeoptError, match="the standard input is that of the machine"):
        edgeopt.run("digits_detector", "-", on="ssh://nowhere.invalid")


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.update({"is": "edgeopt.measurement.samples:Samples"}),
        lambda about: about.update({"is": "edgeopt.__main__:main"}),
        lambda about: about["of"].update({"name": 3}),
        lambda about: about["of"].update({"updated": "yes"}),
        lambda about: about["of"].update({"results": [{"is": "edgeopt.errors:Note", "of": {}}]}),
        lambda about: about["of"].update({"notes": {"array": "about"}}),
        lambda about: about["of"].update({"thresholds": {"map": [["latency_ratio", 1.0]]}}),
        lambda about: about["of"]["results"][0]["of"].update({"verdict": "FINE"}),
        lambda about: about["of"].update({"more": 1}),
        lambda about: about["of"].pop("trust"),
    ],
)
def test_what_is_no_such_result_is_refused(tmp_path, change):
    file = tmp_path / "r.npz"
    store_result(DONE, file)
    changed(file, change)
    with pytest.raises(InvalidFileError, match="ssh://board sends no result") as error:
        read_result(file, CheckReport, None, "ssh://board", PlacesThere("/@"))
    assert "do not trust this device" in error.value.remedy


def test_verbs_that_return_take_the_option_and_search_ones_are_among_them():
    assert {*SEARCHING} <= {*VERBS}
    for verb in VERBS:
        command: Any = cli.get_command(None, verb)
        hidden = [each for each in command.params if getattr(each, "hidden", False)]
        assert [each.opts for each in hidden] == [["--result"]]
        assert partial(edgeopt.__getattr__, verb)().__signature__.parameters["on"].default is None
    assert {each.name for each in fields(CheckReport)} >= {"results", "trust"}
