"""Signatures that name every option: what `help`, notebooks and `inspect.signature` show of a function.

Type checkers and editors read the `TypedDict` behind `**wishes`; Python itself shows `**wishes` only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_options_of(*options: type) -> Callable[[_Function], _Function]:
    """Return a decorator that shows the fields of dataclasses in place of a function's `**wishes`.

    Only what is shown changes: the function is returned as it is.

    Args:
        options: Dataclasses whose fields the function takes by name, with their defaults; of two fields of one name
            that of the earlier class is shown.
    """
    shown = {field.name: _parameter(field) for each in reversed(options) for field in fields(each)}

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [each for name, each in shown.items() if name not in signature.parameters]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate


def _parameter(field: Field[Any]) -> inspect.Parameter:
    default: Any = inspect.Parameter.empty
    if field.default is not MISSING:
        default = field.default
    elif field.default_factory is not MISSING:
        default = field.default_factory()
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)
