"""The producer in this process, the consumer in another."""

import json
import subprocess
import sys
from pathlib import Path

from kv_p2p_tiny_engine import TinyEngine, config_of, free_port

from kv_p2p.first.connector import SimpleConnector

SCRIPT = Path(__file__).parents[1] / "support" / "kv_p2p_consumer_process.py"


def test_a_consumer_in_another_process() -> None:
    port = free_port()
    prompts = [[n, *range(n)] for n in range(1, 6)]
    batches = [
        ([prompts[3], prompts[0]], [True, True]),
        ([prompts[4], [9, 9, 9], prompts[2]], [True, False, True]),
        ([prompts[1]], [True]),
    ]
    arguments = [sys.executable, str(SCRIPT), str(port), json.dumps(batches)]
    engine = TinyEngine(1)
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            connector = SimpleConnector(0, 0, config_of("kv_producer", port))
            for part in (prompts[:2], prompts[2:]):
                batch, hidden = engine.prefill(part)
                connector.send_kv_caches_and_hidden_states(engine.model, batch, engine.caches, hidden)
            out, err = process.communicate("go\n", timeout=60)
        finally:
            process.kill()
    connector.check()
    connector.close()
    assert (err, process.returncode) == ("", 0)
    assert json.loads(out) == [True, False, True]
