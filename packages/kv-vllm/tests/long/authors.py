"""The connector of docs/connector.md, in a real vLLM as that page says. Run by the session `vllm-long`."""

import json
import re
from pathlib import Path

import pytest
from kv_vllm_runs import Engine, history

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[4] / "docs" / "connector.md"


@pytest.fixture
def transfer(monkeypatch, tmp_path):
    """The configuration that the page says, and its modules where they can be imported."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    text = PAGE.read_text()
    connector, _, vllm = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for name, module in (("my_connector", connector), ("my_vllm", vllm)):
        (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    served, tried = (json.loads(said) for said in re.findall(r"--kv-transfer-config '(.*?)'", text, re.DOTALL))
    assert served == tried
    return served


def test_outputs_are_identical(transfer):
    told = {}
    for name, config in (("without", None), ("with", transfer)):
        engine = Engine(config) if config else Engine()
        told[name] = history(engine)
        if config:
            assert type(engine.connector).__module__ == "my_vllm"
            assert engine.metric("vllm:external_prefix_cache_hits") > 500
        engine.close()
    assert told["with"] == told["without"]
