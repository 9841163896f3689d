"""ONNX models in torch: the parameters are the model's own constants, and go back into it under the same names."""

from __future__ import annotations

from edgeopt.steps.finetune.interpreter.model import TorchModel, missing_ops
from edgeopt.steps.finetune.interpreter.roles import weights_of

__all__ = ["TorchModel", "missing_ops", "weights_of"]
