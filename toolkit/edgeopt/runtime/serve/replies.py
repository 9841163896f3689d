"""Answers in the form of OpenAI's interface: whole, and in the events of a stream.

Source: OpenAI API reference, the objects `text_completion`, `chat.completion` and `chat.completion.chunk`; events as in
WHATWG HTML, server-sent events. The object `edgeopt` is beside them: what the server alone knows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from edgeopt.runtime.decoding.generation import Piece
from edgeopt.runtime.serve.calls import Calls
from edgeopt.runtime.serve.free_calls import CallReader, MadeCall
from edgeopt.runtime.serve.writing import PromptPiece, Written

_REASONS: Final[Mapping[str, str]] = {"end": "stop", "stop": "stop", "length": "length", "time": "length"}
DONE: Final = b"data: [DONE]\n\n"
_LEAST_LOGPROB: Final = -9999.0
"""Logarithm in place of minus infinity, which JSON has not; OpenAI writes it too."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """One answer that is over."""

    text: str
    """Text of the answer, with the prompt before it where that is repeated."""
    written: Written
    queue_ns: int
    logprobs: Mapping[str, Any] | None = None
    """Log probabilities, from `Reply.logprobs_of`."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The fields that all parts of one reply share."""

    model: str
    is_chat: bool
    calls: Calls | None = None
    """Functions that the answer calls; None: it is a text."""
    created_s: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=lambda: uuid4().hex)

    def _of(self, choices: Sequence[Mapping[str, Any]], *, is_part: bool) -> dict[str, Any]:
        kind = "text_completion" if not self.is_chat else "chat.completion.chunk" if is_part else "chat.completion"
        return {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{self.number}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": [{"index": 0, "logprobs": None, **choice} for choice in choices],
        }

    def whole(self, answers: Sequence[WholeAnswer], *, each: int) -> dict[str, Any]:
        """Return a reply that is no stream.

        Args:
            answers: In the order of their choices.
            each: How many of them answer one prompt.
        """
        choices = [{**self._choice(answer), "index": index} for index, answer in enumerate(answers)]
        values = {"usage": usage_of([answer.written for answer in answers], each), "edgeopt": _times(answers)}
        return self._of(choices, is_part=False) | values

    def _choice(self, answer: WholeAnswer) -> dict[str, Any]:
        if not self.is_chat:
            reason = finish_reason(answer.written)
            return {"text": answer.text, "logprobs": answer.logprobs, "finish_reason": reason}
        content, calls = self._parted(answer.text)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        message |= {"tool_calls": calls} if calls else {}
        reason = self._reason(answer.written, calls=bool(calls))
        return {"message": message, "logprobs": answer.logprobs, "finish_reason": reason}

    def _parted(self, text: str) -> tuple[str | None, list[Mapping[str, Any]]]:
        """Return what an answer says, and what it calls."""
        if self.calls is None:
            return text, []
        if self.calls.style is None:
            call = self.calls.call_of(text)
            return (None, [call]) if call else (text, [])
        reader = CallReader(self.calls.style)
        parts = [*reader.add(text), *reader.end()]
        said = "".join(part for part in parts if isinstance(part, str))
        calls = [self.calls.named(part.name, part.arguments) for part in parts if isinstance(part, MadeCall)]
        return (said or None if calls else said), calls

    def begin(self, index: int) -> bytes:
        """Return the first event of a choice: its role in a chat; empty where there is none."""
        return self._event(index, {"delta": {"role": "assistant", "content": ""}}) if self.is_chat else b""

    def part(self, index: int, text: str, logprobs: Mapping[str, Any] | None = None) -> bytes:
        """Return the event of a piece of text of a choice; `logprobs` come from `logprobs_of`."""
        delta: dict[str, Any] = {"content": text}
        if self.calls and self.calls.style is None:
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        said = {"delta": delta} if self.is_chat else {"text": text}
        return self._event(index, {**said, "logprobs": logprobs})

    def call(self, index: int, call: Mapping[str, Any], number: int = 0) -> bytes:
        """Return the event that begins a call of a choice, or holds all of it; `number` counts those of the choice."""
        return self._event(index, {"delta": {"tool_calls": [{"index": number, **call}]}})

    def _reason(self, written: Written, *, calls: bool) -> str:
        """Return why a choice is over; one that must call does so where it came to its own end."""
        has_called = calls or (self.calls is not None and self.calls.style is None)
        return "tool_calls" if has_called and written.reason == "end" else finish_reason(written)

    def logprobs_of(
        self, pieces: Sequence[Piece], bytes_of: Callable[[int], bytes], offset: int = 0
    ) -> dict[str, Any] | None:
        """Return the probabilities of pieces as OpenAI writes them; None where none were asked for.

        Args:
            pieces: In a row.
            bytes_of: Returns what a token writes.
            offset: Characters of the answer before them.
        """
        tokens = [each for piece in pieces for each in (piece.tokens if isinstance(piece, PromptPiece) else (piece,))]
        if not any(piece.tokens if isinstance(piece, PromptPiece) else piece.logprob is not None for piece in pieces):
            return None

        def written(token: int, logprob: float) -> dict[str, Any]:
            data = bytes_of(token)
            shown = data.decode("utf-8", "replace")
            return {"token": shown, "logprob": max(logprob, _LEAST_LOGPROB), "bytes": list(data)}

        entries = [
            written(piece.token, piece.logprob or 0.0)
            | {"top_logprobs": [written(token, logprob) for token, logprob in piece.likely]}
            for piece in tokens
        ]
        if self.is_chat:
            return {"content": entries, "refusal": None}
        is_known = [piece.logprob is not None for piece in tokens]  # of a prompt's first token nothing is
        likely = [{each["token"]: each["logprob"] for each in entry["top_logprobs"]} for entry in entries]
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [
                entry["logprob"] if known else None for entry, known in zip(entries, is_known, strict=True)
            ],
            "top_logprobs": [each if known else None for each, known in zip(likely, is_known, strict=True)],
            "text_offset": _offsets(pieces, offset),
        }

    def end(self, index: int, written: Written, queue_ns: int, *, calls: bool = False) -> bytes:
        """Return the last event of a choice, which made calls among other text or did not."""
        said: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        choice = {**said, "index": index, "finish_reason": self._reason(written, calls=calls)}
        return event(self._of([choice], is_part=True) | {"edgeopt": times_of(written, queue_ns)})

    def close(self, written: Sequence[Written], *, each: int, tells_usage: bool) -> bytes:
        """Return the last events of a stream, behind those of its choices."""
        usage = event(self._of([], is_part=True) | {"usage": usage_of(written, each)}) if tells_usage else b""
        return usage + DONE

    def _event(self, index: int, said: Mapping[str, Any]) -> bytes:
        return event(self._of([{**said, "index": index, "finish_reason": None}], is_part=True))


def _offsets(pieces: Sequence[Piece], offset: int) -> list[int]:
    """Return where the text of each token begins; those of a prompt lie in its text, behind which the answer begins."""
    offsets = list[int]()
    for piece in pieces:
        place = offset
        for each in piece.tokens if isinstance(piece, PromptPiece) else (piece,):
            offsets.append(min(place, offset + len(piece.text)))
            place += len(each.text)
        offset += len(piece.text)
    return offsets


def event(values: Mapping[str, Any]) -> bytes:
    """Return one event of a stream."""
    return b"data: " + json.dumps(values, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n\n"


def finish_reason(written: Written) -> str:
    """Return why an answer is over, in OpenAI's words."""
    return _REASONS.get(written.reason, "stop")


def usage_of(written: Sequence[Written], each: int) -> dict[str, Any]:
    """Return the tokens of a reply; a prompt with several answers counts once.

    Args:
        written: How each answer ended, in the order of the choices.
        each: How many of them answer one prompt.
    """
    prompts = [answer.account for answer in written[::each]]
    count = sum(len(answer.account.token_at_ns) for answer in written)
    prompt_tokens = sum(account.prompt_tokens for account in prompts)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": count,
        "total_tokens": prompt_tokens + count,
        "prompt_tokens_details": {"cached_tokens": sum(account.reused_tokens for account in prompts)},
    }


def _times(answers: Sequence[WholeAnswer]) -> dict[str, Any]:
    """Return the times of the only answer; of several, those of each."""
    times = [times_of(answer.written, answer.queue_ns) for answer in answers]
    return times[0] if len(times) == 1 else {"choices": times}


def times_of(written: Written, queue_ns: int) -> dict[str, Any]:
    """Return what the server knows of an answer's times, in milliseconds; TTFT and TPOT without the queue."""
    account = written.account
    return {
        "ended_by": written.reason,
        "queue_ms": (queue_ns + written.opening_ns + account.queue_ns) / 1e6,
        **({"vision_ms": account.encode_ns / 1e6, "encoded": account.encoded_images} if account.images else {}),
        "prefill_ms": account.prefill_ns / 1e6,
        "ttft_ms": None if account.ttft_ms is None else account.ttft_ms - account.queue_ns / 1e6,
        "tpot_ms": account.tpot_ms,
    }
