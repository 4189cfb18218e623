"""The examples run as printed."""

import doctest
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kv_p2p.pulling.stats import METRICS

PACKAGE = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["README.md", "FIRST_FAMILY.md"])
def test_examples(name):
    failed, tried = doctest.testfile(str(PACKAGE / name), module_relative=False)
    assert (failed, tried > 5) == (0, True)


@pytest.mark.parametrize("name", ["README.md", "FIRST_FAMILY.md"])
def test_fifteen_lines(name):
    assert (PACKAGE / name).read_text().count(">>> ") <= 15


def test_all_metrics_are_listed_by_name_and_kind():
    rows = re.findall(r"^\| `(vllm:\w+)` \| (\w+) \|", (PACKAGE / "README.md").read_text(), re.MULTILINE)
    assert dict(rows) == {name: metric.kind for name, metric in METRICS.items()}
    assert len(rows) == len(METRICS)


def test_two_engines(tmp_path):
    [script] = [
        block
        for block in re.findall(
            r"^```python\n(.*?)^```$", (PACKAGE / "README.md").read_text(), re.MULTILINE | re.DOTALL
        )
        if "def prefill" in block
    ]
    path = tmp_path / "two_engines.py"
    path.write_text(script)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, str(path), str(port)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "10 tokens came\n", "")
