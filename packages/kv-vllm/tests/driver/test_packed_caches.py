"""With a vLLM: models whose layers have pages of several sizes, as DeepSeek-V4's and GLM-5.3-Flash's.

vLLM packs them: its groups overlay each other in blocks that have all layers of a group side by side. Specs here
are as that model's, for fewer layers; groups, tensors, scheduler and requests are vLLM's, and the model is a
function of the tokens before.
"""

from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from random import Random
from zlib import crc32

import pytest

from kv_api import KVConnectorRole

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]

EXTRA = {"cpu_bytes_to_use": 256 << 20}
RING_TOKENS = 4


def specs(layers, *, replays=False):
    """Of each layer: a window; all tokens, compressed; those that aren't yet; in half of them an index."""
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

    one = {"num_kv_heads": 1, "alignment": 576}
    latent = {"head_size": 512, "dtype": torch.uint8, "cache_dtype_str": "fp8_ds_mla", "state_content_bytes": 584}
    found = {}
    for layer in range(layers):
        ratio = (4, 128)[layer % 2]
        found[f"{layer}.window"] = SlidingWindowMLASpec(
            block_size=64, sliding_window=128, bounded_replay=replays, **one, **latent
        )
        found[f"{layer}.latent"] = MLAAttentionSpec(block_size=256, tokens_per_state=ratio, **one, **latent)
        tail = {4: (4, 2048, 8), 128: (8, 1024, 128)}[ratio]
        found[f"{layer}.tail"] = _tail(*tail)
        if ratio == 4:
            index = {"head_size": 132, "dtype": torch.uint8}
            found[f"{layer}.index"] = MLAAttentionSpec(block_size=256, tokens_per_state=4, **one, **index)
            found[f"{layer}.index tail"] = _tail(4, 512, 8)
    return found


def _tail(tokens_per_block, numbers, window):
    import torch
    from vllm.v1.kv_cache_interface import SlidingWindowMLASpec

    return SlidingWindowMLASpec(
        block_size=tokens_per_block,
        num_kv_heads=1,
        head_size=numbers,
        dtype=torch.float32,
        sliding_window=window,
        alignment=576,
    )


def with_replays(layers):
    """The same, with windows that are computed again behind a hit, as DeepSeek-V4.1's."""
    return specs(layers, replays=True)


def with_rings(layers):
    """As GLM-5.3-Flash's: all tokens, an index over fours of them, and of each request the four that is open.

    That one is in a ring of one block, which no hash finds and no block of hashes fits. The window is a draft's.
    """
    import torch
    from vllm.v1.kv_cache_interface import CircularBufferSpec, MLAAttentionSpec, SlidingWindowSpec

    one = {"num_kv_heads": 1, "dtype": torch.uint8}
    found = {}
    for layer in range(layers):
        found[f"{layer}.latent"] = MLAAttentionSpec(block_size=256, head_size=576, **one)
        found[f"{layer}.index"] = MLAAttentionSpec(block_size=256, head_size=132, **one)
        found[f"{layer}.ring"] = CircularBufferSpec(block_size=4, head_size=512, **one)
    found["draft"] = SlidingWindowSpec(block_size=64, head_size=128, sliding_window=128, **one)
    return found


def _planning():
    """Where vLLM works out groups and tensors: a module of its own from 0.33 on."""
    from vllm.v1.core import kv_cache_utils

    new = "vllm.v1.core.kv_cache_planning"
    return import_module(new) if find_spec(new) else kv_cache_utils


class Server:
    """vLLM's scheduler, a worker's side of our connector, and a made-up model between them."""

    def __init__(self, model=None, retention=None, megabytes=64, **extra):
        import torch
        from vllm.config import KVTransferConfig
        from vllm.v1.core import kv_cache_utils as utils
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager
        from vllm.v1.worker.utils import allocate_kv_cache

        from kv_sim.config import WorldConfig
        from kv_vllm import OffloadingConnector
        from kv_vllm.vllm_world import vllm_config

        world = WorldConfig(num_blocks=400, block_size=256, max_running=4, max_step_tokens=512)
        transfer = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            kv_connector_module_path="kv_vllm",
            kv_connector_extra_config={**EXTRA, **extra},
        )
        config = vllm_config(world, transfer)
        config.kv_events_config = None
        config.cache_config.kv_cache_layout = "BLHNC"
        config.cache_config.prefix_cache_retention_interval = retention
        config.scheduler_config.disable_hybrid_kv_cache_manager = False
        planning = _planning()
        groups = planning.get_kv_cache_groups(config, model or specs(4))
        self.cache = planning.get_kv_cache_config_from_groups(config, groups, megabytes << 20)
        self.groups = [group.kv_cache_spec for group in self.cache.kv_cache_groups]
        tokens_per_block, self.tokens_per_hash = utils.resolve_kv_cache_block_sizes(self.cache, config)
        layout = config.cache_config.get_resolved_kv_cache_layout()
        self.caches = allocate_kv_cache(self.cache, torch.device("cpu"), layout)
        self.worker = OffloadingConnector(config, KVConnectorRole.WORKER, self.cache)
        self.worker.register_kv_caches(self.caches)
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=utils.generate_scheduler_kv_cache_config([self.cache]),
            block_size=tokens_per_block,
            hash_block_size=self.tokens_per_hash,
            log_stats=True,
            structured_output_manager=StructuredOutputManager(config),
        )
        self.compared = 0
        self.computed = Counter()
        """Tokens, by request."""
        self.rings = {}
        """By request and group: the tokens that it has seen."""

    def add(self, name, tokens):
        from vllm.sampling_params import SamplingParams

        from kv_vllm.vllm_scheduler import make_request

        params = SamplingParams(max_tokens=2, ignore_eos=True)
        self.scheduler.add_request(make_request(name, tokens, params, self.tokens_per_hash))

    def run(self):
        """Until all requests have ended, and all copies."""
        for _ in range(100_000):
            self.step()
            if not self.scheduler.requests and not self.scheduler.connector.has_pending_push_work():
                return
        raise AssertionError("it never comes to rest")

    def step(self):
        """One step."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        output, worker = self.scheduler.schedule(), self.worker
        meta = output.kv_connector_metadata
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        self.computed.update(output.num_scheduled_tokens)
        for name, count in output.num_scheduled_tokens.items():
            self.compute(self.scheduler.requests[name], count)
        worker.start_load_kv(None)
        worker.wait_for_save()
        results = worker.get_transfer_results(output.finished_req_ids)
        names = list(output.num_scheduled_tokens)
        told = KVConnectorOutput(
            finished_sending=results.finished_sending or None,
            finished_recving=results.finished_recving or None,
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        assert not results.failed_recving
        worker.clear_connector_metadata()
        ready = [self.scheduler.requests[name] for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] if one.num_computed_tokens >= one.num_tokens else [] for one in ready],
            kv_connector_output=told,
        )
        self.scheduler.update_from_output(output, result)

    def compute(self, request, count):
        """The model reads what it looks back at, and writes what it computes."""
        end, marks = request.num_computed_tokens, self.marks_of(request.all_token_ids)
        tables = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
        for group, (spec, table) in enumerate(zip(self.groups, tables, strict=True)):
            start, size = end - count, spec.block_size
            layer = next(iter(spec.kv_cache_specs.values()))
            if size == RING_TOKENS and not layer.prefix_cacheable:
                self.turn_ring(request.request_id, group, table[0], marks, start, end)
                continue
            window = getattr(layer, "sliding_window", None)
            begin = 0
            if layer.prefix_replay_tokens:  # such a window is built anew behind a hit
                begin = request.replay_start
            elif request.replay_start:  # of other groups what was hit isn't computed again
                start = max(start, request.replay_start + self.scheduler.prefix_replay_tokens)
            first = begin if window is None else max(begin, start - window + 1)
            for index in range(first // size, start // size):
                self.compare(group, table[index], marks[(index + 1) * size])
            for index in range(start // size, -(-end // size)):
                self.write(group, table[index], marks[min(end, (index + 1) * size)])

    def turn_ring(self, name, group, block, marks, start, end):
        """A ring holds what the steps before left there; behind a hit nothing is open."""
        if start % RING_TOKENS and self.rings.get((name, group)) == start:
            self.compare(group, block, marks[start])
        self.write(group, block, marks[end])
        self.rings[name, group] = end

    @staticmethod
    def marks_of(tokens):
        """For each number of tokens one that stands for the first of them."""
        return [*accumulate(tokens, lambda mark, token: crc32(b"%d" % token, mark), initial=0)]

    def write(self, group, block, mark):
        for page, content in self.pages(group, block, mark):
            page[:] = content

    def compare(self, group, block, mark):
        assert block, f"group {group} has lost a block that it reads"
        for page, content in self.pages(group, block, mark):
            assert (page == content).all(), f"group {group}, block {block}"
        self.compared += 1

    def pages(self, group, block, mark):
        """Of each layer, and what is in them."""
        import torch

        for layer in self.cache.kv_cache_groups[group].layer_names:
            yield self.caches[layer][block].view(torch.int8), crc32(layer.encode(), mark) % 256 - 128

    def close(self):
        self.scheduler.connector.side.check()
        self.worker.side.check()
        self.scheduler.shutdown()
        self.worker.shutdown()


@pytest.fixture
def make():
    made = []

    def server(*args, **kwargs):
        made.append(Server(*args, **kwargs))
        return made[-1]

    yield server
    for one in made:
        one.close()


@pytest.mark.parametrize(("layers", "megabytes"), [(4, 64), (43, 32)])
def test_groups_overlay_each_other_and_are_copied_in_one_piece_each(make, layers, megabytes):
    server = make(specs(layers), megabytes=megabytes)
    sizes = [
        [spec.page_size_bytes for spec in group.kv_cache_spec.kv_cache_specs.values()]
        for group in server.cache.kv_cache_groups
    ]
    assert [len({*of_group}) for of_group in sizes] == [1, 1, 3, 2, 1]
    plan = server.worker.side.medium_worker.engine._plan
    assert [parts.addresses.tolist() for parts in plan.parts] == [[plan.tensors[0].address]] * len(sizes)
    assert plan.layout.slot_bytes == max(map(sum, sizes))


def test_any_model_may_have_its_layers_together(make):
    """As with ``VLLM_KV_CACHE_LAYOUT=BLHNC``."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = FullAttentionSpec(block_size=256, num_kv_heads=2, head_size=8, dtype=torch.float32)
    server = make({f"{layer}": spec for layer in range(6)}, megabytes=8)
    (parts,) = server.worker.side.medium_worker.engine._plan.parts
    assert parts.sizes.tolist() == [6 * 256 * 2 * 2 * 8 * 4]


@pytest.mark.parametrize("blocks_per_chunk", [1, 2])
def test_what_was_computed_comes_back(make, blocks_per_chunk):
    server, prompt = make(blocks_per_chunk=blocks_per_chunk), Random(1).choices(range(1000), k=2000)
    server.add("first", prompt)
    server.run()
    assert server.scheduler.reset_prefix_cache()
    server.add("second", prompt)
    server.run()
    grain = 256 * blocks_per_chunk
    assert server.computed == {"first": 2001, "second": 2001 - 2000 // grain * grain}


@pytest.mark.parametrize(
    ("model", "retention"),
    [
        (specs, None),
        (specs, 0),
        (specs, 1024),
        (with_replays, None),
        (with_replays, 1024),
        (with_rings, None),
        (with_rings, 1024),
    ],
)
def test_whatever_is_shared_and_evicted_nobody_reads_what_is_not_theirs(make, model, retention):
    server, random = make(model(4), retention), Random(2)
    common, prompts = random.choices(range(1000), k=3000), 0
    for number in range(16):
        prompt = common[: random.randrange(3000)] + random.choices(range(1000), k=random.randrange(1, 600))
        prompts += len(prompt)
        server.add(f"{number}", prompt)
        for _ in range(random.randrange(12)):
            server.step()
        if not random.randrange(4):
            server.run()
            assert server.scheduler.reset_prefix_cache()
    server.run()
    assert sum(server.computed.values()) < prompts - 4096
    assert server.compared > 300


def test_windows_that_are_built_anew_behind_a_hit_are_not_offloaded(make):
    """DeepSeek-V4.1's: they are in no hash, and vLLM computes the last window of a hit again."""
    server, prompt = make(with_replays(4)), Random(1).choices(range(1000), k=2000)
    offloaded = [group.group_id for group in server.worker.side._engine.layout.groups]
    assert [server.groups[group].prefix_replay_tokens for group in range(len(server.groups))] == [
        128,
        128,
        0,
        0,
        0,
    ]
    assert offloaded == [2, 3, 4]
    for name in ("first", "second"):
        server.add(name, prompt)
        server.run()
        assert server.scheduler.reset_prefix_cache()
    assert server.computed == {"first": 2001, "second": 2001 - 1792 + 128}


def test_what_no_hash_finds_is_left_out_however_few_tokens_its_blocks_have(make):
    server, prompt = make(with_rings(4)), Random(1).choices(range(1000), k=2001)
    groups = [(spec.block_size, spec.prefix_cacheable) for spec in server.groups]
    assert (sorted(groups), server.tokens_per_hash) == ([(4, False), (64, True), (256, True)], 64)
    for name in ("first", "second"):
        server.add(name, prompt)
        server.run()
        assert server.scheduler.reset_prefix_cache()
    assert server.computed == {"first": 2002, "second": 2002 - 1792}
