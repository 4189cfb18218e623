"""A consumer in a process of its own: receives batches, compares all there is, and says how it went."""

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from kv_p2p_tiny_engine import TinyEngine, config_of, hidden_of

from kv_p2p.first.connector import SimpleConnector


def main() -> None:
    port, batches = int(sys.argv[1]), json.loads(sys.argv[2])
    engine = TinyEngine(5)
    connector = SimpleConnector(0, 0, config_of("kv_consumer", port, wait_seconds=0.05))
    sys.stdin.readline()  # the producer has inserted everything: what is not there then never comes
    said = []
    for prompts, arrived in batches:
        batch = engine.batch(prompts)
        hidden, bypass, _ = connector.recv_kv_caches_and_hidden_states(engine.model, batch, engine.caches)
        engine.expect(batch, prompts, arrived)
        engine.check()
        if bypass:
            np.testing.assert_array_equal(hidden, np.concatenate([hidden_of(prompt) for prompt in prompts]))
        said.append(bypass)
    connector.close()
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
