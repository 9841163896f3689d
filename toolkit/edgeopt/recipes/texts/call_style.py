"""The way in which a model writes calls of functions, as its chat template tells it.

Source: the templates of NousResearch's Hermes 2 Pro, Qwen 2.5 and 3; Mistral 7B v0.3 and Nemo; Llama 3.1 to 3.3.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class CallStyle(StrEnum):
    """A way of writing calls among other text."""

    HERMES = "hermes"
    """`<tool_call>`, an object of `name` and `arguments`, `</tool_call>`; any number of them, behind text."""
    MISTRAL = "mistral"
    """`[TOOL_CALLS]` and a list of such objects, behind text."""
    LLAMA = "llama"
    """An object of `name` and `parameters`, which is the whole answer."""


HERMES_MARKS: Final = ("<tool_call>", "</tool_call>")
MISTRAL_MARK: Final = "[TOOL_CALLS]"
LLAMA_MARK: Final = "<|python_tag|>"
"""The mark that Llama may write before a call."""
_OTHER_WAYS: Final = ("<function=", "<arg_key>", "[ARGS]", "[CALL_ID]")
"""Marks of Qwen3-Coder, GLM 4.5 and later models of Mistral, which write calls otherwise."""
_LLAMA_TOLD: Final = "dictionary of argument name and its value"


def call_style(template: str) -> CallStyle | None:
    """Return the way that a chat template writes calls; None where it is none that is known."""
    if any(mark in template for mark in _OTHER_WAYS):
        return None
    if all(mark in template for mark in (*HERMES_MARKS, "arguments")):
        return CallStyle.HERMES
    if MISTRAL_MARK in template:
        return CallStyle.MISTRAL
    return CallStyle.LLAMA if _LLAMA_TOLD in template and "parameters" in template else None
