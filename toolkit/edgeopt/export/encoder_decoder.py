"""An encoder with its decoder from a Hugging Face folder: traced by torch as two graphs, and compared with it.

The encoder gives keys and values of what it heard for every layer of the decoder; the decoder takes them, and a cache
of its own answer. What only the other of them computes is left out of a graph, as no output hangs on it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.cross_decoder import LOOKS, SEEN, CrossCache, CrossDecoder, encoded
from edgeopt.executors.onnxruntime.decoder import IDS, LOGITS, MASK
from edgeopt.executors.onnxruntime.optimizers import UNOPTIMIZED
from edgeopt.export.decoder.folder import TEXTS, TOLERANCE
from edgeopt.export.from_torch import said
from edgeopt.export.quiet import quiet_export
from edgeopt.export.to_onnx import forget_traces
from edgeopt.export.whole_network import open_whole
from edgeopt.graph.drift import Drift, measure_drift, worst_drift
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, save_model
from edgeopt.recipes.texts.encoder_decoder import DECODER, ENCODER, KINDS, configurations, read_encoder_decoder
from edgeopt.steps.convert.encoder_decoder_pair import Pair
from edgeopt.system.disk.files import read_file, write_beside

_OPSET = 20
_TOKENS, _PAST, _ROWS = 3, 5, 7
"""Tokens, past and rows of the trace: torch takes 0 and 1 for fixed, and equal sizes for one."""
_FEATURES, _HIDDEN = "input_features", "last_hidden_state"
_CLASSES = ("ForConditionalGeneration", "MTModel")
_REMEDY = "export it with optimum-cli export onnx, and name the folder that it writes"
_LENGTH, _FIRST = 12, 4
"""Tokens of the answers that are compared, and those that go in at once."""
_MOST_BYTES = 128 << 20
_TOKENIZER = "tokenizer.json"
_PROCESSOR, _GENERATION = "preprocessor_config.json", "generation_config.json"


@dataclass(frozen=True, slots=True)
class WrittenPair:
    """Both graphs in a folder, and what answers for them."""

    pair: Pair
    folder: Path
    beside: tuple[Path, ...]
    drift: Drift
    """Drift of its logits, the worst of a few answers."""
    vocabulary: int
    framework: str
    hears: bool
    """Sounds; else it reads texts."""


def is_encoder_with_decoder(folder: Path) -> bool:
    """Return whether a folder of Hugging Face holds a network that hears or reads and then writes, with its tokenizer.

    Without one its decoder's tokens are no text: the encoder alone is exported then, with a note.
    """
    if not (folder / _TOKENIZER).is_file():
        return False
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
        named = str((values.get("architectures") or [""])[0])
        return values.get("model_type") in KINDS and named.endswith(_CLASSES)
    except (OSError, ValueError, AttributeError, TypeError, LookupError, RecursionError):
        return False


def write_encoder_decoder(source: Path, folder: Path, name: str, *, word_times: bool = False) -> WrittenPair:
    """Write both graphs with configurations and tokenizer beside them.

    Args:
        source: A folder of `save_pretrained`, with `tokenizer.json`.
        folder: Created when absent; nothing is written where the graphs answer differently.
        name: Of the model.
        word_times: Whether the decoder tells where some heads look, by which words get their times.

    Raises:
        MissingDependencyError: If torch, onnxscript or transformers is not installed.
        InvalidFileError: If a file of the source is damaged or missing.
        UnsupportedError: If torch cannot export it, the graphs answer differently, or it hears no words.
    """
    opened = TracedPair(source, word_times=word_times)
    pair = opened.traced()
    drift = _compare(pair, opened, name)
    kept = (*configurations(source), source / _TOKENIZER)
    files = {path.name: read_file(path, remedy=_REMEDY, most_bytes=_MOST_BYTES) for path in kept}
    files |= {file: configuration for file, configuration in opened.configurations().items() if file not in files}
    for file, content in files.items():
        if not (folder / file).exists() or not (folder / file).samefile(source / file):
            write_beside(folder / file, content)
    save_model(pair.encoder, folder / ENCODER)
    save_model(pair.decoder, folder / DECODER)
    read_encoder_decoder(folder)  # which says what of it is not run here
    beside = (folder / DECODER, *(folder / other for other in files))
    return WrittenPair(pair, folder, beside, drift, opened.vocabulary, opened.framework, opened.hears)


class TracedPair:
    """An encoder with its decoder that is open in transformers, in float32."""

    def __init__(self, folder: Path, *, word_times: bool = False) -> None:
        """Open a folder of `save_pretrained`; no code beside the weights is run.

        Args:
            folder: Of the model.
            word_times: Whether the decoder tells where some heads look, by which words get their times.

        Raises:
            MissingDependencyError: If torch, onnxscript or transformers is not installed.
            InvalidFileError: If transformers does not open it, or weights are missing.
            UnsupportedError: If times of words are asked of a model that hears nothing.
        """
        named = json.loads((folder / "config.json").read_text("utf-8"))["architectures"][0]
        whole = open_whole(folder, named)
        module = whole.module
        self._torch, self._transformers, self.framework = whole.torch, whole.transformers, whole.framework
        self._module, self.folder = module, folder
        self.hears = module.main_input_name == _FEATURES
        if word_times and not self.hears:
            raise UnsupportedError(f"{folder} hears no words", remedy="leave --word-times out")
        self.heads = self._alignment_heads() if word_times else {}
        """Heads that look at the sound of the next token, by their layer; none: nobody asked."""

    @property
    def vocabulary(self) -> int:
        """Logits of a token."""
        return int(self._module.config.vocab_size)

    def configurations(self) -> dict[str, bytes]:
        """Return what transformers fills in where a folder has no such file, by its name."""
        result = {_GENERATION: self._module.generation_config.to_json_string()}
        if self.hears and not (self.folder / _PROCESSOR).is_file():
            maker = self._transformers.AutoFeatureExtractor.from_pretrained(self.folder, local_files_only=True)
            result[_PROCESSOR] = maker.to_json_string()
        return {name: text.encode() for name, text in result.items()}

    def source(self, seed: int, rows: int) -> dict[str, NDArray[Any]]:
        """Return what is heard or read, made up: one window of features, or so many tokens."""
        chance = np.random.default_rng(seed)
        if self.hears:
            config = self._module.config
            frames = 2 * int(config.max_source_positions)
            return {_FEATURES: chance.standard_normal((1, config.num_mel_bins, frames)).astype(np.float32)}
        return {IDS: chance.integers(0, self.vocabulary, (1, rows)), MASK: np.ones((1, rows), np.int64)}

    def logits(self, source: dict[str, NDArray[Any]], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (tokens, vocabulary) behind each token of an answer, computed by torch at once."""
        values = {name: self._torch.from_numpy(array) for name, array in source.items()}
        with self._torch.no_grad():
            answer = self._module(**values, decoder_input_ids=self._torch.tensor([list(tokens)]))
            logits: NDArray[np.float32] = answer.logits[0].numpy()
        return logits

    def looks(self, source: dict[str, NDArray[Any]], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return (heads, tokens, rows) where `heads` look behind each token, computed by torch at once."""
        torch = self._torch
        with quiet_export(torch), torch.no_grad():
            crossing = self._encoder()(*(torch.from_numpy(array) for array in source.values()))[1:]
            own = [value[:, :, :0] for value in crossing]
            ids = torch.tensor([list(tokens)])
            looks: NDArray[np.float32] = self._decoder(len(crossing))(ids, *own, *crossing)[-1][0].numpy()
        return looks

    def _alignment_heads(self) -> dict[int, list[int]]:
        """Return the heads that `generation_config.json` names; else all of the upper half of layers."""
        config = self._module.config
        layers, count = int(config.decoder_layers), int(config.decoder_attention_heads)
        told = getattr(self._module.generation_config, "alignment_heads", None)
        pairs = told or [(layer, head) for layer in range(layers // 2, layers) for head in range(count)]
        heads = dict[int, list[int]]()
        for layer, head in pairs:
            if not (0 <= layer < layers and 0 <= head < count):
                text = f"{self.folder / _GENERATION}: alignment_heads names head {head} of layer {layer}"
                raise UnsupportedError(f"{text}, which the decoder has not", remedy="copy the folder again")
            heads.setdefault(int(layer), []).append(int(head))
        return heads

    def traced(self) -> Pair:
        """Return both graphs, with the names of inputs and outputs that optimum gives.

        Raises:
            UnsupportedError: If torch cannot export them.
        """
        torch, free = self._torch, self._torch.export.Dim.DYNAMIC
        source = tuple(torch.from_numpy(array) for array in self.source(0, _ROWS).values())
        encoder = self._encoder()
        with torch.no_grad():
            crossing = encoder(*source)[1:]
        count, (heads, rows, size) = len(crossing), crossing[0].shape[1:]
        cross, own = _names(count, "encoder"), _names(count, "decoder")
        axes: tuple[Any, ...] = (({},) if self.hears else ({1: free}, {1: free}),)
        names = [_FEATURES] if self.hears else [IDS, MASK]
        made = self._exported(encoder, source, axes, names, [_HIDDEN, *(f"present.{name}" for name in cross)])
        mask = () if self.hears else (torch.ones(1, rows, dtype=torch.int64),)
        past = [torch.ones(1, heads, _PAST, size) for _ in own]
        given = (
            torch.arange(_TOKENS)[None] % self.vocabulary,
            *mask,
            *past,
            *(torch.ones_like(value) for value in crossing),
        )
        along = {} if self.hears else {2: free}
        axes = ({1: free}, (*({1: free} for _ in mask), *({2: free} for _ in own), *(along for _ in cross)))
        names = [IDS, *(SEEN for _ in mask), *(f"past_key_values.{name}" for name in (*own, *cross))]
        decoder = self._exported(
            self._decoder(count),
            given,
            axes,
            names,
            [LOGITS, *(f"present.{name}" for name in own), *([LOOKS] if self.heads else [])],
        )
        return Pair(Model(made, ENCODER), Model(decoder, DECODER))

    def _exported(
        self, module: Any, given: tuple[Any, ...], axes: Any, inputs: list[str], outputs: list[str]
    ) -> onnx.ModelProto:
        torch = self._torch
        with quiet_export(torch):
            try:
                made = torch.export.export(module, given, dynamic_shapes=axes, strict=False)
                exported = torch.onnx.export(
                    made, dynamo=True, opset_version=_OPSET, input_names=inputs, output_names=outputs, verbose=False
                )
            except Exception as error:
                kind, why = self._module.config.model_type, said(error.__cause__ or error)
                raise UnsupportedError(f"a {kind} is not exported: torch cannot: {why}", remedy=_REMEDY) from error
        proto: onnx.ModelProto = exported.model_proto
        forget_traces(proto)
        require_valid(proto, inputs[0])
        graph = Graph.from_model(Model(proto, "traced"))
        graph.remove_unused()
        made = graph.to_model().proto
        _name_axes(made)
        return made

    def _encoder(self) -> Any:
        """Return a module that gives what the encoder gives, and keys and values of it."""
        torch, module, hears = self._torch, self._module, self.hears

        class WithCross(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner = module

            def forward(self, *given: Any) -> tuple[Any, ...]:
                seen = {} if hears else {MASK: given[1]}
                heard = self.inner.get_encoder()(given[0], **seen).last_hidden_state
                first = torch.zeros(1, 1, dtype=torch.int64)
                answer = self.inner(encoder_outputs=(heard,), decoder_input_ids=first, use_cache=True, **seen)
                layers = answer.past_key_values.cross_attention_cache.layers
                return (heard, *(value for layer in layers for value in (layer.keys, layer.values)))

        return WithCross().eval()

    def _decoder(self, count: int) -> Any:
        """Return a module that takes and gives the cache as single tensors: `count` of each kind."""
        torch, module, hears = self._torch, self._module, self.hears
        caches, heads = self._transformers.cache_utils, self.heads

        class DecoderWithCache(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner = module
                self.queries = dict[int, Any]()
                for layer in heads:
                    matrix = module.model.decoder.layers[layer].encoder_attn.q_proj
                    matrix.register_forward_hook(partial(self._keep, layer))

            def _keep(self, layer: int, _matrix: Any, _given: Any, queries: Any) -> None:
                self.queries[layer] = queries

            def _looks(self, keys: Sequence[Any]) -> Any:
                """Return (1, heads, tokens, rows): how much each named head looks at each row."""
                shares = list[Any]()
                for layer, chosen in heads.items():
                    key = keys[layer][:, chosen]
                    rows = self.queries[layer].unflatten(-1, (-1, key.shape[-1])).transpose(1, 2)[:, chosen]
                    scores = rows @ key.transpose(-1, -2) * key.shape[-1] ** -0.5
                    shares.append(torch.softmax(scores, dim=-1))
                return torch.cat(shares, dim=1)

            def forward(self, input_ids: Any, *given: Any) -> tuple[Any, ...]:
                seen = {} if hears else {MASK: given[0]}
                past = given[len(seen) :]
                own, cross = caches.DynamicCache(), caches.DynamicCache()
                for i in range(count // 2):
                    own.update(past[2 * i], past[2 * i + 1], i)
                    cross.update(past[count + 2 * i], past[count + 2 * i + 1], i)
                cache = caches.EncoderDecoderCache(own, cross)
                for i in range(count // 2):
                    cache.is_updated[i] = True
                heard = torch.zeros(1, past[count].shape[2], self.inner.config.d_model)  # its values are not read
                answer = self.inner(
                    encoder_outputs=(heard,),
                    decoder_input_ids=input_ids,
                    past_key_values=cache,
                    use_cache=True,
                    **seen,
                )
                layers = answer.past_key_values.self_attention_cache.layers
                present = [value for layer in layers for value in (layer.keys, layer.values)]
                return (answer.logits, *present, *([self._looks(past[count::2])] if heads else []))

        return DecoderWithCache().eval()


def _name_axes(proto: onnx.ModelProto) -> None:
    """Give free dimensions names that a reader knows, in place of `s34`."""
    names = dict[str, str]()
    for value in proto.graph.input:
        heard = value.name in (SEEN, MASK) or ".encoder." in value.name
        text = "past" if ".decoder." in value.name else "heard" if heard else "sequence"
        names |= {dim.dim_param: text for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _names(count: int, part: str) -> list[str]:
    return [f"{i}.{part}.{one}" for i in range(count // 2) for one in ("key", "value")]


def _compare(pair: Pair, opened: TracedPair, name: str) -> Drift:
    """Return how far logits lie from torch's, the worst of a few made-up sounds or texts with made-up answers.

    Raises:
        UnsupportedError: If they lie further apart than `TOLERANCE`.
    """
    as_written = SessionOptions(entries=UNOPTIMIZED)
    encoder, decoder = (EXECUTOR.open(model.source, as_written) for model in (pair.encoder, pair.decoder))
    drifts = list[Drift]()
    try:
        cache = CrossCache(decoder.inputs)
        for seed in range(TEXTS):
            source = opened.source(seed, _ROWS + 2 * seed)
            tokens = np.random.default_rng(seed).integers(0, opened.vocabulary, _LENGTH).tolist()
            heard = encoded(encoder.engine, source, list(cache.cross.values()))
            cross_decoder = CrossDecoder(decoder.engine, decoder.engine, cache, heard, _LENGTH)
            logits = [cross_decoder.run(tokens[:_FIRST]), *(cross_decoder.run([token]) for token in tokens[_FIRST:])]
            expected = opened.logits(source, tokens)
            drifts.append(measure_drift({LOGITS: expected}, {LOGITS: np.concatenate(logits)}))
            if opened.heads:
                drifts.append(
                    measure_drift({LOOKS: opened.looks(source, tokens)}, {LOOKS: cross_decoder.looks(tokens)})
                )
    finally:
        encoder.close()
        decoder.close()
    worst = worst_drift(drifts)
    if not worst.is_within(TOLERANCE):
        raise UnsupportedError(
            f"the graphs of {name} answer differently than transformers: {worst.worst_db:.0f} dB", remedy=_REMEDY
        )
    return worst
