"""A form with one file, as browsers and OpenAI's clients send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from edgeopt.runtime.serve.refused import RefusedError

FORM = "multipart/form-data"
_MOST_FIELDS = 16


async def read_fields(request: Request) -> Mapping[str, str]:
    """Return the fields of a form that are no files.

    Raises:
        RefusedError: If it is no form.
    """
    try:
        async with request.form(max_files=1, max_fields=_MOST_FIELDS) as form:
            return _fields(form)
    except Exception as error:
        raise RefusedError(400, f"the form cannot be read: {str(error)[:100]}", code="invalid_form") from error


async def read_form(request: Request, body: bytes, holds: str) -> tuple[bytes, Mapping[str, str]]:
    """Return the one file of a form, and its other fields.

    Args:
        request: Whose body was read.
        body: That body.
        holds: What the file is, in words.

    Raises:
        RefusedError: If it is no form, or holds no file or several.
    """

    async def again() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        async with Request(request.scope, again).form(max_files=1, max_fields=_MOST_FIELDS) as form:
            files = [value for value in form.values() if isinstance(value, UploadFile)]
            if len(files) == 1:
                data: bytes = await files[0].read()
                return data, _fields(form)
    except Exception as error:
        raise RefusedError(400, f"the form cannot be read: {str(error)[:100]}", code="invalid_form") from error
    raise RefusedError(400, f"the form holds no file: send the {holds} as one", code="invalid_form")


def _fields(form: FormData) -> dict[str, str]:
    """Return the texts of a form; those of a list, whose name ends in `[]`, with commas between them."""
    fields = dict[str, str]()
    for name, value in form.multi_items():
        if isinstance(value, str):
            fields[name] = f"{fields[name]},{value}" if name.endswith("[]") and name in fields else value
    return fields
