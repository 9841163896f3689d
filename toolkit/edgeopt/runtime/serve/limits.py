"""How much a server takes of each client, so that none takes it from the others."""

from __future__ import annotations

from dataclasses import dataclass

from edgeopt.recipes.texts.answer_defaults import SLOTS


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request in size and time; beyond them it is refused."""

    body_bytes: int = 8 << 20
    """Body bytes of a request."""
    picture_pixels: int = 50_000_000
    """Picture pixels of one picture: 150 MB when decoded."""
    answer_tokens: int = 0
    """Tokens that a request may ask for; 0: what the context holds."""
    seconds: float = 300.0
    """Time from a request to the end of its answer, waiting included."""
    waiting: int = 64
    """Requests that wait for a slot; further ones are refused at once."""
    slots: int = SLOTS
    """Answers that are written at once."""
    stalled_s: float = 30.0
    """A client that sends nothing of what it began, or takes nothing of what is there for it, is cut off after this."""
    connections: int = 512
    """Open at once."""
    grace_s: float = 30.0
    """Seconds that answers may still take when the server is told to stop."""
    chunk_tokens: int | None = None
    """Chunk tokens of a prompt in one run while others are written, who wait no longer for their next token; None: as
    `SharedModel` has it."""
    token_s: float = 0.0
    """Time between two tokens of an answer for which prompts of others wait; 0: they do not."""
    looks_ahead: bool = True
    """Whether the beginning of a conversation's next prompt is computed while nobody asks."""
