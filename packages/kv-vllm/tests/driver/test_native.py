"""With a vLLM: connectors of vLLM's own base class, which nobody wrote for the testbed, under it."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("kv_sim")

from kv_api import ConfigError, KVTransferConfig, UnknownNameError
from kv_sim.cli.main import main as kv_sim
from kv_sim.config import WorldConfig
from kv_sim.console import selection
from kv_sim.fuzz import run_seed
from kv_sim.growth.kept import measure_kept
from kv_sim.growth.metered import MeteredWorld
from kv_sim.growth.models import MODELS
from kv_sim.growth.situations import SITUATIONS
from kv_sim.memory.shadow import Shadow
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Referee
from kv_sim.world import World
from kv_vllm.installed import vllm_version

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]

EXAMPLE = "vllm.distributed.kv_transfer.kv_connector.v1.example_connector"
FOLDER = '{"shared_storage_path": "{folder}"}'


def threaded(name: str) -> Subject:
    return Subject(name, "kv_vllm_threads", traits=frozenset({Trait.RANKS}))


# -- which connector it is ---------------------------------------------------------------------


def test_a_name_is_ours_or_vllms():
    from kv_vllm.driver.classes import subject_named

    assert subject_named("MultiConnector") == Subject("MultiConnector", None, traits=frozenset())
    assert subject_named("ExampleConnector") == Subject("ExampleConnector", EXAMPLE, traits=frozenset())


def test_a_name_that_nobody_knows_is_refused_with_those_of_both():
    from kv_vllm.driver.classes import subject_named

    with pytest.raises(UnknownNameError) as found:
        subject_named("ExampelConnector")
    said = str(found.value)
    assert said.startswith("unknown connector 'ExampelConnector'; known: DecodeBenchConnector, ExampleConnector, ")
    assert "SimpleConnector" in re.split(r"[,;] ", said), "which only ours knows"
    assert said.endswith("; did you mean 'ExampleConnector'?")


def test_a_subject_of_the_driver_goes_by_its_name_with_all_that_it_claims():
    from kv_vllm.driver.classes import subject_named
    from kv_vllm.driver.subjects import OUR_SUBJECTS, VLLM_SUBJECTS

    assert subject_named("vllm-tiers") is VLLM_SUBJECTS["vllm-tiers"]
    assert subject_named("our-offloading") is OUR_SUBJECTS["our-offloading"]
    with pytest.raises(UnknownNameError, match="vllm-tiers, vllm-tiers-fs; did you mean 'vllm-tiers'"):
        subject_named("vllm-tier")


def test_a_subject_of_the_driver_claims_what_it_may():
    """``kv-sim fuzz`` refuses another."""
    from kv_sim.console.selection import choose_subject
    from kv_vllm.driver.subjects import OUR_SUBJECTS, VLLM_SUBJECTS

    for name, subject in {**VLLM_SUBJECTS, **OUR_SUBJECTS}.items():
        assert choose_subject(name, engine="vllm") is subject


def test_a_connector_of_vllms_that_cannot_be_imported_is_refused(monkeypatch):
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kv_vllm.driver.classes import class_named

    def load():
        raise ImportError("no library")

    monkeypatch.setitem(KVConnectorFactory._registry, "Lost", load)
    with pytest.raises(ConfigError, match=r"^connector 'Lost' of vLLM can't be imported: no library$"):
        class_named("Lost")


@pytest.mark.parametrize("is_child", [False, True])
def test_a_name_that_a_plugin_of_vllms_tells_is_known(is_child, monkeypatch):
    from vllm import plugins
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kv_vllm.driver import classes

    def register():
        KVConnectorFactory.register_connector("Plugged", EXAMPLE, "ExampleConnector")

    monkeypatch.setattr(KVConnectorFactory, "_registry", {**KVConnectorFactory._registry})
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    monkeypatch.setattr(plugins, "load_plugins_by_group", lambda group: {"mine": register})
    if is_child:
        classes.class_of("MultiConnector", "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector")
        assert "Plugged" in KVConnectorFactory._registry
    else:
        assert classes.subject_named("Plugged") == Subject("ExampleConnector", EXAMPLE, traits=frozenset())


def test_a_module_wins_and_no_name_is_no_connector():
    from kv_vllm.driver.classes import class_of

    assert class_of("ExampleConnector", EXAMPLE).__module__ == EXAMPLE
    assert class_of("OffloadingConnector", None).__module__.startswith("kv_offload.")
    with pytest.raises(ConfigError, match=r"^kv_connector: no connector is named$"):
        class_of(None, EXAMPLE)
    with pytest.raises(ConfigError, match=r"^connector 'Nobody'"):
        class_of("Nobody", EXAMPLE)


def test_a_module_alone_makes_no_class_one_of_vllms():
    from kv_vllm.driver.classes import class_of, is_vllms

    ours = class_of("OffloadingConnector", None).__module__
    asked = [("ExampleConnector", EXAMPLE), ("OffloadingConnector", ours), ("OffloadingConnector", None)]
    assert [is_vllms(*one) for one in asked] == [True, False, False]


@pytest.mark.parametrize(
    ("children", "knows"), [(["OffloadingConnector"], True), (["OffloadingConnector", "ExampleConnector"], False)]
)
def test_several_groups_are_for_those_who_know_them(children, knows):
    from kv_sim.engines import find_engine

    engine, base = find_engine("vllm"), "vllm.distributed.kv_transfer.kv_connector.v1"
    kind = {"kv_role": "kv_both", "kv_connector_module_path": f"{base}.multi_connector"}
    listed = [{"kv_connector": child, "kv_role": "kv_both"} for child in children]
    multi = {**kind, "kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": listed}}
    assert engine.supports_groups(KVTransferConfig.from_mapping(multi)) is knows
    ours = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    assert engine.supports_groups(KVTransferConfig.from_mapping(ours))
    other = {**ours, "kv_connector": "LaterConnector", "kv_connector_module_path": "kv_sim.examples.later"}
    assert not engine.supports_groups(KVTransferConfig.from_mapping(other))
    theirs = {"kv_connector": children[-1], "kv_role": "kv_both", "kv_connector_module_path": EXAMPLE}
    if not knows:
        assert not engine.supports_groups(KVTransferConfig.from_mapping(theirs))


def test_a_connector_of_vllms_is_not_for_the_testbeds_own_engine():
    with pytest.raises(
        ConfigError, match=r"derives from vLLM's own base class, so only vLLM's engine can drive it: .*"
    ):
        selection.choose_subject(f"{EXAMPLE}:ExampleConnector")


# -- on the command line -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ExampleConnector", f"{EXAMPLE}:ExampleConnector"])
def test_conform_finds_what_vllms_example_does_wrong(name, capsys, tmp_path):
    typed = ["conform", name, "--engine", "vllm", "--extra", FOLDER, "--histories", "4", "--save", str(tmp_path)]
    assert kv_sim(typed) == 1
    out = capsys.readouterr().out
    assert "FAIL seed=" in out and "plain     made" in out
    [file] = tmp_path.iterdir()
    assert kv_sim(["replay-schedule", str(file)]) == 1
    assert "FAIL actions=" in capsys.readouterr().out


def test_the_guide_shows_what_is_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parents[4] / "docs" / "connector.md").read_text(encoding="utf-8")
    block = re.search(r"```text\n\$ kv-sim (.*?ExampleConnector.*?)```", guide, re.DOTALL)
    typed, *printed = block[1].splitlines()
    assert kv_sim(shlex.split(typed)) == 1
    out = capsys.readouterr().out.splitlines()[: len(printed)]
    folder = re.compile(r"\S*/kv_vllm-\w+/|torch.py:\d+")
    if vllm_version() == (0, 32):
        assert [folder.sub("", line) for line in out] == [folder.sub("", line) for line in printed]


def test_several_groups_of_one_that_knows_one_are_refused(capsys):
    typed = ["conform", "ExampleConnector", "--engine", "vllm", "--extra", FOLDER, "--traits", "groups"]
    assert kv_sim(typed) == 2
    assert "ExampleConnector can't be used with several KV cache groups" in capsys.readouterr().err


def test_a_hunt_of_any_connector(capsys, tmp_path):
    from kv_vllm.__main__ import main

    typed = ["fuzz", "--connector", "ExampleConnector", "--extra", FOLDER, "--minutes", "0.02"]
    assert main([*typed, "--save", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("vLLM 0.3") and "ExampleConnector: " in out
    assert list(tmp_path.iterdir())
    assert main(["fuzz", "--connector", "nobody:Nobody"]) == 2
    assert "connector 'Nobody' (nobody:Nobody" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "grows"), [("ThreadedConnector", False), ("GrowingConnector", True)])
def test_whether_its_work_grows(name, grows, monkeypatch, capsys):
    """Neither ever drops a chunk, and of each it is told what it keeps."""
    row = "a prompt's last steps"
    one = {row: SITUATIONS[row]._replace(sizes=(64, 128, 256))}
    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: one)
    assert kv_sim(["growth", f"kv_vllm_threads:{name}", "--engine", "vllm"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{name}: bytecodes executed in the calls of its scheduler's side"
    told = [line for line in out if line.startswith("GROWS: ")]
    step = f"GROWS: {row}, full attention: with 256 blocks instead of 64, a step is "
    assert [line.startswith(step) for line in told] == [*[True] * grows, False, False]
    kept = [line.split(" full attention: ")[0] for line in told[-2:]]
    assert kept == [
        f"GROWS: what the {side}'s side keeps of different prompts," for side in ("scheduler", "worker")
    ]


def test_what_vllm_hands_over_is_not_what_a_connector_keeps(monkeypatch):
    monkeypatch.setattr("kv_sim.growth.kept.ROUNDS", (2, 4, 8))
    from kv_vllm.driver.subjects import OUR_SUBJECTS, VLLM_SUBJECTS

    for subject in (VLLM_SUBJECTS["vllm-offloading"], OUR_SUBJECTS["our-offloading"]):
        make = partial(MeteredWorld, subject, MODELS["full attention"], "vllm")
        for kept in measure_kept(make):
            ways = sorted(kept.things[8])
            # vLLM's heap lets what has gone lie until there are 64.
            assert kept.growth == 0 or kept.grows_at.endswith("_policy._heap"), f"{kept.side}: {kept.grows_at}"
            assert len(ways) > 20, ways
            assert not [way for way in ways if re.search(r"block_pool|\bref_cnt|free_block_queue", way)]


# -- threads, events and ranks of its own ------------------------------------------------------


@pytest.mark.parametrize("name", ["ThreadedConnector", "SlowConnector"])
def test_copies_in_a_thread_of_its_own_have_the_time_they_need(name):
    run_of = [run_seed(threaded(name), seed, engine="vllm", actions=20) for seed in range(2)]
    assert [run.failure for run in run_of] == [None] * 2
    assert sum(run.coverage.situations["match: asynchronous load"] for run in run_of)


def test_blocks_that_are_freed_while_a_thread_reads_them_are_found():
    failures = (run_seed(threaded("CarelessConnector"), seed, engine="vllm").failure for seed in range(6))
    found = next(failure for failure in failures if failure is not None)
    assert found.violation.invariant is Invariant.CONTENT


def test_each_worker_knows_its_rank():
    world = World(WorldConfig(engine="vllm", tp_size=3), threaded("ThreadedConnector"))
    workers = [connector for connector in world.engine.connectors if hasattr(connector, "ranks")]
    world.break_off(None)
    assert [worker.ranks for worker in workers] == [(rank, rank, 3) for rank in range(3)]
    from vllm.distributed import parallel_state

    assert parallel_state._TP is None


@pytest.mark.parametrize("runner", [1, 2])
def test_whose_package_changes_runner_v1_brings_a_worker_that_is_changed_alike(runner, monkeypatch):
    import kv_vllm_threads

    from kv_vllm.driver.worker import VllmWorker, VllmWorkerV2

    changed = type("Changed", (VllmWorker,), {})
    monkeypatch.setattr(kv_vllm_threads.ThreadedConnector, "runner_v1", changed, raising=False)
    world = World(WorldConfig(engine="vllm", runner=runner), threaded("ThreadedConnector"))
    assert [type(worker) for worker in world.engine.workers] == [changed if runner == 1 else VllmWorkerV2]
    world.break_off(None)


def test_worlds_are_deployments_of_their_own():
    from kv_sim.engine.place import Place
    from kv_vllm.driver.setup import Setup

    world, referee = WorldConfig(engine="vllm"), Referee()
    ledger = Shadow(1, referee)  # whatever lives as long as the engine
    parts = [Setup(world, threaded("ThreadedConnector"), referee, print, ledger, Place()) for _ in range(2)]
    names = [[part._config(rank).model_config.model for rank in range(2)] for part in parts]
    assert names[0][0] == names[0][1] != names[1][0] == names[1][1]
    one, another = (
        Path(part.environment["VLLM_RPC_BASE_PATH"]) for part in parts
    )  # sockets in it have equal names
    assert one.is_dir()
    assert another.is_dir()
    assert one != another


def test_a_rank_alone_hears_itself():
    from kv_vllm.driver.surroundings.ranks import at_work

    with at_work(0, 1):
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group, get_world_group

        assert get_tp_group().broadcast_object({"a": 1}, src=0) == {"a": 1}
        assert get_tp_group().broadcast(tensor="t") == "t"
        assert get_tp_group().barrier() is None
        assert (get_pp_group().is_first_rank, get_pp_group().is_last_rank, get_world_group().ranks) == (
            True,
            True,
            [0],
        )


def test_one_of_several_ranks_cannot_talk():
    from kv_vllm.driver.surroundings.ranks import at_work

    with at_work(1, 2):
        from vllm.distributed import parallel_state

        group = parallel_state.get_tp_group()
        assert (group.rank_in_group, group.is_first_rank, group.is_last_rank, group.ranks) == (
            1,
            False,
            True,
            [0, 1],
        )
        assert (group.first_rank, group.last_rank, group.world_size) == (0, 1, 2)
        assert (group.rank, group.local_rank, parallel_state.get_world_group().ranks) == (1, 1, [0, 1])
        for name in ("pp", "dp", "dcp", "pcp", "ep"):
            alone = getattr(parallel_state, f"get_{name}_group")()
            assert (alone.rank_in_group, alone.world_size) == (0, 1)
        talk = group.all_gather  # which may be kept, and never be used
        with pytest.raises(
            ConfigError, match=r"^all_gather of the group 'tp': the 2 ranks of a world share one proc"
        ):
            talk(1)
        with pytest.raises(
            AttributeError, match=r"group of ranks 'tp' has no 'cpu_group': ranks of a world share "
        ):
            _ = group.cpu_group
        with pytest.raises(AttributeError, match=r"group of ranks 'tp' has no 'port'$"):
            _ = group.port


def test_streams_and_events_have_run():
    import torch

    from kv_vllm.driver.surroundings.streams import stand_in_for_streams

    if torch.accelerator.is_available():
        pytest.skip("torch's own can be used here")
    stand_in_for_streams()
    event, stream = torch.cuda.Event(enable_timing=True), torch.cuda.Stream(priority=0)
    assert isinstance(torch.Event(), torch.cuda.Event)
    event.record(stream)
    stream.wait_event(event)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream) as nothing, stream:
        assert nothing is None
        assert (event.query(), stream.query(), stream.record_event(event) is event) == (True, True, True)
    assert stream.record_event().elapsed_time(event) == 0
    torch.cuda.synchronize()
    least, greatest = torch.cuda.Stream.priority_range()
    assert greatest <= stream.priority <= least
    assert stream.device_index == torch.cuda.current_device() == torch.accelerator.current_device_index()
    torch.accelerator.set_stream(stream)
    streams = torch.cuda.current_stream(), torch.cuda.default_stream(0), torch.accelerator.current_stream()
    assert len({id(one) for one in streams}) == 1 and streams[0].cuda_stream == 0
    for wait_or_choose in (
        torch.cuda.set_device,
        torch.accelerator.set_device_index,
        torch.accelerator.synchronize,
    ):
        assert wait_or_choose(0) is None
    assert (torch.cuda.current_device(), torch.accelerator.current_device_index()) == (0, 0)


def test_with_an_accelerator_its_own_are_used(monkeypatch):
    import torch

    from kv_vllm.driver.surroundings.streams import stand_in_for_streams

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", "its own")
    stand_in_for_streams()
    assert torch.cuda.Event == "its own"


# -- time --------------------------------------------------------------------------------------


def test_a_step_runs_at_once_unless_who_copies_does_so_through_the_testbed():
    from kv_sim.memory.launched import LaunchedStep
    from kv_vllm.driver.surroundings.device import TensorDevice
    from kv_vllm.driver.surroundings.tensors import device_of, device_tensor

    def new_device():
        return TensorDevice(0, WorldConfig(num_blocks=6), Shadow(1, Referee()))

    device = new_device()
    device.launch(LaunchedStep(1, [], [3], [], 4, (None,)))
    assert (device.retired_steps, len(device.queue)) == (0, 1)
    device = new_device()
    device.is_read_by_address = True
    device.launch(LaunchedStep(1, [], [3], [], 4, (None,)))
    assert (device.retired_steps, len(device.queue)) == (1, 0)
    assert device_of(device_tensor(device, 0)) is device
    device.launch(LaunchedStep(2, [], [3], [], 4, (None,)))
    assert (device.retired_steps, len(device.queue)) == (1, 1)
