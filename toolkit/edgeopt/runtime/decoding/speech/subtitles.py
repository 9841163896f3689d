"""Segments as subtitles: SubRip and WebVTT, and their clock.

Source: W3C, WebVTT, cue timings; SubRip's files as openai/whisper writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.runtime.decoding.speech.segments import SpeechSegment


def clock(seconds: float, point: str = ".", *, hours: bool = False) -> str:
    """Return a time as `00:07.240`, or with hours before it where there are any."""
    whole_ms = round(max(seconds, 0.0) * 1000)
    minutes, rest_ms = divmod(whole_ms, 60_000)
    hour, minute = divmod(minutes, 60)
    text = f"{minute:02}:{rest_ms // 1000:02}{point}{rest_ms % 1000:03}"
    return f"{hour:02}:{text}" if hour or hours else text


def as_srt(segments: Sequence[SpeechSegment]) -> str:
    """Return segments as a file of SubRip."""
    cues = (
        f"{number}\n{clock(each.start_s, ',', hours=True)} --> {clock(each.end_s, ',', hours=True)}\n{_line(each)}\n"
        for number, each in enumerate(segments, 1)
    )
    return "\n".join(cues)


def as_vtt(segments: Sequence[SpeechSegment]) -> str:
    """Return segments as a file of WebVTT."""
    cues = (f"{clock(each.start_s)} --> {clock(each.end_s)}\n{_line(each)}\n" for each in segments)
    return "\n".join(("WEBVTT\n", *cues))


def _line(segment: SpeechSegment) -> str:
    """Return a text that ends no cue: on one line, and without the arrow of a time."""
    return " ".join(segment.text.split()).replace("-->", "->")
