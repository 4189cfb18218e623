"""``kv_sim``: a command line, run in an empty folder."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from kv_sim_command_lines import Result

from kv_sim.cli.main import main


@pytest.fixture
def kv_sim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Result]:
    """Runs a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> Result:
        words = shlex.split(line)
        assert words[0] == "kv-sim"
        try:
            code = main(words[1:])
        except SystemExit as error:
            code = int(str(error.code))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
