"""The content of a message in a conversation: a text, or parts of text and pictures.

A picture comes as data, `data:image/png;base64,...`. A server that fetched addresses would be sent to places that only
it can reach.

Source: OpenAI API reference, content parts of `POST /v1/chat/completions`; RFC 2397.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, Final

from edgeopt.runtime.serve.refused import RefusedError, wrong
from edgeopt.runtime.serve.routes.pictures import require_bounded
from edgeopt.system.text import short

_DATA: Final = re.compile(r"data:(image/[\w.+-]{1,40})?(?:;[\w=.-]{1,60})*;base64,", re.ASCII)
MOST_PICTURES: Final = 500
"""Pictures of a request, as OpenAI has it: each costs a decoding, however small it is."""
_DETAILS: Final = (None, "auto", "high")
"""Values of OpenAI's `detail` that ask for pictures as their model was trained; `low` would be another way."""


@dataclass(frozen=True, slots=True)
class MessageContent:
    """A turn as it was sent."""

    text: str
    """Its texts alone."""
    parts: tuple[str | None, ...] = ()
    """Its texts, None where a picture stands."""
    pictures: tuple[bytes, ...] = ()
    """Files of the pictures; each has a size that is allowed, and is not decoded."""


class ContentReader:
    """Reads the messages of one request, whose pictures share a limit."""

    def __init__(self, most_pixels: int | None) -> None:
        """Begin a request; `most_pixels` is for all its pictures together, None: the model sees none."""
        self._most_pixels, self._pixels, self._count = most_pixels, 0, 0

    def read(self, value: Any, place: str) -> MessageContent:
        """Return what the content of a message says.

        Args:
            value: Of the field `content`.
            place: Of the field, named in refusals.

        Raises:
            RefusedError: If it is none, or a picture is too large, is fetched from somewhere, or seen by nobody.
        """
        if isinstance(value, str):
            return MessageContent(value)
        kinds = "text" if self._most_pixels is None else "text or image_url"
        if not isinstance(value, list):
            raise wrong(place, f"a text, or a list of parts of the type {kinds}")
        parts, pictures = list[str | None](), list[bytes]()
        for i, entry in enumerate(value):
            kind = entry.get("type") if isinstance(entry, dict) else None
            if kind == "text" and isinstance(entry.get("text"), str):
                parts.append(entry["text"])
            elif kind == "image_url" and self._most_pixels is not None:
                pictures.append(self._picture(entry.get("image_url"), f"{place}[{i}].image_url"))
                parts.append(None)
            else:
                seen = "no pictures or sounds" if self._most_pixels is None else "pictures, no sounds, videos or files"
                raise wrong(place, f"parts of the type {kinds} only: this model reads {seen}")
        return MessageContent("".join(part for part in parts if part), tuple(parts), tuple(pictures))

    def _picture(self, value: Any, place: str) -> bytes:
        """Return the file of a picture that came as data."""
        assert self._most_pixels is not None
        url = value.get("url") if isinstance(value, dict) else value
        if not isinstance(url, str):
            raise wrong(place, 'an object such as {"url": "data:image/png;base64,..."}')
        self._count += 1
        if self._count > MOST_PICTURES:
            text = f"the messages hold more than {MOST_PICTURES} pictures, the most of one request"
            raise RefusedError(400, text, code="invalid_value", param=place)
        detail = value.get("detail") if isinstance(value, dict) else None
        if detail not in _DETAILS:
            raise wrong(f"{place}.detail", f"{short(detail)} is not done here: leave it out, or write auto or high")
        match = _DATA.match(url)
        if match is None:
            text = "this server fetches nothing: send the picture itself, as data:image/png;base64,..."
            raise RefusedError(400, f"{place}: {text}", code="unsupported_value", param=place)
        try:
            data = base64.b64decode(url[match.end() :], validate=True)
        except (binascii.Error, ValueError) as error:
            raise RefusedError(400, f"{place}: it is no base64", code="invalid_value", param=place) from error
        try:
            self._pixels += require_bounded(data, self._most_pixels - self._pixels)
        except RefusedError as refusal:
            raise RefusedError(
                refusal.status, f"{place}: {_of_picture(str(refusal))}", code=refusal.code, param=place
            ) from refusal
        return data


def _of_picture(text: str) -> str:
    return text.replace("the body is no picture", "it is no picture")
