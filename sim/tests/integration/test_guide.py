"""docs/connector.md says what happens: its connector, the commands, the mistake and the failure as printed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kv_sim.cli import main

GUIDE = Path(__file__).parents[3] / "docs" / "connector.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
[CONNECTOR, MISTAKE] = [text for kind, text in BLOCKS if kind == "python"]
[TABLE, FAILURE] = [text for kind, text in BLOCKS if kind == ""]
COMMAND = re.search(r"^kv-sim conform my_connector:DictConnector (--.*)$", GUIDE.read_text(), re.MULTILINE)
RIGHT = re.search(r"^        computed = .*\n", CONNECTOR, re.MULTILINE)

Conform = Callable[..., str]


@pytest.fixture
def conform(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Conform:
    """Runs ``kv-sim conform`` on a connector in an empty folder; each under another name, since modules stay."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(module: str, text: str, *options: str) -> str:
        (tmp_path / f"{module}.py").write_text(text)
        main(["conform", f"{module}:DictConnector", *options])
        return capsys.readouterr().out.replace(module, "my_connector")

    return run


def test_the_connector_holds_what_the_guide_says(conform: Conform) -> None:
    assert COMMAND is not None
    assert conform("guide_right", CONNECTOR, *COMMAND.group(1).split()).startswith(TABLE)


def test_the_mistake_fails_as_printed(conform: Conform) -> None:
    assert RIGHT is not None
    out = conform("guide_wrong", CONNECTOR.replace(RIGHT.group(), MISTAKE))
    command, _, printed = FAILURE.partition("\n")
    assert command == "$ kv-sim conform my_connector:DictConnector"
    assert out.startswith(printed)


def test_a_fixed_connector_passes_the_schedule_of_the_broken_one(
    conform: Conform, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert RIGHT is not None
    conform("guide_broken", CONNECTOR.replace(RIGHT.group(), MISTAKE))
    (tmp_path / "guide_mended.py").write_text(CONNECTOR)
    [file] = tmp_path.glob("*.jsonl")
    assert main(["replay-schedule", str(file)]) == 1
    assert main(["replay-schedule", str(file), "--connector", "guide_mended:DictConnector"]) == 0
