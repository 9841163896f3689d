"""Sounds that are longer than a model's window: cut, or heard in windows one after the other, where that is asked for.

Source of the windows in turn: Radford et al., 2022, arXiv:2212.04356, section 3.8, without its times: a window ends
where the sound is quietest, and no text is carried over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.audio import Audio
from edgeopt.recipes.inputs.resampling import resampled
from edgeopt.runtime.decoding.generation import Account, Generation, Long, Piece

_LAST = 5
"""A window ends somewhere in its last fifth."""
_PAUSE_S, _FRAME_S = 0.2, 0.02
"""Seconds of silence that count as a pause, and seconds of a frame in which its power is taken."""
_TOLD = ("token_at_ns", "reason", "comes_whole")
"""Fields of an account that are not summed over windows."""


def fitted_sound(sound: Sound, audio: Audio, long: Long) -> list[Sound]:
    """Return the windows that are heard, one after the other.

    Args:
        sound: Any.
        audio: Of the model, with the samples of its window.
        long: What becomes of a sound that is longer than one.

    Raises:
        EdgeoptError: If it is longer and that is to be refused, or it is to be cut in its middle.
        UnsupportedError: If the rate differs and soxr is not installed.
    """
    window_s = audio.samples / audio.rate_hz
    if sound.seconds <= window_s:
        return [sound]
    if long in (Long.REFUSE, Long.MIDDLE):
        raise EdgeoptError(
            f"the sound has {sound.seconds:.1f} s, the model hears {window_s:g} s",
            remedy="hear one window after the other with --long windows, or cut it with --long tail or head "
            "(AnswerOptions.long)",
        )
    heard = resampled(sound, audio.rate_hz).samples
    if long is Long.WINDOWS:
        return [Sound(array, audio.rate_hz) for array in _cut(heard, audio)]
    kept = heard[-audio.samples :] if long is Long.HEAD else heard[: audio.samples]
    return [Sound(kept, audio.rate_hz)]


def _cut(heard: NDArray[np.float32], audio: Audio) -> list[NDArray[np.float32]]:
    arrays, start = list[NDArray[np.float32]](), 0
    while len(heard) - start > audio.samples:
        end = start + _quietest(heard[start : start + audio.samples], audio.rate_hz)
        arrays.append(heard[start:end])
        start = end
    return [*arrays, heard[start:]]


def _quietest(window: NDArray[np.float32], rate_hz: int) -> int:
    """Return the middle of the quietest pause in the last part of a window: in samples, from its beginning."""
    frame = max(1, round(_FRAME_S * rate_hz))
    begin = len(window) - max(frame, len(window) // _LAST // frame * frame)
    power = np.square(window[begin : begin + (len(window) - begin) // frame * frame].reshape(-1, frame)).mean(axis=1)
    length = min(len(power), round(_PAUSE_S / _FRAME_S))
    pauses = np.convolve(power, np.ones(length), "valid")
    return begin + (int(pauses.argmin()) + length // 2 + length % 2) * frame


class WindowsInTurn(Generation):
    """The answers to the windows of one sound, one after the other, as one answer."""

    def __init__(self, windows: Sequence[Sound], hear: Callable[[Sound], Generation]) -> None:
        """Begin with the first window when the first piece is wanted.

        Args:
            windows: Of one sound, in their order.
            hear: Begins the answer to one of them.
        """
        self._waiting, self._hear, self._begun_ns = list(windows), hear, perf_counter_ns()
        self._now: Generation | None = None
        self._begun_now_ns = 0
        self._before = Account(windows=0)
        self._is_cancelled = False

    def __next__(self) -> Piece:
        while True:
            if self._now is None:
                if self._is_cancelled or not self._waiting:
                    raise StopIteration
                self._begun_now_ns = perf_counter_ns() - self._begun_ns
                self._now = self._hear(self._waiting.pop(0))
                if self._is_cancelled:  # while it was heard, when there was no answer yet to be told
                    self._now.cancel()
            piece = next(self._now, None)
            if piece is not None:
                return replace(piece, at_ns=piece.at_ns + self._begun_now_ns)
            self._end_window()

    @property
    def account(self) -> Account:
        """The cost of all windows so far."""
        return self._with_now()

    def cancel(self) -> None:
        """End the answer before its next token; from any thread."""
        self._is_cancelled = True
        if now := self._now:
            now.cancel()

    def close(self) -> None:
        """Give the cache back; the answer is over."""
        if self._waiting or self._now:
            self._is_cancelled = True
        self._waiting = []
        if self._now:
            self._end_window()
        if self._is_cancelled:
            self._before = replace(self._before, reason="cancelled")

    def _end_window(self) -> None:
        assert self._now is not None
        self._now.close()
        self._before = self._with_now()
        reason = self._now.account.reason
        self._now = None
        if reason in ("stop", "cancelled"):
            self._waiting = []

    def _with_now(self) -> Account:
        """Return the account of the windows before with that of the one that is heard now."""
        if self._now is None:
            return self._before
        before, now = self._before, self._now.account
        sums = {
            field.name: getattr(before, field.name) + getattr(now, field.name)
            for field in fields(Account)
            if field.name not in _TOLD
        }
        times = tuple(self._begun_now_ns + number for number in now.token_at_ns)
        reason = before.reason if before.reason == "length" and now.reason == "end" else now.reason
        at_ns = (*before.token_at_ns, *times)
        return Account(**sums, token_at_ns=at_ns, reason=reason, comes_whole=now.comes_whole)
