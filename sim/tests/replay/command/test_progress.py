"""Progress bars: what they count of a command, and that they are drawn on terminals only."""

import io
import re

import pytest

from kv_sim.cli.main import main
from kv_sim.replay.command.progress import ProgressBar


class Terminal(io.StringIO):
    """``seen`` is what was flushed: a bar has no end of a line that would do it."""

    seen = ""

    def isatty(self):
        return True

    def flush(self):
        self.seen = self.getvalue()


@pytest.mark.parametrize(
    ("options", "bars"),
    [
        (["replay"], ["reading requests: 0", "replaying 0", "replaying 100"]),
        (["replay", "--stream"], ["replaying requests: 4"]),
        (
            ["replay", "--fidelity", "engine"],
            ["reading requests: 0", *(f"replaying {n * 12.5:.0f}" for n in range(1, 9))],
        ),
        (["size"], ["reading requests: 0", "sweeping 0", "sweeping 100"]),
        (
            ["size", "--fidelity", "engine", "--goal", "ttft-mean=1000s", "--capacity", "1GiB"],
            ["reading requests: 0", *(f"replaying {n * 12.5:.0f}" for n in range(1, 9))],
        ),
    ],
    ids=" ".join,
)
def test_bars_of_a_command(small, monkeypatch, capsys, options, bars):
    screen = Terminal()
    for stream in ("stderr", "stdout"):
        monkeypatch.setattr(f"sys.{stream}", screen)
    capacity = [] if "engine" in options else ["--capacity", "1block", "--jobs", "1", "--policy", "arc"]
    assert main([options[0], str(small), *options[1:], *capacity]) == 0
    before, _, report = screen.getvalue().partition("small.jsonl")
    drawn = [re.sub(r" +\[.*\] *|%", " ", text).strip() for text in before.split("\r")]
    assert [text for text in drawn if text] == bars
    assert before.endswith("\r") and "\r" not in report, "the report begins on an empty line"


def test_a_bar_is_drawn_on_a_terminal_only():
    screen, pipe = Terminal(), io.StringIO()
    for stream in (screen, pipe):
        progress = ProgressBar(stream)
        for share in (0.0, 0.5, 0.501, 1.0):
            progress.share("replaying", share)
        progress.count("reading", 4096)
        progress.clear()
    assert not pipe.getvalue()
    shown = screen.seen.split("\r")
    assert shown[2].startswith("replaying [███████████████···············]  50%")
    assert shown[4] == "reading: 4,096".ljust(len(shown[3]))
    assert len(shown) == 7 and not shown[-1]


@pytest.mark.parametrize(("share", "drawn"), [(-0.5, "  0%"), (0.004, "  0%"), (1.0, "100%"), (1.5, "100%")])
def test_a_bar_has_two_ends(share, drawn):
    screen = Terminal()
    ProgressBar(screen).share("replaying", share)
    _, text = screen.seen.split("\r")
    assert text.endswith(f"] {drawn}") and len(text) == len("replaying [] 100%") + 30


def test_a_bar_that_was_cleared_is_drawn_again():
    screen = Terminal()
    progress = ProgressBar(screen)
    for _ in range(2):
        progress.count("reading", 7)
        progress.clear()
        progress.clear()
    assert screen.seen == 2 * f"\rreading: 7\r{' ' * 10}\r"
