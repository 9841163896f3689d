"""Whisper's configurations, as far as answers to speech hang on them: first tokens, tokens of times, limits of doubt.

Source: `generation_config.json` of Hugging Face transformers and its `generation_whisper.py`; Radford et al., 2022,
arXiv:2212.04356, sections 2.3 and 3.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeopt.errors import UnsupportedError
from edgeopt.recipes.texts.languages import LANGUAGES, language_code

TRANSCRIBE, TRANSLATE = "transcribe", "translate"
_OF_TIMES = ("max_initial_timestamp_index", "prev_sot_token_id")
_OF_DOUBT = ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold")
_FIRST_SEGMENT = "first-segment"


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The tokens that an answer begins with."""

    tokens: tuple[int, ...]
    languages: tuple[int, ...] = ()
    """Tokens of which the model chooses the second one by what it hears; none: it is there."""


@dataclass(frozen=True, slots=True)
class SpeechSettings:
    """The wishes of the configurations of a model of speech."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `config.json` and `generation_config.json`."""
    languages: Mapping[str, int] = field(default_factory=dict)
    """Tokens of languages, by code; empty: the model knows one."""
    tasks: Mapping[str, int] = field(default_factory=dict)
    silent: int | None = None
    """Token that says that no times are written; None: the model does not know times."""
    times: int = 0
    """Tokens of times, which lie behind `silent`; 0: the model writes none."""
    vocabulary: int = 0
    """Logits of a token."""
    before: int | None = None
    """Token that stands before what was said earlier."""
    last_start: int | None = None
    """The first time is no later than so many steps; None: anywhere."""
    compression: float | None = None
    """Tokens that compress better than this repeat themselves: they are drawn anew; None: never."""
    logprob: float | None = None
    """A mean logarithm of the tokens' probabilities below this is doubted: they are drawn anew; None: never."""
    no_speech: float | None = None
    """A probability of silence above this, where the text is doubted too, leaves a window out; None: never."""
    carries_text: bool = False
    """Whether each window is told what was said before."""
    writes_times: bool = False
    """Whether times are written where nobody says otherwise."""
    median_width: int = 7
    """Rows over which a median smooths where heads of attention look, when words are given their times."""

    @property
    def first_time(self) -> int | None:
        """The token of the time 0; None: the model writes no times."""
        return self.silent + 1 if self.times and self.silent is not None else None

    @property
    def no_speech_token(self) -> int | None:
        """The token whose probability behind the first one is that of silence."""
        return self.silent - 1 if self.times and self.silent is not None else None

    def language_of(self, token: int) -> str:
        """Return the code of a language's token; empty where it is none."""
        return next((code for code, number in self.languages.items() if number == token), "")

    def first_tokens(self, language: str = "", task: str = "", *, times: bool = False) -> FirstTokens:
        """Return the tokens that an answer begins with.

        Args:
            language: Code, English name or token; empty: as configured, else the model chooses.
            task: `transcribe` or `translate`; empty: as configured.
            times: Whether it writes times.

        Raises:
            UnsupportedError: If the model knows no such language or task.
        """
        if not language and not task:
            return first_tokens(self.keys, times=times)
        if not self.languages or self.keys.get("is_multilingual") is False:
            if language_code(language or "en") == "en" and task in ("", TRANSCRIBE):
                return first_tokens(self.keys, times=times)
            raise UnsupportedError("the model transcribes English alone", remedy="leave language and translation out")
        changed: dict[str, Any] = {}
        if language:
            code = language_code(language)
            if code not in self.languages:
                known = [name for name in self.languages if name in LANGUAGES] or list(self.languages)
                raise UnsupportedError(
                    f"the model knows no language {language[:40]!r}",
                    remedy=f"name one by its code or English name: {', '.join(known)}",
                )
            changed["language"] = f"<|{code}|>"
        if task:
            if task not in self.tasks:
                raise UnsupportedError(
                    f"the model has no task {task[:40]!r}", remedy=f"those are: {', '.join(self.tasks) or 'none'}"
                )
            changed["task"] = task
        return first_tokens({**self.keys, **changed}, times=times)


def read_speech(keys: Mapping[str, Any], vocabulary: int) -> SpeechSettings:
    """Return what the configurations of a model of speech ask for.

    Args:
        keys: Keys of `config.json`, and over them those of `generation_config.json`.
        vocabulary: Logits of a token.

    Raises:
        UnsupportedError: If they ask for what is not done here.
        ValueError: If a value is none.
        TypeError: If a value is of another kind.
    """
    silent = keys.get("no_timestamps_token_id")
    silent = None if silent is None else int(silent)
    times = max(vocabulary - silent - 1, 0) if silent is not None else 0
    if keys.get("return_timestamps") and not times:
        raise UnsupportedError(
            "return_timestamps = True, and the vocabulary has no tokens of times",
            remedy="take return_timestamps out of generation_config.json",
        )
    if (condition := keys.get("prompt_condition_type")) not in (None, _FIRST_SEGMENT):
        raise UnsupportedError(
            f"prompt_condition_type = {str(condition)[:40]} is not honoured here",
            remedy="take prompt_condition_type out of generation_config.json",
        )
    last_start, before = (None if (value := keys.get(name)) is None else int(value) for name in _OF_TIMES)
    compression, logprob, no_speech = (
        None if (value := keys.get(name)) is None else float(value) for name in _OF_DOUBT
    )
    languages = {language_code(str(name)): int(token) for name, token in (keys.get("lang_to_id") or {}).items()}
    return SpeechSettings(
        keys=keys,
        languages=languages,
        tasks={str(name): int(token) for name, token in (keys.get("task_to_id") or {}).items()},
        silent=silent,
        times=times,
        vocabulary=vocabulary,
        before=before,
        last_start=last_start,
        compression=compression,
        logprob=logprob,
        no_speech=no_speech,
        carries_text=bool(keys.get("condition_on_prev_tokens")),
        writes_times=bool(keys.get("return_timestamps")),
        median_width=_odd(keys.get("median_filter_width")),
    )


def _odd(width: Any) -> int:
    if width is None:
        return SpeechSettings().median_width
    if int(width) < 1 or not int(width) % 2:
        raise ValueError(f"median_filter_width {width}")
    return int(width)


def first_tokens(keys: Mapping[str, Any], *, times: bool = False) -> FirstTokens:
    """Return the tokens that an answer begins with, as the keys of Whisper's configurations say.

    Raises:
        ValueError: If they name a language or a task that is not there, or forced tokens out of order.
    """
    start = keys.get("decoder_start_token_id")
    language, task = keys.get("language"), keys.get("task")
    known, tasks = keys.get("lang_to_id") or {}, keys.get("task_to_id") or {}
    forced = keys.get("forced_decoder_ids") or () if language is None and task is None else ()
    places = [int(place) for place, _ in forced]
    if places != list(range(1, len(places) + 1)):
        raise ValueError(f"forced_decoder_ids at {places}")
    more = [None if token is None else int(token) for _, token in forced]
    if language is not None:
        name = f"<|{language_code(str(language))}|>"
        if name not in known:
            raise ValueError(f"language {str(language)[:40]} is none of lang_to_id: write it as in <|en|>")
        more = [int(known[name])]
    elif known and (not more or more[0] is None):
        more = [None, *more[1:]]
    if language is not None or task is not None:
        if task is not None and str(task) not in tasks:
            raise ValueError(f"task {str(task)[:40]} is none of task_to_id")
        more += [int(tasks[str(task or TRANSCRIBE)])] if tasks else []
    silent = keys.get("no_timestamps_token_id")
    if silent is not None:
        while more and more[-1] == silent:
            more.pop()
        more += [] if times else [int(silent)]
    detects = bool(more) and more[0] is None
    languages = tuple(sorted(int(value) for value in known.values())) if detects else ()
    first = () if start is None else (int(start),)
    return FirstTokens((*first, *(token for token in more if token is not None)), languages)
