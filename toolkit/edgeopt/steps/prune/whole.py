"""A whole pruned model against the whole dense one, in turns, on the engine and in the precision that will be used."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.measurement.statistics.ratio import Ratio
from edgeopt.measurement.turns.calls import call_of, compare_calls
from edgeopt.steps._context import Engine
from edgeopt.steps.prune.integer_layers import integer_model
from edgeopt.steps.quantize.judges import own_clock

_SECONDS, _BLOCK = 1.5, 5


class WholeModels:
    """The dense model, open, with which pruned ones are compared."""

    def __init__(self, dense: Model, engine: Engine, precision: str, inputs: Sequence[Tensors]) -> None:
        """Open the dense model.

        Args:
            dense: Of float.
            engine: One that runs here.
            precision: In which the model will run; for `w8a8` both are compared as quick INT8 forms.
            inputs: A few real ones.
        """
        self._engine, self._precision, self._inputs = engine, precision, inputs
        self._dense = engine.open(self._form(dense), precision)

    def _form(self, model: Model) -> Model:
        if not self._precision.startswith("w8a8"):
            return model
        return integer_model(model, self._inputs, self._engine.target)

    def ratio(self, pruned: Model) -> Ratio:
        """Return how many times as fast as the dense model another one is."""
        session = self._engine.open(self._form(pruned), self._precision)
        runs = {"dense": call_of(self._dense, self._inputs[0]), "pruned": call_of(session, self._inputs[0])}
        clock = own_clock(self._engine.target, self._engine.threads)
        try:
            return compare_calls(runs, baseline="dense", seconds=_SECONDS, block=_BLOCK, clock=clock)["pruned"]
        finally:
            session.close()

    def close(self) -> None:
        """Free the dense session."""
        self._dense.close()
