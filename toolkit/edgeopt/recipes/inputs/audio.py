"""The table `[audio]` of a recipe: how a sound becomes a model's input."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from edgeopt.system.toml import Within

Samples = Annotated[int, Within(0, 2**26)]
Hertz = Annotated[float, Within(0, 384_000)]


class Features(StrEnum):
    """The features that a model hears, by whose convention; see `recipes/inputs/features.py`."""

    WAVEFORM = "waveform"
    """The samples themselves."""
    WHISPER = "whisper"
    """OpenAI's log-mel: 400 samples every 160, 80 bands."""
    TORCHAUDIO = "torchaudio"
    """`torchaudio.transforms.MelSpectrogram`."""
    LIBROSA = "librosa"
    """`librosa.feature.melspectrogram`, in decibels."""
    KALDI = "kaldi"
    """`torchaudio.compliance.kaldi.fbank`, without dither."""
    TORCHAUDIO_MFCC = "torchaudio_mfcc"
    """`torchaudio.transforms.MFCC`."""
    LIBROSA_MFCC = "librosa_mfcc"
    """`librosa.feature.mfcc`."""


class Log(StrEnum):
    """The logarithm that is taken of the power of a band."""

    USUAL = "usual"
    """As the convention has it."""
    LN = "ln"
    LOG10 = "log10"
    DECIBEL = "db"
    NONE = "none"


class Pad(StrEnum):
    """Where zeros go when a sound is shorter than a window."""

    END = "end"
    START = "start"
    BOTH = "both"
    FEATURES = "features"
    """At the end, and features of what is missing are 0 before `mean` and `std`: an Audio Spectrogram Transformer's."""


class Window(StrEnum):
    """The window that a frame is multiplied by before its transform."""

    USUAL = "usual"
    """As the convention has it."""
    HANN = "hann"
    HAMMING = "hamming"


class Edges(StrEnum):
    """The samples that frames see beyond the ends of a window of sound."""

    USUAL = "usual"
    """As the convention has it."""
    REFLECT = "reflect"
    """The sound mirrored, so that the first frame has its middle at the first sample."""
    ZEROS = "zeros"
    """Silence instead."""
    INSIDE = "inside"
    """Nothing: frames lie inside (`center=False`)."""


class Scaling(StrEnum):
    """How features are brought to one scale, after `mean` and `std`."""

    NONE = "none"
    EACH = "each"
    """Each band by its own mean and deviation over the window."""
    WHOLE = "whole"
    """All by their mean and deviation over the window."""


@dataclass(frozen=True, slots=True)
class Audio:
    """Sound to tensor. Lengths are in samples at `rate_hz`; 0 stands for the convention's own."""

    rate_hz: Annotated[int, Within(0, 384_000)] = 0
    """The model's; sounds of another rate are resampled. 0: the recipe takes no sounds."""
    features: Features = Features.WAVEFORM
    samples: Samples = 0
    """Samples of one window; 0: as many as the model's input has."""
    hop: Samples = 0
    """Samples from the beginning of one window to that of the next; 0: a sound is one window, cut or padded."""
    context: Samples = 0
    """Samples before the window that the model hears again in front of it; zeros at the beginning of a sound."""
    pad: Pad = Pad.END
    scale: Annotated[float, Within(1e-9, 1e9)] = 1.0
    """Factor of samples, which lie within -1 and 1: 32768 for a model of 16-bit numbers."""
    normalise: bool = False
    """Whether the samples of a window are brought to mean 0 and deviation 1 before their features are taken."""
    fft: Annotated[int, Within(0, 2**16)] = 0
    frame: Samples = 0
    """Samples under the window function."""
    step: Samples = 0
    """Samples from frame to frame."""
    window: Window = Window.USUAL
    edges: Edges = Edges.USUAL
    bands: Annotated[int, Within(0, 512)] = 0
    """Bands of the mel scale."""
    coefficients: Annotated[int, Within(0, 512)] = 0
    """Coefficients of MFCC."""
    low_hz: Hertz = 0.0
    high_hz: Hertz = 0.0
    log: Log = Log.USUAL
    floor: Annotated[float, Within(0, 1)] = 0.0
    """The least power of which the logarithm is taken."""
    offset: Annotated[float, Within(0, 1)] = 0.0
    """Added to the power before the logarithm."""
    relative: bool = False
    """Whether decibels are told below the loudest band of the window (`ref=np.max` of librosa)."""
    mean: Annotated[float, Within(-1e6, 1e6)] = 0.0
    std: Annotated[float, Within(1e-9, 1e9)] = 1.0
    """Features become (feature - mean) / std."""
    scaling: Scaling = Scaling.NONE

    def __post_init__(self) -> None:
        if self.features is not Features.WAVEFORM and self.rate_hz and not self.samples:
            raise ValueError("samples is missing: how many samples of sound make one input of features")
        if self.pad is Pad.FEATURES and (self.features is Features.WAVEFORM or self.hop):
            raise ValueError('pad = "features" is for features of whole sounds: write pad = "end"')
        if self.normalise and self.features is Features.WAVEFORM:
            raise ValueError('normalise is for features: write scaling = "whole" for the samples themselves')
        if self.high_hz and self.high_hz <= self.low_hz:
            raise ValueError(f"high_hz is {self.high_hz:g}, not above low_hz {self.low_hz:g}")
        if self.rate_hz and self.high_hz > self.rate_hz / 2:
            raise ValueError(f"high_hz is {self.high_hz:g}, above half of rate_hz {self.rate_hz}")
        if self.hop > self.samples > 0:
            raise ValueError(f"hop is {self.hop}, above samples {self.samples}: sound between would never be heard")

    @property
    def streams(self) -> bool:
        """Whether a sound is heard window by window."""
        return self.hop > 0
