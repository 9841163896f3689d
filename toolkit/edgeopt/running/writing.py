"""A language model that answers a prompt, for a person: its text as it comes, and what it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from edgeopt.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_MISSED,
    EXIT_PASS,
    EdgeoptError,
    InvalidFileError,
    Note,
    NoteKind,
)
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.recipes.recipe import Recipe
from edgeopt.running.answers import RunResult
from edgeopt.running.prompt_turn import PromptTurn, has_chat_template, template_of_prompt
from edgeopt.runtime.bundle import is_bundle
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Generation, Long, Piece
from edgeopt.runtime.decoding.guessing import notes_of_guesses
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.long import REMEDY, summarised
from edgeopt.runtime.decoding.opening import bundle_of, holds_pair, open_language_model
from edgeopt.runtime.decoding.prefixes import prefix_folder
from edgeopt.system.disk.files import read_text
from edgeopt.system.text import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenResult(RunResult):
    """An answer that was written, and its cost."""

    model: str
    """Name of the model."""
    account: Account
    """Tokens and times of the answer."""
    budget: AnswerBudget | None = None
    """Limits that it is judged by; None: none were asked for."""
    language: str = ""
    """Code of the language that was heard; empty where none is told."""

    @property
    def missed(self) -> tuple[str, ...]:
        """Limits that this answer missed; none without a budget, or where it ended before they could hold."""
        times = {"TTFT": self.account.ttft_ms or 0.0, "TPOT": self.account.tpot_ms or 0.0}
        return self.budget.missed_by(times) if self.budget else ()

    @property
    def is_decided(self) -> bool:
        """Whether the answer has what is limited: one token alone has no TPOT."""
        times = {"TTFT": self.account.ttft_ms, "TPOT": self.account.tpot_ms}
        return self.budget is None or all(times[part] is not None for part in self.budget.limits_ms)

    @property
    def exit_code(self) -> int:
        """0 met, or no budget; 2 a limit is missed by this one answer; 3 it is too short to tell; 130 it was cut."""
        if self.is_cut:
            return EXIT_INTERRUPTED
        return EXIT_MISSED if self.missed else EXIT_PASS if self.is_decided else EXIT_INCONCLUSIVE

    @property
    def verdict_word(self) -> str:
        """The verdict of this one answer on the budget; empty where none was asked for."""
        if self.budget is None:
            return ""
        return "FAIL" if self.missed else "PASS" if self.is_decided else "INCONCLUSIVE"

    def own_figures(self) -> dict[str, Any]:
        """Return the whole text, times and counts."""
        account = asdict(self.account)
        account["token_at_ms"] = [time_ns / 1e6 for time_ns in account.pop("token_at_ns")]
        return {
            "model": self.model,
            "text": self.text,
            "ttft_ms": self.account.ttft_ms,
            "tpot_ms": self.account.tpot_ms,
            "account": account,
            "budget": str(self.budget) if self.budget else "",
            "language": self.language,
        }

    def __str__(self) -> str:
        account = self.account
        count = len(account.token_at_ns)
        stored = f" ({account.reused_tokens} stored)" if account.reused_tokens else ""
        parts = [plural(count, "token"), f"{account.prompt_tokens} of the prompt{stored}"]
        if account.heard_rows:
            heard = f" in {account.windows} windows" if account.windows > 1 else ""
            parts = [plural(count, "token"), f"encoder {account.encode_ns / 1e6:.1f} ms{heard}"]
            parts += [f"language {self.language}"] if self.language else []
        if account.images:
            parts.append(f"{plural(account.images, 'picture')} in {account.encode_ns / 1e6:.1f} ms")
        if account.shifts:
            parts.append(f"{account.shifted_tokens} dropped in {plural(account.shifts, 'shift')} of the context")
        if account.ttft_ms is not None:
            parts.append(f"TTFT {account.ttft_ms:.1f} ms{' for the whole answer' if account.comes_whole else ''}")
        if account.tpot_ms:
            parts.append(f"TPOT {account.tpot_ms:.2f} ms ({1e3 / account.tpot_ms:.0f} tokens/s)")
        if account.guessed_tokens:
            right = f"{account.accepted_tokens} of {account.guessed_tokens} guesses right"
            parts.append(f"{plural(account.runs, 'run')} after the prompt, {right}")
        judged = f"; budget {self.budget}: {self._judged}" if self.budget else ""
        end = "interrupted" if self.interrupted else f"ended by {account.reason}"
        return f"{', '.join(parts)}; {end}{judged}"

    @property
    def _judged(self) -> str:
        if self.missed:
            return f"missed by {' and '.join(self.missed)}"
        if self.is_cut:
            return "not decided: it was cut short"
        if self.is_decided:
            return "met by this answer"
        lacks = "comes as a whole" if self.account.comes_whole else "has no second token"
        return f"not decided: the answer {lacks}"


def find_language_model(name: str) -> Path:
    """Return a bundle, a folder with an encoder and its decoder, or the ONNX file of any other language model.

    Raises:
        NotFoundError: If there is none.
    """
    folder = Path(name)
    if folder.is_dir() and (is_bundle(folder) or holds_pair(folder)):
        return folder
    from edgeopt.graph.model import find_model  # with onnx, which a bundle does without

    if not folder.is_dir():
        return find_model(name)
    for inside in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
        if inside.is_file():
            return inside
    return find_model(name)


def open_decoder(
    model: Path, threads: int, context: int = 0, draft: Path | None = None
) -> tuple[LanguageModel, Recipe]:
    """Return a language model, open, and its recipe; of what is no bundle ONNX Runtime's optimizations are compared.

    Raises:
        EdgeoptError: As `open_language_model`.
        EngineAbortError: As `open_right_decoder`.
    """
    if bundle_of(model):
        return open_language_model(model, threads, context, draft)
    from edgeopt.measurement.generation.right_writer import open_right_decoder  # with onnx, and what compares

    return open_right_decoder(model, threads, context, draft)


SUMMARISE = "summarise"


@dataclass(frozen=True, slots=True)
class Prompting:
    """The text before a prompt, its pictures, the treatment of a long one, whether it is raw, and the guesser."""

    system: Path | None = None
    """File of a text before the prompt, whose cache is kept from one run to the next."""
    prefixes: Path | None = None
    """Folder of such caches; None: below the user's caches."""
    long: str = Long.REFUSE
    """A word of `Long`, or `summarise`."""
    context: int = 0
    """Tokens for which memory is reserved; 0: all that the model has."""
    draft: str = ""
    """A smaller model that guesses, named as the model is; empty: the recipe's."""
    images: tuple[Path, ...] = ()
    """Pictures that the prompt is about."""
    raw: bool = False
    """Whether the model continues the prompt as it is, though it came with a chat template."""


def write_answer(
    model: str,
    prompt: str,
    asked: AnswerOptions,
    hear: Callable[[Piece, Account], None],
    threads: int,
    budget: AnswerBudget | None = None,
    prompting: Prompting = Prompting(),
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> WrittenResult:
    """Answer one prompt.

    Args:
        model: Bundle, shipped name, ONNX file or folder.
        prompt: A text.
        asked: What the answer may be.
        hear: Called with each token, and what the answer took so far.
        threads: Of the engine; 0: as a bundle was measured, or the default.
        budget: Limits that this one answer is judged by.
        prompting: What stands before the prompt, and what becomes of a long one.
        tell: Hears how far a summary is.

    Raises:
        EdgeoptError: If it is no language model, or the prompt is empty or too long for its context.
    """
    if prompting.long == Long.WINDOWS:
        raise EdgeoptError("only sounds are heard in windows", remedy=REMEDY)
    system = read_system(prompting.system) if prompting.system else ""
    draft = find_language_model(prompting.draft) if prompting.draft else None
    file = find_language_model(model)
    opened, recipe = open_decoder(file, threads, prompting.context, draft)
    with opened:
        notes = list(opened.origin.notes)
        template = None if prompting.raw or prompting.images else template_of_prompt(recipe, file)
        mark = opened.images.marks.mark if opened.images is not None else ""
        turn = PromptTurn(opened.tokenizer, opened.begin_tokens, template, system, mark=mark)
        if not prompting.images:
            _require_room(turn, prompt, opened, asked.most_tokens, prompting.long)
        try:
            if system:
                prefix = opened.keep_prefix(turn.before, prompting.prefixes or prefix_folder())
                notes += [Note(NoteKind.INFO, prefix.note)] if prefix.note else []
                if count := prefix.computed_tokens:
                    text = f"{plural(count, 'token')} before the prompt computed, for later runs too"
                    notes.append(Note(NoteKind.INFO, text))
            if prompting.long == SUMMARISE:
                whole = len(turn.tokens_of(prompt)) + opened.begins_with
                if whole >= opened.context:
                    bare = PromptTurn(opened.tokenizer, opened.begin_tokens, template, mark=mark)
                    taken = opened.begins_with + len(turn.before) + len(turn.after)
                    room = opened.context - taken - min(asked.most_tokens, (opened.context - taken) // 2)
                    heard = partial(tell, "summarise the prompt")
                    prompt, _ = summarised(opened, prompt, room, heard, (bare.before, bare.after))
                    left = len(turn.tokens_of(prompt)) + opened.begins_with
                    notes.append(Note(NoteKind.INFO, f"the prompt of {whole} tokens is summarised to {left}"))
            long = Long.REFUSE if prompting.long == SUMMARISE else Long(prompting.long)
            tokens = [] if prompting.images else turn.tokens_of(prompt)
            keeps_turn = turn.after and asked.shifts and opened.begins_with + len(tokens) <= opened.context // 2
            keep = len(tokens) if keeps_turn else len(turn.before)  # or a shift cuts the turn's end off
            asked = replace(asked, long=long, keep=keep, keep_last=len(turn.after))
            if prompting.images:
                answer = opened.generate(prompt, asked, prompting.images)
            else:
                answer = opened.generate(tokens, asked)
        except ValueError as error:
            remedy = "write another prompt, or ask about fewer pictures" if prompting.images else REMEDY
            raise EdgeoptError(str(error), remedy=remedy) from error
        if answer.account.cut_tokens:
            detail = f"{answer.account.cut_tokens} tokens of the prompt are left out: its {prompting.long} is cut"
            notes.append(Note(NoteKind.INFO, detail))
        if asked.guesses or (asked.guesses is None and opened.guesses):
            notes += notes_of_guesses(opened.sums)
        with answer:
            interrupted = write_to(hear, answer)
        notes += _told_of_end(answer.account, asked, opened.context)
        notes += _told_of_nothing(answer.account, lambda: prompting.raw and has_chat_template(recipe, file))
    return WrittenResult(
        model=recipe.name, account=answer.account, notes=tuple(notes), budget=budget, interrupted=interrupted
    )


def _require_room(turn: PromptTurn, prompt: str, opened: LanguageModel, most_tokens: int, long: str) -> None:
    """Raise where a prompt fills the context, and what stands around it leaves no room for any words."""
    if opened.begins_with + len(turn.tokens_of(prompt)) < opened.context:
        return
    is_cut = long not in (Long.REFUSE, SUMMARISE)
    taken = opened.begins_with + len(turn.before) + len(turn.after)
    answer = min(most_tokens, opened.context // 2) if is_cut else 1
    if taken + answer >= opened.context:
        reserved = f", and {plural(answer, 'token')} are kept for the answer" if is_cut else ""
        raise EdgeoptError(
            f"what stands around the prompt takes {plural(taken, 'token')} of the context of {opened.context}"
            + reserved,
            remedy="a larger --context, a shorter --system, or --raw",
        )


def write_to(hear: Callable[[Piece, Account], None], answer: Generation) -> bool:
    """Hand the pieces of an answer on as they come; return whether Ctrl-C ended it."""
    try:
        for piece in answer:
            hear(piece, answer.account)
    except KeyboardInterrupt:
        answer.cancel()
        return True
    return False


def _told_of_end(account: Account, asked: AnswerOptions, context: int) -> Iterator[Note]:
    """Yield that an answer is shorter than asked for, where the context cut it."""
    count = len(account.token_at_ns)
    if account.reason == "length" and count < asked.most_tokens:
        detail = f"the answer ends after {plural(count, 'token')}: it and its prompt fill the context of {context}"
        yield Note(NoteKind.WARNING, detail, "a shorter prompt, a larger --context, or --context-shift")


def _told_of_nothing(account: Account, has_turns: Callable[[], bool]) -> Iterator[Note]:
    """Yield that the model wrote nothing, which looks like a fault; whether it has a template is asked only then."""
    if account.reason == "end" and len(account.token_at_ns) == 1:
        remedy = "leave --raw out: the model was trained on conversations" if has_turns() else "write another prompt"
        yield Note(NoteKind.INFO, "the answer is empty: the model ended it at once", remedy)


def read_system(file: Path) -> str:
    """Return the text that stands before prompts.

    Raises:
        InvalidFileError: If it cannot be read, or is empty.
    """
    text = read_text(file, remedy="pass a text in UTF-8")
    if not text:
        raise InvalidFileError(f"{file} is empty", remedy="write what stands before each prompt, or leave --system out")
    return text
