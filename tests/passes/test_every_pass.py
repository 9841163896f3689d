"""Every file in the folder of passes, on every small model."""

import numpy as np
import pytest
from fixture_models import all_models, assert_same, inputs_of, run, run_pass
from unoptimized import answers_here, error_ratio

from edgeopt import passes
from edgeopt.errors import NoteKind
from edgeopt.passes import Pass, Phase, passes_of
from edgeopt.steps.fuse import fuse
from edgeopt.steps.simplify import simplify
from edgeopt.system.declared import registry

NAMES = registry.names(passes)
MODELS = all_models()


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_is_a_documented_function_with_the_name_of_its_file(name: str) -> None:
    module = registry.load(passes, name)
    assert isinstance(module.PASS, Pass)
    assert module.PASS.function is getattr(module, name)
    assert isinstance(module.PASS.phase, Phase)
    assert module.__doc__
    assert module.PASS.function.__doc__.startswith("Return how many")


OF_DECODERS = passes_of(Phase.DECODER)
"""They look for inputs by name; `tests/steps/convert/test_decoder_fusion.py` has graphs in which they match."""


@pytest.mark.parametrize("name", [one for one in NAMES if one not in OF_DECODERS])
def test_a_pass_finds_something_in_some_small_model(name: str) -> None:
    assert any(run_pass(name, model)[0] for model in MODELS.values())


@pytest.mark.parametrize("fixture", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_a_pass_leaves_every_output_equal_and_finds_nothing_when_it_runs_again(name: str, fixture: str) -> None:
    before = MODELS[fixture]
    fingerprint = before.proto.SerializeToString(deterministic=True)
    _, after = run_pass(name, before)
    assert before.proto.SerializeToString(deterministic=True) == fingerprint, "the source is never edited"
    assert run_pass(name, after)[0] == 0
    assert_same(before, after)


@pytest.mark.parametrize("fixture", MODELS)
def test_both_steps_together_leave_every_output_equal_and_warn_of_nothing(fixture: str) -> None:
    before = MODELS[fixture]
    simple = simplify(before, {}, [inputs_of(before)])
    fused = fuse(simple.model, [inputs_of(before)])
    assert not [one for one in simple.notes + fused.notes if one.kind is NoteKind.WARNING]
    assert_same(before, fused.model)


def test_both_phases_have_passes_and_each_pass_belongs_to_one() -> None:
    phases = [passes_of(phase) for phase in Phase]
    assert all(phases)
    assert sorted(name for functions in phases for name in functions) == sorted(NAMES)


def test_the_small_models_compute_something() -> None:
    for model in MODELS.values():
        assert any(np.ptp(value) > 0 for value in run(model, inputs_of(model)).values())


@pytest.mark.parametrize("fixture", MODELS)
def test_with_the_engines_optimizations_off_the_answers_are_those_of_the_model_itself(fixture: str) -> None:
    before, inputs = MODELS[fixture], [inputs_of(MODELS[fixture], seed) for seed in (1, 2)]
    simple = simplify(before, {}, inputs[:1]).model
    assert (
        error_ratio(answers_here(before.data, inputs), answers_here(fuse(simple, inputs[:1]).model.data, inputs)) < 1e-3
    )
