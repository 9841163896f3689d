"""Make one variant of a float model: choose, repair, write."""

from __future__ import annotations

import math

from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.quantize.calibration.findings import Findings
from edgeopt.steps.quantize.forms import WRITERS
from edgeopt.steps.quantize.repairs import weight_repairs
from edgeopt.steps.quantize.repairs._weights import repair_weights
from edgeopt.steps.quantize.scheme import Scheme, open_graph
from edgeopt.steps.quantize.search.choose import choose_scheme, integer_share, why_float
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.system.declared.target import Int8Rules


def make_variant(
    model: Model, findings: Findings, rules: Int8Rules, variant: Variant, ends_at_s: float = math.inf
) -> tuple[Outcome, Scheme]:
    """Return one variant, and the scheme that was written.

    Args:
        model: The float model, after what the variant changes of it before it is quantized; see `Sources.of`.
        findings: Of this model.
        rules: What INT8 form the target runs.
        variant: What to make.
        ends_at_s: On the monotonic clock; slow repairs leave layers after it as they are.
    """
    graph = open_graph(model)
    scheme = choose_scheme(graph, findings, rules, variant)
    notes = (
        *findings.notes,
        integer_share(graph, scheme),
        *why_float(graph, scheme, variant, findings.off_in(str(variant.form))),
    )
    settings = {
        name: variant.setting(name)
        for name, weight_repair in weight_repairs().items()
        if weight_repair.is_always_made or variant.setting(name)
    }
    scheme = repair_weights(graph, scheme, findings.calibration, settings, ends_at_s=ends_at_s)
    changes = WRITERS[variant.form].place(graph, scheme)
    return Outcome(graph.to_model(), changes, notes), scheme
