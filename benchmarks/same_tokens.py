"""Whether a language model writes the same tokens however it is run: the table of docs/language-exactness.md.

    pip install edgeopt[cpu] onnxscript
    python benchmarks/same_tokens.py [--work FOLDER] [--tokens 64] [--forms w4,w8] [--model FILE]

Of the shipped `tiny_lm` enlarged to 51 million weights (`benchmarks/generation.py`) each form of `optimize` answers
eight prompts, greedily. Counted is how many answers are those of the model alone, its prompt at once, in a cache of
its own; where single tokens sum otherwise than several, guesses and a last row of slots are compared with an answer
by `--exact`, as guesses are refused without it. With `--model` it is another language model that `edgeopt export`
wrote; a draft that its recipe names guesses too. `A-B` are two graphs over one cache: prompts by A, tokens by B.
`bf16+openvino` and `w8+openvino` are forms that OpenVINO computes, prompts alone in `bf16+openvino-w4+head`.
"""

from __future__ import annotations

import argparse
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import sleep

from generation import SHIPPED, exported

from edgeopt.executors._prompt_graph import OPENVINO
from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.model import Model, load_model, save_model
from edgeopt.optimization.generation.forms.kinds import EIGHT_BITS_BLOCK, FORMS
from edgeopt.optimization.generation.forms.material import DecoderMaterial
from edgeopt.optimization.generation.forms.prompts_elsewhere import WHOLE
from edgeopt.optimization.run import Silence
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.runtime.decoding.batching.shared_model import SharedModel
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.language_model import LanguageModel
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.bfloat16_weights import store_in_bfloat16
from edgeopt.steps.convert.kv_cache import make_integer_cache
from edgeopt.steps.convert.last_logits import keep_last_logits
from edgeopt.steps.convert.prefill_graph import write_two_graphs
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.system.machine.environment import read_environment

PROMPTS = 8
LENGTHS = (100, 61, 97, 34, 120, 75, 48, 89)
BLOCKS = f"w8+{OPENVINO}"
BY_OPENVINO = (WHOLE, BLOCKS)
_BESIDE = ("recipe.toml", "tokenizer.json", "held_out.txt")
PART = 32
"""Tokens of a run of the graph of prompts, where there are two; `optimize` has 128, and these prompts are short."""
_APART_S = 0.05
"""Between two requests to the slots."""

Answers = list[list[int]]


def written(model: LanguageModel, prompts: Answers, asked: AnswerOptions) -> Answers:
    """Return the tokens of each answer; nothing of the one before is kept."""
    found = Answers()
    for prompt in prompts:
        model.forget()
        found.append([piece.token for piece in model.generate(prompt, asked)])
    return found


def in_slots(model: LanguageModel, prompts: Answers, asked: AnswerOptions) -> Answers:
    """Return the tokens of answers in four slots, each asked for a little later than the one before."""
    found: dict[int, list[int]] = {}
    with SharedModel(model, 4) as shared:

        def ask(i: int) -> None:
            sleep(i * _APART_S)
            found[i] = [piece.token for piece in shared.generate(prompts[i], asked)]

        threads = [Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    return [found[i] for i in range(len(prompts))]


def behind_prefix(model: LanguageModel, prompts: Answers, asked: AnswerOptions, folder: Path) -> Answers:
    """Return answers whose prompt's first half is stored, read from disk and continued."""
    found = Answers()
    for prompt in prompts:
        model.forget()
        for _ in range(2):
            model.keep_prefix(prompt[: len(prompt) // 2], folder)
        found.append([piece.token for piece in model.generate(prompt, asked)])
    return found


def second_turns(prompts: Answers, first: Answers) -> Answers:
    """Return prompts that go on behind an answer, as the next line of a chat does."""
    return [[*prompt, *answer, *prompt[:10]] for prompt, answer in zip(prompts, first, strict=True)]


def behind_answers(model: LanguageModel, prompts: Answers, turns: Answers, asked: AnswerOptions) -> Answers:
    """Return answers to prompts that go on behind an answer, whose cache is still there."""
    found = Answers()
    for prompt, turn in zip(prompts, turns, strict=True):
        model.forget()
        for given in (prompt, turn):
            tokens = [piece.token for piece in model.generate(given, asked)]
        found.append(tokens)
    return found


def after_rewind(model: LanguageModel, prompts: Answers, asked: AnswerOptions) -> Answers:
    """Return answers to a prompt whose cache held a longer text that began like it."""
    found = Answers()
    for prompt in prompts:
        model.forget()
        list(model.generate([*prompt[:-1], 5, 6, 7, 8], asked))
        found.append([piece.token for piece in model.generate(prompt, asked)])
    return found


def rows_of(model: LanguageModel, tokens: int, folder: Path) -> dict[str, str]:
    """Return how many answers are the same, by the way they are run."""
    text = model.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    prompts = [text[701 * i : 701 * i + LENGTHS[i]] for i in range(PROMPTS)]
    rows = dict[str, str]()

    def count(name: str, found: Answers, wanted: Answers) -> None:
        rows[name] = str(sum(a == b for a, b in zip(found, wanted, strict=True)))

    plain = AnswerOptions(tokens, guesses=0, ends=False)
    alone = written(model, prompts, plain)
    count("prompt in parts of 7", written(model, prompts, replace(plain, chunk_tokens=7)), alone)
    count("first half a stored prefix", behind_prefix(model, prompts, plain, folder), alone)
    count("rewound", after_rewind(model, prompts, plain), alone)
    turns = second_turns(prompts, alone)
    count("behind its own answer", behind_answers(model, prompts, turns, plain), written(model, turns, plain))
    count("in four slots", in_slots(model, prompts, plain), alone)
    ways = () if model.states else (False, True) if model.has_draft else (False,)
    guessing = [replace(plain, guesses=4, uses_draft=by_draft) for by_draft in ways]
    if model.sums is Sums.PAIRED:  # guesses are refused unless answers are exact
        count("exact, against plain", exact := written(model, prompts, replace(plain, exact=True)), alone)
        model.is_exact, alone = True, exact
        count("exact, in four slots", in_slots(model, prompts, plain), alone)
    for by, asked in zip(("the text", "the draft"), guessing, strict=False):
        count(f"4 guesses by {by}", written(model, prompts, asked), alone)
    return rows


def forms_of(file: Path) -> dict[str, Callable[[], Model]]:
    """Return the forms by name, `+cache8` too."""
    model = load_model(file)
    text = read_tokens(file.parent / "tokenizer.json").encode((SHIPPED / "held_out.txt").read_text("utf-8"))
    windows = [text[start : start + 128] for start in range(0, 2048, 128)]
    material = DecoderMaterial(model, find_device("cpu"), windows, 1, 0, 0.02, Silence())
    made: dict[str, Callable[[], Model]] = {"fp32": lambda: model}
    made |= {one.name: (lambda one=one: one.make(material).model) for one in FORMS}
    made[WHOLE] = lambda: store_in_bfloat16(model).model
    made[BLOCKS] = lambda: make_weight_only(model, 8, EIGHT_BITS_BLOCK, tables=False).model

    def small(name: str) -> Callable[[], Model]:
        return lambda: make_integer_cache(made[name](), material.cache_ranges).model

    return made | {f"{name}+cache8": small(name) for name in (*made,)}


def save(forms: Mapping[str, Callable[[], Model]], name: str, folder: Path) -> str:
    """Write a form, or `A-B` as two graphs over one cache; return what the recipe says of that.

    Raises:
        SystemExit: If it names no form, or tokens by OpenVINO behind prompts of another.
    """
    prompts, _, tokens = name.partition("-")
    if not {prompts, tokens or prompts} <= set(forms) or tokens in BY_OPENVINO:
        raise SystemExit(f"{name} is no form of {', '.join(forms)}, nor a pair whose tokens run on ONNX Runtime")
    if not tokens:
        save_model(keep_last_logits(forms[name]()).model, folder / "model.onnx")
        return f'\nengine = "{OPENVINO}"\nchunk = {PART}' if name in BY_OPENVINO else ""
    prompts_engine = f'\nprefill_engine = "{OPENVINO}"' if prompts in BY_OPENVINO else ""
    prompts += "+cache8" if tokens.endswith("+cache8") else ""
    token_graph = keep_last_logits(forms[tokens]()).model
    write_two_graphs(forms[prompts](), token_graph, folder / "model.onnx", folder / "prefill.onnx")
    return f'\nprefill = "prefill.onnx"{prompts_engine}\nchunk = {PART}'


def main() -> None:
    """Print the table, a column a form."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("generation-work"))
    parser.add_argument("--tokens", type=int, default=64)
    names = "fp32,w8a8,w8,w4,w4+head,w4+long,w4+mixed,w4+cache8,w4+long+cache8"
    names += ",w8a8-w4+long,w8a8-w8,w8-w4,w8a8-w4+cache8"
    parser.add_argument("--forms", default=names)
    parser.add_argument("--model", type=Path)
    given = parser.parse_args()
    file = given.model or exported(given.work)
    print(f"{read_environment().cpu}, one thread; {given.tokens} tokens, {PROMPTS} prompts", flush=True)
    forms = forms_of(file)
    for name in given.forms.split(","):
        with TemporaryDirectory() as place:
            folder = Path(place)
            more = save(forms, name, folder)
            for beside in filter(Path.exists, (file.parent / beside for beside in _BESIDE)):
                shutil.copyfile(beside, folder / beside.name)
            recipe = folder / "recipe.toml"
            if draft := tomllib.loads(recipe.read_text("utf-8"))["generation"].get("draft"):
                (folder / draft).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.parent / draft, folder / draft)
            elif not given.model:
                shutil.copyfile(SHIPPED / "draft" / "model.onnx", folder / "draft.onnx")
                more += '\ndraft = "draft.onnx"\ndraft_context = 1024'
            recipe.write_text(recipe.read_text("utf-8").replace("[generation]", f"[generation]{more}"), "utf-8")
            with open_language_model(folder / "model.onnx", 1)[0] as model:
                with SharedModel(model, 4) as shared:
                    told = shared.turns_told or "side by side"
                print(f"\n{name}: single tokens {model.sums}; slots: {told}", flush=True)
                for row, found in rows_of(model, given.tokens, folder / "prefixes").items():
                    print(f"| {row} | {found} |", flush=True)


if __name__ == "__main__":
    main()
