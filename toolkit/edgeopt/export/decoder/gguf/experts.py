"""Experts in a `.gguf` file: all of a layer in one tensor a part, of which each is a matrix of Hugging Face.

The engine's op for experts (`QMoE`) reads a scale and a whole zero for each block. A type whose blocks begin at a
number of their own (Q4_1, Q5_1, and the k-quants of 2, 4 and 5 bits) has no place there: such a file is refused, as its
experts would become floats of 4 to 12 times the size, and lose more when they are rounded again.

Source: llama.cpp, `gguf-py/gguf/constants.py` (names) and `src/models/` (`llama.cpp`, `qwen2moe.cpp`, `qwen3moe.cpp`,
`olmoe.cpp`, `granite.cpp`: which shares of experts are made to add up to 1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from edgeopt.errors import UnsupportedError
from edgeopt.export.decoder.gguf.blocks import WITH_LOWS, is_kept
from edgeopt.export.decoder.mixture import Mixture, require_mixture

KINDS: Final[Mapping[str, str]] = {
    "llama": "mixtral", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "olmoe": "olmoe",
    "granitemoe": "granitemoe",
}  # fmt: skip
"""`general.architecture` of files with experts to the `model_type` of their folders; Mixtral calls itself llama."""
_NORMED: Final = ("llama", "qwen3moe", "granitemoe")
NAMES: Final[Mapping[str, str]] = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
"""Hugging Face's names of parts beside the experts to llama.cpp's."""
_EXPERT = re.compile(r"(model\.layers\.\d+\.mlp)\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_PARTS: Final = ("gate", "up", "down")
_FLOATS: Final = ("F32", "F16", "BF16")
_SOFTMAX: Final = 1
"""`expert_gating_func` of llama.cpp; sigmoids and others have numbers of their own."""
_REMEDY: Final = "quantize all of it to Q8_0, Q6_K, Q5_0, Q4_0 or IQ4_NL with llama.cpp, or export its folder"


def place_of(name: str) -> tuple[str, int | None]:
    """Return the name of the tensor that holds a matrix, and its place there; None: the tensor is the matrix.

    Args:
        name: As Hugging Face has it.
    """
    expert = _EXPERT.fullmatch(name)
    if expert is None:
        return name, None
    layer, number, part = expert.groups()
    return f"{layer.replace('model.layers', 'blk').removesuffix('.mlp')}.ffn_{part}_exps.weight", int(number)


def read_experts(
    kind: str, own: Callable[..., Any], tensors: Mapping[str, Any], layers: int, file: Path
) -> Mixture | None:
    """Return the experts that a file tells; None: it has none.

    Args:
        kind: Its `general.architecture`.
        own: Returns an entry of the head under the architecture's name.
        tensors: Of the file, by name.
        layers: As many as the decoder has.
        file: Named in messages.

    Raises:
        InvalidFileError: If a token cannot take so many experts.
        UnsupportedError: If experts are chosen or stored in a way that the engine's op does not have.
    """
    if not (count := int(own("expert_count", 0))):
        return None
    if kind not in KINDS:
        raise UnsupportedError(f"{file}: a {kind} with experts is not read from GGUF", remedy=_REMEDY)
    odd = {
        "expert_gating_func": int(own("expert_gating_func", _SOFTMAX)) != _SOFTMAX,
        "expert_weights_scale": float(own("expert_weights_scale", 1.0)) not in (0.0, 1.0),
        "expert_group_count": int(own("expert_group_count", 1)) > 1,
    }
    if wrong := [name for name, is_odd in odd.items() if is_odd]:
        problem = f"{file}: {kind}.{wrong[0]} = {str(own(wrong[0]))[:40]} is not read from GGUF"
        raise UnsupportedError(problem, remedy="export the Hugging Face folder that it was converted from")
    if merged := next((name for name in tensors if re.fullmatch(r"blk\.\d+\.ffn_\w+\.\d+\.weight", name)), ""):
        problem = f"{file} has a tensor for each expert ({merged}), as llama.cpp wrote them before March 2024"
        raise UnsupportedError(problem, remedy="convert the folder again with today's llama.cpp")
    mixed = [i for i in range(layers) if f"blk.{i}.ffn_gate_inp.weight" in tensors]
    for layer in mixed:
        _require_stored(tensors, layer, file)
    up = tensors.get(f"blk.{mixed[0]}.ffn_up_exps.weight") if mixed else None
    shared = tensors.get(f"blk.{mixed[0]}.ffn_up_shexp.weight") if mixed else None
    mixture = Mixture(
        experts=count,
        chosen=int(own("expert_used_count")),
        inner=0 if up is None else int(up.shape[1]),  # sides are told from the last to the first
        is_normed=kind in _NORMED,
        shared=0 if shared is None else int(shared.shape[1]),
        dense=tuple(i for i in range(layers) if i not in mixed),
    )
    require_mixture(mixture, file)
    return mixture


def _require_stored(tensors: Mapping[str, Any], layer: int, file: Path) -> None:
    """Raise unless the experts of a layer are all floats, or all in blocks that one op reads."""
    parts = [tensors[name] for part in _PARTS if (name := f"blk.{layer}.ffn_{part}_exps.weight") in tensors]
    kinds = _by_kind(parts)
    for kind, name in kinds.items():
        if kind in WITH_LOWS:
            problem = f"blocks of {kind} begin at numbers of their own, for which QMoE has no place"
        elif kind not in _FLOATS and not is_kept(kind):
            problem = f"QMoE reads no blocks of {kind}"
        elif kind in _FLOATS and len({*kinds} - {*_FLOATS}):
            problem = f"it is {kind} beside experts in blocks, which one QMoE does not read"
        else:
            continue
        raise UnsupportedError(f"{file}: {name}: {problem}", remedy=_REMEDY)
    if any(tensor.tensor_type.name not in _FLOATS and int(tensor.shape[0]) < 64 for tensor in parts):
        raise UnsupportedError(f"{file}: rows of {parts[0].name} have fewer than two blocks of 32", remedy=_REMEDY)


def _by_kind(parts: Iterable[Any]) -> dict[str, str]:
    """Return the types of tensors, each with the name of the first that has it."""
    kinds = dict[str, str]()
    for tensor in parts:
        kinds.setdefault(str(tensor.tensor_type.name), str(tensor.name))
    return kinds


def expert_of(data: np.ndarray[Any, Any], place: int | None) -> np.ndarray[Any, Any]:
    """Return one matrix of a tensor, as it is stored; without a place, or beyond its end, the tensor."""
    return data if place is None or data.ndim != 3 or place >= len(data) else data[place]
