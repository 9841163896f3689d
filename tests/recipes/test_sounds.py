"""Sounds from files: every kind of WAV, another rate, windows of a stream, labels; wrong ones in one line."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.measurement.accuracy.evaluate import open_labelled
from edgeopt.recipes.inputs.audio import Audio, Pad
from edgeopt.recipes.inputs.frames import open_frames
from edgeopt.recipes.inputs.resampling import resampled
from edgeopt.recipes.inputs.sound_input import window_of
from edgeopt.recipes.inputs.wav_files import read_wav, read_wav_stream, write_wav
from edgeopt.recipes.labels import read_labels
from edgeopt.recipes.sources.sound import windows_of

VALUES = np.array([0.0, 0.5, -0.5, 0.25, -1.0, 0.125], np.float64)


def wav(data: bytes, bits: int, form: int = 1, channels: int = 1, rate: int = 8000, more: bytes = b"") -> bytes:
    block = channels * bits // 8
    head = struct.pack("<HHIIHH", form, channels, rate, rate * block, block, bits) + more
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WAVE" + chunks


def whole(bits: int) -> bytes:
    numbers = np.rint(VALUES * 2 ** (bits - 1)).astype(np.int64)
    if bits == 8:
        return (numbers + 128).astype(np.uint8).tobytes()
    return b"".join(int(one).to_bytes(bits // 8, "little", signed=True) for one in numbers)


@pytest.mark.parametrize(
    "data",
    [
        *(wav(whole(bits), bits) for bits in (8, 16, 24, 32)),
        wav(VALUES.astype("<f4").tobytes(), 32, 3),
        wav(VALUES.astype("<f8").tobytes(), 64, 3),
        wav(whole(24), 24, 0xFFFE, more=struct.pack("<HHIH14s", 22, 24, 4, 1, b"\0" * 14)),
        wav(np.repeat(VALUES, 2).astype("<f4").tobytes(), 32, 3, channels=2),
        wav(whole(16), 16).replace(struct.pack("<I", 12) + whole(16), b"\xff\xff\xff\x7f" + whole(16)),
        wav(whole(16) + b"\1", 16),
    ],
    ids=["8", "16", "24", "32", "float", "double", "extensible", "stereo", "cut head", "odd byte"],
)
def test_every_kind_of_wav(data, tmp_path):
    (tmp_path / "a.wav").write_bytes(data)
    found = read_wav(tmp_path / "a.wav")
    assert (found.rate_hz, found.samples.dtype) == (8000, np.float32)
    np.testing.assert_allclose(found.samples, VALUES, atol=1e-6)


def test_channels_are_averaged(tmp_path):
    both = np.stack([VALUES, np.zeros(6)], axis=1)
    (tmp_path / "a.wav").write_bytes(wav(both.astype("<f4").tobytes(), 32, 3, channels=2))
    np.testing.assert_allclose(read_wav(tmp_path / "a.wav").samples, VALUES / 2)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "it is empty"),
        (b"ID3\4" + bytes(60), "it is no WAV"),
        (wav(b"", 16), "it holds no sample"),
        (wav(b"", 16)[:20], "it has no chunk data"),
        (wav(whole(16), 16)[:40], "it has no chunk data"),
        (wav(whole(16), 16)[:-10], "it is cut off: 2 of 12 bytes of its samples are there"),
        (wav(whole(8), 8, 7), "8 bits in format 7, which is not read"),
        (wav(whole(16), 16, channels=0), "its head is wrong"),
        (wav(whole(16), 16, rate=0), "its head is wrong: 1 channels of 16 bits, 2 bytes together, 0 Hz"),
        (wav(np.array([0, np.nan], "<f4").tobytes(), 32, 3), "NaN or infinity"),
    ],
)
def test_what_is_no_wav_is_told_in_one_line(data, told, tmp_path):
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(InvalidFileError, match=told) as error:
        open_frames(tmp_path / "a.wav")
    assert str(tmp_path / "a.wav") in error.value.problem
    assert "\n" not in str(error.value.problem)
    with pytest.raises(InvalidFileError, match=r"none of 1 file in .* is read"):
        open_frames(tmp_path)


@pytest.mark.parametrize(
    ("channels", "rate", "block"), [(1, 0xFFFFFFFF, 2), (0xFFFF, 0xFFFFFFFF, 0xFFFF), (0, 16000, 0), (2, 16000, 2)]
)
def test_a_stream_whose_head_is_wrong_is_told_before_so_much_is_read(channels, rate, block, tmp_path):
    form = struct.pack("<IHHIIHH", 16, 1, channels, rate, 0, block, 8 if block == 0xFFFF else 16)
    (tmp_path / "stream.wav").write_bytes(b"RIFF\xff\xff\xff\xffWAVEfmt " + form + b"data\xff\xff\xff\xff" + bytes(100))
    with (tmp_path / "stream.wav").open("rb") as file, pytest.raises(InvalidFileError, match="its head is wrong"):
        list(read_wav_stream(file, "the standard input"))


def test_a_folder_leaves_out_what_it_cannot_read_and_says_so(tmp_path):
    write_wav(tmp_path / "b.wav", Sound(np.zeros(800, np.float32), 8000))
    (tmp_path / "a.wav").write_bytes(b"no")
    (tmp_path / "notes.md").write_text("no sound")
    frames = open_frames(tmp_path)
    assert (frames.names, frames.kind, frames.held) == (("b.wav",), "sound", "sounds")
    assert "1 sound left out" in frames.notes[0].detail
    with pytest.raises(InvalidFileError, match="holds sounds, no pictures"):
        frames.picture(0)


def test_what_is_written_is_read_again(tmp_path):
    given = Sound(np.sin(np.arange(4000) / 9).astype(np.float32), 16000)
    write_wav(tmp_path / "a.wav", given)
    found = read_wav(tmp_path / "a.wav")
    assert found.seconds == 0.25
    np.testing.assert_allclose(found.samples, given.samples, atol=2**-15)


@pytest.mark.parametrize(
    ("samples", "rate", "told"),
    [
        (np.zeros((2, 4), np.float32), 8000, r"\(n,\) float32"),
        (np.zeros(4), 8000, "not float64"),
        ([0.0], 8000, "not list"),
        (np.array([np.inf], np.float32), 8000, "NaN or infinity"),
        (np.zeros(4, np.float32), 0, "0 Hz"),
    ],
)
def test_a_sound_is_finite_and_of_one_channel(samples, rate, told):
    with pytest.raises(ValueError, match=told):
        Sound(samples, rate)


def test_another_rate_is_resampled_or_refused_in_one_line(monkeypatch):
    tone = Sound(np.sin(2 * np.pi * 440 * np.arange(44100) / 44100).astype(np.float32), 44100)
    assert resampled(tone, 44100) is tone
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "soxr", None)
        with pytest.raises(UnsupportedError, match="44100 Hz, the recipe takes 16000 Hz") as error:
            resampled(tone, 16000)
        assert "edgeopt[audio]" in error.value.remedy
    pytest.importorskip("soxr")
    found = resampled(tone, 16000)
    assert (len(found.samples), found.rate_hz) == (16000, 16000)
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(found.samples[400:-400], expected[400:-400], atol=1e-3)


def ramp(tmp_path: Path, *lengths: int) -> Path:
    for i, length in enumerate(lengths):
        write_wav(tmp_path / f"{i}.wav", Sound((np.arange(1, length + 1) / 1024).astype(np.float32), 8000))
    return tmp_path


def test_windows_come_behind_their_context_and_each_sound_is_a_stream(tmp_path):
    audio = Audio(rate_hz=8000, samples=100, hop=100, context=30)
    frames = windows_of(open_frames(ramp(tmp_path, 250, 50, 100)), audio)
    assert frames.streams == (0, 0, 2)
    assert frames.names == ("0.wav@0.000s", "0.wav@0.013s", "2.wav@0.000s")
    assert "1 sound" in frames.notes[0].detail
    first, second, other = (frames.read(i).samples * 1024 for i in range(3))
    np.testing.assert_allclose(first, [0] * 30 + list(range(1, 101)), atol=0.1)
    np.testing.assert_allclose(second, range(71, 201), atol=0.1)
    np.testing.assert_allclose(other[:31], [0] * 30 + [1], atol=0.1)
    assert [(one.begin_s, one.end_s) for one in frames.parts[:2]] == [(0, 0.0125), (0.0125, 0.025)]
    with pytest.raises(UnsupportedError, match="no sound as long as a window, 9999 samples"):
        windows_of(open_frames(tmp_path), Audio(rate_hz=8000, samples=9999, hop=1))


def test_a_sound_that_is_one_window_is_cut_or_padded():
    sound = Sound(np.ones(4, np.float32), 8000)
    made = {
        pad: window_of(sound, Audio(rate_hz=8000, samples=8, pad=pad)).tolist()
        for pad in (Pad.END, Pad.START, Pad.BOTH)
    }
    assert made == {
        Pad.END: [1, 1, 1, 1, 0, 0, 0, 0],
        Pad.START: [0, 0, 0, 0, 1, 1, 1, 1],
        Pad.BOTH: [0, 0, 1, 1, 1, 1, 0, 0],
    }
    assert window_of(sound, Audio(rate_hz=8000, samples=3)).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="up to 3 samples, not 4"):
        window_of(sound, Audio(rate_hz=8000, samples=3, hop=3))


def test_intervals_from_a_csv_and_from_rttm_are_the_same(tmp_path):
    ramp(tmp_path, 800, 800, 800)
    (tmp_path / "a.csv").write_text("file,start_s,end_s\n0.wav,0.02,0.06\n0.wav,0.08,0.1\n1.wav,,\n2.wav,0,0.05\n")
    (tmp_path / "a.rttm").write_text(
        ";; made\nSPEAKER 0 1 0.02 0.04 <NA> <NA> ann <NA> <NA>\nSPEAKER 0 1 0.08 0.02 <NA> <NA> bob <NA> <NA>\n"
        "SPEAKER 2 1 0 0.05 <NA> <NA> ann <NA> <NA>\n"
    )
    audio = Audio(rate_hz=8000, samples=160, hop=160)
    truths = []
    for name in ("a.csv", "a.rttm"):
        data = open_labelled(tmp_path / name)
        assert data.frames.names == ("0.wav", "1.wav", "2.wav")
        labels = data.labels.of_parts(windows_of(data.frames, audio).parts)
        truths.append(labels.truth(2).reshape(3, 10).astype(int).tolist())
    assert truths[0] == truths[1] == [[0, 0, 1, 1, 1, 1, 0, 0, 1, 1], [0] * 10, [1] * 5 + [0] * 5]
    with pytest.raises(InvalidFileError, match="hears each as a whole"):
        data.labels.truth(1)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", "file,start_s,end_s\n", "labels no sound"),
        ("a.csv", "file,start_s,end_s\na.wav,2,1\n", "line 2: 2 to 1 s is no interval"),
        ("a.csv", "file,start_s,end_s\na.wav,x,1\na.wav,nan,1\n", "2 entries are wrong"),
        ("a.rttm", "SPEAKER a 1 0\n", "line 1: 4 columns"),
        ("a.rttm", "SPEAKER a 1 0 -1 x\n", "no interval"),
        ("a.rttm", "LEXEME a 1 0 1\n", "names no speaker"),
    ],
)
def test_wrong_intervals_are_told_in_one_line(name, text, told, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidFileError, match=told):
        read_labels(tmp_path / name)


def test_folders_are_classes_in_the_order_of_their_names(tmp_path):
    for name in ("yes", "no", "_background_noise_"):
        (tmp_path / name).mkdir()
        ramp(tmp_path / name, 80, 80)
    data = open_labelled(tmp_path)
    assert data.frames.names == ("no/0.wav", "no/1.wav", "yes/0.wav", "yes/1.wav")
    assert (data.labels.names, data.labels.classes) == (("no", "yes"), (0, 0, 1, 1))
