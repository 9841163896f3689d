"""Guessed tokens: what they save, by a draft and by the text so far."""

from __future__ import annotations

import shutil
from pathlib import Path

from enlarged import SHIPPED
from turns import ratio

from edgeopt.executors.onnxruntime.sums import Sums
from edgeopt.graph.model import load_model, save_model
from edgeopt.measurement.generation.guesses import DRAFT, TEXT, forecast_guesses
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.opening import open_language_model
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic


def of_speculation(file: Path, work: Path, rounds: int) -> None:
    """TPOT with guesses, measured in turns and predicted, by the draft of the shipped model and by the text so far.

    The tokens are compared with those of an exact answer without guesses, whose TPOT is told too; `w8a8` has none.
    """
    model = load_model(file)
    made = {
        "fp32": model,
        "w8a8": make_dynamic(model, find_device("cpu").rules_here).model,
        "w8": make_weight_only(model, 8, 128).model,
        "w4": make_weight_only(model, 4).model,
        "w4+long": make_weight_only(model, 4, 128).model,
    }
    print("\n| weights | guesses | right | tokens a run | predicted | measured | exact | same tokens |", flush=True)
    print("|---|---|--:|--:|--:|---|---|--:|", flush=True)
    for name, one in made.items():
        place = work / f"guess-{name}"
        place.mkdir(parents=True, exist_ok=True)
        for beside in ("recipe.toml", "tokenizer.json"):
            shutil.copyfile(file.parent / beside, place / beside)
        recipe = (place / "recipe.toml").read_text("utf-8").replace('calib = "held_out.txt"', "")
        drafted = '[generation]\ndraft = "draft.onnx"\ndraft_context = 1024'
        (place / "recipe.toml").write_text(recipe.replace("[generation]", drafted), "utf-8")
        shutil.copyfile(SHIPPED / "draft" / "model.onnx", place / "draft.onnx")
        save_model(one, place / "model.onnx")
        opened, _ = open_language_model(place, 1)
        text = opened.tokenizer.encode((SHIPPED / "held_out.txt").read_text("utf-8"))
        prompts = [[0, *text[start : start + 127]] for start in range(0, 97 * rounds, 97)]
        forecast = forecast_guesses(opened, prompts[:3], 64)
        costs = ", ".join(f"{width}: {cost:.2f}" for width, cost in forecast.costs)
        for by in (DRAFT, TEXT):
            plan = max((one for one in forecast.plans if one.by == by), key=lambda one: one.gain)
            asked = {"plain": AnswerOptions(64, guesses=0, ends=False)}
            exact = True if opened.sums is not Sums.APART else None
            asked["guessing"] = AnswerOptions(64, guesses=plan.guesses, uses_draft=by == DRAFT, exact=exact, ends=False)
            if exact:
                asked["exact"] = AnswerOptions(64, guesses=0, exact=True, ends=False)
            times, same = {kind: list[float]() for kind in asked}, 0
            for number, prompt in enumerate(prompts):
                tokens = dict[str, list[int]]()
                for kind in list(asked)[:: -1 if number % 2 else 1]:
                    opened.forget()
                    answer = opened.generate(prompt, asked[kind])
                    tokens[kind] = [piece.token for piece in answer]
                    times[kind].append(answer.account.tpot_ms or 0.0)
                same += tokens["guessing"] == tokens.get("exact", tokens["plain"])
            told = f"{plan.acceptance:.0%} | {plan.tokens_a_run:.2f} | {plan.gain_told}"
            told += f" | {ratio(times['plain'], times['guessing'])}"
            told += f" | {ratio(times['plain'], times['exact'])}" if "exact" in times else " |"
            print(f"| {name} | {plan.guesses} by the {by} | {told} | {same} of {rounds} |", flush=True)
        print(f"  a run of so many tokens, over one: {costs}; best: {forecast}", flush=True)
        opened.close()
