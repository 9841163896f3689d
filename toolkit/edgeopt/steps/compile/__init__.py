"""The step `compile`: one vendor, one file, which ends in `TOOLCHAIN`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from edgeopt.errors import UnsupportedError
from edgeopt.graph.model import Model
from edgeopt.runtime.devices.availability import is_compiled
from edgeopt.steps import Step
from edgeopt.steps._context import Context, Setting
from edgeopt.steps.compile._form import DeviceForm, Toolchain
from edgeopt.steps.compile._numbers import compile_model
from edgeopt.steps.compile._rockchip import compile_for_rockchip
from edgeopt.system.declared import registry
from edgeopt.system.declared.target import Target

__all__ = ["STEP", "compile_for_rockchip", "compile_model"]


def forms_for(model: Model, context: Context, _: Setting) -> Sequence[DeviceForm]:
    """Return the forms that the target's toolchain can compile, the cheapest first.

    Raises:
        UnsupportedError: If it knows no toolchain, or the device can run no form of the model.
    """
    parts = (registry.load(sys.modules[__name__], name).TOOLCHAIN for name in registry.names_in("steps.compile"))
    known: dict[str, Toolchain] = {part.executor: part for part in parts}
    if context.target.executor not in known:
        raise UnsupportedError(
            f"nothing here compiles for the executor {context.target.executor!r}",
            remedy=f"choose a target whose executor is one of {', '.join(sorted(known))}",
        )
    forms = known[context.target.executor].forms(context, model)
    if not forms:
        raise UnsupportedError(
            f"{context.target.name} runs integers only, and there is no step quantize",
            remedy="leave out --skip quantize and pass --calib FOLDER with about 100 unlabelled pictures, or choose a "
            "newer target",
        )
    return forms


def _why_not(target: Target) -> str:
    return "" if is_compiled(target) else f"{target.name!r} runs the model as it is"


STEP = Step(
    forms_for,
    does="all nodes placed on the device, its numbers compared with the CPU's, its binary made and scored",
    order=90,
    why_not=_why_not,
    without="nothing to compile",
    in_line=False,
    on_device=True,
)
