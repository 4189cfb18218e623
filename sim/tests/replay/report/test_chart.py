"""Where a chart draws what: on 880 × 400, from 52 to 864 and from 354 up to 14; narrow to 404, and from 294."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kv_sim.replay.report.chart import (
    Line,
    Mark,
    _even_ticks,
    _log_ticks,
    _nice_top,
    bar_chart,
    log_chart,
    series_chart,
)


def drawn(chart):
    """The wide chart and the narrow one."""
    both = ET.fromstring(f"<both>{chart}</both>")
    assert [part.get("class") for part in both] == ["wide", "narrow"]
    between = [text for element in both.iter() for text in (element.tail, element.text if len(element) else "")]
    assert not "".join(text or "" for text in between).strip(), "words outside of any element"
    return [part[0] for part in both]


def places(svg, style, *names):
    """The attributes of every element of a style, numbers as such; what it says comes last."""
    found = [element for element in svg.iter() if element.get("class") == style]
    return [(*(float(element.get(name)) for name in names), "".join(element.itertext())) for element in found]


def points(svg, style):
    [element] = [element for element in svg.iter() if element.get("class") == style]
    pairs = [pair.split(",") for pair in element.get("points").split()]
    return [(float(x), float(y)) for x, y in pairs], "".join(element.itertext())


LINES = [
    Line("c0", "<lru>", [(1, 0.0), (10, 0.5), (100, 1.0)]),
    Line("bound", "MIN", [(1, 0.25), (100, 1.0)], has_dots=False),
]


def test_curves_over_a_logarithm():
    def show(x):
        return f"{x:g} <x>"

    wide, narrow = drawn(log_chart(LINES, "a <title>", "the <axis>", show, Mark(10, 0.5, "<here>")))
    assert (wide.get("viewBox"), narrow.get("viewBox")) == ("0 0 880 400", "0 0 420 340")
    assert wide.get("aria-label") == "a <title>"
    assert points(wide, "line c0") == ([(52, 354), (458, 184), (864, 14)], "")
    assert points(narrow, "line c0") == ([(52, 294), (228, 154), (404, 14)], "")
    assert points(wide, "line bound") == ([(52, 269), (864, 14)], "")
    assert places(wide, "dot c0", "cx", "cy") == [
        (52, 354, "<lru>, 1 <x>: 0.0%"),
        (458, 184, "<lru>, 10 <x>: 50.0%"),
        (864, 14, "<lru>, 100 <x>: 100.0%"),
    ]
    assert not places(wide, "dot bound")
    percents = [(354, "0 %"), (286, "20 %"), (218, "40 %"), (150, "60 %"), (82, "80 %"), (14, "100 %")]
    grid = places(wide, "grid", "x1", "x2", "y1", "y2")
    assert grid == [
        *((52, 864, y, y, "") for y, _ in percents),
        *((x, x, 354, 359, "") for x in (52, 458, 864)),
    ]
    assert places(wide, "tick", "x", "y") == [
        *((44, y + 4, text) for y, text in percents),
        *((x, 372, text) for x, text in ((52, "1 <x>"), (458, "10 <x>"), (864, "100 <x>"))),
    ]
    assert places(wide, "axis", "x", "y") == [(458, 394, "the <axis>")]
    assert places(wide, "mark", "x1", "x2", "y1", "y2") == [(458, 458, 14, 354, "")]
    assert places(wide, "halo", "cx", "cy") == [(458, 184, "")]
    assert places(wide, "marked", "x", "y") == [(468, 342, "<here>")]
    # Near the right side the text stands on the left: beyond 60 % of the width.
    for x, side, anchor in [(14.5, 533.5, "start"), (15.5, 525.3, "end"), (100, 854, "end")]:
        wide, _ = drawn(log_chart(LINES, "", "", show, Mark(x, 0.5, "here")))
        [(found, _)] = places(wide, "marked", "x")
        [text] = [element for element in wide.iter() if element.get("class") == "marked"]
        assert (found, text.get("text-anchor")) == (side, anchor)
    wide, _ = drawn(log_chart(LINES, "", "", show))
    assert not places(wide, "marked") and not places(wide, "halo")
    large, _ = drawn(log_chart([Line("c0", "lru", [(10, 0.0), (100, 0.5), (1000, 1.0)])], "", "", show))
    assert points(large, "line c0") == points(wide, "line c0")
    one, _ = drawn(log_chart([Line("c0", "lru", [(7, 0.5)])], "", "", show))
    assert points(one, "line c0")[0] == [(52, 14)]


def test_shares_over_time():
    layers = [("c2", "GPU", [0.25, 0.0]), ("c0", "host", [0.25, 0.5])]
    wide, narrow = drawn(series_chart(layers, ("<all>", [1.0, 0.75]), "over time", 40.0, "minutes"))
    # 280 high: 0 lies at 234. Two windows of time, in the middle of each.
    assert wide.get("viewBox") == "0 0 880 280" and narrow.get("viewBox") == "0 0 420 237"
    assert points(wide, "area c2") == ([(255, 179), (661, 234), (661, 234), (255, 234)], "GPU")
    assert points(wide, "area c0") == ([(255, 124), (661, 124), (661, 234), (255, 179)], "host")
    assert points(wide, "line bound") == ([(255, 14), (661, 69)], "<all>")
    ticks = places(wide, "tick", "x", "y")[6:]
    assert ticks == [(52, 252, "0"), (255, 252, "10"), (458, 252, "20"), (661, 252, "30"), (864, 252, "40")]
    assert [text for _, text in places(wide, "axis", "x")] == ["minutes"]
    for most, top in [(0.05, "5 %"), (0.0, "1 %")]:
        wide, _ = drawn(series_chart([], ("all", [0.0, most]), "", 40.0, ""))
        assert places(wide, "tick", "x")[5] == (44, top)


def test_bars():
    bars = [("<1", 0.5), ("<2", 0.0), ("<3", 0.25), ("old", 0.25)]
    wide, narrow = drawn(bar_chart(bars, "ages", "since"))
    assert wide.get("viewBox") == "0 0 880 280" and narrow.get("viewBox") == "0 0 420 237"
    # A quarter of 812 each, 12 % of it free on both sides.
    assert places(wide, "bar", "x", "y", "width", "height") == [
        (76.4, 14, 154.3, 220, "<1: 50.0%"),
        (279.4, 234, 154.3, 0, "<2: 0.0%"),
        (482.4, 124, 154.3, 110, "<3: 25.0%"),
        (685.4, 124, 154.3, 110, "old: 25.0%"),
    ]
    assert places(wide, "tick", "x")[6:] == [(153.5, "<1"), (356.5, "<2"), (559.5, "<3"), (762.5, "old")]
    assert [text for _, text in places(narrow, "tick", "x")[6:]] == ["<1", "<3"], "no room for all"
    assert [text for _, text in places(wide, "tick", "x")[:6]] == ["0 %", "10 %", "20 %", "30 %", "40 %", "50 %"]
    nothing, _ = drawn(bar_chart([("<1", 0.0)], "", ""))
    assert [text for _, text in places(nothing, "tick", "x")[:6]] == [
        "0 %",
        "0.2 %",
        "0.4 %",
        "0.6 %",
        "0.8 %",
        "1 %",
    ]


def test_axes_end_at_five_round_steps():
    tops = {
        0.0: 1e-6, 0.01: 0.01, 0.012: 0.0125, 0.05: 0.05, 0.051: 0.075, 0.09: 0.1, 0.11: 0.125, 0.13: 0.15,
        0.16: 0.2, 0.21: 0.25, 0.26: 0.3, 0.31: 0.4, 0.41: 0.5, 0.51: 0.75, 0.8: 1.0, 1.0: 1.0, 0.30001: 0.3,
    }  # fmt: skip
    assert {value: pytest.approx(_nice_top(value)) for value in tops} == tops


@example(0.6)
@example(23.0)
@given(st.floats(1e-3, 1e7))
def test_a_time_has_four_to_eight_steps(end):
    ticks = _even_ticks(end)
    step = ticks[1]
    assert ticks[0] == 0 and ticks == [step * index for index in range(len(ticks))]
    assert 4 <= len(ticks) - 1 <= 8 and ticks[-1] <= end * (1 + 1e-9) and end < ticks[-1] + step
    assert float(f"{step:.1e}") == pytest.approx(step) and f"{step:.1e}"[:3] in ("1.0", "2.0", "2.5", "5.0")


def test_ticks_of_a_logarithm():
    assert _log_ticks(1, 1000, 880) == [1, 10, 100, 1000]
    assert _log_ticks(1, 99, 880) == pytest.approx([1, 3, 10, 30])
    assert _log_ticks(2, 20, 880) == pytest.approx([2, 5, 10, 20])
    assert _log_ticks(2, 4, 880) == pytest.approx([2, 3, 4])
    assert _log_ticks(1.2, 9.5, 880) == pytest.approx([1.5, 2, 3, 4, 5, 6, 7, 8, 9])
    assert _log_ticks(1.4, 1.6, 880) == pytest.approx([1.5])
    assert _log_ticks(3.5, 9.5, 880) == pytest.approx([4, 5, 6, 7, 8, 9])
    assert _log_ticks(2.1, 2.2, 880) == [2.1], "nothing round lies between"
    assert _log_ticks(1, 1e9, 880) == pytest.approx([1, 100, 1e4, 1e6, 1e8]), "nine fit"
    assert _log_ticks(1, 1e8, 880) == pytest.approx([10.0**power for power in range(9)])
    assert _log_ticks(1, 1e3, 180) == pytest.approx([1, 100])


@given(st.floats(0.01, 1e6), st.floats(1.0, 1e6), st.sampled_from([420, 880]))
def test_ticks_are_between_the_ends_and_have_room(low, times, width):
    ticks = _log_ticks(low, low * times, width)
    assert 1 <= len(ticks) <= width // 90
    assert all(low * 0.998 <= tick <= low * times * 1.002 for tick in ticks)
    assert all(one < other for one, other in pairwise(ticks))
