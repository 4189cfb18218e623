"""What an operator can configure, and what is said about what they can't."""

from types import SimpleNamespace

import pytest
from kv_p2p_engine import kv_cache_config, vllm_config

from kv_api import ConfigError
from kv_p2p.pulling.options import Options, parse_options

WHERE = "kv_connector_extra_config"
SECONDS = "expected a number of seconds above 0, at most 1000000000, got"


def refused(config):
    with pytest.raises(ConfigError) as raised:
        parse_options(config)
    return str(raised.value)


def test_what_is_set_where_nothing_is():
    options = Options(host="127.0.0.1", port=14579, hold_seconds=120.0, pull_seconds=30.0)
    assert parse_options(vllm_config()) == options == Options()


def test_values_are_read():
    extra = {"host": "h", "port": 80, "hold_seconds": 1, "pull_seconds": 0.5, "listen_host": "::"}
    options = parse_options(vllm_config(**extra))
    assert options == Options("h", 80, 1.0, 0.5, "::")
    assert type(options.hold_seconds) is float


def test_a_carrier_is_read():
    options = parse_options(vllm_config(carrier="mooncake", mooncake_protocol="tcp", mooncake_device="mlx5_0"))
    assert options == Options(carrier="mooncake", mooncake_protocol="tcp", mooncake_device="mlx5_0")
    assert (Options().carrier, Options().mooncake_protocol, Options().mooncake_device) == ("tcp", "rdma", "")
    assert parse_options(vllm_config(carrier="tcp", mooncake_device="")) == Options()
    options = parse_options(vllm_config(carrier="nixl", nixl_backend="LIBFABRIC"))
    assert options == Options(carrier="nixl", nixl_backend="LIBFABRIC")
    assert Options().nixl_backend == "UCX"


def test_a_name_for_the_model_is_read():
    assert parse_options(vllm_config(model_name="m")) == Options(model_name="m")
    assert Options().model_name is None


def test_none_is_not_given():
    extra = dict.fromkeys(["host", "port", "hold_seconds", "pull_seconds", "listen_host"])
    assert parse_options(vllm_config(kv_port=99, **extra)) == Options(port=99)


def test_the_port_is_that_of_the_configuration_unless_it_is_given_here():
    assert parse_options(vllm_config(kv_port=4000)).port == 4000
    config = vllm_config(kv_port=4000, port=5000)
    assert parse_options(config).port == 5000
    theirs = SimpleNamespace(
        kv_connector_extra_config={}, kv_role="kv_both"
    )  # of an engine that has no such field
    assert parse_options(SimpleNamespace(**{**vars(config), "kv_transfer_config": theirs})).port == 14579


def test_replicas_have_ports_of_their_own():
    config = vllm_config(kv_port=4000, tp=2, pp=3, rank=5)
    ports = []
    for index in range(3):
        config.parallel_config.data_parallel_index = index
        ports.append(parse_options(config).port)
    assert ports == [4000, 4006, 4012]
    assert parse_options(config) == Options(port=4012)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *(("model_name", value, f"expected a name, got {value!r}") for value in ("", 1, ["m"])),
        ("host", "", "expected a host name or an address, got ''"),
        ("host", 1, "expected a host name or an address, got 1"),
        ("listen_host", "", "expected a host name or an address, got ''"),
        *(
            ("carrier", value, f"expected one of tcp, mooncake, nixl, got {value!r}")
            for value in ("rdma", "", 1, ["tcp"])
        ),
        *(
            ("max_held_blocks", value, f"expected a number of blocks, at least 1, got {value!r}")
            for value in (0, -1, 2.0, True, "5")
        ),
        *((key, 1, "expected text, got 1") for key in ("mooncake_protocol", "mooncake_device", "nixl_backend")),
        *(
            (
                "host",
                value,
                f"expected what other engines reach this one by, got {value!r}; to listen everywhere, set "
                f"{WHERE}.listen_host to it",
            )
            for value in ("0.0.0.0", "::")
        ),
        *(
            ("port", value, f"expected a port from 1 to 65535, got {value!r}")
            for value in ("80", True, 80.0, 0, -1, 65536)
        ),
        *(
            (key, value, f"{SECONDS} {value!r}")
            for key in ("hold_seconds", "pull_seconds")
            for value in (0, -1, "5", True, float("inf"), float("nan"), 10**9 + 1, 10**400)
        ),
    ],
)
def test_a_wrong_value_is_refused_in_these_words(key, value, expected):
    assert refused(vllm_config(**{key: value})) == f"{WHERE}.{key}: {expected}"


def test_how_much_may_be_held():
    assert Options().max_held_blocks is None
    assert parse_options(vllm_config(max_held_blocks=1)).max_held_blocks == 1
    assert parse_options(vllm_config(max_held_blocks=None)).max_held_blocks is None


@pytest.mark.parametrize(
    ("role", "extra", "most"),
    [
        ("kv_both", {}, 5),
        ("kv_both", {"max_held_blocks": None}, 5),
        ("kv_both", {"max_held_blocks": 99}, 99),
        ("kv_producer", {}, None),
        ("kv_producer", {"max_held_blocks": 3}, 3),
        ("kv_consumer", {}, None),
    ],
)
def test_who_also_pulls_holds_a_third_of_its_blocks_if_nothing_else_is_said(role, extra, most):
    config = vllm_config(role, **extra)
    assert parse_options(config, kv_cache_config(num_blocks=17)).max_held_blocks == most
    assert parse_options(config).max_held_blocks == extra.get("max_held_blocks")  # who knows how many there are


def test_seconds_for_ever():
    assert parse_options(vllm_config(hold_seconds=10**9)).hold_seconds == 1e9


def test_each_worker_of_each_replica_has_a_port():
    config = vllm_config(kv_port=65533, tp=3)
    assert parse_options(config).port == 65533
    config.parallel_config.data_parallel_index = 1
    assert refused(config) == "kv_port: expected a port from 1 to 65530 (a worker listens at it + 5), got 65533"
    said = "expected a port from 1 to 65532 (a worker listens at it + 3), got 65533"
    assert refused(vllm_config(kv_port=65533, tp=4)) == f"kv_port: {said}"
    assert refused(vllm_config(port=65533, tp=4)) == f"{WHERE}.port: {said}"


def test_a_key_that_is_nearly_one():
    known = (
        "carrier, hold_seconds, host, listen_host, max_held_blocks, model_name, mooncake_device, "
        "mooncake_protocol, name, nixl_backend, port, pull_seconds"
    )
    for wrong, meant in [("hold_second", "hold_seconds"), ("hosts", "host"), ("Port", "port")]:
        said = f"{WHERE}: unknown key {wrong!r}; known: {known}, save; did you mean {meant!r}?"
        assert refused(vllm_config(**{wrong: 1})) == said


def test_keys_of_others_pass():
    config = vllm_config()
    config.kv_transfer_config.kv_connector_extra_config = {"name": "near", "save": False, "backend": "x"}
    assert parse_options(config) == Options()


def test_without_a_config():
    said = "P2PConnector needs a kv_transfer_config, and there is none"
    assert refused(SimpleNamespace(kv_transfer_config=None)) == said
