"""``python -m kv_sim``: the command ``kv-sim``, where its script isn't on the path."""

import sys

from kv_sim.cli.start import start

sys.exit(start())
