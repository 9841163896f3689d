"""The step `embed-normalise`: the model takes pictures of its own size in uint8, as an app's own resize makes them.

Colour, normalisation and layout become ONNX ops, as far as they do not move into the first convolution. All sizes stay
fixed, so that engines take it that take no frames of any size.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.graph.nodes import Nodes
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import TensorSpec, ints
from edgeopt.recipes.embedded import PICTURE, Embedded
from edgeopt.recipes.inputs.preprocess import Resize
from edgeopt.recipes.recipe import Recipe
from edgeopt.runtime.devices.availability import is_compiled
from edgeopt.steps import Step
from edgeopt.steps._context import Context, Setting
from edgeopt.steps._embedding import put_before
from edgeopt.steps._normalising import name_tensor, normalised, take_over, why_no_picture
from edgeopt.system.declared.target import Target


def embed_normalise(model: Model, recipe: Recipe) -> Model:
    """Return the model with the recipe's normalisation in it: its input is `PICTURE` in place of the tensor.

    Args:
        model: It is not changed; its other inputs stay.
        recipe: Bound to the model.

    Raises:
        UnsupportedError: If the recipe feeds no picture, or onnx cannot bring the model into opset 13.
    """
    if reason := _why_not_written(recipe):
        raise UnsupportedError(reason, remedy="leave the step embed-normalise out")
    model, taken, left = take_over(model, recipe, PICTURE, has_border=False)
    nodes, (height, width) = Nodes("preprocess", model.opset), recipe.input.size
    name_tensor(nodes, recipe, normalised(nodes, recipe, nodes("Unsqueeze", PICTURE, ints(0)), left), taken)
    return put_before(model, taken, nodes, [TensorSpec(PICTURE, "uint8", (height, width, 3))])


def _why_not_written(recipe: Recipe) -> str:
    if reason := why_no_picture(recipe):
        return reason
    if recipe.preprocess.resize is Resize.LINE and any(recipe.preprocess.mean):
        return 'resize = "line" fills with 0 behind the mean, which no uint8 picture can hold'
    return ""


def _why_not(target: Target) -> str:
    return f"what {target.name!r} runs is compiled before anything is embedded" if is_compiled(target) else ""


def _make(model: Model, context: Context, _: Setting) -> Sequence[Outcome]:
    return [Outcome(embed_normalise(model, context.recipe), {"normalise": 1})]


STEP = Step(
    _make,
    does="the model takes pictures of its own size in uint8, resized by the app: colour and normalisation inside",
    order=69,
    why_not=_why_not,
    why_not_of=_why_not_written,
    in_line=False,
    embeds=Embedded.NORMALISE,
    is_default=False,
    # their pictures have the channels last inside: a uint8 picture lies so already (YOLOX at 320x320 on LiteRT: 5 % of
    # its execution, and half of the preprocessing; AMD EPYC, one thread); ncnn makes planes of pixels as it takes them
    tried_on=frozenset({"litert", "ncnn", "openvino"}),
)
