"""`check` over workloads of every kind: `[check]` of what describes it holds, and a noisy machine ends with 4."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_pairs import unpacked
from fixture_pipelines import SHOP, classifier, described, detector
from fixture_pipelines import boxes as boxes_of

from edgeopt.measurement.check.options import CHECKS_OF_ALL
from edgeopt.measurement.check.result import CheckVerdict
from edgeopt.measurement.check.run import check
from edgeopt.measurement.compare.stored import StoredRuns
from edgeopt.measurement.resources.trust import Reason, Trust, TrustLevel
from edgeopt.measurement.samples import Samples
from edgeopt.recipes.default_limits import MAX_RISE, Check
from edgeopt.recipes.recipe import find_recipe
from edgeopt.runtime.pipelines.bundle import write_pipeline
from edgeopt.workloads import kind_of, kinds
from edgeopt.workloads.generation.source import is_encoder_decoder

LIMITS = {"latency_ratio": 1.5, "accuracy_drop": 0.25, "size_ratio": 3.0}
TABLE = "\n[check]\n" + "".join(f"{name} = {value}\n" for name, value in LIMITS.items())
MODELS = Path(__file__).parents[2] / "models"


@dataclass(frozen=True)
class Described:
    """A workload with a `[check]` of its own."""

    source: str
    options: Any

    @property
    def kind(self) -> Any:
        return kind_of(self.source)


def frames(folder: Path) -> tuple[str, dict[str, Any]]:
    text = (find_recipe("digits_detector").folder / "recipe.toml").read_text("utf-8")
    recipe = folder / "own.toml"
    recipe.write_text(text.replace('labels = "labels.txt"\n', "") + TABLE, "utf-8")
    shipped = find_recipe("digits_detector").folder
    return "digits_detector", {"recipe": str(recipe), "source": str(shipped / "calib"), "skip": ("accuracy",)}


def language_model(folder: Path) -> tuple[str, dict[str, Any]]:
    copied = folder / "lm"
    shutil.copytree(MODELS / "tiny_lm", copied)
    recipe = copied / "recipe.toml"
    recipe.write_text(recipe.read_text("utf-8") + TABLE, "utf-8")
    return str(copied / "model.onnx"), {"prompt_tokens": 4, "output_tokens": 4}


def encoder_with_decoder(folder: Path) -> tuple[str, dict[str, Any]]:
    made = unpacked("marian", folder / "pair")
    return str(made), {"output_tokens": 4}


def pipeline(folder: Path) -> tuple[str, dict[str, Any]]:
    bundles = {
        "detect": detector(folder / "detect", [boxes_of((0, 0, 4, 4, 0.9))], 0),
        "recognise": classifier(folder / "recognise", [1, 2], 0),
    }
    values = {**SHOP, "check": LIMITS}
    write_pipeline(folder / "bundle", described(values), bundles, {}, {})
    (folder / "app").mkdir()
    (folder / "app" / "shop.py").write_text("def find(crops, classes):\n    return []\n", "utf-8")
    return str(folder / "bundle"), {"code": folder / "app"}


MAKERS: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    each.__name__: each for each in (frames, language_model, encoder_with_decoder, pipeline)
}


@pytest.fixture(scope="module", params=MAKERS)
def workload(request, tmp_path_factory) -> Described:
    folder = tmp_path_factory.mktemp(request.param)
    source, wishes = MAKERS[request.param](folder)
    options = kind_of(source).make_options("check", {"baseline": folder / "baseline.json", "threads": 1, **wishes})
    return Described(source, options)


def test_every_kind_that_is_checked_is_tried_here(tmp_path):
    tried = set()
    for name, maker in MAKERS.items():
        (tmp_path / name).mkdir()
        tried.add(kind_of(maker(tmp_path / name)[0]).name)
    assert tried == {kind.name for kind in kinds() if kind.has("check")}


def test_the_check_table_of_every_kind_is_honoured_and_options_go_before_it(workload):
    sides = workload.kind.module("check").open_checked([workload.source], workload.options, {})
    try:
        # an encoder with a decoder has no recipe of its own: what `optimize` may lose, and the options
        limits = Check(accuracy_drop=MAX_RISE) if is_encoder_decoder(workload.source) else Check(**LIMITS)
        assert sides.limits({}) == limits
        assert sides.limits({"latency_ratio": 1.2}) == dataclasses.replace(limits, latency_ratio=1.2)
    finally:
        sides.close()


@dataclass(frozen=True)
class Timed:
    """Real sides of a kind whose times and trust are made up: as fast as each other, on a machine of this trust."""

    sides: Any
    level: TrustLevel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sides, name)

    def run_in_turns(self, seconds: float, tell: Any) -> StoredRuns:
        parts = self.sides.judged_parts
        whole = "frame" if "frame" in parts else parts[0]
        stages = tuple(part for part in parts if part != whole)
        times_ns = 1_000_000 + np.arange(400) % 7
        samples = Samples(
            stages=stages,
            times_ns=np.repeat(times_ns[:, None] // len(parts), len(stages), axis=1),
            frame_ns=times_ns,
            warmup=np.zeros(400, np.bool_),
            whole=whole,
        )
        return StoredRuns(
            {facts.label: samples for facts in self.sides.facts},
            1.0,
            Trust(
                self.level,
                () if self.level is TrustLevel.TRUSTED else (Reason("disturbed", self.level, 2.0, 1.0, "made up"),),
            ),
        )


@dataclass(frozen=True)
class Opener:
    """The file `sides.py` of a kind, with made-up times."""

    module: Any
    level: TrustLevel

    def open_sides(self, sources: Sequence[str], options: Any) -> Any:
        raise AssertionError("check opens what is checked")

    def open_checked(self, sources: Sequence[str], options: Any, settings: Any) -> Timed:
        return Timed(self.module.open_checked(sources, options, settings), self.level)


def test_a_noisy_machine_ends_the_check_of_every_kind_with_4(workload):
    kind = workload.kind
    module = kind.module("check")
    about = {"kind": kind.name, "noun": kind.noun, "own_checks": kind.checks}
    others = (*CHECKS_OF_ALL[1:], *kind.checks)
    update = dataclasses.replace(workload.options, update=True, skip=("latency", *others))
    assert check(module, workload.source, update, **about).exit_code == 0
    for level, code in ((TrustLevel.NOISY, 4), (TrustLevel.INVALID, 4), (TrustLevel.TRUSTED, 0)):
        options = dataclasses.replace(workload.options, skip=others)
        report = check(Opener(module, level), workload.source, options, **about)
        assert report.exit_code == code, (level, report.results)
        assert {
            result.name.partition(" ")[0] for result in report.results if result.verdict is not CheckVerdict.SKIPPED
        } == {"latency"}
