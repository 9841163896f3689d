"""How one INT8 model is made of a float model: all that may differ between two of them."""

from __future__ import annotations

from dataclasses import dataclass

from edgeopt.steps.quantize.forms import Form
from edgeopt.steps.quantize.grids.ranges import FIRST_METHOD, Method
from edgeopt.steps.quantize.keep_float.islands import LEAST_DB
from edgeopt.steps.quantize.scheme import NhwcOptions
from edgeopt.system.text import plural

DIRECT_SUMS = 1 << 16
"""Up to here a 1x1 convolution straight to float is as fast as one with a grid and a DequantizeLinear."""
ALL_SUMS = 1 << 40
_SUMS = {0: "grid for every sum", DIRECT_SUMS: "", ALL_SUMS: "no grid for sums"}


@dataclass(frozen=True, slots=True)
class Variant:
    """What may differ between two INT8 models made from the same findings."""

    form: Form = Form.QDQ
    options: NhwcOptions = NhwcOptions()  # noqa: RUF009, frozen
    front: frozenset[str] = frozenset()
    """Keys of layers that stay in float because they are faster so."""
    least_db: float = LEAST_DB
    """Tensors whose normalised SQNR is below it stay in float, with their neighbours."""
    rounding: bool = False
    """Whether weights are rounded with the inputs of their layer (GPTQ)."""
    method: Method = FIRST_METHOD
    """How activation ranges are chosen."""
    equalized: bool = False
    """Whether the float model is equalized first."""
    smoothing: float = 0.0
    """Alpha with which the float model is smoothed first; 0: it is not."""
    rescaled: frozenset[str] = frozenset()
    """Tensors whose channels are scaled alike in the float model first."""
    fitted: frozenset[str] = frozenset()
    """SiLUs that become fitted HardSwishes in the float model first."""
    kept: frozenset[str] = frozenset()
    """Tensors that stay in float whatever their score."""
    forced: frozenset[str] = frozenset()
    """Tensors that are quantized whatever their score: to learn what keeping them in float is worth."""

    def __str__(self) -> str:
        words = [f"int8 {self.form}"]
        words += [f"{plural(len(self.front), 'layer')} in float for speed"] if self.front else []
        words += ["integer SiLU"] if self.options.integer_silu else []
        words += [_SUMS[self.options.direct_up_to]] if self.form is Form.NHWC else []
        words += ["rounded with inputs"] if self.rounding else []
        words += [f"islands below {self.least_db:.0f} dB"] if self.least_db != LEAST_DB else []
        words += [f"{self.method} ranges"] if self.method is not FIRST_METHOD else []
        words += ["equalized"] if self.equalized else []
        words += [f"smoothed by {self.smoothing:g}"] if self.smoothing else []
        words += [f"{plural(len(self.rescaled), 'tensor')} rescaled"] if self.rescaled else []
        words += [f"{len(self.fitted)} SiLU as fitted HardSwish"] if self.fitted else []
        words += [f"{plural(len(self.kept), 'sensitive tensor')} in float"] if self.kept else []
        return ", ".join(word for word in words if word)


def first_variant(form: Form) -> Variant:
    """Return the variant from which the others of this form differ."""
    return Variant(form, NhwcOptions(direct_up_to=DIRECT_SUMS) if form is Form.NHWC else NhwcOptions())
