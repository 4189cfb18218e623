"""The guides among the docs say what happens: what is written, run and printed, and one mistake."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kv_sim.cli.main import main
from kv_sim.failures import telling
from kv_sim.growth.situations import SITUATIONS

DOCS = Path(__file__).parents[3] / "docs"

Conform = Callable[..., str]

FEWER = ["--histories", "8"]
"""For time's sake, where it is only said that something holds."""


@dataclass
class Guide:
    """What a guide has its reader write and run, and what it says is printed."""

    named: str
    """What follows ``kv-sim conform``."""
    module: str
    written: str
    mistake: str
    table: str
    failure: str
    probe: list[str]
    """The options of its first command."""

    @property
    def broken(self) -> str:
        """What is written, with the mistake in place of the line that begins like it."""
        start = re.escape(self.mistake.partition("=")[0])
        text, count = re.subn(rf"^{start}=.*\n", lambda line: self.mistake, self.written, flags=re.MULTILINE)
        assert count == 1
        return text


def read(name: str, named: str) -> Guide:
    text = (DOCS / f"{name}.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [written, mistake, *_] = [block for kind, block in blocks if kind == "python"]
    [table, failure] = [block for kind, block in blocks if kind == ""]
    command = re.search(rf"^kv-sim conform {re.escape(named)} (--probe.*)$", text, re.MULTILINE)
    assert command is not None
    return Guide(named, f"my_{name}", written, mistake, table, failure, command.group(1).split())


CONNECTOR = read("connector", "my_connector:DictConnector")
MEDIUM = read("medium", "--spec my_medium:ShelfSpec")
PULLS = read("pulls", "my_pulls:PullConnector --serves-peers")
ALL = pytest.mark.parametrize("guide", [CONNECTOR, PULLS, MEDIUM], ids=["connector", "pulls", "medium"])


@pytest.fixture
def conform(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Conform:
    """Runs ``kv-sim conform`` in an empty folder; each module under another name, since they stay."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(guide: Guide, module: str, text: str, *options: str) -> str:
        module = f"{module}_{guide.module}"
        (tmp_path / f"{module}.py").write_text(text)
        main(["conform", *guide.named.replace(guide.module, module).split(), *options])
        return capsys.readouterr().out.replace(module, guide.module)

    return run


@ALL
def test_what_it_writes_holds_what_it_says(conform: Conform, guide: Guide) -> None:
    assert conform(guide, "right", guide.written, *guide.probe).startswith(f"{guide.table}\n")


@ALL
def test_the_mistake_fails_as_printed(conform: Conform, guide: Guide) -> None:
    out = conform(guide, "wrong", guide.broken)
    command, _, printed = guide.failure.partition("\n")
    assert command == f"$ kv-sim conform {guide.named}"
    assert out.startswith(printed)


def test_a_fixed_connector_passes_the_schedule_of_the_broken_one(
    conform: Conform, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    conform(CONNECTOR, "broken", CONNECTOR.broken)
    (tmp_path / "guide_mended.py").write_text(CONNECTOR.written)
    [file] = tmp_path.glob("*.jsonl")
    assert main(["replay-schedule", str(file)]) == 1
    assert main(["replay-schedule", str(file), "--connector", "guide_mended:DictConnector"]) == 0


def test_a_schedule_is_replayed_with_a_router_if_that_is_said(conform: Conform, tmp_path: Path) -> None:
    conform(PULLS, "unfair", PULLS.broken)
    [file] = tmp_path.glob("*.jsonl")
    again = ["replay-schedule", str(file), "--connector", f"unfair_{PULLS.module}:PullConnector"]
    assert [main([*again, "--serves-peers"]), main(again)] == [1, 0]


def test_words_of_an_authors_own_are_brought_as_the_page_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A connector that fails at a word of its own holds, until a subclass has requests bring it."""
    page = (DOCS / "testbed.md").read_text()
    [asked] = re.findall(r"^```python\n([^`]*class AskedConnector.*?)^```$", page, re.MULTILINE | re.DOTALL)
    stops = '        if (request.kv_transfer_params or {}).get("no_store"):\n            return True, None\n'
    head = "    def request_finished(self, request, block_ids):\n"
    written = CONNECTOR.written.replace(head, head + stops)
    assert written != CONNECTOR.written
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opts_out.py").write_text(written)
    (tmp_path / "asked.py").write_text(asked.replace("my_connector", "opts_out"))
    assert main(["conform", "opts_out:DictConnector", "--histories", "4"]) == 0
    assert main(["conform", "asked:AskedConnector", "--histories", "4"]) == 1
    assert "held, waits for finished_sending" in capsys.readouterr().out


MISTAKES = {
    "a ticket that comes to nothing lets go of nothing": (
        "            self._plan.declined.append(ticket[\"remote_request_id\"])\n        params",
        "            pass\n        params",
        "LIVENESS",
    ),
    "what is here already is not declined": (
        "            self._plan.declined.append(ticket[\"remote_request_id\"])\n            return",
        "            return",
        "LIVENESS",
    ),
    "held for less than the prompt": ("-(-prompt // self._block_size)", "prompt // self._block_size", "NO-CRASH"),
    "the same, and nobody counts": (
        ("-(-prompt // self._block_size)", ", strict=True"), ("prompt // self._block_size", ""), "CONTENT"
    ),
    "never reported": ("            self._received.add(pull.request_id)\n", "", "LIVENESS"),
    "held before it is computed": (" or request.num_computed_tokens < prompt", "", "NO-CRASH"),
    "a ticket is left, and nothing held": ("return True, {", "return False, {", "PROTOCOL"),
    "a ticket is taken again": (
        "ticket = self._tickets.pop(request.request_id, None)\n        if ticket is None",
        "ticket = self._tickets.get(request.request_id)\n        if ticket is None",
        "PROTOCOL",
    ),
    "a layer is left out": ("for layer in self._layers:", "for layer in self._layers[:1]:", "CONTENT"),
}  # fmt: skip


LOST_TICKET = "a ticket that comes to nothing lets go of nothing"
RARE = {LOST_TICKET: ["--seed", "160", "--histories", "20"]}
"""Where to look for what few histories show, for time's sake."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_goes_wrong_between_engines_is_found(
    conform: Conform, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "shrink", lambda found, **options: found)
    before, after, invariant = MISTAKES[mistake]
    text = PULLS.written
    pairs = [(before, after)] if isinstance(before, str) else zip(before, after, strict=True)
    for old, new in pairs:
        assert text.count(old) == 1
        text = text.replace(old, new)
    out = conform(PULLS, f"bad{[*MISTAKES].index(mistake)}", text, "--traits", "holds", *RARE.get(mistake, ()))
    assert f"  {invariant}  " in out.splitlines()[0], out


def test_who_claims_no_holds_may_let_a_lost_ticket_wait_for_whoever_comes_last(conform: Conform) -> None:
    before, after, _ = MISTAKES[LOST_TICKET]
    assert isinstance(before, str) and isinstance(after, str)
    assert "breaks" not in conform(PULLS, "lenient", PULLS.written.replace(before, after), *RARE[LOST_TICKET])


def test_it_claims_what_is_said(conform: Conform) -> None:
    out = conform(PULLS, "claims", PULLS.written, "--traits", "ranks,zeroing,fine,holds", *FEWER)
    results = [line.split()[-1] for line in out.partition("\n\n")[0].splitlines()[1:]]
    assert results == ["holds"] * 6


@pytest.mark.parametrize(
    ("connector", "extra", "traits"),
    [
        ("kv_sim.offload:TimedOffloadingConnector", '{"load_timeout_seconds": 8}', "losses"),
        ("OffloadingConnector", '{"places": 64}', "keeps"),
        ("OffloadingConnector", '{"hold_blocks": "never"}', "groups,failures,repeats,reset"),
    ],
)
def test_the_medium_holds_what_else_is_said_of_it(
    conform: Conform, connector: str, extra: str, traits: str
) -> None:
    text = (DOCS / "medium.md").read_text()
    assert f"--spec my_medium:ShelfSpec --extra '{extra}' --traits {traits}\n" in text
    options = ["--extra", extra, "--traits", traits, *FEWER]
    out = conform(MEDIUM, f"of_{traits[:6]}", MEDIUM.written, connector, *options)
    results = [line.split()[-1] for line in out.partition("\n\n")[0].splitlines()[1:]]
    assert set(results) == {"holds"} and len(results) == len(traits.split(",")) + 1 + ("," in traits), out


Growth = Callable[..., list[str]]


@pytest.fixture
def growth(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Growth:
    """What grows by a guide's ``kv-sim growth``, in one situation and fewer rounds, which fill its medium."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    steps = SITUATIONS["a prompt's last steps"]._replace(sizes=(64, 128, 512))
    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: {"a prompt's last steps": steps})
    monkeypatch.setattr("kv_sim.growth.kept.ROUNDS", (2, 22, 44))

    def run(guide: Guide, places: int = 512) -> list[str]:
        module = f"of_growth_{guide.module}"
        (tmp_path / f"{module}.py").write_text(guide.written)
        text = (DOCS / f"{guide.module.removeprefix('my_')}.md").read_text()
        [printed] = re.findall(rf"^kv-sim (growth {re.escape(guide.named)}.*)$", text, re.MULTILINE)
        code = main(shlex.split(printed.replace(guide.module, module).replace(": 512", f": {places}")))
        told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("GROWS: ")]
        assert code == bool(told)
        return told

    return run


def test_what_grows_is_what_drops_nothing(growth: Growth) -> None:
    assert growth(PULLS) == []
    told = growth(CONNECTOR)
    assert ["different prompts" in line for line in told] == [True, True]
    assert [line.rpartition(".")[2] for line in told] == ["_kept", "_pages"]


def test_a_medium_has_as_many_places_as_prompts_fill(growth: Growth) -> None:
    assert growth(MEDIUM) == []
    [few, *_] = growth(MEDIUM, 12)
    assert few.startswith("GROWS: a prompt's last steps")
    [many] = growth(MEDIUM, 4096)
    assert many.startswith("GROWS: what the scheduler's side keeps of different prompts")
