import pytest
from fixture_models import assert_same, assert_untouched, inputs_of, model, run, run_pass

from edgeopt.graph.model import Model

NAME = "cascade_maxpool"


def pyramid(*pools: str) -> Model:
    """All pools of one tensor, each an output of its own."""
    lines = " ".join(f"p{i} = MaxPool <{pool}> (x)" for i, pool in enumerate(pools))
    made = ", ".join(f"float[1,2,h{i},w{i}] p{i}" for i in range(len(pools)))
    return model(f"pyramid (float[1,2,9,11] x) => ({made}) {{ {lines} }}")


def centred(size: int) -> str:
    half = size // 2
    return f"kernel_shape = [{size},{size}], pads = [{half},{half},{half},{half}], strides = [1,1]"


def windows(made: Model) -> list[list[int]]:
    return [
        list(one.ints)
        for node in made.proto.graph.node
        for one in node.attribute
        if node.op_type == "MaxPool" and one.name == "kernel_shape"
    ]


@pytest.mark.parametrize(("sizes", "after"), [((5, 9, 13), [5, 5, 5]), ((3, 5), [3, 3]), ((3, 13), [3, 11])])
def test_growing_windows_become_a_chain_of_small_ones(sizes: tuple[int, ...], after: list[int]) -> None:
    before = pyramid(*map(centred, sizes))
    found, made = run_pass(NAME, before)
    assert found == len(sizes) - 1
    assert windows(made) == [[size, size] for size in after]
    assert_same(before, made)


def test_the_order_in_the_file_does_not_matter() -> None:
    before = pyramid(centred(9), centred(5))
    found, made = run_pass(NAME, before)
    assert (found, sorted(windows(made))) == (1, [[5, 5], [5, 5]])
    assert_same(before, made)


def test_windows_that_are_not_square_are_cascaded_along_each_axis() -> None:
    before = pyramid("kernel_shape = [3,5], pads = [1,2,1,2]", "kernel_shape = [5,5], pads = [2,2,2,2]")
    found, made = run_pass(NAME, before)
    assert (found, windows(made)) == (1, [[3, 5], [3, 1]])
    inputs = inputs_of(before)  # onnx's own evaluator cannot pool with such a window
    assert all((run(made, inputs)[name] == value).all() for name, value in run(before, inputs).items())


@pytest.mark.parametrize(
    "pools",
    [
        (centred(5), centred(5)),
        (centred(1), centred(5)),
        ("kernel_shape = [3,5], pads = [1,2,1,2]", "kernel_shape = [5,3], pads = [2,1,2,1]"),
        (centred(3), "kernel_shape = [5,5], pads = [1,1,3,3]"),
        (centred(3), "kernel_shape = [3,3], pads = [2,2,2,2], dilations = [2,2]"),
        (centred(3), "kernel_shape = [4,4], pads = [1,1,2,2]"),
    ],
    ids=["equal", "one pixel", "neither inside the other", "off centre", "dilated", "even"],
)
def test_other_windows_stay(pools: tuple[str, ...]) -> None:
    assert_untouched(NAME, pyramid(*pools))


def test_pools_of_different_tensors_stay() -> None:
    one, other = centred(3), centred(5)
    assert_untouched(
        NAME,
        model(
            f"""two (float[1,2,9,9] x) => (float[1,2,9,9] y) {{
                a = MaxPool <{one}> (x) b = Neg(x) c = MaxPool <{other}> (b) y = Add(a, c)
            }}"""
        ),
    )
