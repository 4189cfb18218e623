"""Costs are sums: they grow with what is done, and shrink with what is bought."""

from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_sim_timed_traces import answer, toy, trace_of

from kv_sim.replay.timed import GPUS, MODELS, EngineSettings, Spread
from kv_sim.replay.timed.durations.timing import StepCosts, Work
from kv_sim.replay.timed.server.sizes import plan

COUNTS = st.integers(0, 100_000)


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_more_work_is_never_faster(t: int, p: int, c: int, more_t: int, more_p: int, more_c: int) -> None:
    costs = StepCosts(1.5, 0.25, 700.0, 0.125, 0, 1)
    less = costs.forward_ns(t, p, c)
    assert less <= costs.forward_ns(t + more_t, p + more_p, c + more_c)
    assert less == int(max(1.5 * t + 0.25 * p, 700 + 0.125 * c)) + 1


@given(st.integers(0, 500), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_a_prompt_in_pieces_attends_to_as_much(computed: int, pieces: list[int]) -> None:
    whole, cut, at = Work(), Work(), computed
    whole.add(computed, sum(pieces))
    for piece in pieces:
        cut.add(at, piece)
        at += piece
    assert (cut.tokens, cut.pairs) == (whole.tokens, whole.pairs)
    assert whole.pairs == sum(range(computed + 1, at + 1))
    assert whole.context == at
    whole.add(7, 1)
    assert whole == Work(at - computed + 1, sum(range(computed + 1, at + 1)) + 8, at + 8)


@pytest.mark.once
@settings(max_examples=20)
@given(st.lists(st.floats(1e6, 1e12), min_size=2, max_size=4), st.integers(1, 4))
def test_a_faster_link_never_makes_a_request_wait_longer(bandwidths: list[float], blocks: int) -> None:
    ids = list(range(blocks))
    first = (0, 4 * blocks, 1, ids)
    other = (1e6, 15, 1, [101, 102, 103, 104])
    again = (2e6, 4 * blocks + 1 if blocks < 4 else 15, 1, [*ids, 200])
    waits = []
    for bandwidth in sorted(bandwidths):
        server = toy(gpu_blocks=5, gpu=replace(toy().gpu, link_bandwidth=bandwidth))
        waits.append(answer(trace_of(first, other, again), server).ttft.p50)
    assert waits == sorted(waits, reverse=True)


def test_what_a_server_costs_by_its_data_sheet() -> None:
    exactly = partial(pytest.approx, rel=1e-12)
    sizes = plan(EngineSettings(), 512)
    # 2 × 32 layers × 8 heads × 128 × 2 bytes; (80 GiB × 0.92 less 16.06 GB) / 64 MiB.
    assert (sizes.kv_bytes_per_token, sizes.block_bytes, sizes.gpu_blocks) == (131_072, 64 << 20, 938)
    assert (sizes.pieces_per_block, sizes.max_step_tokens, sizes.max_running) == (1024, 8192, 1024)
    # All weights at 80 % of 3.35 TB/s; two operations a parameter at half of 989 TFLOP/s.
    assert sizes.step.ns_of_weights == exactly(16.060522496e9 / (0.8 * 3.35e12) * 1e9)
    assert sizes.step.ns_per_token == exactly(2 * 8.030261248e9 / (0.5 * 989e12) * 1e9)
    # Four operations a head, its size and a pair; the KV of a token; a millisecond, whatever a step does.
    assert sizes.step.ns_per_pair == exactly(4 * 32 * 32 * 128 / (0.5 * 989e12) * 1e9)
    assert sizes.step.ns_per_context_token == exactly(131_072 / (0.8 * 3.35e12) * 1e9)
    assert (sizes.step.overhead_ns, sizes.step.idle_ns) == (1_000_000, 1_000_000)
    # 64 MiB at 85 % of 64 GB/s and 1024 copies of 0.5 µs.
    assert sizes.link.job_ns(1) == int((64 << 20) / (0.85 * 64) + 512_000) + 1


def test_several_gpus_share_everything() -> None:
    one, four = (plan(replace(EngineSettings(), tp_size=n, gpu_blocks=100), 512) for n in (1, 4))
    assert four.step.ns_per_token == pytest.approx(one.step.ns_per_token / 4)
    assert four.step.ns_per_context_token == pytest.approx(one.step.ns_per_context_token / 4)
    assert four.step.ns_of_weights == pytest.approx(one.step.ns_of_weights / 4)
    assert four.step.ns_per_pair == pytest.approx(one.step.ns_per_pair / 4)
    assert four.link.ns_per_byte == pytest.approx(one.link.ns_per_byte / 4)
    assert four.kv_bytes_per_token == one.kv_bytes_per_token
    assert four.step.overhead_ns == one.step.overhead_ns and four.link.ns_per_piece == one.link.ns_per_piece
    # (80 GiB × 0.92 × 4 less 16.06 GB) / 64 MiB
    assert plan(EngineSettings(tp_size=4), 512).gpu_blocks == 4471
    assert plan(replace(EngineSettings(), tp_size=16, gpu_blocks=9), 512).kv_bytes_per_token == 2 * 131_072


SHAPES = {
    "Llama-3.1-8B": (4096, 14336, 128256, 2, 0, 0),
    "Llama-3.1-70B": (8192, 28672, 128256, 2, 0, 0),
    "Llama-3.1-70B-FP8": (8192, 28672, 128256, 2, 0, 0),
    "Llama-3.2-3B": (3072, 8192, 128256, 1, 0, 0),
    "Qwen2.5-7B": (3584, 18944, 152064, 2, 1, 0),
    "Qwen2.5-14B": (5120, 13824, 152064, 2, 1, 0),
    "Qwen2.5-32B": (5120, 27648, 152064, 2, 1, 0),
    "Qwen2.5-72B": (8192, 29568, 152064, 2, 1, 0),
    "Qwen3-8B": (4096, 12288, 151936, 2, 0, 2),
    "Qwen3-32B": (5120, 25600, 151936, 2, 0, 2),
    "Mistral-7B": (4096, 14336, 32768, 2, 0, 0),
}
"""Hidden size, size between, vocabulary, tables of it, biases of Q, K and V, norms of Q and K."""


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_parameters_that_its_shape_asks_for(name: str) -> None:
    model, (hidden, between, vocabulary, tables, biases, norms) = MODELS[name], SHAPES[name]
    q, kv = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
    layer = hidden * (2 * q + kv) + 3 * hidden * between + 2 * hidden + biases * (q + kv) + norms * model.head_dim
    assert model.parameters == model.layers * layer + tables * vocabulary * hidden + hidden


TIMING = Path(__file__).parents[5] / "docs" / "timing.md"
CELLS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in TIMING.read_text("utf-8").splitlines()]


def test_the_presets_are_those_of_the_guide() -> None:
    gpus = []
    for name, gpu in GPUS.items():
        rates = (gpu.flops / 1e12, gpu.hbm_bandwidth / 1e12, gpu.memory_bytes / 2**30, gpu.link_bandwidth / 1e9)
        gpus.append([name, *rates, f"{gpu.step_tokens} / {gpu.running}"])
    written = [row for row in CELLS if len(row) == 7 and " / " in row[5]][1:]
    assert [[row[0], *map(float, row[1:5]), row[5]] for row in written] == gpus
    models = []
    for name, model in MODELS.items():
        shape = (model.layers, model.heads, model.kv_heads, model.head_dim, model.max_tokens)
        if model.dtype_bytes == 2:
            models.append([name, f"{model.parameters / 1e9:.2f} G", *(f"{value:,}" for value in shape)])
    assert [[row[0].split(",")[0], *row[1:]] for row in CELLS if len(row) == 7 and row[1].endswith(" G")] == models
    assert MODELS["Llama-3.1-70B-FP8"] == replace(MODELS["Llama-3.1-70B"], name="Llama-3.1-70B-FP8", dtype_bytes=1)


def test_every_gpu_holds_some_model() -> None:
    for gpu in GPUS.values():
        assert plan(EngineSettings(gpu=gpu), 512).gpu_blocks > 50


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40))
def test_a_percentile_is_the_smallest_value_that_so_many_reach(values: list[int]) -> None:
    spread = Spread.of(array("q", values))
    for share, found in ((50, spread.p50), (90, spread.p90), (95, spread.p95), (99, spread.p99)):
        reaching = [v for v in sorted(values) if sum(w <= v for w in values) * 100 >= share * len(values)]
        assert found == reaching[0] / 1e9
    assert (spread.count, spread.worst) == (len(values), max(values) / 1e9)


def test_the_spread_of_a_thousand() -> None:
    seconds = array("q", [number * 10**9 for number in range(1000, 0, -1)])
    assert Spread.of(seconds) == Spread(1000, 500.5, 500.0, 900.0, 950.0, 990.0, 1000.0)
