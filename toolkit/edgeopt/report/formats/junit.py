"""JUnit XML: what was judged, as test cases. A failure is proven; an error is a case without a verdict."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from edgeopt.report.document import Document, JudgedCase
from edgeopt.report.formats import Format, Paper

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold; file names may."""
_TAGS = {"FAIL": "failure", "INCONCLUSIVE": "error", "SKIPPED": "skipped"}


def _render(document: Document, _: Paper) -> str:
    verdicts = [judgement.verdict for judgement in document.judgements]
    counts = {"tests": len(verdicts), "failures": verdicts.count("FAIL"), "errors": verdicts.count("INCONCLUSIVE")}
    shown = {name: str(count) for name, count in counts.items()}
    suites = ElementTree.Element("testsuites", shown)
    more = {"skipped": str(verdicts.count("SKIPPED")), "time": f"{document.seconds:.3f}"}
    name = _clean(f"edgeopt {document.command} {document.subject}")
    suite = ElementTree.SubElement(suites, "testsuite", {"name": name} | shown | more)
    for other in document.judgements:
        _add_case(suite, other, f"edgeopt.{document.command}")
    ElementTree.indent(suites)
    text: str = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add_case(suite: ElementTree.Element, judgement: JudgedCase, classname: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=classname, name=_clean(judgement.name), time="0.000")
    detail = _clean(judgement.detail)
    if tag := _TAGS.get(judgement.verdict):
        kind = {} if tag == "skipped" else {"type": "noise" if judgement.is_noise else judgement.verdict.lower()}
        ElementTree.SubElement(case, tag, {"message": detail} | kind)
    ElementTree.SubElement(case, "system-out").text = detail


def _clean(text: str) -> str:
    return _NOT_XML.sub("?", text)


FORMAT = Format(_render)
