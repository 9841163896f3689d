"""The forms of a language model that are tried, with what each is good for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.executors._child import EngineAbortError
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.generation.result import BASELINE
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps.convert.blocks import Blocks, k_quant
from edgeopt.steps.convert.experts import with_experts
from edgeopt.steps.convert.kept_blocks import bits_of_blocks, round_inputs
from edgeopt.steps.convert.loud_tokens.product_inputs import MOST_TEXTS, MOST_TOKENS, loud_products
from edgeopt.steps.convert.loud_tokens.smoothing import smooth_inputs
from edgeopt.steps.convert.neuron_parts import WIDTH, split_neurons
from edgeopt.steps.convert.shortlist import make_shortlist, tied_head
from edgeopt.steps.convert.weight_only import BLOCK, make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic

CHUNK_TOKENS = 256
"""Tokens of a prompt that a form runs at once: attention computes less of what the mask hides, and what stands between
two products takes less memory. Fewer make products slower."""
SPLIT_CHUNK_TOKENS = 128
"""The same where a graph of its own computes prompts. Where its numbers depend on who runs together, prompts are cut
there each time, and what is kept of one ends there; fewer make prompts slower: 64 by 7 % (SmolLM2-135M in `w8a8`)."""
ELSEWHERE_CHUNK_TOKENS = 256
"""The same where another engine computes prompts, which reads the whole past anew in each run."""
WIDE_BLOCK = 128
"""Weights of a wide block. In 4 bits (`w4+long`) it is faster with wide matrices, and loses more. In 8 bits, for
encoders with decoders, no loss is seen, and it takes a third less time than blocks of 32."""
EIGHT_BITS_BLOCK = 64
"""Longer blocks are 0 to 8 % faster, but with AVX512-VNNI a token's numbers then depend on the texts beside it."""

FITTED = frozenset({"w4", "w4+head"})
"""Forms of 4 bits that are fitted to a text: for their tokens, not for long prompts."""
LATE = frozenset({"w4+long", "w4+short", "w4+mixed"})
"""Forms that take a fitting each (a minute with 135 million weights) for a tenth of a token's time or less."""
LOOKING = frozenset({"w8a8+mixed"})
"""Forms for which the model, and the same with smoothed inputs, read texts."""
_FITTING_READS = 5
"""Two runs, one behind rounded matrices, and sums over their rows; 11 were measured with 494 million weights and 13
windows of 256 tokens, as a part of the time hangs on the weights alone."""
_LARGE_HEAD = 1 << 23
"""Weights from which a shortlist pays: it takes 0.15 ms, as 4 bits of so many from memory do."""
_NARROW = 512
"""Neurons of a part: for 256 tokens they take 512 KiB in float, and with gates and weights they stay in a cache of 2
MiB. Each part costs a token about 15 us, so only measuring tells whether prompts are long enough."""
_VERY_WIDE = 16
"""Times what a layer reads: below, products take nearly all the time."""


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """One way to store and compute a model's matrices."""

    name: str
    told: str
    make: Callable[[DecoderMaterial], Outcome]
    left_out: str = "no matrix of constant weights is large enough"
    """Why it is left out where it changes nothing."""

    def read_tokens(self, windows: Sequence[Sequence[int]]) -> int:
        """Return how many tokens the original reads in the time that making it takes; 0: it looks at no text.

        Args:
            windows: The calibration text.
        """
        if self.name in LOOKING:
            return 2 * sum(min(len(window), MOST_TOKENS) for window in windows[:MOST_TEXTS])
        return _FITTING_READS * sum(map(len, windows)) if self.name in FITTED | LATE else 0

    @property
    def precision(self) -> str:
        """Its scheme in the words of targets: of `w4+head` that of most matrices."""
        return self.name.partition("+")[0]


def with_chunks(recipe: Recipe, prefill: str = "", engine: str = "") -> Recipe:
    """Return the recipe of a form, whose prompts run in parts.

    Args:
        recipe: Of the original.
        prefill: File of the graph that computes prompts; empty: the form does.
        engine: Of what computes prompts, that graph or the form; empty: ONNX Runtime.
    """
    usual = ELSEWHERE_CHUNK_TOKENS if engine else SPLIT_CHUNK_TOKENS if prefill else CHUNK_TOKENS
    chunk = recipe.generation.chunk or usual
    of_prompts, of_form = (engine, "") if prefill else ("", engine)
    own = replace(recipe.generation, chunk=chunk, prefill=prefill, prefill_engine=of_prompts, engine=of_form)
    return replace(recipe, generation=own)


def _on_integers(material: DecoderMaterial) -> Outcome:
    """Put products on integers; experts, which no op takes on a grid of a whole run, in blocks of 8 bits."""
    return with_experts(make_dynamic(material.model, material.target.rules_here), EIGHT_BITS_BLOCK)


def _eight_bits_in_parts(width: int, least_ratio: int) -> Callable[[DecoderMaterial], Outcome]:
    """Return what makes `w8a8` with layers in parts of `width` neurons."""

    def make(material: DecoderMaterial) -> Outcome:
        parts = split_neurons(material.model, width, least_ratio)
        if not parts.changes:
            return parts
        return with_experts(make_dynamic(parts.model, material.target.rules_here), EIGHT_BITS_BLOCK)

    return make


def _quiet_on_integers(material: DecoderMaterial) -> Outcome:
    """Put products on integers whose inputs, smoothed, are not too loud for one grid; the rest in blocks of 8 bits.

    Blocks round what they read token by token, so that a loud one leaves the others as they are.
    """
    try:
        inputs = material.product_inputs(material.model)
        if not loud_products(material.model, inputs):
            return Outcome(material.model, {})
        smooth = smooth_inputs(material.model, inputs)
        loud = loud_products(smooth.model, material.product_inputs(smooth.model) if smooth.changes else inputs)
    except (EdgeoptError, EngineAbortError) as error:  # a session that gives out all it computes; other forms need none
        material.listener.say(f"warning: w8a8+mixed is not made: {error}")
        return Outcome(material.model, {})
    # the head reads one token of a prompt: in blocks it takes no more time, and the table is the same integers
    left_out = (*loud, material.head)
    changes, made = smooth.changes, make_dynamic(smooth.model, material.target.rules_here, left_out)
    del smooth  # a model in floats
    rest = make_weight_only(made.model, 8, EIGHT_BITS_BLOCK, tables=True)  # what is in float still
    return Outcome(rest.model, {**changes, **made.changes, **rest.changes}) if made.changes else made


def _eight_bits(material: DecoderMaterial) -> Outcome:
    return make_weight_only(material.model, 8, EIGHT_BITS_BLOCK, tables=True)


def _four_bits(material: DecoderMaterial) -> Outcome:
    return make_weight_only(material.model, 4, BLOCK, rounding=material.four_bits(BLOCK), tables=True)


def _wide_head(block: int, *, mixed: bool = False) -> Callable[[DecoderMaterial], Outcome]:
    """Return what makes blocks of 4 bits, but for the head: its errors reach every token directly.

    Mixed: the most sensitive matrices are in 8 bits as well.
    """

    def make(material: DecoderMaterial) -> Outcome:
        wide = (material.head, *(material.sensitive(4, block) if mixed else ()))
        rounding = material.four_bits(block, wide, EIGHT_BITS_BLOCK)
        return make_weight_only(
            material.model, 4, block, wide=wide, wide_block=EIGHT_BITS_BLOCK, rounding=rounding, tables=True
        )

    return make


def _shortlist(material: DecoderMaterial) -> Outcome:
    """Make `w4+long` with a head in 4 bits, which says whose logits are computed again in 8 bits."""
    if tied_head(material.model) < _LARGE_HEAD:
        return Outcome(material.model, {})
    fitted = material.four_bits(WIDE_BLOCK, (material.head,), EIGHT_BITS_BLOCK)

    def rounding(node: str, columns: NDArray[np.float32], bits: int, block: int) -> Blocks:
        return k_quant(node, columns, bits, block) if node == material.head else fitted(node, columns, bits, block)

    made = make_weight_only(material.model, 4, WIDE_BLOCK, rounding=rounding, tables=True)
    listed = make_shortlist(made.model)
    return Outcome(listed.model, {**made.changes, **listed.changes} if listed.changes else {})


FUSED = MatrixForm(
    "fp32+fused",
    "as given, attention and norms as single ops",
    lambda material: Outcome(material.model, {"": 1}),
)
"""Fused form of a model that another exporter wrote (`steps/convert/decoder_fusion.py`); others are made of it then."""


def _kept(bits: int) -> MatrixForm:
    def make(material: DecoderMaterial) -> Outcome:
        return Outcome(round_inputs(material.stored).model, {"": 1}) if material.stored else Outcome(material.model, {})

    return MatrixForm(f"w{bits}+stored", "blocks as given, what they multiply in 8 bits", make)


KEPT = {bits: _kept(bits) for bits in (4, 8)}
"""Forms of a model that came in blocks of integers, which stay as they are, by the bits of most of its weights."""


def precision_of(model: Model) -> str:
    """Return the scheme of a model as it was given, in the words of targets."""
    bits = bits_of_blocks(model)
    return f"w{bits}" if bits in KEPT else BASELINE


FORMS = (
    MatrixForm(
        "w8a8",
        "INT8, activations rounded as they come",
        _on_integers,
    ),
    MatrixForm(
        "w8a8+parts",
        "w8a8, wide layers in parts of 2048 neurons",
        _eight_bits_in_parts(WIDTH, 0),
        left_out="no layer has more than 2048 neurons",
    ),
    MatrixForm(
        "w8a8+parts512",
        "w8a8, very wide layers in parts of 512 neurons",
        _eight_bits_in_parts(_NARROW, _VERY_WIDE),
        left_out="no layer has more than 512 neurons and 16 times its inputs",
    ),
    MatrixForm("w8", "blocks of 64 weights of 8 bits", _eight_bits),
    MatrixForm(
        "w8a8+mixed",
        "w8a8 of smoothed inputs, what reads loud tokens as in w8",
        _quiet_on_integers,
        left_out="no product reads loud tokens, or all of them do",
    ),
    MatrixForm("w4", "blocks of 32 of 4 bits, fitted to the calibration text", _four_bits),
    MatrixForm("w4+head", "w4, but the head in 8 bits", _wide_head(BLOCK)),
    MatrixForm("w4+long", "w4+head in blocks of 128", _wide_head(WIDE_BLOCK)),
    MatrixForm(
        "w4+short",
        "w4+long, head in 4 bits, its 64 likeliest logits in 8",
        _shortlist,
        left_out="the head is not the table of tokens, or has fewer than 8 million weights",
    ),
    MatrixForm(
        "w4+mixed",
        "w4+long, the most sensitive matrices in 8 bits",
        _wide_head(WIDE_BLOCK, mixed=True),
    ),
)
"""The first three and `w8a8+mixed` are at their best with many tokens at once (long prompts), the others with one."""
