"""An engine as another package would offer it."""

from dataclasses import replace

from kv_sim.config import WorldConfig
from kv_sim.engine.builtin import BuiltinEngine


class StrangeEngine(BuiltinEngine):
    """Likes blocks of three."""

    has_unequal_blocks = False

    @classmethod
    def fit(cls, config: WorldConfig) -> WorldConfig:
        return replace(config, block_size=3, hashes_per_block=1)
