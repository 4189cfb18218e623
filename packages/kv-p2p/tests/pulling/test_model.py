"""Whose KV it is: engines of two models take no tickets of each other's, whatever else is alike."""

from types import SimpleNamespace

import pytest
from kv_p2p_engine import OPTIONS, Request, step

from kv_p2p.pulling.metadata import P2PMetadata, Source
from kv_p2p.pulling.model import Model, model_of
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.stats import REFUSED_TICKETS
from kv_p2p.pulling.ticket import digest_of, read_ticket

PROMPT = range(10)


class TorchsDtype:
    """As torch prints one."""

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return f"torch.{self.name}"


def of_model(path="org/model", dtype="bfloat16", cache_dtype="auto", **more):
    """What an engine says of its model, and of the numbers in its caches."""
    return {
        "model_config": SimpleNamespace(model=path, dtype=TorchsDtype(dtype), **more),
        "cache_config": SimpleNamespace(block_size=4, cache_dtype=cache_dtype),
    }


def named(name):
    """The options of an engine whose operator gave its model a name."""
    return Options(OPTIONS.host, OPTIONS.port, model_name=name)


def ticket_of(engine):
    """What an engine leaves of the prompt that it holds."""
    _, params = engine.request_finished(Request("a", PROMPT, {"do_remote_decode": True}), [7, 8, 9])
    return params


def found(engine, params):
    """How many tokens an engine finds by a ticket."""
    asked = Request("b", PROMPT, params)
    engine.on_new_request(asked)
    tokens, _ = engine.get_num_new_matched_tokens(asked, 0)
    return tokens


ALIKE = {
    "one model": ({"says": of_model()}, {"says": of_model()}),
    "one name at two paths": (
        {"says": of_model("/here"), "options": named("m")},
        {"says": of_model("/there"), "options": named("m")},
    ),
    "a name that is the other's path": (
        {"says": of_model("/here"), "options": named("/there")},
        {"says": of_model("/there")},
    ),
    "one revision, and overrides in another order": (
        {"says": of_model(revision="v2", hf_overrides={"a": {"c": 1, "d": 2}, "b": 3})},
        {"says": of_model(revision="v2", hf_overrides={"b": 3, "a": {"d": 2, "c": 1}})},
    ),
    "no revision, said or not": ({"says": of_model(revision=None, hf_overrides={})}, {"says": of_model()}),
    "one name for two revisions": (
        {"says": of_model(revision="v2"), "options": named("m")},
        {"says": of_model(hf_overrides={"b": 3}), "options": named("m")},
    ),
    "a name and no path": ({"options": named("m")}, {"options": named("m")}),
    "nothing": ({}, {}),
    "a type that is said and one that is the model's": (
        {"says": of_model(cache_dtype="bfloat16")},
        {"says": of_model()},
    ),
    "caches of one type": (
        {"says": of_model(dtype="bfloat16", cache_dtype="fp8")},
        {"says": of_model(dtype="float16", cache_dtype="fp8")},
    ),
}
APART = {
    "another model": ({"says": of_model("org/tuned")}, {"says": of_model()}),
    "a revision": ({"says": of_model(revision="v2")}, {"says": of_model()}),
    "another revision": ({"says": of_model(revision="v2")}, {"says": of_model(revision="v1")}),
    "overrides": ({"says": of_model(hf_overrides={"rope_theta": 1e6})}, {"says": of_model()}),
    "other overrides": (
        {"says": of_model(hf_overrides={"rope_theta": 1e6})},
        {"says": of_model(hf_overrides={"rope_theta": 1e7})},
    ),
    "overrides by a function": ({"says": of_model(hf_overrides=found)}, {"says": of_model(hf_overrides=named)}),
    "another type": ({"says": of_model(dtype="float16")}, {"says": of_model()}),
    "caches of another type": ({"says": of_model(cache_dtype="fp8")}, {"says": of_model()}),
    "another name": (
        {"says": of_model(), "options": named("m")},
        {"says": of_model(), "options": named("n")},
    ),
    "a name for one alone": ({"says": of_model(), "options": named("m")}, {"says": of_model()}),
    "one says nothing": ({}, {"says": of_model()}),
}


@pytest.mark.parametrize("engines", ALIKE.values(), ids=ALIKE)
def test_a_ticket_of_the_same_is_taken(make, engines):
    one, other = (make(**engine) for engine in engines)
    assert (found(one, ticket_of(other)), found(other, ticket_of(one))) == (10, 10)


@pytest.mark.parametrize("engines", APART.values(), ids=APART)
def test_a_ticket_of_another_is_not(make, engines, caplog):
    one, other = (make(**engine) for engine in engines)
    assert (found(one, ticket_of(other)), found(other, ticket_of(one))) == (0, 0)
    assert all(message.endswith("; its prompt is computed here") for message in caplog.messages)
    assert len(caplog.messages) == 2


def test_it_is_said_which_revision_and_overrides(make, caplog):
    producer = make(says=of_model(revision="v2", hf_overrides={"rope_theta": 10}))
    assert found(make(says=of_model()), ticket_of(producer)) == 0
    assert caplog.messages[0].startswith(
        "request b: the ticket is of model 'org/model' ('revision=v2, hf_overrides={\"rope_theta\": 10}') with KV "
        "in 'bfloat16', this engine is of model 'org/model' with KV in 'bfloat16'; "
    )


def test_it_is_said_which_counted_and_declined(make, caplog):
    producer, consumer = make(says=of_model("org/tuned", cache_dtype="fp8")), make(says=of_model())
    params = ticket_of(producer)
    assert found(consumer, params) == 0
    assert caplog.messages == [
        "request b: the ticket is of model 'org/tuned' with KV in 'fp8', this engine is of model 'org/model' with "
        "KV in 'bfloat16'; if that is the same one, give both engines one kv_connector_extra_config.model_name; "
        "its prompt is computed here"
    ]
    ticket = read_ticket(params)
    source = Source(ticket.address, ticket.hold_id, digest_of(Request("b", PROMPT), 10))
    assert consumer.build_connector_meta(step()) == P2PMetadata(declined=[source])
    stats = consumer.get_kv_connector_stats()
    assert stats is not None
    assert stats.data[REFUSED_TICKETS] == 1


def test_one_that_says_nothing_is_called_so(make, caplog):
    assert found(make(says=of_model()), ticket_of(make())) == 0
    [message] = caplog.messages
    assert "the ticket is of a model that it doesn't name, this engine is of model 'org/model'" in message


def test_a_ticket_from_before_tickets_named_models_is_of_nobody(make):
    params = ticket_of(make(says=of_model()))
    del params["remote_model"]
    assert found(make(), params) == 10
    assert found(make(says=of_model()), params) == 0


def test_of_a_long_name_little_is_logged(make, caplog):
    assert found(make(says=of_model("m" * 10_000)), ticket_of(make(says=of_model("n" * 10_000)))) == 0
    [message] = caplog.messages
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("says", "name", "model"),
    [
        (of_model(), None, Model("org/model", "bfloat16")),
        (of_model(), "m", Model("m", "bfloat16")),
        (of_model(cache_dtype="fp8_e4m3"), None, Model("org/model", "fp8_e4m3")),
        ({"cache_config": SimpleNamespace()}, None, None),
        ({"cache_config": SimpleNamespace()}, "m", Model("m", "auto")),
        ({**of_model(), "model_config": None}, None, None),
        (of_model(path=""), None, None),
    ],
)
def test_what_an_engine_says(says, name, model):
    assert model_of(SimpleNamespace(**says), name) == model
