import pytest
from fixture_models import assert_same, assert_untouched, indices, model, numbers, ops, run_pass, scalar

from edgeopt.graph.model import Model

NAME = "fuse_pad_conv"


def padded(pad: str, *, attributes: str = "pads = [0,1,0,1]", opset: int = 18, **constants) -> Model:
    return model(
        f"""padded (float[1,2,6,6] x) => (float[1,3,h,w0] y) {{
            p = Pad {pad}
            y = Conv <{attributes}> (p, w)
        }}""",
        opset=opset,
        w=numbers(3, 2, 3, 3),
        **constants,
    )


@pytest.mark.parametrize(
    "before",
    [
        padded("(x, pads)", pads=indices(0, 0, 1, 2, 0, 0, 3, 0)),
        padded('<mode = "constant"> (x, pads, v)', pads=indices(0, 0, 1, 2, 0, 0, 3, 0), v=scalar(0), opset=17),
        padded("(x, pads, , axes)", pads=indices(1, 2, 3, 4), axes=indices(-2, 3)),
        padded("(x, pads)", attributes='auto_pad = "VALID"', pads=indices(0, 0, 1, 1, 0, 0, 1, 1)),
    ],
)
def test_zero_padding_of_height_and_width_moves_into_the_conv(before: Model) -> None:
    found, after = run_pass(NAME, before)
    assert (found, ops(after)) == (1, ["Conv"])
    assert_same(before, after)


@pytest.mark.parametrize(
    "before",
    [
        padded('<mode = "reflect"> (x, pads)', pads=indices(0, 0, 1, 1, 0, 0, 1, 1)),
        padded("(x, pads, v)", pads=indices(0, 0, 1, 1, 0, 0, 1, 1), v=scalar(2)),
        padded("(x, pads)", attributes='auto_pad = "SAME_UPPER"', pads=indices(0, 0, 1, 1, 0, 0, 1, 1)),
    ],
    ids=["reflect", "not zero", "automatic padding"],
)
def test_padding_that_a_conv_cannot_do_stays(before: Model) -> None:
    assert_untouched(NAME, before)


def test_padding_below_zero_stays_because_a_conv_cannot_crop() -> None:
    assert run_pass(NAME, padded("(x, pads)", pads=indices(0, 0, -1, 0, 0, 0, 0, 0)))[0] == 0


def test_padding_along_the_batch_stays() -> None:
    before = padded("(x, pads)", pads=indices(1, 0, 1, 1, 0, 0, 1, 1))
    before.proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    assert_untouched(NAME, before)
