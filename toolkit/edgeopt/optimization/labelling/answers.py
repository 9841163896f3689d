"""A person's answers on the page: one right answer a sample, read from a file that may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeopt.errors import InvalidFileError
from edgeopt.system.text import short
from edgeopt.system.toml import read_json

REMEDY = "save it again with the page's button, or take it away"


def read_answers(path: Path) -> Mapping[str, str]:
    """Return the right answer by the name of the sample.

    Raises:
        InvalidFileError: If the file is no answers of the page.
    """
    said = read_json(path, remedy=REMEDY)
    answers = said.get("answers") if isinstance(said, dict) else None
    if not isinstance(answers, dict):
        raise InvalidFileError(f"{path} holds no answers of the page", remedy=REMEDY)
    wrong = [name for name, answer in answers.items() if not isinstance(answer, str)]
    if wrong:
        raise InvalidFileError(f"{path}: the answer to {short(wrong[0])} is no text", remedy=REMEDY)
    return {str(name): answer for name, answer in answers.items()}
