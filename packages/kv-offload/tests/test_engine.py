"""Random histories of a small engine with the connector: bytes, whole plans of stores, nothing left at rest."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_offload_configs import FULL, STATE, WINDOW
from kv_offload_device import Life
from kv_offload_engine import Engine

from kv_api import make_offload_key

FEWER = settings(max_examples=max(10, settings().max_examples // 4))
"""A history takes a hundred times as long as what a profile counts on."""


def new_request(random, names):
    family = random.randint(0, 2)
    prompt = random.randint(1, 40)
    shared = random.choice([prompt, prompt, random.randint(0, prompt)])
    tokens = [family * 1000 + n for n in range(shared)] + [
        random.randint(5000, 9999) for _ in range(shared, prompt)
    ]
    name = f"r{random.randint(0, 30)}"
    tokens += [random.randint(10_000, 10_009) for _ in range(random.randint(1, 6))]
    return None if name in names else Life(name, tokens, prompt)


def act(engine, random, trouble):
    kind = random.choices(
        ["add", "schedule", "execute", "process", "copy", "abort", "fail", "repeat", "reset"],
        [10, 30, 40, 30, 20, 3, 3 * trouble, 2 * trouble, 1 * trouble],
    )[0]
    device = random.choice(engine.devices)
    if kind == "add" and len(engine.requests) < 5:
        request = new_request(random, engine.requests)
        under_way = {r.request_id for s in engine.steps for r, *_ in s.work}
        if request and request.request_id not in under_way:
            engine.add(request)
    elif kind == "schedule" and len(engine.steps) <= engine.run_ahead:
        engine.schedule()
    elif kind == "execute":
        engine.execute(device.rank)
    elif kind == "process":
        engine.process()
    elif kind == "abort" and engine.requests:
        request = random.choice([*engine.requests.values()])
        if request.state not in ("held", "aborted"):
            engine.finish(request, ran=False)
    elif kind == "reset":
        engine.scheduler.reset_cache()
        engine.disturbed = True
        for request in engine.requests.values():
            request.offered, request.loaded = set(), set()
    elif kind in ("copy", "fail", "repeat"):
        act_on_copies(engine, random, device.copies, kind)


def act_on_copies(engine, random, copies, kind):
    running = list(copies.running)
    if kind == "copy" and running:
        copies.end(random.choice(running))
    elif kind == "fail" and running:
        loads = [job_id for job_id in running if copies.running[job_id][0] != "store"]
        copies.end(random.choice(loads or running), success=False)
        engine.disturbed = True
    elif kind == "repeat" and copies.device.after:
        ended = [job_id for job_id in copies.device.after if job_id not in copies.running]
        copies.repeat(random.choice(ended or [99]), random.random() < 0.5)


def run(random, actions=150, trouble=1, hostile=False, groups=None, **config):
    if groups is None:
        size = random.choice([2, 4])
        groups = []
        for _ in range(random.randint(1, 3)):
            kind = random.choice([FULL, WINDOW, STATE] if groups else [FULL, FULL, FULL, WINDOW, STATE])
            groups.append((kind, random.choice([2, size]), random.randint(1, 9) if kind is WINDOW else 0))
    in_step = config.pop("in_step", False)
    if in_step:
        config["sync_load_budget_bytes"] = 1 << 20
    engine = Engine(random, groups, num_blocks=30 * len(groups), **config)
    engine.disturbed = False
    if hostile:
        engine.manager.random = random
    for _ in range(actions):
        act(engine, random, trouble)
    engine.rest()
    return engine


seeds = st.integers(0, 1 << 32)
configs = st.fixed_dictionaries(
    {
        "per_chunk": st.integers(1, 4),
        "ranks": st.integers(1, 4),
        "run_ahead": st.integers(0, 3),
        "holds": st.booleans(),
        "hostile": st.booleans(),
        "trouble": st.sampled_from([0, 1, 4, 15]),
    }
)


@FEWER
@given(seeds, configs)
def test_histories(seed, config):
    run(Random(seed), **config)


@FEWER
@given(seeds, st.integers(1, 3), st.booleans())
def test_histories_with_loads_in_the_step(seed, per_chunk, hostile):
    run(Random(seed), groups=[(FULL, 4, 0)], in_step=True, per_chunk=per_chunk, hostile=hostile, trouble=2)


@FEWER
@given(seeds, configs)
def test_what_ran_to_its_end_is_kept(seed, config):
    random = Random(seed)
    engine = run(
        random, **{**config, "trouble": 0, "hostile": False}, groups=[(FULL, 4, 0)] * random.randint(1, 2)
    )
    per = 4 * config["per_chunk"]
    for request in engine.ended:
        if not request.disturbed:
            for chunk in range(request.num_prompt_tokens // per):
                for group in range(len(engine.groups)):
                    key = make_offload_key(request.hash_at((chunk + 1) * per), group)
                    assert key in engine.manager.resident, f"{request.request_id}: chunk {chunk} of group {group}"


@pytest.mark.parametrize("seed", range(20))
def test_long_histories(seed):
    random = Random(seed)
    run(
        random,
        actions=600,
        per_chunk=random.randint(1, 4),
        ranks=random.randint(1, 3),
        run_ahead=random.randint(0, 3),
        holds=random.random() < 0.4,
        hostile=random.random() < 0.3,
        trouble=random.choice([1, 15]),
    )
