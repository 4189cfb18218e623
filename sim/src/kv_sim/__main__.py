"""``python -m kv_sim``: the command ``kv-sim``, where its script isn't on the path."""

import sys

from kv_sim.command.cli import main

sys.exit(main())
