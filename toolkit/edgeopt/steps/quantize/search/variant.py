"""How one INT8 model is made of a float model: all that may differ between two of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgeopt.steps.quantize.forms import Form
from edgeopt.steps.quantize.grids.ranges import FIRST_METHOD, Method
from edgeopt.steps.quantize.keep_float.islands import LEAST_DB
from edgeopt.steps.quantize.repairs import ModelRepair, Setting, find_repair
from edgeopt.steps.quantize.scheme import NhwcOptions
from edgeopt.system.text import plural

DIRECT_SUMS = 1 << 16
"""Up to here a 1x1 convolution straight to float is as fast as one with a grid and a DequantizeLinear."""
ALL_SUMS = 1 << 40
_SUMS = {0: "grid for every sum", DIRECT_SUMS: "", ALL_SUMS: "no grid for sums"}


@dataclass(frozen=True, slots=True)
class Variant:
    """The differences between two INT8 models made from the same findings."""

    form: Form = Form.QDQ
    options: NhwcOptions = NhwcOptions()  # noqa: RUF009, frozen
    front: frozenset[str] = frozenset()
    """Keys of layers that stay in float because they are faster so."""
    least_db: float = LEAST_DB
    """Tensors whose normalised SQNR is below it stay in float, with their neighbours."""
    method: Method = FIRST_METHOD
    """How activation ranges are chosen."""
    repairs: tuple[tuple[str, Setting], ...] = ()
    """Names of repairs in their order, and how each is made; see `repaired`."""
    kept: frozenset[str] = frozenset()
    """Tensors that stay in float whatever their score."""
    forced: frozenset[str] = frozenset()
    """Tensors that are quantized whatever their score: to learn what keeping them in float is worth."""

    def __str__(self) -> str:
        words = [f"int8 {self.form}"]
        words += [f"{plural(len(self.front), 'layer')} in float for speed"] if self.front else []
        words += ["integer SiLU"] if self.options.integer_silu else []
        words += [_SUMS[self.options.direct_up_to]] if self.form is Form.NHWC else []
        words += self._told(of_the_model=False)
        words += [f"islands below {self.least_db:.0f} dB"] if self.least_db != LEAST_DB else []
        words += [f"{self.method} ranges"] if self.method is not FIRST_METHOD else []
        words += self._told(of_the_model=True)
        words += [f"{plural(len(self.kept), 'sensitive tensor')} in float"] if self.kept else []
        return ", ".join(word for word in words if word)

    def _told(self, *, of_the_model: bool) -> list[str]:
        known = [(find_repair(name), setting) for name, setting in self.repairs]
        return [repair.told(setting) for repair, setting in known if isinstance(repair, ModelRepair) == of_the_model]

    def setting(self, repair: str) -> Setting:
        """Return how it is repaired by a repair; False: not at all."""
        return dict(self.repairs).get(repair, False)

    def repaired(self, **settings: Setting) -> Variant:
        """Return the variant with other settings of the repairs that are named; False takes one out."""
        wanted = {name: setting for name, setting in (dict(self.repairs) | settings).items() if setting}
        ordered = sorted(wanted.items(), key=lambda pair: (find_repair(pair[0]).order, pair[0]))
        return replace(self, repairs=tuple(ordered))

    @property
    def model_repairs(self) -> tuple[tuple[str, Setting], ...]:
        """The repairs that change the float model."""
        return tuple(repair for repair in self.repairs if isinstance(find_repair(repair[0]), ModelRepair))


def first_variant(form: Form) -> Variant:
    """Return the variant from which the others of this form differ."""
    return Variant(form, NhwcOptions(direct_up_to=DIRECT_SUMS) if form is Form.NHWC else NhwcOptions())
