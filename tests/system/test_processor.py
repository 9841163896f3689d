"""Instructions of processors: those that a system tells of, and those that it does not."""

from __future__ import annotations

from edgeopt.system.declared.target import elsewhere, find_target
from edgeopt.system.machine.processor import Processor, flags_of_apple

M1 = """hw.optional.arm.FEAT_LSE: 1
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_FP16: 1
hw.optional.arm.FEAT_BF16: 0
hw.optional.arm.FEAT_I8MM: 0
"""


def why_no_half(processor: Processor) -> str | None:
    return elsewhere(find_target("ncnn-cpu"), "ssh://here", processor).why_no_precision("fp16")


def test_an_apple_processor_has_what_its_system_tells() -> None:
    has, listed = flags_of_apple(M1)
    assert has == {"asimddp", "asimdhp", "fphp", "atomics"}
    assert listed == has | {"bf16", "i8mm"}
    assert why_no_half(Processor("arm64", has, listed)) is None


def test_where_the_system_tells_nothing_of_an_instruction_nobody_says_that_it_lacks() -> None:
    assert flags_of_apple("sysctl: unknown oid 'hw.optional.arm'\n") == (frozenset(), frozenset())
    silent = Processor("arm64", {"asimd", "asimddp"}, {"asimd", "asimddp"})
    assert why_no_half(silent) == "whether this processor has asimdhp is not known on this system"
    assert why_no_half(Processor("arm64", {"asimd"})) == "this processor has none of asimdhp"
    assert repr(silent) == repr(Processor("arm64", {"asimd", "asimddp"}))
    assert silent == Processor("arm64", {"asimd", "asimddp"})
