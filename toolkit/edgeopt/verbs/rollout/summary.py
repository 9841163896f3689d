"""The lines of `edgeopt push` and `edgeopt sign`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from edgeopt.report.document import CommandOutcome, Document, Section, Value, VerdictLines
from edgeopt.report.result import PlainResult
from edgeopt.runtime.rollout.signature import Signature, signature_file
from edgeopt.verbs.rollout.place import Fate
from edgeopt.verbs.rollout.push import Pushed


def summarize(pushed: Pushed) -> Document:
    """Return what is shown of a push."""
    version, place = pushed.version, pushed.place
    facts = pushed.canary.facts if pushed.canary else ()
    release = f"release {version.serial}" if version.serial is not None else "not signed"
    values = (Value("version", f"{version.name}, {release}"), *(Value(name, text) for name, text in facts))
    next_command = ""
    if version.fate is Fate.REFUSED:
        runs = f"{pushed.before} runs on" if pushed.before else "nothing runs there"
        sentence, outcome = f"refused: {version.reason}; {runs}", CommandOutcome.FAIL
    else:
        what = "went back to" if pushed.went_back else "runs"
        left = f" in place of {pushed.before}" if pushed.before and pushed.before != version.name else ""
        already = " already" if pushed.canary is None and not pushed.went_back else ""
        outcome = CommandOutcome.PASS if pushed.canary else CommandOutcome.DONE
        sentence = f"{what} {version.name}{left}" if pushed.went_back else f"{version.name} {what}{already}{left}"
        back = f"edgeopt push --back --to {shlex.quote(str(place))}"
        next_command = back if left and not pushed.went_back else ""
    verdict = VerdictLines(outcome, sentence, (Value("place", f"{place}/current"),), next_command=next_command)
    return Document(pushed, str(place), f"Push into {place}", (Section(values=values),), verdict=verdict)


def summarize_signature(bundle: Path, signature: Signature) -> Document:
    """Return what is shown of a signature."""
    file = signature_file(bundle)
    facts = (Value("release", str(signature.serial)), Value("key", signature.key_id))
    following = f"edgeopt push {shlex.quote(str(bundle))} --to PLACE --on ssh://USER@HOST"
    verdict = VerdictLines(CommandOutcome.DONE, f"signed in {file}", facts, next_command=following)
    result = PlainResult(command="sign", figures={"file": str(file), **asdict(signature)})
    return Document(result, str(bundle), f"Signature of {bundle}", verdict=verdict)


def summarize_keys(private: Path, public: Path) -> Document:
    """Return what is shown of a new pair of keys."""
    facts = (Value("public", f"{public}: devices get it, with edgeopt push --trust {public}"),)
    sentence = f"{private} is the private key: who has it may release; it has no password"
    verdict = VerdictLines(CommandOutcome.DONE, sentence, facts, next_command=f"edgeopt sign BUNDLE --key {private}")
    result = PlainResult(command="sign", figures={"private": str(private), "public": str(public)})
    return Document(result, str(private), "A new pair of keys", verdict=verdict)
