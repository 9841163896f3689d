"""The step `compile`: one vendor, one file."""

from edgeopt.steps.compile._numbers import compile_model
from edgeopt.steps.compile._rockchip import compile_for_rockchip

__all__ = ["compile_for_rockchip", "compile_model"]
