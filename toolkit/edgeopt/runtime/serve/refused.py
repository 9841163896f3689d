"""Why a request gets no answer, as OpenAI's clients read it."""

from __future__ import annotations

from typing import Any

_OF_THE_SERVER = 500


class RefusedError(Exception):
    """A request that is refused: a status of HTTP and one sentence."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        """Say why.

        Args:
            status: Of HTTP, 400 to 599.
            message: What is wrong, and what to send.
            code: For programs, such as `context_length_exceeded`.
            param: The field of the request that is wrong.
        """
        message, param = _sendable(message), _sendable(param) if param else param
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def as_json(self) -> dict[str, Any]:
        """Return the body of the reply."""
        kind = "server_error" if self.status >= _OF_THE_SERVER else "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def wrong(param: str, message: str) -> RefusedError:
    """Return the refusal of a field that holds what it must not."""
    return RefusedError(400, f"{param}: {message}", code="invalid_value", param=param)


def unknown_model(name: object, *known: str) -> RefusedError:
    """Return the refusal of a request for a model that is not among the known ones."""
    names = ", ".join(map(repr, known))
    text = f"no model named {str(name)[:100]!r} is here, only {names}"
    return RefusedError(404, text, code="model_not_found", param="model")


def _sendable(text: str) -> str:
    """Return a text without halves of characters, which JSON can name and UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()
