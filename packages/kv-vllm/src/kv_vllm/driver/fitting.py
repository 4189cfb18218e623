"""Which worlds vLLM's schedulers can run."""

from dataclasses import replace

from kv_sim.config import STATE, WorldConfig
from kv_vllm.driver.drafted_states import with_few_drafts


def nearest(config: WorldConfig) -> WorldConfig:
    """The world nearest to ``config``.

    It has no drafts under pipeline parallelism, where vLLM computes them without the token before them, and few
    beside states. No id comes back: vLLM's front ends make each unique. All ranks have the same layers.
    """
    if config.run_ahead and not config.async_scheduling:
        config = replace(config, spec_tokens=0)
    config = with_few_drafts(_with_equal_blocks_beside_states(config))
    return replace(config, silent=config.silent | {"same_id"}, stages="alike")


def _with_equal_blocks_beside_states(config: WorldConfig) -> WorldConfig:
    """Beside smaller blocks, vLLM would find states within the larger ones, which worlds have with tails only."""
    if not config.is_unequal or STATE not in config.groups:
        return config
    groups = tuple(replace(group, parts=1) for group in config.groups)
    return replace(config, groups=groups, hashes_per_block=1)
