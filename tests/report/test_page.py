"""The parts of the page, without a browser."""

from __future__ import annotations

import re

import pytest

from edgeopt.report.document import Document, Section, Table
from edgeopt.report.figures import (
    Axis,
    AxisScale,
    Bar,
    Bars,
    BeforeAfter,
    ChartPoint,
    Estimate,
    Figure,
    Limit,
    Lines,
    Picture,
    PicturePair,
    Points,
)
from edgeopt.report.formats import Paper, render
from edgeopt.report.html.axis import is_far, make_range
from edgeopt.report.html.markup import join, tag
from edgeopt.report.html.page import draw
from edgeopt.report.result import PlainResult

EVIL = "<script>&\"'"


def test_text_and_attributes_are_escaped_and_markup_is_kept():
    inner = tag("b", EVIL)
    text = tag("p", inner, EVIL, None, class_=EVIL, data_x=1.50, hidden=True, open=False, title=None)
    assert text == (
        '<p class="&lt;script&gt;&amp;&quot;&#x27;" data-x="1.5" hidden>'
        "<b>&lt;script&gt;&amp;&quot;&#x27;</b>&lt;script&gt;&amp;&quot;&#x27;</p>"
    )
    assert join(["a<", tag("br")]) == "a&lt;<br>"


@pytest.mark.parametrize(
    ("scale", "values", "ticks"),
    [
        (AxisScale.LINEAR, [0.0, 10.0], ["0", "5", "10"]),
        (AxisScale.LINEAR, [1.41, 1.47], ["1.42", "1.44", "1.46"]),
        (AxisScale.LOG, [1.0, 1000.0], ["1", "10", "100", "1000"]),
        (AxisScale.TAIL, [1.0, 99.9], ["0", "50", "90", "99", "99.9"]),
    ],
)
def test_an_axis_has_round_numbers_in_order(scale, values, ticks):
    shown = make_range(Axis("x", scale=scale), values)
    places = [at for at, _ in shown.ticks]
    assert places == sorted(places)
    assert [text for _, text in shown.ticks] == ticks
    assert all(0 <= shown.at(one) <= 1 for one in values)


def test_equal_values_and_a_single_one_have_an_axis():
    for values in ([5.0], [0.0, 0.0], [1e-9, 1e-9]):
        assert 0 <= make_range(Axis("x"), values).at(values[0]) <= 1


def test_tail_percentiles_lie_equally_far_apart():
    shown = make_range(Axis("p", scale=AxisScale.TAIL), [1.0, 99.9])
    assert shown.at(99) - shown.at(90) == pytest.approx(shown.at(99.9) - shown.at(99))


def points(limit):
    place = {"x": Axis("time", "ms"), "y": Axis("AP")}
    return Points(title="t", text="x", **place, points=(ChartPoint("a", Estimate(1.0), Estimate(0.5)),), limit=limit)


def test_a_limit_far_away_is_told_and_not_drawn():
    near, far = Limit("budget 2 ms", 2.0), Limit("budget 33 ms", 33.0)
    assert not is_far(near, [1.0])
    assert is_far(far, [1.0])
    assert 'data-limit="2.0"' in draw(points(near), None)
    text = draw(points(far), None)
    assert "data-limit" not in text
    assert "The budget 33 ms lies far to the right, at 33 times the longest time." in text


def test_a_chart_names_every_point_on_a_phone_too():
    crowd = tuple(ChartPoint(f"candidate-{i}", Estimate(1 + i / 1000), Estimate(0.5)) for i in range(5))
    text = draw(Points(title="t", text="x", x=Axis("time", "ms"), y=Axis("AP"), points=crowd), None)
    on_phone = re.findall(r'class="name \w+ phone"[^>]*>([^<]*)<', text)
    (others,) = re.findall(r'class="far phone">([^<]*)<', text)
    assert on_phone
    assert all(one.name in on_phone or one.name in others for one in crowd)


def test_a_long_name_in_a_row_is_shortened_for_a_phone_where_it_would_meet_its_figures():
    name = "a-very-long-name-of-a-candidate"
    row = Bar(name, (1.0,), facts=(("p50", "p50 41.80 ms, p99 43.90 ms"),))
    text = draw(Bars(title="t", text="x", axis=Axis("time", "ms"), parts=("execute",), bars=(row,)), None)
    assert f'class="name wide" x="0" y="24">{name}<' in text
    assert re.search(r'class="name phone"[^>]*>a-[^<]*\.\.\.[^<]*<', text)


@pytest.mark.parametrize(
    "figure",
    [
        Points(title="t", text="", x=Axis("x"), y=Axis("y"), points=()),
        Lines(title="t", text="", x=Axis("x"), y=Axis("y"), lines=()),
        BeforeAfter(title="t", text="", before="a", after="b", pairs=(PicturePair("p", "1.jpg", "2.jpg"),)),
        Picture(title="t", text="", file="../secret.png"),
        Figure(title="t", text=""),
    ],
)
def test_what_is_not_there_is_not_shown(figure, tmp_path):
    assert draw(figure, tmp_path) is None
    page = render(
        Document(PlainResult(command="c"), "s", "t", (Section("Nothing", figures=(figure,)),)),
        "html",
        Paper(folder=tmp_path),
    )
    assert "Nothing" not in page


def test_a_column_that_nothing_told_is_not_shown():
    table = Table(("at", "p50", "p99", "heat"), (("0 s", "1.2", "n/a", "n/a"), ("1 s", "1.3", "2.0", "n/a")))
    page = render(Document(PlainResult(command="c"), "s", "t", (Section(table=table),)), "html")
    assert page.count("<th ") == 3 + 2
    assert "heat" not in page
    assert page.count(">n/a<") == 1


def test_pictures_lie_inside_the_page(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "big.png").write_bytes(b"x" * ((1 << 20) + 1))
    (tmp_path / "run.exe").write_bytes(b"x")
    assert 'src="data:image/png;base64,iVBORw=="' in draw(Picture(title="t", text="", file="a.png"), tmp_path)
    assert draw(Picture(title="t", text="", file="big.png"), tmp_path) is None
    assert draw(Picture(title="t", text="", file="run.exe"), tmp_path) is None
