"""Several sizes side by side, and the least of them that keeps a promise."""

import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kv_sim_timed_traces import toy, trace_of

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay import open_trace
from kv_sim.replay.columns import Columns, ColumnsBuilder
from kv_sim.replay.crew import Crew
from kv_sim.replay.report.timed.as_json import answers_as_json, timed_as_json
from kv_sim.replay.report.timed.text import seconds_shown, timed_lines
from kv_sim.replay.servers.fleet import Fleet
from kv_sim.replay.servers.routing import Routing
from kv_sim.replay.timed import Contents, EngineSettings, replay_engine
from kv_sim.replay.timed.goal import Goal, parse_goals
from kv_sim.replay.timed.runs import servers
from kv_sim.replay.timed.sweep import EngineSweep, sweep_engine, usual_sizes

BLOCK = 512 * 131_072
"""Bytes of a block of the trace below, with the model that is usual."""


def turns(rounds: int = 3, users: int = 20) -> Columns:
    """Everybody asks the same again and again: with room for all of them, all but the first time is found."""
    builder = ColumnsBuilder()
    for turn in range(rounds):
        for user in range(users):
            builder.add(2.0 * (turn * users + user), 10 * 512, 4, range(10 * user, 10 * user + 10))
    return builder.finish("turns", 512)


def server(blocks: int = 200, **changes: Any) -> EngineSettings:
    return EngineSettings(gpu_blocks=20, cpu_bytes_to_use=blocks * BLOCK, **changes)


@cache
def replayed() -> EngineSweep:
    return sweep_engine(turns(), [server(20), server(100), server(250)])


def swept(goals: str = "") -> EngineSweep:
    return replace(replayed(), goals=parse_goals(goals) if goals else ())


def table(found: EngineSweep) -> str:
    return "\n".join(timed_lines(found))


@pytest.mark.once
def test_a_row_is_what_a_replay_of_its_own_says() -> None:
    found = swept()
    for run in found.runs:
        alone = replay_engine(turns(), run.settings)
        assert run.answers == alone.with_connector
        assert found.without == alone.without
    assert [run.size for run in found.runs] == [(20 * BLOCK, 0), (100 * BLOCK, 0), (250 * BLOCK, 0)]
    hits = [run.answers.cpu_hit_tokens for run in found.runs]
    assert hits[0] == hits[1] == 0 < hits[2], "who comes in turn needs room for all"
    assert (found.recommended, found.can_be_met) == (None, True)


@pytest.mark.once
def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, sizes, shares = turns(2, 10), [server(20), server(120)], list[float]()
    one = sweep_engine(trace, sizes, jobs=1)
    monkeypatch.setattr(servers, "WORTH_A_PROCESS", 1)
    two = sweep_engine(trace, sizes, progress=shares.append, jobs=2)
    assert two == one and shares == [1 / 3, 2 / 3, 1.0]
    fleet = Fleet(2, Routing.ROUND_ROBIN)
    several = sweep_engine(trace, sizes, (), shares.append, fleet, jobs=2)
    assert several.runs == sweep_engine(trace, sizes, fleet=fleet).runs != one.runs
    assert several.load is not None and several.load.servers == 2
    assert replay_engine(trace, server(120), jobs=2) == replay_engine(trace, server(120))


@pytest.mark.once
def test_servers_that_share_files_are_replayed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, fleet = turns(3, 9), Fleet(2, Routing.ROUND_ROBIN, disk_shared=True)
    sizes = [server(0, disk_bytes_to_use=200 * size * BLOCK, disk_shared=True) for size in (1, 2)]
    one = sweep_engine(trace, sizes, fleet=fleet)
    monkeypatch.setattr(servers, "WORTH_A_PROCESS", 1)
    assert sweep_engine(trace, sizes, fleet=fleet, jobs=2) == one
    alone = replay_engine(trace, sizes[0], fleet=fleet)
    assert (alone.with_connector, alone.without, alone.load) == (one.runs[0].answers, one.without, one.load)
    # Nine in turn go to either server in the next round: only its neighbour has them.
    apart = replay_engine(trace, replace(sizes[0], disk_shared=False), fleet=Fleet(2, Routing.ROUND_ROBIN))
    assert alone.with_connector.disk_hit_blocks > apart.with_connector.disk_hit_blocks > 0
    assert alone.with_connector.disk_writes.blocks == 9 * 10
    lines = [*timed_lines(alone)]
    assert (
        "          one for all servers; each loads what the others have there, without storing it again" in lines
    )
    assert [line.split()[2:] for line in lines if line.startswith("chunks borrowed")] == [["90", "0"]]
    quick, slow = (answers.ttft.mean for answers in (one.runs[0].answers, one.without))
    lines = [*timed_lines(replace(one, goals=parse_goals(f"ttft-mean={(quick + slow) / 2 * 1e3:.6f}ms")))]
    assert lines[-2].startswith('  each has a "file_engine" of its own besides, 0 to 1, but for replicas')
    assert '"file_shared": true' in lines[-1]


@pytest.mark.once
def test_servers_that_prefill_for_others_are_replayed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, fleet = turns(3, 9), Fleet(3, Routing.ROUND_ROBIN)
    kinds = [server(0, prefill_servers=0), server(200, prefill_servers=1), server(200, prefill_servers=2)]
    one = sweep_engine(trace, kinds, fleet=fleet)
    monkeypatch.setattr(servers, "WORTH_A_PROCESS", 1)
    assert sweep_engine(trace, kinds, fleet=fleet, jobs=2) == one
    both, *split = one.runs
    assert both.answers == one.without, "without memory each does what a server without a connector does"
    for run in split:
        assert run.answers.pulled is not None and run.answers.pulled.tokens == run.answers.prompt_tokens
        assert run.answers.requests == one.without.requests
    # All nine go to the one server that prefills, in turn; of two each has some in every round.
    assert split[0].answers.stores.blocks == 9 * 10 < split[1].answers.stores.blocks
    alone = replay_engine(trace, kinds[1], fleet=fleet)
    assert alone.with_connector == split[0].answers
    assert alone.without == replay_engine(trace, server(200), fleet=fleet).with_connector
    lines = [*timed_lines(alone)]
    assert "  pulls   prefill on 1 of 3 servers; 50 GB/s × 0.85 each way and GPU, 100 µs a pull" in lines
    [head] = [line for line in lines if " prefill, " in line]
    assert head.split() == ["1", "prefill,", "2", "decode", "3", "do", "both"]
    assert [line.split()[-2:] for line in lines if line.startswith("prompt tokens pulled")] == [["1.0000", "-"]]
    written = timed_as_json(alone)
    assert written["split"]["pulled"]["tokens"] == alone.with_connector.prompt_tokens
    assert written["doing_both"]["pulled"] is None and "without" not in written
    assert written["kv_transfer_configs"]["to_decode"]["kv_role"] == "kv_consumer"


def test_servers_that_prefill_for_others_are_recommended_if_that_keeps_a_promise() -> None:
    """Whoever decodes waits for nobody's prompt; where each does both, some do."""
    builder = ColumnsBuilder()
    for number in range(12):
        builder.add(0.2 * number, 10 * 512, 60, range(10 * number, 10 * number + 10))
    kinds = [EngineSettings(cpu_bytes_to_use=0, prefill_servers=count) for count in (0, 1, 2)]
    found = sweep_engine(builder.finish("busy", 512), kinds, fleet=Fleet(3, Routing.ROUND_ROBIN))
    both, one, two = (run.answers.time_per_output_token.worst for run in found.runs)
    assert two < both and one < both
    goal = parse_goals(f"tpot-worst={(max(one, two) + both) / 2 * 1e3:.6f}ms")
    found = replace(found, goals=goal)
    assert found.recommended is not None
    assert found.recommended.settings.prefill_servers == (1 if one <= two else 2)
    lines = [*timed_lines(found)]
    assert "  pulls   prefill on 1 or 2 of 3 servers; 50 GB/s × 0.85 each way and GPU, 100 µs a pull" in lines
    rows = [line.split()[:3] for line in lines if line[:1] in "-12" and line.strip()]
    assert rows == [["-", "none", "-"], ["-", "-", "-"], ["1", "-", "-"], ["2", "-", "-"]]
    chosen = found.recommended.settings.prefill_servers
    prefill = "prefills" if chosen == 1 else "prefill"
    assert f"recommended: {chosen} of 3 servers {prefill} for the others" in lines
    assert [line.split()[:2] for line in lines[-3:-1]] == [["to", "prefill:"], ["to", "decode:"]]
    written = timed_as_json(found)
    assert written["recommended"]["prefill_servers"] == chosen
    assert [[*run["kv_transfer_configs"]] for run in written["runs"][1:]] == [["to_prefill", "to_decode"]] * 2
    assert written["runs"][0]["kv_transfer_config"] == {}


@pytest.mark.parametrize(
    ("changes", "fleet", "problem"),
    [
        (
            {"prefill_servers": 1},
            None,
            "prefill_servers: got 1, with --servers 1; at least one server has to decode",
        ),
        (
            {"prefill_servers": 3},
            Fleet(3),
            "prefill_servers: got 3, with --servers 3; at least one server has to decode",
        ),
        (
            {"prefill_servers": 1, "contents": Contents.CHECKED},
            Fleet(3),
            "prefill_servers: not possible with --check-contents",
        ),
        (
            {"prefill_servers": 1, "disk_bytes_to_use": 1 << 20, "disk_shared": True},
            Fleet(3, disk_shared=True),
            "prefill_servers: not possible where servers share files",
        ),
    ],
)
def test_servers_that_can_not_be(changes: dict[str, Any], fleet: Fleet | None, problem: str) -> None:
    one = server(20, **changes)
    with pytest.raises(ConfigError) as alone:
        replay_engine(turns(), one, fleet=fleet)
    with pytest.raises(ConfigError) as among_others:
        sweep_engine(turns(), [replace(one, prefill_servers=0), one], fleet=fleet)
    assert str(alone.value) == str(among_others.value) == problem


@pytest.mark.parametrize("fleet", [None, Fleet()])
def test_one_server_gets_a_trace_as_it_is(fleet: Fleet | None) -> None:
    made = trace_of((0.0, 4, 1, [1]))
    assert servers.shares_of(made, fleet, None) == servers.Shares((made,))


@pytest.mark.parametrize(("limit", "counts"), [(None, (30, 30)), (9, (5, 4)), (61, (30, 30)), (0, (0, 0))])
def test_servers_share_as_many_requests_as_are_asked_for_if_there_are(
    limit: int | None, counts: tuple[int, ...]
) -> None:
    shares = servers.shares_of(turns(), Fleet(2, Routing.ROUND_ROBIN), limit)
    assert shares.load is not None and shares.load.requests == counts


@pytest.mark.once
def test_processes_that_would_take_longer_to_begin_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = list[int](), Crew.do_all

    def watched(crew: Crew, *work: Any) -> Any:
        asked.append(crew.jobs)
        return real(Crew(1, crew.progress), *work)

    monkeypatch.setattr(Crew, "do_all", watched)
    for worth, jobs, taken in ((1000, 8, 1), (181, 8, 1), (60, 8, 3), (30, 8, 6), (1, 3, 3), (1, 1, 1)):
        monkeypatch.setattr(servers, "WORTH_A_PROCESS", worth)
        sweep_engine(turns(), [server(20), server(20)], jobs=jobs)
        assert asked.pop() == taken, "three times sixty requests"


@pytest.mark.once
def test_the_least_that_meets_a_goal_is_recommended() -> None:
    slow, quick = swept().without.ttft.mean, swept().runs[2].answers.ttft.mean
    assert quick < slow
    between = f"ttft-mean={(quick + slow) / 2 * 1e3:.6f}ms"
    found = swept(between)
    assert found.recommended is found.runs[2]
    assert found.can_be_met and [found.is_met(run.answers) for run in found.runs] == [False, False, True]
    many = sweep_engine(turns(), [server(size) for size in (400, 250, 300, 20)], parse_goals(between))
    assert many.recommended is many.runs[1]
    easy = swept(f"ttft-mean={slow * 1e3:.6f}ms")
    assert (easy.recommended, easy.can_be_met) == (None, True), "no memory is needed for it"
    hard = swept(f"{between},ttft-worst=1us")
    assert (hard.recommended, hard.can_be_met) == (None, False), "both have to be met"
    assert swept(f"{between},tpot-worst=100s").recommended is not None


@pytest.mark.once
def test_of_policies_that_meet_it_with_as_much_lru_is_recommended() -> None:
    goals = parse_goals("ttft-mean=1000s")

    def chosen(*rows: tuple[str, int, int, float]) -> str | None:
        """Of rows of a policy, sizes, and a mean."""
        base = swept()
        runs = tuple(
            replace(
                base.runs[0],
                settings=replace(
                    server(), eviction_policy=policy, cpu_bytes_to_use=memory, disk_bytes_to_use=disk
                ),
                answers=replace(base.without, ttft=replace(base.without.ttft, mean=mean)),
            )
            for policy, memory, disk, mean in rows
        )
        without = replace(base.without, ttft=replace(base.without.ttft, mean=9e9))
        found = replace(base, runs=runs, goals=goals, without=without).recommended
        return None if found is None else f"{found.settings.eviction_policy} {found.size[0]} {found.size[1]}"

    assert chosen(("arc", 5, 0, 1.0), ("lru", 5, 0, 2.0)) == "lru 5 0"
    assert chosen(("arc", 5, 0, 3.0), ("sieve", 5, 0, 2.0), ("lru", 5, 0, 1e5)) == "sieve 5 0"
    assert chosen(("arc", 4, 9, 3.0), ("lru", 5, 0, 2.0)) == "arc 4 9"
    assert chosen(("lru", 5, 9, 3.0), ("lru", 5, 8, 3.0)) == "lru 5 8"
    assert chosen(("lru", 5, 0, 1e5)) is None


@pytest.mark.once
def test_what_is_shown() -> None:
    slow, quick = swept().without.ttft.mean, swept().runs[2].answers.ttft.mean
    found = swept(f"ttft-mean={(quick + slow) / 2 * 1e3:.0f}ms,tpot-p95=1s")
    lines = [*timed_lines(found)]
    begin = lines.index("goal: time per output token, p95, of at most 1 s")
    assert lines[begin - 1].startswith("goal: time to first token, mean, of at most 0.")
    assert lines[begin + 1] == "hits by prompt tokens, and times of requests:"
    head, none, *rows = lines[begin + 2 : begin + 7]
    assert head.split("  ")[0] == "policy" and "tpot p95" in head and "disk" not in head
    assert "ttft" not in head, "these have columns already"
    assert "ttft p95" in table(swept("ttft-p95=1s")) and "tpot mean" in table(swept("tpot-mean=1s"))
    assert none.split()[:4] == ["none", "-", "0.000", "0.000"] and not none.endswith("met")
    assert [row.split()[:3] for row in rows[:3]] == [
        ["lru", "1.25", "GiB"],
        ["lru", "6.25", "GiB"],
        ["lru", "15.6", "GiB"],
    ]
    assert [row.split()[4] for row in rows] == ["0.000", "0.000", f"{2 / 3:.3f}"]
    assert [row.endswith("◀ here") for row in rows] == [False, False, True]
    assert lines[begin + 7 : -1] == [
        "",
        "recommended: lru, 15.6 GiB",
        "  the least that was tried and meets all of them",
    ]
    config = json.loads(lines[-1].removeprefix("--kv-transfer-config '").removesuffix("'"))
    assert config["kv_connector_extra_config"]["cpu_bytes_to_use"] == 250 * BLOCK
    easy = [*timed_lines(swept(f"ttft-mean={slow + 1:.3f}s"))]
    assert easy[-1] == "recommended: no host memory, since a server without any meets it"
    assert sum(line.endswith("  met") for line in easy) == 4
    hard = [*timed_lines(swept("ttft-mean=1us"))]
    assert hard[-2] == "recommended: nothing, since no host memory that was tried meets it"
    assert hard[-1] == f"  the least ttft mean was {seconds_shown(quick)}"
    assert [*timed_lines(swept())][-1].startswith("lru"), "without a goal nothing is recommended"
    assert not any("met" in line.split() or "goal" in line for line in [*timed_lines(swept())])


@pytest.mark.once
def test_who_waits_in_the_queue_is_told_so() -> None:
    base = swept("ttft-p99=1us")
    most, less = base.runs[2], base.runs[0]

    def said(of_most: float, of_less: float) -> list[str]:
        """Where so much of the time to first token is spent in the queue."""
        runs = tuple(
            replace(
                run,
                answers=replace(
                    run.answers,
                    ttft=replace(run.answers.ttft, mean=2.0),
                    queueing=replace(run.answers.queueing, mean=2.0 * share),
                ),
            )
            for run, share in ((most, of_most), (less, of_less))
        )
        return [*timed_lines(replace(base, runs=runs))][-2:]

    assert said(0.5, 0.1) == [
        "  even with the most memory, 50% of the time to first token is spent in the queue:",
        "  more servers (--servers) or fewer requests (--arrival-scale) would help more",
    ]
    assert not any("queue" in line for line in said(0.49, 0.9))


@pytest.mark.once
def test_what_is_shown_of_a_disk_and_of_several_servers() -> None:
    sizes = [server(20, disk_bytes_to_use=300 * BLOCK), server(0, disk_bytes_to_use=300 * BLOCK)]
    found = sweep_engine(turns(), sizes, parse_goals("queueing-mean=10s"), fleet=Fleet(2))
    lines = [*timed_lines(found)]
    assert any(line.startswith("  disk  ") for line in lines)
    assert found.load is not None and timed_as_json(found)["load"] == asdict(found.load)
    [head] = [line for line in lines if line.startswith("policy")]
    assert head.split()[:6] == ["policy", "memory", "disk", "GPU", "CPU", "disk"]
    [none] = [line for line in lines if line.startswith("none")]
    assert none.split()[:6] == ["none", "-", "-", *["0.000"] * 3]
    assert "hits by prompt tokens, and times of requests; sizes are per server:" in lines
    assert lines[-1] == "recommended: no host memory or disk, since a server without any meets it"
    hard = replace(found, without=replace(found.without, queueing=replace(found.without.queueing, mean=99.0)))
    [said] = [line for line in [*timed_lines(hard)] if line.startswith("recommended")]
    assert said == "recommended: lru, 18.8 GiB of disk on each of 2 servers"
    one = (found.runs[0], replace(found.runs[1], settings=server()))
    [head] = [line for line in [*timed_lines(replace(found, runs=one))] if line.startswith("policy")]
    assert head.split()[:3] == ["policy", "memory", "disk"], "one of them has one"
    both = table(replace(hard, runs=hard.runs[:1]))
    assert "recommended: lru, 1.25 GiB and 18.8 GiB of disk on each of 2 servers" in both


@pytest.mark.once
def test_what_is_written() -> None:
    slow, quick = swept().without.ttft.mean, swept().runs[2].answers.ttft.mean
    found = swept(f"ttft-mean={(quick + slow) / 2 * 1e3:.6f}ms")
    data = json.loads(json.dumps(timed_as_json(found)))
    assert (data["fidelity"], data["trace"], data["goals"][0]["measure"]) == ("engine", "turns", "ttft")
    assert [run["meets_goals"] for run in data["runs"]] == [False, False, True]
    assert data["recommended"] == data["runs"][2] and data["recommended"]["cpu_bytes"] == 250 * BLOCK
    assert data["runs"][2]["answers"]["ttft"]["mean"] == quick and not data["without"]["meets_goals"]
    assert (data["runs"][0]["policy"], data["runs"][0]["disk_bytes"]) == ("lru", 0)
    assert data["runs"][0]["kv_transfer_config"] == found.runs[0].settings.transfer_config()


def test_usual_sizes_begin_at_what_the_gpus_hold_and_have_room_for_everything() -> None:
    trace, settings = turns(), server()
    found = usual_sizes(trace, settings, Fleet(), 4)
    assert (found[0], found[-1], len(found)) == (20 * BLOCK, 200 * BLOCK, 4), "outputs take less than a block"
    fewer = usual_sizes(trace, settings, Fleet(), 3, 100)
    assert (fewer[0], fewer[-1], len(fewer)) == (20 * BLOCK, 100 * BLOCK, 3)
    assert usual_sizes(trace, settings, Fleet(), 3, 10) == [10 * BLOCK], "less than the GPUs hold"
    assert usual_sizes(trace, settings, Fleet(), 4, 1000) == found, "nobody needs as much as there may be"
    each = usual_sizes(trace, settings, Fleet(2, Routing.PREFIX), 2)
    assert each[-1] < 200 * BLOCK, "no server gets all"
    small = replace(settings, block_tokens=16, gpu_blocks=20 * 32)
    assert usual_sizes(trace, small, Fleet(), 4) == found
    builder = ColumnsBuilder()
    builder.add(0.0, 512, 5 * 512, [1])
    assert usual_sizes(builder.finish("long answer", 512), server(), Fleet(), 2) == [6 * BLOCK]
    builder.add(1.0, 512, 512, [2])
    two = usual_sizes(builder.finish("long and short answer", 512), server(), Fleet(2, Routing.ROUND_ROBIN), 2)
    assert two == [6 * BLOCK], "room for the server that gets more"


GOALS = {
    "ttft-p90=800ms": Goal("ttft", "p90", 0.8),
    "tpot-mean=50ms": Goal("tpot", "mean", 0.05),
    "latency-worst=12.5s": Goal("latency", "worst", 12.5),
    "queueing-p95=300us": Goal("queueing", "p95", 0.0003),
}


def test_goals_as_typed() -> None:
    for text, goal in GOALS.items():
        assert parse_goals(text) == (goal,)
    assert parse_goals(", ".join(GOALS)) == tuple(GOALS.values())
    answers = swept().without
    assert [goal.value(answers) for goal in GOALS.values()] == [
        answers.ttft.p90,
        answers.time_per_output_token.mean,
        answers.latency.worst,
        answers.queueing.p95,
    ]
    exactly = Goal("ttft", "p90", answers.ttft.p90)
    assert exactly.is_met(answers) and not replace(exactly, most_seconds=answers.ttft.p90 - 1e-9).is_met(answers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ttft", "--goal ttft: expected MEASURE-STATISTIC=TIME, such as ttft-p90=800ms"),
        ("ttft-p90=-1s", "--goal ttft-p90=-1s: expected MEASURE-STATISTIC=TIME, such as ttft-p90=800ms"),
        ("ttft-p90=1s,", "--goal : expected MEASURE-STATISTIC=TIME, such as ttft-p90=800ms"),
        ("ttlt-p90=1s", "--goal ttlt-p90=1s: unknown measure 'ttlt'; known: ttft, tpot, latency, queueing"),
        (
            "ttft-p91=1s",
            "--goal ttft-p91=1s: unknown statistic 'p91'; known: mean, p50, p90, p95, p99, worst",
        ),
        ("ttft-p90=1", "--goal ttft-p90=1: unknown unit ''; known: us, ms, s"),
        ("ttft-p90=1min", "--goal ttft-p90=1min: unknown unit 'min'; known: us, ms, s"),
    ],
)
def test_goals_that_mean_nothing(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_goals(text)
    assert str(caught.value) == message


def test_a_goal_of_what_no_request_has() -> None:
    trace = trace_of((0, 6, 1, [1, 2]), (9, 6, 1, [1, 2]))
    with pytest.raises(ConfigError, match="tpot-mean: no request has a time per output token"):
        sweep_engine(trace, [toy()], parse_goals("tpot-mean=1s"))
    assert sweep_engine(trace, [toy()], parse_goals("ttft-mean=1s")).can_be_met
    with pytest.raises(ConfigError, match="a sweep needs at least one size"):
        sweep_engine(trace, [])


# On the command line


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "turns.jsonl"
    lines = [
        {
            "timestamp": 2000 * (turn * 20 + user),
            "input_length": 5120,
            "output_length": 4,
            "hash_ids": [*range(10 * user, 10 * user + 10)],
        }
        for turn in range(3)
        for user in range(20)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


ENGINE = ("--fidelity", "engine", "--gpu-capacity", "20blocks")


@pytest.mark.parametrize(
    ("module", "command", "options"),
    [
        ("replay", "replay", ()),
        ("sweep", "replay", ("--capacity", "1GiB,2GiB")),
        ("sweep", "size", ("--capacity", "1GiB", "--goal", "ttft-mean=1s")),
    ],
)
def test_a_command_takes_as_many_processes_as_it_is_told(
    file: str, monkeypatch: pytest.MonkeyPatch, module: str, command: str, options: tuple[str, ...]
) -> None:
    told = []

    def asked(shares: Any, kinds: Any, crew: Crew) -> Any:
        told.append(crew.jobs)
        raise ConfigError("that was it")

    monkeypatch.setattr(f"kv_sim.replay.timed.{module}.replay_on", asked)
    assert main([command, file, *ENGINE, *options, "--jobs", "3"]) == 2
    assert told == [3]


@pytest.mark.once
def test_replay_takes_several_sizes(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", file, *ENGINE, "--capacity", "2GiB,16GiB", "--policy", "lru,arc", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(run["policy"], run["cpu_bytes"] >> 30) for run in data["runs"]] == [
        ("lru", 2),
        ("lru", 16),
        ("arc", 2),
        ("arc", 16),
    ]
    settings = [EngineSettings(gpu_blocks=20, cpu_bytes_to_use=size << 30) for size in (2, 16)]
    expected = sweep_engine(open_trace(file), settings)
    for run, one in zip(data["runs"], expected.runs, strict=False):
        assert run["answers"] == json.loads(json.dumps(answers_as_json(one.answers)))
    assert data["recommended"] is None and data["goals"] == []


@pytest.mark.once
def test_size_takes_a_goal(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    slow, quick = swept().without.ttft.mean, swept().runs[2].answers.ttft.mean
    goal = f"ttft-mean={(quick + slow) / 2 * 1e3:.6f}ms"
    assert main(["size", file, *ENGINE, "--goal", goal, "--points", "3"]) == 0
    said = capsys.readouterr().out
    assert "recommended: lru, 12.5 GiB\n" in said and said.count("\nlru ") == 3
    assert main(["size", file, *ENGINE, "--goal", goal, "--budget", "8GiB", "--points", "3"]) == 1
    said = capsys.readouterr().out
    assert "recommended: nothing" in said and "\nlru        8 GiB" in said
    assert main(["size", file, *ENGINE, "--goal", goal, "--capacity", "13GiB,14GiB", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"]["cpu_bytes"] == 13 << 30
    two = ["--servers", "2", "--routing", "round-robin"]
    assert main(["size", file, *ENGINE, "--goal", "ttft-mean=1000s", "--points", "2", *two]) == 0
    assert "\nlru     6.25 GiB" in capsys.readouterr().out, "what comes to each server"
    assert main(["size", file, *ENGINE, "--goal", "ttft-mean=1000s", "--disk-capacity", "16GiB"]) == 0
    said = capsys.readouterr().out
    assert "recommended: no host memory or disk, since a server without any meets it\n" in said


WRONG = {
    (): "--fidelity engine: give the goal that the memory has to meet: --goal, such as ttft-p90=800ms",
    ("--goal", "ttft-p90"): "--goal ttft-p90: expected MEASURE-STATISTIC=TIME, such as ttft-p90=800ms",
    (
        "--goal",
        "ttft-p90=1s",
        "--budget",
        "1GiB",
        "--capacity",
        "1GiB",
    ): "--budget can't be combined with --capacity or --disk-capacity",
    (
        "--goal",
        "ttft-p90=1s",
        "--budget",
        "1GiB",
        "--disk-capacity",
        "1GiB",
    ): "--budget can't be combined with --capacity or --disk-capacity",
    ("--goal", "ttft-p90=1s", "--points", "3", "--capacity", "1GiB"): "--points and --capacity: give one of them",
    (
        "--goal",
        "ttft-p90=1s",
        "--points",
        "3",
        "--disk-capacity",
        "1GiB",
    ): "--points and --disk-capacity: give one of them",
    ("--goal", "ttft-p90=1s", "--points", "1"): "--points: expected at least 2, got 1",
    ("--goal", "ttft-p90=1s", "--budget", "1MiB"): "--budget 1MiB: less than one block of 512 tokens, which takes "
    "64 MiB",
    ("--goal", "ttft-p90=1s", "--jobs", "0"): "--jobs: more than 0, got 0",
}


@pytest.mark.parametrize("options", WRONG, ids=" ".join)
def test_what_size_can_not_do(file: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    assert main(["size", file, *ENGINE, *options]) == 2
    assert capsys.readouterr() == ("", f"kv-sim size: {WRONG[options]}\n")


@pytest.mark.parametrize("options", [(), ("--goal", "ttft-p90")])
def test_a_wrong_goal_is_told_before_a_trace_is_read(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    assert main(["size", "no trace at all", *ENGINE, *options]) == 2
    assert capsys.readouterr() == ("", f"kv-sim size: {WRONG[options]}\n")
