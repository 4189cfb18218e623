"""What a recorded engine asked its connector, beside what a world asks that runs the recording."""

import json

from kv_vllm_runs import Engine, made_up, recorded, with_extra
from kv_vllm_specs import UntilSettled

from kv_sim.failures.schedule_file import read_schedule
from kv_sim.world import World
from kv_vllm.recording.schedule import write_schedule_of


def live(engine):
    """Prompts that share a prefix, more than the GPU has room for; some go away, some come twice."""
    trunk = made_up(0, 320)

    def forks(seed, *sizes):
        return [trunk[: 32 * blocks] + made_up(seed + blocks, tail) for blocks, tail in sizes]

    others = [made_up(seed, 180 + seed) for seed in (20, 35, 52, 60)]
    engine.run([trunk, *forks(1, (3, 4), (5, 70), (9, 1), (7, 40))])
    engine.run([*others, *forks(100, (5, 9)), trunk], tokens=40)
    engine.run([*forks(200, (3, 4), (5, 70), (8, 33), (7, 40)), *others], abort=(0, 3, 6), steps=3)
    engine.run([trunk, *reversed(others), *forks(300, (9, 1))], tokens=70)
    engine.run([*forks(400, (3, 4)), trunk[:160], others[1]], tokens=2)


def replayed(schedule):
    """The queries and allocations of a world."""
    calls = []

    def observe(call):
        args, answer = call.args, call.answer
        if call.method == "get_num_new_matched_tokens":
            calls.append(("match", args[0].request_id, args[1], answer[0], answer[1]))
        elif call.method == "update_state_after_alloc":
            tables = [list(table) for table in args[1].get_block_ids()]
            calls.append(("allocate", args[0].request_id, args[2], tables))

    world = World(schedule.config, schedule.subject, observe=observe)
    skipped = [action for action in schedule.history if not world.apply(action)]
    return calls, [action for action in skipped if action.kind != "settle"]


def recorded_calls(file):
    """The queries and allocations of a recording."""
    for line in file.read_text().splitlines()[1:]:
        call = json.loads(line)
        if call["call"] == "match":
            yield "match", call["request"], call["local"], call["tokens"], call["later"]
        elif call["call"] == "allocate":
            yield "allocate", call["request"], call["tokens"], call["blocks"]


def check_prediction(transfer, folder, **options):
    """Check that a real vLLM makes the calls that the testbed's engine makes with the recording alone."""
    settled = with_extra(transfer, spec_name="Settled", spec_module_path="kv_vllm_specs")
    engine = Engine(recorded(settled, folder / "live.jsonl"), **options)
    engine.after_step = UntilSettled.settle
    live(engine)
    hits, preempted = (engine.metric(f"vllm:{name}") for name in ("external_prefix_cache_hits", "num_preemptions"))
    engine.close()
    expected, skipped = replayed(read_schedule(folder / "live.jsonl"))
    summary = write_schedule_of(folder / "live.calls.jsonl", folder / "again.jsonl")
    assert summary.lost_tokens == 0 < summary.shared_tokens
    assert (folder / "again.jsonl").read_text() == (folder / "live.jsonl").read_text()
    told = list(recorded_calls(folder / "live.calls.jsonl"))
    assert told == expected
    assert not skipped
    assert hits > 500 and preempted > 0
