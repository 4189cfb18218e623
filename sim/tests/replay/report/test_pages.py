"""The reports as pages: whole, with everything inline, and what they say."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from kv_sim.cli.main import main
from kv_sim.replay import replay
from kv_sim.replay.caches.tally import AGE_EDGES_SECONDS, Ages, Window
from kv_sim.replay.report.chart import Mark
from kv_sim.replay.report.page import _details
from kv_sim.replay.report.style import STYLE


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects what a page would fetch."""

    VOID = ("meta", "line", "circle", "rect", "polyline", "polygon")

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.seen = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.once
@pytest.mark.parametrize(
    "command",
    [
        ["size", "--points", "5", "--bytes-per-token", "1000", "--policy", "lru,arc"],
        ["size", "--points", "2", "--policy", "lru"],
        ["replay", "--capacity", "3blocks,5blocks", "--gpu-capacity", "1block"],
        ["replay", "--capacity", "3blocks"],
    ],
)
def test_a_page_is_whole_and_fetches_nothing(small, tmp_path, command):
    trace = small.rename(tmp_path / "<b>&.jsonl")
    assert main([command[0], str(trace), *command[1:], "--html", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert not page.open and not page.fetched
    assert "script" not in page.seen and "&lt;b&gt;&amp;.jsonl" in text and "<b>&" not in text
    assert not re.search(r"url\(|@import|//", text)
    assert "prefers-color-scheme: dark" in text and "max-width: 620px" in text
    charts = text.count('role="img"')
    assert charts == (6 if len(set(command)) and "3blocks" not in command else 4)


class Said(HTMLParser):
    """What a page says, without its charts: a list for each row of a table, and all that is marked."""

    def __init__(self):
        super().__init__()
        self.texts, self.rows, self.here, self._inside = [], [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in Page.VOID:
            self._inside.append(tag)
        if tag == "tr":
            self.rows.append([])
            if ("class", "here") in attrs:
                self.here.append(len(self.rows) - 1)

    def handle_endtag(self, tag):
        if tag not in Page.VOID:
            self._inside.pop()

    def handle_data(self, data):
        if "tr" in self._inside:
            self.rows[-1].append(data)
        elif data.strip() and not {"svg", "style"} & {*self._inside}:
            self.texts.append(data)


def said(file):
    """A page's words, and its charts' labels and lines by their style."""
    text = file.read_text(encoding="utf-8")
    page = Said()
    page.feed(text)
    return page, dict(re.findall(r'class="(line \w+)" points="([^"]*)"', text.split('<div class="narrow">')[0]))


FACTS = [
    "small.jsonl", "What a cache for KV would have answered.", "requests", "4", "time", "6 s",
    "prompt tokens", "5584", "blocks of 512 tokens", "11", "different blocks", "6", "reusable tokens", "45.6%",
]  # fmt: skip


DETAILS = [
    "Blocks answered over time", "lru, 2.44 MiB", "GPU", "host memory", "infinite cache",
    "Age of what host memory answered", "Half of them younger than 4 s, 99 % than 4 s.",
]  # fmt: skip


def test_what_the_page_of_size_says(small, tmp_path, capsys):
    sizes = ["--capacity", "2blocks,5blocks,3blocks", "--gpu-capacity", "2blocks", "--bytes-per-token", "1000"]
    page = tmp_path / "page.html"
    assert main(["size", str(small), "--jobs", "1", "--policy", "lru,arc", *sizes, "--html", str(page)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"{page}: the report as a page"
    found, lines = said(page)
    assert found.texts == [
        "small.jsonl: how much host memory",
        *FACTS,
        *("format: mooncake", "1,000 bytes a token", "Recommended"),
        *("2.44 MiB of host memory, policy lru", "2560 tokens in 5 blocks answer ", "36.7%"),
        " of prompt tokens (36.4% of blocks, 57.1% of full blocks). A cache without end: 45.6%.",
        "The knee: up to here more room buys more than on average, from here on less.",
        printed[-2],
        *("Prompt tokens answered, by capacity", "lru", "arc", "MIN, the most possible", "infinite cache"),
        *DETAILS,
        "Hits by prompt tokens",
    ]
    assert found.rows == [
        ["capacity", "tokens", "lru", "arc", "MIN", "+1 GiB"],
        ["1000 KiB", "1024", "18.3%", "18.3%", "45.6%", "+19.2k %"],
        ["1.46 MiB", "1536", "27.5%", "27.5%", "45.6%", "+9614 %"],
        ["2.44 MiB", "2560", "36.7%", "36.7%", "45.6%", "+0 %"],
    ]
    assert found.here == [3]
    # The axis ends at 50 %: 45.63 % lies at 43.7, 36.68 % at 104.6, 27.5 % at 167.0, and 18.34 % at 229.3.
    assert lines == {
        "line c0": "52.0,229.3 411.3,167.0 864.0,104.6",
        "line c1": "52.0,229.3 411.3,167.0 864.0,104.6",
        "line bound": "52.0,43.7 411.3,43.7 864.0,43.7",
        "line infinite": "52.0,43.7 864.0,43.7",
    }
    text = page.read_text(encoding="utf-8")
    for label in ("2.44 MiB, lru", "1.54 MiB", "host memory (logarithmic)", "minutes of the trace"):
        assert text.count(f">{label}</text>") == 2, label
    assert "<title>arc, 1.46 MiB: 27.5%</title>" in text
    assert "<title>&lt; 3 s: 0.0%</title>" in text and "<title>&lt; 10 s: 100.0%</title>" in text
    assert "&lt; 30 s" not in text, "nothing is older"
    assert main(["size", str(small), "--policy", "lru", "--capacity", "5blocks", "--html", str(page)]) == 0
    found, lines = said(page)
    assert found.texts[len(FACTS) :][3:5] == [
        "2560 tokens in host memory, policy lru",
        "2560 tokens in 5 blocks answer ",
    ]
    assert "For GiB and a configuration to paste: --model NAME or --bytes-per-token SIZE." in found.texts
    assert found.rows == [
        ["capacity", "tokens", "lru", "MIN", "+1M tokens"],
        ["5 blocks", "2560", "36.7%", "45.6%", "+0 %"],
    ]
    assert "capacity in tokens (logarithmic)" in page.read_text(encoding="utf-8")
    # From 9.17 % to 36.68 % in 1,536 tokens: as if a million of them gave 179 times everything.
    assert main(["size", str(small), "--policy", "lru", "--capacity", "2blocks,5blocks", "--html", str(page)]) == 0
    assert [row[-1] for row in said(page)[0].rows] == ["+1M tokens", "+17.9k %", "+0 %"]


def test_what_the_page_of_replay_says(small, tmp_path):
    page = tmp_path / "page.html"
    command = ["replay", str(small), "--jobs", "1", "--policy", "arc,lru", "--gpu-capacity", "2blocks"]
    command += ["--bytes-per-token", "1000", "--html", str(page)]
    assert main([*command, "--capacity", "1block,5blocks"]) == 0
    found, lines = said(page)
    # The details are of the first of those that answer most.
    assert found.texts == [
        "small.jsonl: replay",
        *FACTS,
        *("format: mooncake", "1,000 bytes a token"),
        *("Prompt tokens answered, by capacity", "arc", "lru", "MIN, the most possible", "infinite cache"),
        *(text.replace("lru", "arc") for text in DETAILS),
        "All runs",
    ]
    head = "policy,capacity,tokens,blocks hit,tokens hit,full blocks hit,by GPU,MIN,loaded,stored,evicted,refused"
    one = [
        "500 KiB",
        "512",
        "18.2%",
        "18.3%",
        "28.6%",
        "18.3%",
        "45.6%",
        "0 B",
        "1.46 MiB",
        "1000 KiB",
        "3.42 MiB",
    ]
    five = [
        "2.44 MiB",
        "2560",
        "36.4%",
        "36.7%",
        "57.1%",
        "18.3%",
        "45.6%",
        "1000 KiB",
        "3.42 MiB",
        "1000 KiB",
        "0 B",
    ]
    assert found.rows == [head.split(","), ["arc", *one], ["arc", *five], ["lru", *one], ["lru", *five]]
    assert found.here == []
    assert lines == {
        "line c0": "52.0,229.3 864.0,104.6",
        "line c1": "52.0,229.3 864.0,104.6",
        "line bound": "52.0,43.7 864.0,43.7",
        "line infinite": "52.0,43.7 864.0,43.7",
    }


@pytest.fixture
def drawn(monkeypatch):
    """What the charts of a page are told, by the function that draws them; they are left out of the page."""
    told = {}

    def stand_in(name):
        def draw(*arguments):
            told[name] = arguments
            return ""

        return draw

    for name in ("log_chart", "series_chart", "bar_chart"):
        monkeypatch.setattr(f"kv_sim.replay.report.page.{name}", stand_in(name))
    return told


def later(file, gap_seconds):
    """The same trace with as many seconds between its requests."""
    requests = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [json.dumps(one | {"timestamp": 1000 * gap_seconds * n}) for n, one in enumerate(requests)]
    file.write_text("\n".join(lines))
    return file


MOST = 2548 / 5584
BOUNDS = [
    ("bound", "MIN, the most possible", [(500, MOST), (2500, MOST)], False),
    ("infinite", "infinite cache", [(500, MOST), (2500, MOST)], False),
]


def curves(told):
    """Lines in KiB; the titles; what a place on the axis is called; the mark."""
    lines, title, x_title, show_x, mark = told
    plain = [(x.style, x.name, [(size * 2**20, y) for size, y in x.points], x.has_dots) for x in lines]
    return plain, title, x_title, show_x(2500 / 2**20), mark


@pytest.mark.parametrize(
    ("gap_seconds", "end", "unit", "classes"),
    [(2, 0.1, "minutes", 3), (4799, 239.95, "minutes", 10), (4800, 4.0, "hours", 10)],
)
def test_what_the_charts_of_replay_are_told(small, tmp_path, drawn, gap_seconds, end, unit, classes):
    page = tmp_path / "page.html"
    command = ["replay", str(later(small, gap_seconds)), "--jobs", "1", "--policy", "arc,lru"]
    command += ["--gpu-capacity", "2blocks", "--bytes-per-token", "1000", "--html", str(page)]
    assert main([*command, "--capacity", "5blocks,1block"]) == 0
    points = [(500, 1024 / 5584), (2500, 2048 / 5584)]
    assert curves(drawn["log_chart"]) == (
        [("c0", "arc", points, True), ("c1", "lru", points, True), *BOUNDS],
        "Prompt tokens answered, by capacity",
        "host memory (logarithmic)",
        "2.44 MiB",
        None,
    )
    # Sixtieths of the time: two of the third request's blocks are in host memory, two of the fourth's on the GPU.
    layers, (over, shares), *titles = drawn["series_chart"]
    assert [(style, name, len(values)) for style, name, values in layers] == [
        ("c2", "GPU", 60),
        ("c0", "host memory", 60),
    ]
    shown = [{n: value for n, value in enumerate(values) if value} for values in (*(x[2] for x in layers), shares)]
    assert shown == [{59: 2 / 3}, {40: 2 / 3}, {40: 2 / 3, 59: 1.0}]
    assert (over, *titles) == (
        "infinite cache", "blocks answered over time", pytest.approx(end), f"{unit} of the trace"
    )  # fmt: skip
    bars, *titles = drawn["bar_chart"]
    assert [share for _, share in bars] == [0.0] * (classes - 1) + [1.0]
    assert titles == ["age of what was answered", "time since the block was last used"]
    legends = re.findall(r'class="line (\w+)"[^>]*/></svg>([^<]*)', page.read_text(encoding="utf-8"))
    assert legends == [
        *((style, name) for style, name, *_ in [("c0", "arc"), ("c1", "lru"), *BOUNDS]),
        *(("c2", "GPU"), ("c0", "host memory"), ("bound", "infinite cache")),
    ]


def test_the_bound_goes_from_the_smallest_to_the_largest(small, tmp_path, drawn):
    command = ["replay", str(small), "--jobs", "1", "--capacity", "4blocks,2blocks"]
    assert main([*command, "--html", str(tmp_path / "page.html")]) == 0
    [bound] = [line.points for line in drawn["log_chart"][0] if line.style == "bound"]
    assert bound == [(1024, 2048 / 5584), (2048, MOST)]


def test_shares_are_of_the_blocks_of_each_window(small, drawn):
    """Of those of a single block, too; one without any has nothing."""
    run = replay(small, gpu_capacity="2blocks", capacity="5blocks", disk_capacity="7blocks")
    hits = [(1, 1, 0, 0, 1), (1, 0, 1, 0, 1), (1, 0, 0, 1, 1), (4, 0, 0, 2, 3), (0, 0, 0, 0, 0)]
    series = tuple(Window(60.0 * n, *one) for n, one in enumerate(hits))
    list(_details(replace(run, series=series)))
    layers, over, _, end, _ = drawn["series_chart"]
    assert layers == [
        ("c2", "GPU", [1.0, 0.0, 0.0, 0.0, 0.0]),
        ("c0", "host memory", [0.0, 1.0, 0.0, 0.0, 0.0]),
        ("c1", "disk", [0.0, 0.0, 1.0, 0.5, 0.0]),
    ]
    assert over == ("infinite cache", [1.0, 1.0, 1.0, 0.75, 0.0]) and end == 5.0


def test_shares_of_servers_that_read_each_other_s_disks(small, drawn):
    run = replay(small, disk_capacity="6blocks", servers=2, disk_shared=True)
    hits = [(4, 0, 0, 3, 4, 1), (2, 0, 0, 1, 1, 1), (1, 0, 0, 1, 1, 0)]
    list(_details(replace(run, series=tuple(Window(60.0 * n, *one) for n, one in enumerate(hits)))))
    layers, (over, _), *_ = drawn["series_chart"]
    assert layers == [
        ("c0", "host memory", [0.0, 0.0, 0.0]),
        ("c1", "disk", [0.5, 0.0, 1.0]),
        ("c3", "neighbours' disks", [0.25, 0.5, 0.0]),
    ]
    assert over == "infinite cache"


@pytest.mark.parametrize(
    ("counts", "bars"),
    [((0, 3, 1), [("< 1 s", 0.0), ("< 3 s", 0.75), ("< 10 s", 0.25)]), ((), [("< 1 s", 0.0)])],
)
def test_bars_end_with_the_oldest(small, drawn, counts, bars):
    """There is one, even if nothing was answered."""
    run = replay(small, capacity="5blocks")
    all_counts = (*counts, *(0 for _ in range(len(AGE_EDGES_SECONDS) + 1 - len(counts))))
    list(_details(replace(run, ages=Ages(all_counts, 2.0, 4.0, 4.0))))
    assert drawn["bar_chart"][0] == bars


def test_what_the_chart_of_size_is_told(small, tmp_path, drawn):
    command = ["size", str(small), "--jobs", "1", "--policy", "lru", "--html", str(tmp_path / "page.html")]
    command += ["--gpu-capacity", "2blocks", "--bytes-per-token", "1000"]
    assert main([*command, "--capacity", "5blocks,1block"]) == 0
    lines, *titles, mark = curves(drawn["log_chart"])
    assert lines == [("c0", "lru", [(500, 1024 / 5584), (2500, 2048 / 5584)], True), *BOUNDS]
    assert titles == ["Prompt tokens answered, by capacity", "host memory (logarithmic)", "2.44 MiB"]
    assert mark == Mark(2500 / 2**20, 2048 / 5584, "2.44 MiB, lru")
    assert main([*command, "--capacity", "5blocks"]) == 0
    assert drawn["log_chart"][-1] is None, "there is nothing to choose from"
    assert main([*command, "--gpu-capacity", "11blocks", "--capacity", "5blocks,1block"]) == 0
    assert drawn["log_chart"][-1] is None, "nothing is worth its memory"
    assert main([*command[:-2], "--capacity", "5blocks,1block"]) == 0
    lines, _, axis, show_x, mark = drawn["log_chart"]
    assert [size for size, _ in lines[0].points] == [512, 2560] == [512, mark.x]
    assert (axis, show_x(2560.0), mark.text) == ("capacity in tokens (logarithmic)", "2560", "5 blocks, lru")


def test_more_curves_than_colours(small, tmp_path, monkeypatch):
    """They begin again with the first one: a curve of a colour that the page lacks isn't seen."""
    names = [f"Policy{number}" for number in range(7)]
    code = "".join(f"class {name}(LRUPolicy): ...\n" for name in names)
    (tmp_path / "seven_policies.py").write_text(f"from kv_offload_cpu.policy import LRUPolicy\n{code}")
    monkeypatch.syspath_prepend(str(tmp_path))
    page = tmp_path / "page.html"
    options = ["--jobs", "1", "--capacity", "2blocks,5blocks", "--cache-policy-module-path", "seven_policies"]
    for command in ("replay", "size"):
        assert main([command, str(small), *options, "--policy", ",".join(names), "--html", str(page)]) == 0
        legends = re.findall(r'class="line (\w+)"[^>]*/></svg>([^<]*)', page.read_text(encoding="utf-8"))
        styles = [style for style, name in legends if name in names]
        assert styles == [f"c{number % 5}" for number in range(7)]
        for style, _ in legends:
            assert f".line.{style} {{" in STYLE
