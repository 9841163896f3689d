"""A `.gguf` file of llama.cpp: its configuration, its tokenizer, and its weights under Hugging Face's names.

The package `gguf`, of llama.cpp's own project, reads the file and turns blocks into floats. llama.cpp turns neighbours
of a query by their position, where Hugging Face turns the two halves: rows of queries and keys of the type llama are
put back in order here.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; `convert_hf_to_gguf.py` of llama.cpp (names, order).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, Note, UnsupportedError
from edgeopt.export.decoder.gguf.blocks import is_kept, pack_gguf
from edgeopt.export.decoder.gguf.experts import KINDS as WITH_EXPERTS
from edgeopt.export.decoder.gguf.experts import NAMES, expert_of, place_of, read_experts
from edgeopt.export.decoder.gguf.head import require_bounded_head
from edgeopt.export.decoder.granite import PLAIN, Factors
from edgeopt.export.decoder.llama import LlamaConfiguration, require_sizes
from edgeopt.export.decoder.packed import PackedMatrix, kept_notes
from edgeopt.export.decoder.positions import DIVIDED, Positions
from edgeopt.recipes.drafting.generation_drafting import TOKENIZER
from edgeopt.recipes.texts.tokenizer_file import OF_TEKKEN, WORDS
from edgeopt.system.declared.optional import require
from edgeopt.system.disk.files import require_itself
from edgeopt.system.disk.parts import parts_of

_KINDS = ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "olmoe", "granite", "granitemoe")
"""`general.architecture`; Mistral calls itself llama."""
_REMEDY = "download or convert it again"
_OTHER = "edgeopt export hf:FOLDER, of the folder from which it was converted"
_OF_TYPE = re.compile(r"(?:np\.\w+\()?(\d+)\)? is not a valid GGMLQuantizationType")
_MATRIX = 2
_NEIGHBOURS = ("llama", "granite", "granitemoe")
"""Those of which llama.cpp turns neighbours."""
_DIVISORS = "rope_freqs.weight"
"""Tensor of divisors of each pair's frequency, as llama.cpp applies them; Llama 3.1 and later have it."""
_BY_LENGTH = ("rope_factors_long.weight", "rope_factors_short.weight")
"""Two sets of such numbers, of which the length of the context chooses one (Phi-3)."""
_FLOATS = ("F32", "F16", "BF16", "F64")
BLOCK_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    **NAMES,
}
"""Hugging Face's names of parts to llama.cpp's."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_PLURALS = {str: "texts", int: "numbers"}
NORMAL, CONTROL, _OWN = 1, 3, 4
"""Kinds of tokens: text, those that stand for none, and those that a user defined."""
_OF_LLAMA_3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral")
_PATTERNS = {
    "gpt-2": "",
    "olmo": "",
    "smollm": r"\p{N}",
    "refact": r"\p{N}",
    **dict.fromkeys(_OF_LLAMA_3, WORDS.replace("NUMBERS", r"\p{N}{1,3}")),
    "qwen2": WORDS.replace("NUMBERS", r"\p{N}"),
    "tekken": OF_TEKKEN,
}
"""`tokenizer.ggml.pre` to how a text is cut in words, as in llama.cpp (`llama-vocab.cpp`); empty: as GPT-2 does."""
_AS_GPT_2 = ("gpt-2", "olmo", "smollm", "refact")
"""`tokenizer.ggml.pre` whose pattern splits off digits at most; the rest of a text is cut in words as GPT-2 does."""
_BEGIN = (*_OF_LLAMA_3, "tekken")
"""Whole words are tokens at once; texts begin with a first token where the file says nothing else, as in llama.cpp."""


class GgufFile:
    """One open file; its tensors are turned into floats as they are asked for."""

    def __init__(self, file: Path) -> None:
        """Read the head.

        Raises:
            MissingDependencyError: If the package is not installed.
            InvalidFileError: If it is no such file.
            UnsupportedError: If it is of a type that is not written here.
        """
        self._parts = parts_of(file, remedy="name a .gguf file")
        require_itself(file)
        package = require("gguf", extra="gguf", purpose="reading a .gguf file")
        self._dequantize = require("gguf.quants", extra="gguf", purpose="reading a .gguf file").dequantize
        self.file = file
        try:
            require_bounded_head(file)
            self._reader = package.GGUFReader(file)
            self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        except Exception as error:  # the package raises whatever its arithmetic on a damaged file ends in
            text = _OF_TYPE.sub(r"\1 is no type of weights that the package gguf knows", str(error))[:120]
            raise InvalidFileError(f"{file} is no GGUF file: {text}", remedy=_REMEDY) from error
        self._kind = str(self._told("general.architecture", ""))
        if self._kind not in _KINDS:
            raise UnsupportedError(
                f"{file}: a {self._kind[:40] or 'file without a type'} is not written here",
                remedy=f"those are: {', '.join(_KINDS)}",
            )
        self._require_plain()
        self._config = self._configuration()
        if self._own("rope.dimension_count", self._config.head) != self._config.head:
            raise UnsupportedError(
                f"{file} turns a part of each head by its position, which is not read from GGUF", remedy=_OTHER
            )
        self._kept, self._read = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)

    @property
    def config(self) -> LlamaConfiguration:
        """Sizes, positions, first and end token."""
        return self._config

    def __contains__(self, name: str) -> bool:
        return gguf_name(name) in self._tensors

    def read(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return one tensor in float32.

        Args:
            name: As Hugging Face has it.
            shape: That it must have.

        Raises:
            InvalidFileError: If it is not there, of another shape, or holds NaN or infinity.
            UnsupportedError: If the package does not know its blocks.
        """
        stored = self._tensor(name)
        if stored.tensor_type.name not in _FLOATS:
            self._read[stored.tensor_type.name].add(stored.name)
        made = self._floats(stored, place_of(name)[1])
        if len(shape) == _MATRIX and shape[0] == 1 and made.ndim == 1:  # a gate of one row
            made = made[None]
        self._require_shape(stored.name, made.shape, shape)
        if not np.isfinite(made).all():
            raise InvalidFileError(f"{self.file}: {stored.name} holds NaN or infinity", remedy=_REMEDY)
        heads = self._turned_heads(name)
        return _halves(made, heads) if heads else made

    def packed(self, name: str, shape: tuple[int, ...]) -> PackedMatrix | None:
        """Return a matrix as the file stores it, its integers and scales; None: it is read in floats.

        Args:
            name: As Hugging Face has it.
            shape: That it must have.

        Raises:
            InvalidFileError: If it is not there, of another shape, or has scales that are no numbers.
        """
        stored = self._tensor(name)
        place = place_of(name)[1]
        if not expert_of(stored.data, place).ndim == len(shape) == _MATRIX or not is_kept(stored.tensor_type.name):
            return None
        made = pack_gguf(self._raw(stored, place), stored.tensor_type.name)
        if made is None:
            return None
        self._require_shape(stored.name, (made.outputs, made.inputs), shape)
        if not all(np.isfinite(array).all() for array in (made.blocks.scale, made.low) if array is not None):
            raise InvalidFileError(f"{self.file}: {stored.name} holds NaN or infinity", remedy=_REMEDY)
        self._kept[stored.tensor_type.name].add(stored.name)
        heads = self._turned_heads(name)
        return made.rows(_halves(np.arange(made.outputs), heads)) if heads else made

    @property
    def has_blocks(self) -> bool:
        """Whether any matrix is stored in blocks that are kept."""
        return any(is_kept(tensor.tensor_type.name) for tensor in self._tensors.values())

    @property
    def notes(self) -> tuple[Note, ...]:
        """Which matrices were kept in their blocks so far, and which were read as floats only."""
        return kept_notes(self._kept, self._read)

    def _tensor(self, name: str) -> Any:
        stored = self._tensors.get(gguf_name(name))
        if stored is None:
            raise InvalidFileError(f"{self.file} lacks the weights {gguf_name(name)}", remedy=_REMEDY)
        if not stored.data.size:
            raise InvalidFileError(f"{self.file}: {stored.name} is empty", remedy=_REMEDY)
        return stored

    def _raw(self, stored: Any, place: int | None) -> NDArray[Any]:
        """Return a tensor, or one matrix of it, as it is stored: read, as the package's own array is a mapped file."""
        mapped = expert_of(stored.data, place)
        before = mapped.ctypes.data - stored.data.ctypes.data
        raw = self._parts.read(int(stored.data_offset) + before, mapped.nbytes)
        data: NDArray[Any] = np.frombuffer(raw, mapped.dtype)
        return data.reshape(mapped.shape)

    def _floats(self, stored: Any, place: int | None = None) -> NDArray[np.float32]:
        """Return the floats of a tensor, or of one matrix of it."""
        try:
            return np.ascontiguousarray(self._dequantize(self._raw(stored, place), stored.tensor_type), np.float32)
        except NotImplementedError as error:
            raise UnsupportedError(
                f"{self.file}: {stored.name} is {stored.tensor_type.name}, which is not read",
                remedy="convert it to Q8_0 or F16",
            ) from error

    def _require_shape(self, name: str, here: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if here != shape:
            text = f"{'x'.join(map(str, here))}, not {'x'.join(map(str, shape))}"
            raise InvalidFileError(f"{self.file}: {name} is {text}", remedy=_REMEDY)

    def _turned_heads(self, name: str) -> int:
        """Return how many heads' rows llama.cpp orders as neighbours; 0: none, rows are as Hugging Face has them."""
        part = re.search(r"self_attn\.([qk])_proj", name) if self._kind in _NEIGHBOURS else None
        return 0 if part is None else self._config.heads if part[1] == "q" else self._config.kv_heads

    def write_tokenizer(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` as Hugging Face has them.

        Raises:
            UnsupportedError: If the file's tokenizer is no byte-level BPE whose words are known here.
            InvalidFileError: If its tables are missing, or the file changed.
        """
        self._parts.require_same()  # its tables are read from a mapped file
        kind, words = str(self._told("tokenizer.ggml.model", "no")), str(self._told("tokenizer.ggml.pre", "gpt-2"))
        if kind != "gpt2" or words not in _PATTERNS:
            text = "SentencePiece's" if kind == "llama" else f"{kind[:40]}, cut as {words[:40]}"
            raise UnsupportedError(
                f"{self.file}: its tokenizer is {text}, which is not read from GGUF",
                remedy=_OTHER,
            )
        tokens, merges = self._list("tokenizer.ggml.tokens", str), self._list("tokenizer.ggml.merges", str)
        kinds = self._list("tokenizer.ggml.token_type", int, []) or [NORMAL] * len(tokens)
        if len(kinds) != len(tokens):
            text = f"{self.file} has {len(tokens)} tokens, and tells the kinds of {len(kinds)}"
            raise InvalidFileError(text, remedy=_REMEDY)
        marked = {number for number, kind in enumerate(kinds) if kind in (CONTROL, _OWN)}
        added = [
            {"id": i, "content": tokens[i], "special": kinds[i] == CONTROL, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}
            for i in sorted(marked)
        ]  # fmt: skip
        split = {"type": "Split", "pattern": {"Regex": _PATTERNS[words]}, "behavior": "Isolated", "invert": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
        last = level | {"use_regex": words in _AS_GPT_2}
        model = {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens) if i not in marked},
            "merges": merges,
        }
        values = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "NFC"} if words == "qwen2" else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, last]} if _PATTERNS[words] else last,
            "decoder": level | {"use_regex": True},
            "model": model | {"ignore_merges": words in _BEGIN},
        }
        (folder / TOKENIZER).write_text(json.dumps(values, ensure_ascii=False), "utf-8")
        begins = self._told("tokenizer.ggml.add_bos_token", words in _BEGIN)
        settings: dict[str, Any] = {"add_bos_token": bool(begins)}
        if template := self._told("tokenizer.chat_template", ""):
            settings["chat_template"] = str(template)
            for name, key in (("bos_token", "bos_token_id"), ("eos_token", "eos_token_id")):
                number = self._told(f"tokenizer.ggml.{key}", None)
                if number is not None and 0 <= int(number) < len(tokens):
                    settings[name] = tokens[int(number)]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")

    def _require_plain(self) -> None:
        """Raise where weights lie in other files too, or layers are others than those that are written here."""
        if self._told("split.count", 0) not in (0, 1):
            raise UnsupportedError(
                f"{self.file} is one of several files of a model",
                remedy="join them with llama.cpp: llama-gguf-split --merge FIRST.gguf WHOLE.gguf",
            )
        if by_length := next((name for name in _BY_LENGTH if name in self._tensors), ""):
            raise UnsupportedError(
                f"{self.file} scales its positions by the length of a text ({by_length}), which is not read from GGUF",
                remedy=_OTHER,
            )
        if _DIVISORS in self._tensors and self._kind != "llama":  # llama.cpp reads it of no other type
            raise UnsupportedError(f"{self.file}: {_DIVISORS} of a {self._kind} is not read from GGUF", remedy=_OTHER)
        if str(self._own("rope.scaling.type", "none")) != "none" or self._own("rope.scale_linear", 1) != 1:
            raise UnsupportedError(f"{self.file} scales its positions, which is not read from GGUF", remedy=_OTHER)

    def _configuration(self) -> LlamaConfiguration:
        try:
            heads, hidden = int(self._own("attention.head_count")), int(self._own("embedding_length"))
            head = int(self._own("attention.key_length", hidden // heads))
            context = int(self._own("context_length"))
            end, begin = (self._told(f"tokenizer.ggml.{name}_token_id", None) for name in ("eos", "bos"))
            layers = int(self._own("block_count"))
            mixture = read_experts(self._kind, self._own, self._tensors, layers, self.file)
            configuration = LlamaConfiguration(
                kind=self._kind if mixture is None else WITH_EXPERTS[self._kind],
                vocabulary=int(self._tensors["token_embd.weight"].shape[1]),
                hidden=hidden,
                inner=int(self._own("feed_forward_length")) or (mixture.inner if mixture else 0),
                layers=layers,
                heads=heads,
                kv_heads=int(self._own("attention.head_count_kv", heads)),
                head=head,
                epsilon=float(self._own("attention.layer_norm_rms_epsilon")),
                positions=self._positions(head),
                context=context,
                is_tied="output.weight" not in self._tensors,
                window=int(self._own("attention.sliding_window", 0)),
                end=() if end is None else (int(end),),
                begin=() if begin is None else (int(begin),),
                mixture=mixture,
                factors=self._factors(),
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError) as error:
            raise InvalidFileError(
                f"{self.file} lacks a size, or holds no number there: {error}", remedy=_REMEDY
            ) from error
        require_sizes(configuration, self.file)
        return configuration

    def _positions(self, head: int) -> Positions:
        """Return how positions turn heads of so many numbers.

        Raises:
            InvalidFileError: If the divisors are not one above 0 for each pair.

        Source: llama.cpp, `convert_hf_to_gguf.py` (written for `llama3`) and `ggml_rope_ext` (`freq_factors`).
        """
        theta = float(self._own("rope.freq_base", 10000.0))
        if _DIVISORS not in self._tensors:
            return Positions(theta)
        divisors = self._floats(self._tensors[_DIVISORS])
        self._require_shape(_DIVISORS, divisors.shape, (head // 2,))
        if not (np.isfinite(divisors) & (divisors > 0)).all():
            raise InvalidFileError(f"{self.file}: {_DIVISORS} holds numbers that are not above 0", remedy=_REMEDY)
        return Positions(theta, DIVIDED, divisors=tuple(divisors.tolist()))

    def _factors(self) -> Factors:
        """Return what a Granite multiplies; another type has no such entries.

        Source: llama.cpp, `src/models/granite.cpp` and `GraniteModel` of `convert_hf_to_gguf.py`.
        """
        if "granite" not in self._kind:
            return PLAIN
        embedding, residual = (float(self._own(f"{name}_scale", 0.0)) or 1.0 for name in ("embedding", "residual"))
        return Factors(
            embedding, residual, float(self._own("attention.scale", 0.0)), 1 / float(self._own("logit_scale"))
        )

    def _own(self, name: str, *other: Any) -> Any:
        return self._told(f"{self._kind}.{name}", *other)

    def _told(self, name: str, *other: Any) -> Any:
        """Return what the head says; without another value it must say it.

        Raises:
            InvalidFileError: If it does not.
        """
        field = self._reader.fields.get(name)
        if field is not None:
            try:
                return field.contents()
            except ValueError as error:
                raise InvalidFileError(f"{self.file}: {name} is no text in UTF-8", remedy=_REMEDY) from error
        if not other:
            raise InvalidFileError(f"{self.file} does not tell {name}", remedy=_REMEDY)
        return other[0]

    def _list(self, name: str, kind: type, *other: list[Any]) -> list[Any]:
        """Return what the head says as a list.

        Raises:
            InvalidFileError: If it is none, or its values are no texts or numbers, as `kind` asks.
        """
        values = self._told(name, *other)
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise InvalidFileError(f"{self.file}: {name} is no list of {_PLURALS[kind]}", remedy=_REMEDY)
        return values


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor; of an expert, that of the tensor of all of a layer."""
    name, place = place_of(name)
    if place is not None:
        return name
    body, _, end = name.rpartition(".")
    layer = _LAYER.fullmatch(body)
    inner = layer[2] if layer else body
    theirs = BLOCK_NAMES.get(inner, inner)
    return f"blk.{layer[1]}.{theirs}.{end}" if layer else f"{theirs}.{end}"


def _halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Return rows of neighbouring pairs as two halves of each head."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))
