import pytest
from fixture_models import (
    assert_same,
    assert_untouched,
    focus_blocks,
    focus_chained,
    indices,
    model,
    numbers,
    ops,
    run_pass,
    space_to_depth,
    unshuffle,
)

from edgeopt.graph.model import Model

NAME = "fuse_focus"


def attributes(made: Model) -> dict[str, list[int]]:
    conv = next(node for node in made.proto.graph.node if node.op_type == "Conv")
    return {one.name: list(one.ints) for one in conv.attribute}


def test_eight_slices_concat_and_conv_become_one_6x6_conv_of_stride_2() -> None:
    before = focus_chained()
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv", "Relu"])
    assert attributes(after) == {"kernel_shape": [6, 6], "strides": [2, 2], "pads": [2, 2, 2, 2]}
    assert_same(before, after)


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("block", [2, 3, 4])
def test_any_block_size_order_and_stride_becomes_one_conv(block: int, stride: int, order: str) -> None:
    before = focus_blocks(block=block, stride=stride, order=order)
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv"])
    assert attributes(after)["strides"] == [block * stride] * 2
    assert_same(before, after)


def test_space_to_depth_disappears_into_the_conv() -> None:
    before = space_to_depth()
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv"])
    assert_same(before, after)


@pytest.mark.parametrize("permutation", ["0,1,3,5,2,4", "0,3,5,1,2,4"])
def test_pixel_unshuffle_of_an_oblong_block_disappears_into_the_conv(permutation: str) -> None:
    before = unshuffle(permutation)
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv"])
    assert attributes(after)["kernel_shape"] == [6, 9]
    assert_same(before, after)


def test_slices_along_one_axis_only_become_one_conv() -> None:
    before = model(
        """rows (float[1,2,6,5] x) => (float[1,3,3,5] y) {
            even = Slice(x, zero, end, axis, two)
            odd = Slice(x, one, end, axis, two)
            s = Concat <axis = 1> (odd, even)
            y = Conv <pads = [1,1,1,1]> (s, w)
        }""",
        w=numbers(3, 4, 3, 3),
        zero=indices(0),
        one=indices(1),
        two=indices(2),
        axis=indices(2),
        end=indices(2**62),
    )
    found, after = run_pass(NAME, before)
    assert (found, attributes(after)["strides"]) == (1, [2, 1])
    assert_same(before, after)


def test_a_missing_phase_stays() -> None:
    assert_untouched(NAME, focus_blocks(block=2, leave_out=1))


def test_another_permutation_stays() -> None:
    assert run_pass(NAME, unshuffle("0,1,5,3,2,4"))[0] == 0


def test_a_stack_that_is_an_output_stays() -> None:
    before = focus_chained()
    before.proto.graph.output.add().CopyFrom(before.proto.graph.output[0])
    before.proto.graph.output[1].name = "s"
    before.proto.graph.output[1].type.tensor_type.shape.dim[1].dim_value = 12
    assert_untouched(NAME, before)


def test_slices_that_stop_before_the_end_stay() -> None:
    before = focus_chained()
    for tensor in before.proto.graph.initializer:
        if tensor.name == "end":
            tensor.raw_data = indices(6).tobytes()
    for size in before.proto.graph.output[0].type.tensor_type.shape.dim[2:]:
        size.dim_value = 3
    assert_untouched(NAME, before)


@pytest.mark.parametrize("attribute", ["dilations = [2,2], pads = [2,2,2,2]", 'auto_pad = "SAME_UPPER"'])
def test_a_conv_whose_kernel_or_padding_is_not_plain_stays(attribute: str) -> None:
    before = model(
        f"""special (float[1,2,8,8] x) => (float[1,3,4,4] y) {{
            s = SpaceToDepth <blocksize = 2> (x)
            y = Conv <{attribute}> (s, w)
        }}""",
        w=numbers(3, 8, 3, 3),
    )
    assert_untouched(NAME, before)


def without_shape(before: Model) -> Model:
    for size in before.proto.graph.input[0].type.tensor_type.shape.dim:
        size.dim_param = "free"
    for size in before.proto.graph.output[0].type.tensor_type.shape.dim:
        size.dim_param = "also_free"
    return Model(before.proto, before.name)


@pytest.mark.parametrize("before", [focus_chained(), space_to_depth(), unshuffle()], ids=lambda one: one.name)
def test_a_stack_of_unknown_channels_stays(before: Model) -> None:
    if before.name == "unshuffle":  # ONNX Runtime derives one shape, we see none
        before.proto.graph.node[0].input[0] = "x"
    assert run_pass(NAME, without_shape(before))[0] == 0


@pytest.mark.parametrize(
    ("split", "stacked"), [((1, 2, 4, 3, 4, 3), (1, 18, 4, 4)), ((1, 3, 4, 2, 4, 3), (1, 9, 8, 4))]
)
def test_reshapes_that_move_more_than_the_block_stay(split: tuple[int, ...], stacked: tuple[int, ...]) -> None:
    before = model(
        f"""other (float[1,3,8,12] x) => (float[1,4,{stacked[2]},{stacked[3]}] y) {{
            r = Reshape(x, split)
            t = Transpose <perm = [0,1,3,5,2,4]> (r)
            s = Reshape(t, stacked)
            y = Conv <pads = [1,1,1,1]> (s, w)
        }}""",
        w=numbers(4, stacked[1], 3, 3),
        split=indices(*split),
        stacked=indices(*stacked),
    )
    assert_untouched(NAME, before)


@pytest.mark.parametrize(
    ("nodes", "channels"),
    [
        ("a = Relu(x) b = Abs(x) s = Concat <axis = 1> (a, b)", 4),
        ("s = Concat <axis = 2> (x, x)", 2),
        ("s = Slice(x, zero, two, one)", 2),
        ("a = Slice(x, zero, two) b = Slice(x, zero, two) s = Concat <axis = 1> (a, b)", 4),
        ("r = Relu(x) s = Reshape(r, same)", 2),
    ],
    ids=["of two sources", "along the height", "no stack", "without axes", "no transpose"],
)
def test_what_is_no_space_to_depth_stays(nodes: str, channels: int) -> None:
    before = model(
        f"other (float[2,2,4,4] x) => (float[n,3,h,v] y) {{ {nodes} y = Conv(s, w) }}",
        w=numbers(3, channels, 1, 1),
        zero=indices(0),
        one=indices(1),
        two=indices(2),
        same=indices(2, 2, 4, 4),
    )
    assert_untouched(NAME, before)
