"""The step `fuse`: one node of several, in the words that a device's compiler knows."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.errors import NotFoundError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.passes import Phase, passes_of
from edgeopt.steps import Step
from edgeopt.steps._checked import TOLERANCE, Expectation, apply_checked
from edgeopt.steps._context import Context, Setting
from edgeopt.steps._size import kept_small


def fuse(
    model: Model, inputs: Sequence[Tensors] = (), *, rewrites: Sequence[str] = (), tolerance: float = TOLERANCE
) -> Outcome:
    """Make one node of several wherever a pass of the phase `fuse` can, then apply what the target asks for.

    Args:
        model: A model with fixed shapes.
        inputs: Real inputs on which the result must equal the model's; none: random numbers of a fixed seed.
        rewrites: Names of passes of the phase `device`; see `Target.rewrites`.
        tolerance: Largest error over signal, root mean square.

    Raises:
        InvalidFileError: If ONNX Runtime refuses the model.
        NotFoundError: If `rewrites` names a pass that does not exist.
    """
    known = passes_of(Phase.DEVICE) if rewrites else {}
    for name in rewrites:
        if name not in known:
            raise NotFoundError("pass", name, known)
    fused = apply_checked(model, passes_of(Phase.FUSE), Expectation.of(model, inputs, tolerance))
    if not rewrites:
        return kept_small(model, fused)  # a device that asks for rewrites needs its ops, however small the model
    asked = {name: function for name, function in known.items() if name in rewrites}
    return fused.then(apply_checked(fused.model, asked, Expectation.of(fused.model, inputs, tolerance)))


def _make(model: Model, context: Context, _: Setting) -> list[Outcome]:
    return [fuse(model, context.checked_inputs(model), rewrites=context.target.rewrites)]


STEP = Step(
    _make,
    does="batch normalisation, affine ops and focus slices into convolutions; activations in the form engines fuse",
    order=20,
)
