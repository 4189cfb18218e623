"""Which pools of an engine can pin blocks."""

from itertools import combinations

import pytest
from kv_offload_pool import Pool

from kv_api import KVError
from kv_offload.scheduler.state.pins import Pins

METHODS = ("blocks", "touch", "free_blocks")


@pytest.mark.parametrize("known", [names for count in range(4) for names in combinations(METHODS, count)])
def test_a_pool_that_lacks_anything_is_left_alone(known):
    whole, pins = Pool(), Pins()
    pool = type("Other", (), {name: getattr(whole, name) for name in known})()
    pins.bind(pool)
    assert pins.can_pin is (known == METHODS)


def test_nothing_is_pinned_without_a_pool():
    with pytest.raises(KVError) as raised:
        Pins().pin(3, (4, 5))
    assert (
        str(raised.value)
        == "blocks [4, 5] can't be pinned: the engine has bound no block pool that can pin (bind_gpu_block_pool)"
    )
