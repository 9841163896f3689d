"""The pages in a real browser: nothing is asked of anybody, the charts are there, and they show the data's numbers."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from fixture_brief import briefly
from screens import optimized

import edgeopt
from edgeopt.measurement.samples import Samples
from edgeopt.optimization.optimize import optimize
from edgeopt.report.document import CommandOutcome, Document, KeyFigure, Section, Value, VerdictLines, make_table
from edgeopt.report.figures import (
    Axis,
    Bar,
    Bars,
    BeforeAfter,
    Cell,
    Cells,
    ChartPoint,
    Curve,
    Estimate,
    Intervals,
    Lines,
    PicturePair,
    Points,
    Row,
)
from edgeopt.report.formats import write_pages
from edgeopt.report.result import PlainResult
from edgeopt.system.order_statistic import order_statistic

pytestmark = [
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
    pytest.mark.skipif(
        sys.platform == "win32", reason="Chromium is driven over inherited pipes, which Windows has not"
    ),
]
READY = "document.readyState === 'complete' && document.documentElement?.classList.contains('live')"
EVIL = """</script><script>window.evil=1</script>"><img src=x onerror="window.evil=2"><svg onload=evil=3>'&lt;"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    from chromium import chromium_page

    with chromium_page(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of an optimize, and that of a bench of its bundle."""
    place = tmp_path_factory.mktemp("made")
    with briefly():
        report = optimize("digits_detector", out=place / "out", steps=("simplify",), budget_ms=500.0, threads=1)
    edgeopt.bench(str(report.bundle), out=place / "bench", threads=1, seconds=0.5, min_frames=400, profile=True)
    return place


@pytest.fixture
def shown(page, made):
    """Open a page of theirs and return its data."""

    def show(file, width=1280, *, dark=False):
        page.console.clear()
        page.requests.clear()
        page.look(width, dark=dark)
        page.open((made / file).as_uri())
        page.wait_for(READY)
        return json.loads((made / file).with_suffix(".json").read_text("utf-8"))

    return show


def numbers(page, selector, name):
    """Return a data attribute of all elements, by their names."""
    script = f"[...document.querySelectorAll('{selector}')].map(one => [one.dataset.name, one.dataset.{name}])"
    return dict(page.value(script))


@pytest.mark.parametrize("file", ["out/report.html", "bench/bench.html"])
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_page_is_whole_on_its_own(page, made, shown, file, width, dark):
    data = shown(file, width, dark=dark)
    assert page.console == []
    assert page.requests == [(made / file).as_uri()]
    assert (made / file).stat().st_size < 4 << 20
    assert json.loads(page.value("document.getElementById('data').textContent")) == data
    assert page.value("document.documentElement.scrollWidth") <= width, "nothing is cut off at the right"
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) < 200) is dark


def test_a_phone_names_every_point_hints_at_wide_tables_and_draws_no_line_through_figures(page, tmp_path):
    write_pages(optimized(), tmp_path, "page")
    page.look(390)
    page.open((tmp_path / "page.html").as_uri())
    page.wait_for(READY)
    visible = "[...document.querySelectorAll('figure.points text.name, figure.points p.far')]"
    visible += ".filter(one => getComputedStyle(one).display !== 'none').map(one => one.textContent).join(' ')"
    names = page.value("[...document.querySelectorAll('figure.points .mark')].map(one => one.dataset.name)")
    assert len(names) > 3
    assert all(name in page.value(visible) for name in names)
    wide = "[...document.querySelectorAll('.scroll')].map(one => [one.scrollWidth > one.clientWidth + 1, "
    wide += "!one.nextElementSibling.hidden])"
    hints = page.value(wide)
    assert any(is_wide for is_wide, _ in hints)
    assert all(is_wide == is_hinted for is_wide, is_hinted in hints)
    crossed = """[...document.querySelectorAll('.rows .limit line')].flatMap(line =>
        [...line.closest('svg').querySelectorAll('text.value')].map(text => [line, text].map(one =>
        one.getBoundingClientRect()))).filter(([line, text]) => line.top < text.bottom - 3 && text.top + 3 < line.bottom
        && line.left < text.right && text.left < line.right).length"""
    assert page.value("document.querySelectorAll('.rows .limit line').length") > 3
    assert page.value(crossed) == 0
    overlap = """[...document.querySelectorAll('.rows .mark')].filter(mark => { const [name, value] = [
        [...mark.querySelectorAll('text.name')].find(one => getComputedStyle(one).display !== 'none'),
        mark.querySelector('text.value')].map(one => one && one.getBoundingClientRect());
        return name && value && name.right > value.left; }).length"""
    assert page.value(overlap) == 0
    page.look(1280)
    page.open((tmp_path / "page.html").as_uri())
    page.wait_for(READY)
    assert all(is_wide == is_hinted for is_wide, is_hinted in page.value(wide))


@pytest.mark.parametrize("file", ["out/report.html", "bench/bench.html"])
def test_every_chart_has_words_and_every_mark_a_name(page, shown, file):
    shown(file)
    assert page.value("document.querySelectorAll('svg.plot').length") >= 3
    silent = "[...document.querySelectorAll('.plot, .mark, img, .slide input')].filter(one => !%s).length"
    assert page.value(silent % "(one.getAttribute('aria-label') || one.alt)") == 0
    assert page.value("[...document.querySelectorAll('figure')].filter(one => !one.querySelector('h3')).length") == 0
    assert (
        page.value(
            "[...document.querySelectorAll('svg.plot')].filter(one => one.getBoundingClientRect().width < 200).length"
        )
        == 0
    )


def test_the_charts_of_a_report_show_the_reports_numbers(page, made, shown):
    candidates = {one["name"]: one for one in shown("out/report.html")["candidates"]}
    is_scored = all(one["score"] for one in candidates.values())  # what is not proven faster may not be

    def height(one):
        if is_scored:
            return one["score"]["value"]
        return 1.0 if one["agreement"] is None else one["agreement"]

    places = page.value(
        "[...document.querySelectorAll('figure.points .mark')]"
        ".map(one => [one.dataset.name, one.dataset.x, one.dataset.y])"
    )
    assert {name: (float(x), float(y)) for name, x, y in places} == {
        name: (one["latency"]["frame"]["p50_ms"], height(one)) for name, one in candidates.items() if one["latency"]
    }
    speeds = numbers(page, "figure.intervals .mark", "value")
    assert {name: float(value) for name, value in speeds.items()} == {
        name: one["speed"]["speedup"] for name, one in candidates.items() if one["speed"]
    }
    parts = page.value(
        "[...document.querySelectorAll('figure.bars .mark')].map(one => [one.dataset.name,"
        " [...one.querySelectorAll('.part')].map(part => [part.dataset.part, part.dataset.value])])"
    )
    for name, shares in parts:
        latency = candidates[name]["latency"]
        told = {part: float(value) for part, value in shares if part != "between stages"}
        assert told == {part: latency["stages"][part]["mean_ms"] for part in told}
        assert sum(float(value) for _, value in shares) == pytest.approx(latency["frame"]["mean_ms"], rel=0.02)
    curves = numbers(page, "figure.lines .mark", "values")
    assert {*curves} >= {"baseline"}


def test_the_charts_of_a_bench_show_its_samples(page, made, shown):
    data = shown("bench/bench.html")
    values = page.value("[...document.querySelectorAll('figure.lines .mark')].map(one => one.dataset.values)")
    curve = dict(tuple(map(float, pair.split(","))) for pair in values[0].split(" "))
    frame = data["samples"]["times"]["frame"]
    assert curve[50.0] == frame["p50"]["value_ns"] / 1e6
    assert curve[99.0] == frame["p99"]["value_ns"] / 1e6
    samples = Samples.read(made / "bench" / "samples.npz")
    order = [tuple(map(float, pair.split(","))) for pair in values[1].split(" ")]
    assert max(y for _, y in order) == samples.frame_ns.max() / 1e6
    assert all(samples.frame_ns[int(x)] / 1e6 == y for x, y in order)
    times = sorted(samples.steady().frame_ns)
    assert curve[90.0] == order_statistic(times, 0.9) / 1e6


def test_marks_are_reached_by_keys_and_by_a_pointer(page, shown):
    shown("out/report.html")
    page.value("document.querySelector('figure.points .mark').focus()")
    names = page.value("[...document.querySelectorAll('figure.points .mark')].map(one => one.dataset.name)")
    page.press("ArrowRight")
    assert page.value("document.activeElement.dataset.name") == names[1]
    assert page.value("document.querySelector('#tip strong').textContent") == names[1]
    assert "frame p50" in page.value("document.getElementById('tip').textContent")
    page.press("End")
    assert page.value("document.activeElement.dataset.name") == names[-1]
    page.press("Escape")
    assert page.value("document.getElementById('tip').hidden")
    assert page.value("document.querySelectorAll('figure.points .mark[tabindex=\"0\"]').length") == 1
    page.value("document.querySelector('figure.lines .plot').scrollIntoView({block: 'center', behavior: 'instant'})")
    x, y = page.value(
        "(box => [box.left + box.width / 2, box.top + box.height / 2])"
        "(document.querySelector('figure.lines .plot').getBoundingClientRect())"
    )
    for step in range(100):  # the tip goes when the page scrolls, and that may come after the first move
        page.point(x + step % 2, y)
        if not page.value("document.getElementById('tip').hidden"):
            break
    assert page.value("document.querySelector('#tip strong').textContent").startswith("percentile ")
    assert page.value("document.querySelectorAll('#tip div').length") == len(names)


def test_a_slider_uncovers_the_answers(page, shown):
    shown("out/report.html")
    slide = "document.querySelector('.slide')"
    assert page.value(f"{slide}.querySelector('img').naturalWidth") > 100
    move = "range => { range.value = 80; range.dispatchEvent(new Event('input')); }"
    page.value(f"({move})({slide}.querySelector('input'))")
    assert page.value(f"{slide}.style.getPropertyValue('--at')") == "80%"


def test_paper_shows_what_is_folded_and_both_pictures(page, shown):
    shown("out/report.html")
    page.prefer("print")
    page.value("dispatchEvent(new Event('beforeprint'))")
    assert page.value("[...document.querySelectorAll('section > details')].every(one => one.open)")
    assert page.value("getComputedStyle(document.querySelector('.slide .after')).clipPath") == "none"
    page.value("dispatchEvent(new Event('afterprint'))")
    assert not page.value("[...document.querySelectorAll('section > details')].some(one => one.open)")
    page.prefer()


def test_hostile_names_are_text(page, tmp_path):
    facts = ((EVIL, EVIL),)
    base = {"title": EVIL, "text": EVIL}
    axis, one = Axis(EVIL, EVIL), Estimate(1.0, 0.5, 2.0)
    figures = (
        Points(**base, x=axis, y=axis, points=(ChartPoint(EVIL, one, one, facts), ChartPoint("b", Estimate(3.0), one))),
        Bars(**base, axis=axis, parts=(EVIL, "b"), bars=(Bar(EVIL, (1.0, 2.0), facts, 4.0),), tail=EVIL),
        Lines(**base, x=axis, y=axis, lines=(Curve(EVIL, (0.0, 1.0), (1.0, 2.0), facts),)),
        Intervals(**base, axis=axis, rows=(Row(EVIL, one, facts, 1.5),)),
        Cells(**base, cells=(Cell(EVIL, EVIL, facts, is_refused=True),)),
        BeforeAfter(**base, before=EVIL, after=EVIL, pairs=(PicturePair(EVIL, EVIL, EVIL),), file="../../etc/passwd"),
    )
    table = make_table([EVIL], {EVIL: str, "words": str}, words=["words"], chosen=0)
    section = Section(EVIL, table, EVIL, (Value(EVIL, EVIL, is_command=True),), figures)
    document = Document(
        PlainResult(command="bench", figures={EVIL: [EVIL, "<!--<script>", float("nan")]}),
        subject=EVIL,
        title=EVIL,
        sections=(section,),
        verdict=VerdictLines(CommandOutcome.PASS, EVIL, (Value(EVIL, EVIL),), EVIL, EVIL),
        key_figures=(KeyFigure(EVIL, EVIL, EVIL),),
    )
    write_pages(document, tmp_path, "page")
    page.console.clear()
    page.requests.clear()
    page.open((tmp_path / "page.html").as_uri())
    page.wait_for(READY)
    assert page.value("window.evil") is None
    assert page.console == []
    assert page.requests == [(tmp_path / "page.html").as_uri()]
    assert page.value("document.querySelectorAll('script').length") == 2
    assert page.value("document.querySelectorAll('img').length") == 0
    assert page.value("document.querySelector('h1').textContent") == EVIL
    assert page.value("document.querySelectorAll('figure').length") == 5
    page.value("document.querySelector('figure.points .mark').dispatchEvent(new PointerEvent('pointermove'))")
    assert page.value("document.querySelector('#tip strong').textContent") in (EVIL, "b")
    data = json.loads(page.value("document.getElementById('data').textContent"))
    assert data[EVIL] == [EVIL, "<!--<script>", None]
