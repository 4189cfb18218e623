"""Ours as vLLM finds and asks them: by its factory, by its classes, by its configuration."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kv_api import (
    ConfigError,
    KVConnectorMetadata,
    SchedulerSide,
    TwoSidedConnector,
    TwoSidedHMAConnector,
    WorkerSide,
)

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
NAMES = ("OffloadingConnector", "MultiConnector", "RecordingConnector")


@pytest.fixture
def base():
    return pytest.importorskip(f"{V1}.base")


def transfer(name, path="kv_vllm", **extra):
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector=name, kv_connector_module_path=path, kv_role="kv_both", kv_connector_extra_config=extra
    )


@pytest.mark.parametrize("name", NAMES)
def test_vllms_factory_finds_ours(name, base):
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    found = KVConnectorFactory.get_connector_class(transfer(name))
    assert found.__module__.startswith("kv_vllm.")
    assert issubclass(found, base.KVConnectorBase_V1) and issubclass(found, base.SupportsHMA)
    assert not getattr(found, "__abstractmethods__", ())


@pytest.mark.parametrize("name", NAMES)
def test_no_method_of_vllms_base_is_forgotten(name, base):
    import kv_vllm

    known = vars(base.KVConnectorBase_V1)
    inherited = [
        member
        for member in known
        if not member.startswith("_")
        and callable(getattr(base.KVConnectorBase_V1, member))
        and getattr(getattr(kv_vllm, name), member) is getattr(base.KVConnectorBase_V1, member)
    ]
    # The stats of a recorder are those of the connector behind it, whose class it can't know.
    assert [member for member in inherited if member != "build_kv_connector_stats"] == []


def test_vllms_factory_prefers_its_registry_for_specs(base):
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    ours = {"spec_name": "HostOffloadingSpec", "spec_module_path": "kv_vllm"}
    theirs = {"spec_name": "CPUOffloadingSpec", "spec_module_path": "kv_vllm"}
    found = [OffloadingSpecFactory.get_spec_cls(extra).__module__ for extra in (ours, theirs)]
    assert found == ["kv_vllm.connectors.host_spec", "vllm.v1.kv_offload.cpu.spec"]


CHILDREN = [
    ({"kv_connector": "OffloadingConnector"}, ("OffloadingConnector", "kv_vllm")),
    ({"kv_connector": "ExampleConnector"}, ("ExampleConnector", "kv_vllm.connectors.foreign")),
    (
        {"kv_connector": "OffloadingConnector", "kv_connector_module_path": f"{V1}.offloading_connector"},
        (f"{V1.replace('.', '/')}/offloading_connector:OffloadingConnector", "kv_vllm.connectors.foreign"),
    ),
    (
        {"kv_connector": "MemoryConnector", "kv_connector_module_path": "kv_sim.examples.memory"},
        ("MemoryConnector", "kv_sim.examples.memory"),
    ),
    ({"kv_connector": "Nobody's"}, ("Nobody's", None)),
    ({"kv_connector": "RecordingConnector"}, ("kv_vllm:RecordingConnector", "kv_vllm.connectors.foreign")),
]


@pytest.mark.parametrize(("child", "expected"), CHILDREN)
def test_where_a_child_is_found(child, expected, base):
    from kv_vllm.connectors.foreign import with_found_children

    [found] = with_found_children({"connectors": [child]})["connectors"]
    assert (found["kv_connector"], found.get("kv_connector_module_path")) == expected


def test_a_child_of_vllms_is_of_our_class(base):
    from kv_api import KVConnectorBase_V1, SupportsHMA
    from kv_factory import KVConnectorFactory
    from kv_vllm.connectors.foreign import with_found_children

    for child, knows_groups in ((CHILDREN[1][0], False), (CHILDREN[2][0], True)):
        [found] = with_found_children({"connectors": [child]})["connectors"]
        made = KVConnectorFactory.get_connector_class(
            transfer(found["kv_connector"], found["kv_connector_module_path"])
        )
        assert issubclass(made, KVConnectorBase_V1)
        assert issubclass(made, SupportsHMA) == knows_groups
        assert made.__name__ == child["kv_connector"]


@pytest.mark.parametrize(
    ("shares_tokens", "decode", "prefill", "refused"),
    [
        (False, 1, 1, None),
        (False, 2, 1, "decode_context_parallel_size: got 2"),
        (False, 1, 3, "prefill_context_parallel_size: got 3"),
        (True, 2, 1, None),
        (True, 2, 3, "prefill_context_parallel_size: got 3"),
    ],
)
def test_context_parallelism_is_refused_where_a_connector_does_not_know_of_it(
    base, shares_tokens, decode, prefill, refused
):
    from kv_vllm.refused import refuse_context_parallelism

    parallel = SimpleNamespace(decode_context_parallel_size=decode, prefill_context_parallel_size=prefill)
    config = SimpleNamespace(parallel_config=parallel, kv_transfer_config=SimpleNamespace(kv_connector="Mine"))
    expected = pytest.raises(ConfigError) if refused else nullcontext()
    with expected as raised:
        refuse_context_parallelism(config, shares_tokens=shares_tokens)
    if refused:
        assert str(raised.value) == f"parallel_config.{refused}; Mine supports only 1"


@pytest.mark.parametrize(("name", "shares_tokens"), [("Offloading", True), ("Multi", True), ("P2P", False)])
def test_who_knows_that_ranks_share_the_tokens_of_a_block(base, name, shares_tokens):
    import kv_vllm

    assert getattr(kv_vllm, f"{name}Connector").shares_tokens is shares_tokens


class Halves:
    """What a connector of two sides is made of, and nothing more."""

    class Scheduler(SchedulerSide):
        def get_num_new_matched_tokens(self, request, num_computed_tokens):
            return 0, False

        def update_state_after_alloc(self, request, blocks, num_external_tokens):
            pass

        def build_connector_meta(self, scheduler_output):
            return KVConnectorMetadata()

        def request_finished(self, request, block_ids):
            return False, None

        request_finished_all_groups = request_finished

    class Worker(WorkerSide):
        def start_load_kv(self, forward_context, **kwargs):
            pass

        def wait_for_layer_load(self, layer_name):
            pass

        def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
            pass

        def wait_for_save(self):
            pass


class Mine(TwoSidedConnector):
    """Somebody's."""

    scheduler_class = Halves.Scheduler
    worker_class = Halves.Worker


class MineWithGroups(TwoSidedHMAConnector):
    scheduler_class = Halves.Scheduler
    worker_class = Halves.Worker


@pytest.mark.parametrize(("ours", "has_groups"), [(Mine, False), (MineWithGroups, True)])
def test_a_connector_of_somebody_elses(base, monkeypatch, ours, has_groups):
    """Found by vLLM's factory under the name to which it is bound, and made with vLLM's roles."""
    import sys
    from types import ModuleType

    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kv_vllm import inside_vllm

    module = ModuleType("for_vllm")
    module.Bound = inside_vllm(ours)
    monkeypatch.setitem(sys.modules, "for_vllm", module)
    found = KVConnectorFactory.get_connector_class(transfer("Bound", "for_vllm"))
    assert (found, found.__name__, found.__module__) == (module.Bound, ours.__name__, __name__)
    assert found.__doc__ == ours.__doc__
    assert issubclass(found, ours) and issubclass(found, base.KVConnectorBase_V1)
    assert base.supports_hma(found) is has_groups
    config = SimpleNamespace(kv_transfer_config=transfer("Bound", "for_vllm"), parallel_config=SimpleNamespace())
    for role, half in ((base.KVConnectorRole.SCHEDULER, "Scheduler"), (base.KVConnectorRole.WORKER, "Worker")):
        connector = found(config, role, None)
        assert (type(connector.side).__name__, connector.role) == (half, role)
    with pytest.raises(ConfigError, match=r"a role of kv_api\.KVConnectorRole, got <KVConnectorRole\.SCHED"):
        ours(config, base.KVConnectorRole.SCHEDULER)
    with pytest.raises(ConfigError, match=f"inside_vllm: {ours.__name__} is one of vLLM's already"):
        inside_vllm(found)


@pytest.fixture
def made_inside(base):
    """Makes a connector of somebody else's as vLLM does."""
    from kv_vllm import inside_vllm

    def make(ours):
        config = SimpleNamespace(kv_transfer_config=transfer("Bound"), parallel_config=SimpleNamespace())
        return inside_vllm(ours)(config, base.KVConnectorRole.SCHEDULER, None)

    return make


def test_a_vllm_that_cannot_work_is_refused_when_a_connector_is_made(made_inside, monkeypatch):
    def refuse():
        raise ConfigError("another interface")

    monkeypatch.setattr("kv_vllm.connectors.inside.require_version", refuse)
    with pytest.raises(ConfigError, match="another interface"):
        made_inside(Mine)


def test_both_constructors_run_vllms_first(base, made_inside, monkeypatch):
    """Then ours has the last word, and what only vLLM's sets is there."""
    ran, theirs = [], base.KVConnectorBase_V1.__init__

    class Noted(Mine):
        def __init__(self, *given):
            ran.append("ours")
            super().__init__(*given)

    def noted(self, *given):
        ran.append("vLLM's")
        theirs(self, *given)

    monkeypatch.setattr(base.KVConnectorBase_V1, "__init__", noted)
    made_inside(Noted)
    assert ran == ["vLLM's", "ours"]


@pytest.mark.parametrize("value", [Halves, Mine.scheduler_class, "Mine", None])
def test_what_is_no_connector(base, value):
    from kv_vllm import inside_vllm

    with pytest.raises(ConfigError) as refused:
        inside_vllm(value)
    assert str(refused.value) == f"inside_vllm: expected a class of kv_api.KVConnectorBase_V1, got {value!r}"
