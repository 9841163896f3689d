"""Many samples in a graph made for one: the answers of each alone, whatever the graph does with its shapes."""

from __future__ import annotations

import numpy as np
import pytest
import small_nets
from fixture_models import all_models, indices, inputs_of, model, numbers, run

from edgeopt.errors import EdgeoptError
from edgeopt.graph.model import Model

torch = pytest.importorskip("torch", reason="torch is not installed")

from edgeopt.steps.finetune.interpreter import TorchModel, missing_ops  # noqa: E402

NETS = ("residual", "residual_batchnorm", "mobile", "squeeze_excite", "detector", "u_net", "vision_transformer")


def way(module: TorchModel) -> bool:
    """Whether the last call computed all samples at once."""
    return list(module._ways.values())[-1].all is not None


def require_alike(made: Model, samples: int = 3) -> bool:
    """Compare several samples with ONNX Runtime on each; return whether they were computed at once."""
    module = TorchModel(made)
    each = [inputs_of(made, seed) for seed in range(samples)]
    together = {name: torch.from_numpy(np.concatenate([one[name] for one in each])) for name in each[0]}
    with torch.no_grad():
        found, again = module(together), module(together)
    for spec in made.outputs:
        wanted = np.stack([run(made, one)[spec.name] for one in each])
        wanted = wanted[:, 0] if wanted.ndim > 1 and wanted.shape[1] == 1 else wanted
        for one in (found, again):
            np.testing.assert_allclose(one[spec.name].numpy(), wanted, rtol=1e-4, atol=1e-4)
    return way(module)


@pytest.mark.parametrize("name", NETS)
def test_several_samples_of_small_nets_are_computed_at_once(name):
    assert require_alike(getattr(small_nets, name)())


@pytest.mark.parametrize("name", sorted(all_models()))
def test_every_small_model_answers_as_onnxruntime_does(name):
    made = all_models()[name]
    if missing_ops(made):
        pytest.skip(f"no training with {', '.join(missing_ops(made))}")
    given = inputs_of(made)
    found = TorchModel(made)({name: torch.from_numpy(np.array(one)) for name, one in given.items()})
    for output, wanted in run(made, given).items():
        np.testing.assert_allclose(found[output].detach().numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert TorchModel(made).to_model().proto == made.proto


HEADS = """
    a = MatMul(x, w)
    b = Reshape(a, split)
    c = Transpose<perm = [0, 2, 1, 3]>(b)
    d = Transpose<perm = [0, 2, 3, 1]>(b)
    e = MatMul(c, d)
    f = Softmax(e)
    g = MatMul(f, c)
    h = Transpose<perm = [0, 2, 1, 3]>(g)
    y = Reshape(h, join)
"""
AT_ONCE = {
    "a constant 1 in a Reshape": ("y = Reshape(x, s)", [1, 6, 4], {"s": indices(1, 24)}),
    "rows of all samples in one matrix": (
        "a = Reshape(x, s) b = MatMul(a, w) y = Reshape(b, t)",
        [1, 6, 4],
        {"s": indices(-1, 4), "w": numbers(4, 5), "t": indices(1, 6, 5)},
    ),
    "tokens first": (
        "a = Transpose<perm = [1, 0, 2]>(x) b = Reshape(a, s) c = Transpose<perm = [1, 0, 2]>(b)"
        " y = ReduceSum<keepdims = 0>(c, o)",
        [1, 6, 4],
        {"s": indices(6, 2, 2), "o": indices(2)},
    ),
    "heads of attention": (
        HEADS,
        [1, 6, 4],
        {"w": numbers(4, 4), "split": indices(1, 6, 2, 2), "join": indices(1, 6, 4)},
    ),
    "a class token": ("y = Concat<axis = 1>(t, x)", [1, 6, 4], {"t": numbers(1, 1, 4)}),
    "a table for each row": ("a = Reshape(x, s) y = Add(a, t)", [1, 6, 4], {"s": indices(6, 4), "t": numbers(6, 4)}),
    "sizes of a Resize": (
        "y = Resize<mode = 'linear'>(x, , , s)".replace("'", '"'),
        [1, 2, 5, 5],
        {"s": indices(1, 2, 8, 9)},
    ),
}
ONE_BY_ONE = {
    "a product with itself across rows": ("a = Transpose(x) y = MatMul(a, x)", [1, 6], {}),
    "a softmax over samples": ("y = Softmax<axis = 0>(x)", [1, 6], {}),
    "a sum over all": ("y = ReduceSum<keepdims = 0>(x)", [1, 6], {}),
    "a sample picked out": ("y = Gather<axis = 0>(x, i)", [1, 6], {"i": np.array(0)}),
    "two rows made of one": ("y = Concat<axis = 0>(x, x)", [1, 6], {}),
}


def small(nodes: str, shape: list[int], constants: dict[str, np.ndarray]) -> Model:
    sizes = ", ".join(map(str, shape))
    made = model(f"case (float[{sizes}] x) => (float y) {{ {nodes} }}", **constants)
    made.proto.graph.output[0].type.tensor_type.ClearField("shape")
    return Model(made.proto, "case")


@pytest.mark.parametrize("name", AT_ONCE)
def test_samples_are_traced_through_what_moves_their_axis(name):
    assert require_alike(small(*AT_ONCE[name]))


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_mixes_samples_is_computed_one_by_one(name):
    assert not require_alike(small(*ONE_BY_ONE[name]))


def test_answers_of_several_shapes_are_refused():
    made = small("y = NonZero(x)", [1, 6], {})
    with pytest.raises(EdgeoptError, match="another shape for each sample"):
        TorchModel(made)({"x": torch.tensor([[1.0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1]])})
