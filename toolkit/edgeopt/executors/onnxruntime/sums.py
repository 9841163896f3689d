"""Whether a token's numbers depend on how many tokens run with it.

Engines have other kernels for one row than for several, and for the odd row at the end than for pairs: they sum in
another order. Floats then differ in their last digit. Where activations are rounded to 8 bits, a last digit tips a
number to the next step, and layer after layer that grows: guesses, parts of a prompt and single tokens would not give
the same answer. Of ONNX Runtime 1.32 on x86: `GroupQueryAttention` sums one row of floats in another order than
several (an integer cache alike); `MatMulNBits` one row of 4 bits on AVX2, and with AVX512-VNNI the odd row of blocks
of 64 and more in 4 bits, of 128 in 8 bits. Pairs come out the same on both; elsewhere the trial tells. Texts side by
side are several rows of products, but each is one row of its own attention, which takes pairs of one text alone.
`QMoE` adds up what the experts make of a token in the order of how many tokens each of them has, which two experts a
token do not show, and three do; pairs do not help there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.executors.onnxruntime.decoder import LOGITS, CachePart
from edgeopt.executors.onnxruntime.rows import SharedRows
from edgeopt.executors.onnxruntime.stateful import decoder_of

_EXPERTS = "QMoE"
_OF_ROWS = {"MatMulNBits", "QLinearMatMul", _EXPERTS}
"""Products that round each row by itself."""
_OF_RUNS = {"MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLinear"}
"""Ops that round all rows of a run on one grid."""
_PROMPT, _WIDTHS = 7, (1, 1, 2, 1, 5, 1, 3, 3)
"""Tokens of the trial: those that come first, and the runs behind them, which are compared with a single one."""
_FEW, _MANY = 3, 61
"""Tokens of the vocabulary that a trial takes, without its size and with it: tokens of other experts show an order."""
_MORE = 4
"""Times as many tokens in a trial of experts."""
_TEXTS = (2, 3, 4, 7)
"""Texts side by side in a trial."""


class Sums(StrEnum):
    """The order of sums that a token's numbers depend on."""

    ALIKE = "alike"
    """A token's numbers depend on its text alone: any number of tokens may run together. In floats: but for the last
    digit."""
    PAIRED = "paired"
    """They depend on whether the number of tokens is even; a copy of the last token makes it so."""
    APART = "apart"
    """They depend on the other tokens of the run."""


def rounds_rows(session: Any) -> bool:
    """Return whether products round each of their rows to integers, and nothing rounds several together.

    Args:
        session: An open session, which knows what its nodes are.
    """
    ops = {node.op for node in session.placement()}
    return bool(ops & _OF_ROWS) and not ops & _OF_RUNS


def has_experts(session: Any) -> bool:
    """Return whether experts whose weights are rounded add up what they make of a token.

    Args:
        session: An open session, which knows what its nodes are.
    """
    return any(node.op == _EXPERTS for node in session.placement())


def try_sums(session: Any, parts: Sequence[CachePart], *, shares: bool) -> Sums:
    """Return what a token's numbers depend on, here: a graph that rounds is tried with a few tokens.

    Args:
        session: An open session of a decoder.
        parts: Of its cache.
        shares: As `Decoder` has it.
    """
    if any(node.op in _OF_RUNS for node in session.placement()):
        return Sums.APART
    if not rounds_rows(session):
        return Sums.ALIKE
    widths = _WIDTHS * (_MORE if has_experts(session) else 1)
    try:
        whole = _logits(session, parts, (sum(widths),), shares=shares)
        for paired in (False, True):
            if np.array_equal(whole, _logits(session, parts, widths, shares=shares, paired=paired)):
                return Sums.PAIRED if paired else Sums.ALIKE
    except (EdgeoptError, ValueError):
        pass
    return Sums.APART


def texts_are_alike(session: Any, parts: Sequence[CachePart], slots: int) -> bool:
    """Return whether a text has the same bits alone and beside others: it is tried with single tokens of several.

    Attention takes each text by itself, so that this depends on the products alone: it may hold where `try_sums` says
    `PAIRED`.

    Args:
        session: An `InferenceSession` on the host, of a graph for which `takes_rows` holds.
        parts: Of its cache.
        slots: Texts side by side, at most.
    """
    most, known = min(max(_TEXTS), slots), _tokens_of(session)
    rows = SharedRows(session, parts, most, 4 * _PROMPT, pairs=True)
    prompts = [[1 + i * (row + 1) % known for i in range(_PROMPT + row)] for row in range(most)]
    for count in (text for text in _TEXTS if text <= most):
        tokens = [1 + (row * row + count) % known for row in range(count)]
        alone = list[NDArray[np.float32]]()
        for row, token in enumerate(tokens):
            rows.rewind(row, 0)
            rows.run(row, prompts[row], is_prompt=True)
            alone.append(rows.run(row, [token])[-1])
        for row in range(count):  # begun anew: states cannot be cut back by a token
            rows.rewind(row, 0)
            rows.run(row, prompts[row], is_prompt=True)
        if not np.array_equal(np.stack(alone), rows.run_first(tokens)):
            return False
    return True


def _tokens_of(engine: Any) -> int:
    """Return how many tokens a trial takes of the vocabulary."""
    width = next(output.shape[-1] for output in engine.get_outputs() if output.name == LOGITS)
    return min(_MANY, width - 1) if isinstance(width, int) else _FEW


def _logits(
    session: Any, parts: Sequence[CachePart], widths: Sequence[int], *, shares: bool, paired: bool = False
) -> NDArray[np.float32]:
    """Return the logits behind all tokens after the first ones, which come in parts of these widths."""
    count = _PROMPT + sum(widths)
    decoder = decoder_of(session.engine, parts, count + 1, shares=shares, pairs=True)
    decoder.is_exact = paired
    known = _tokens_of(session.engine)
    tokens = [1 + (i * i) % known for i in range(count)]
    decoder.run(tokens[:_PROMPT])
    arrays = list[NDArray[np.float32]]()
    for width in widths:
        arrays.append(decoder.run(tokens[decoder.past : decoder.past + width]))
    return np.concatenate(arrays)
