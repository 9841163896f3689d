"""Sounds as `preprocessor_config.json` of Hugging Face describes them: for Whisper, Wav2Vec2 and AST."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.inputs.audio import Audio, Features, Pad, Scaling, Window

_FFT, _STEP = 400, 160
"""Samples of a frame, and from one to the next, of Whisper's and AST's features; no others of their kind are made."""
_RATE = 16_000


def audio_told(processor: Mapping[str, Any], spec: TensorSpec) -> Audio | None:
    """Return the table `[audio]` for the input of a model; None where the processor is another, or fits no such input.

    Args:
        processor: Settings, as `feature_extractor_type` of one of them names it.
        spec: Of the input.
    """
    rate = processor.get("sampling_rate")
    sizes = [size for size in spec.shape[1:] if isinstance(size, int)]
    if not isinstance(rate, int) or rate <= 0 or len(sizes) != len(spec.shape) - 1:
        return None
    kind = processor.get("feature_extractor_type")
    if kind == "WhisperFeatureExtractor" and len(sizes) == 2:
        bands, frames = sizes
        told = processor.get("n_fft", _FFT), processor.get("hop_length", _STEP), processor.get("feature_size", bands)
        if told == (_FFT, _STEP, bands):
            evens = bool(processor.get("do_normalize", False))
            return Audio(rate, Features.WHISPER, samples=frames * _STEP, bands=bands, normalise=evens)
    if kind == "Wav2Vec2FeatureExtractor" and len(sizes) == 1:
        scaling = Scaling.WHOLE if processor.get("do_normalize", True) else Scaling.NONE
        return Audio(rate_hz=rate, samples=sizes[0], scaling=scaling)
    if kind == "ASTFeatureExtractor" and sizes == [processor.get("max_length"), processor.get("num_mel_bins")]:
        return _of_ast(processor, rate, *sizes)
    return None


def _of_ast(processor: Mapping[str, Any], rate: int, frames: int, bands: int) -> Audio | None:
    """Return how the Audio Spectrogram Transformer hears: Kaldi's bands under a Hann window, (x - mean) / (2 std)."""
    if rate != _RATE:  # frames of 25 ms every 10 are written here in samples
        return None
    does_scale = processor.get("do_normalize", True)
    mean, std = (float(processor.get(one, 0.0 if one == "mean" else 0.5)) for one in ("mean", "std"))
    scaled = {"mean": mean, "std": 2 * std} if does_scale else {}
    samples = _FFT + (frames - 1) * _STEP
    how = {"window": Window.HANN, "pad": Pad.FEATURES}
    return Audio(rate, Features.KALDI, samples=samples, bands=bands, **how, **scaled)  # type: ignore[arg-type]
