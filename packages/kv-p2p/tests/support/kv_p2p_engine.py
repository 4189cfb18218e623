"""Configurations and small engine objects for tests of holds and pulls."""

from types import SimpleNamespace

from kv_api import KVTransferConfig
from kv_p2p.pulling.groups import Group, groups_of
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.scheduler import P2PSchedulerSide
from kv_p2p.pulling.ticket import Address, Shape, Ticket, digest_of

SIZE = 4
"""Tokens of a block."""
OPTIONS = Options("here", 7000, hold_seconds=100.0, pull_seconds=10.0)
THERE = Address("there", 9000)


def vllm_config(role="kv_both", *, rank=0, tp=1, pp=1, kv_port=14579, name="P2PConnector", module=None, **extra):
    return SimpleNamespace(
        kv_transfer_config=KVTransferConfig(
            name,
            engine_id="engine",
            kv_role=role,
            kv_port=kv_port,
            kv_connector_module_path=module,
            kv_connector_extra_config=extra,
        ),
        cache_config=SimpleNamespace(block_size=SIZE),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tp, pipeline_parallel_size=pp, world_size=tp * pp, rank=rank
        ),
    )


def spec(size=SIZE, window=0):
    """Of a group with blocks of so many tokens; without a window it reads all."""
    kind = "sliding_window" if window else "full_attention"
    return SimpleNamespace(kind=kind, block_size=size, sliding_window=window or None)


ALL = (spec(),)
"""One group that reads everything."""
ONE = (Group(SIZE),)
"""The same as the connector knows it."""


def kv_cache_config(num_blocks=16, specs=ALL, layer_names=None):
    layer_names = layer_names or [[f"layer{number}"] for number in range(len(specs))]
    groups = [
        SimpleNamespace(layer_names=names, kv_cache_spec=of_group)
        for names, of_group in zip(layer_names, specs, strict=True)
    ]
    return SimpleNamespace(num_blocks=num_blocks, kv_cache_groups=groups)


class Request:
    """Fits `kv_api.Request`. Its prompt is computed unless `computed` says how much of it is."""

    def __init__(self, name, tokens, params=None, *, output=(), computed=None, salt=None, adapter=None):
        self.request_id = name
        self.all_token_ids = [*tokens, *output]
        self.num_prompt_tokens = len(self.all_token_ids) - len(output)
        self.num_computed_tokens = self.num_prompt_tokens if computed is None else computed
        self.kv_transfer_params = params
        self.cache_salt = salt
        self.lora_request = SimpleNamespace(lora_name=adapter) if adapter is not None else None
        self.status = SimpleNamespace(name="FINISHED_STOPPED")

    @property
    def num_tokens(self):
        return len(self.all_token_ids)


class Blocks:
    """Fits `kv_api.KVCacheBlocks`: one table, or one for each group."""

    def __init__(self, *table):
        self.tables = table if table and isinstance(table[0], tuple) else (table,)

    def get_block_ids(self):
        return tuple(list(table) for table in self.tables)


def step(tokens=1):
    return SimpleNamespace(total_num_scheduled_tokens=tokens)


def scheduler(role="kv_both", *, options=OPTIONS, specs=ALL, says=(), **config):
    """``says``: what else the engine's configuration has."""
    engine, caches = vllm_config(role, **config), kv_cache_config(specs=specs)
    vars(engine).update(says)
    return P2PSchedulerSide(engine, caches, options, groups_of(engine, caches))


def shape(size=SIZE, tp=1, pp=1, groups=ONE, model=None):
    """That of an engine with one group, if nothing else is said."""
    return Shape(size, tp, pp, groups, model)


def ticket_of(tokens, **changes):
    """What an engine elsewhere says of a prompt."""
    asked = Request("a", tokens, salt=changes.pop("salt", None), adapter=changes.pop("adapter", None))
    count = len(asked.all_token_ids)
    default = {
        "address": THERE,
        "shape": shape(),
        "hold_id": "there.1",
        "digest": digest_of(asked, count),
        "num_tokens": count,
        "first_places": (0,),
    }
    return Ticket(**{**default, **changes})
