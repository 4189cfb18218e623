"""Tickets: as they travel through a client, and whose KV they are of."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_p2p_engine import Request, shape, ticket_of

from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.model import Model
from kv_p2p.pulling.ticket import Address, BadTicketError, Shape, Ticket, digest_of, is_of_tokens, read_ticket


@st.composite
def tickets(draw):
    size = draw(st.integers(1, 64))
    num_tokens = draw(st.integers(1, 20 * size))
    groups = draw(st.lists(st.builds(Group, st.integers(1, 64), st.integers(0, 99)), min_size=1, max_size=3))
    first_places = tuple(draw(st.integers(0, 20)) for _ in groups)
    model = draw(st.none() | st.builds(Model, st.text(), st.text()))
    shape = Shape(size, draw(st.integers(1, 8)), draw(st.integers(1, 8)), tuple(groups), model)
    host = draw(st.text(min_size=1).filter(str.isprintable))
    address = Address(host, draw(st.integers(1, 65536 - shape.tp_size * shape.pp_size)))
    return Ticket(address, shape, draw(st.text()), draw(st.text()), num_tokens, first_places)


@given(tickets(), st.none() | st.text())
def test_a_ticket_comes_back_through_a_client(ticket, engine_id):
    params = json.loads(json.dumps(ticket.to_params(engine_id)))
    assert read_ticket(params).address.engine_id == engine_id
    assert params == ticket.to_params(engine_id)
    assert read_ticket(params) == ticket


def test_the_keys_that_routers_know():
    assert ticket_of(range(6), digest="d").to_params("engine") == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine",
        "remote_request_id": "there.1",
        "remote_host": "there",
        "remote_port": 9000,
        "remote_block_size": 4,
        "remote_groups": [{"block_size": 4, "window": 0, "first_block": 0}],
        "remote_num_tokens": 6,
        "remote_digest": "d",
        "tp_size": 1,
        "pp_size": 1,
    }


def test_it_names_a_model_that_is_said():
    params = ticket_of(range(6), shape=shape(model=Model("org/model", "fp8"))).to_params("engine")
    assert params.pop("remote_model") == {"name": "org/model", "dtype": "fp8"}
    assert params == ticket_of(range(6)).to_params("engine")


@given(tickets())
def test_it_names_no_blocks(ticket):
    assert not [key for key in ticket.to_params("engine") if "block" in key and key != "remote_block_size"]


@pytest.mark.parametrize(
    "stray",
    [
        {"remote_engine_id": 7},
        {"remote_dp_size": "many"},
        {"remote_block_ids": [50, 51]},
        {"remote_block_ids": "none"},
    ],
)
def test_what_else_a_router_adds_is_let_be(stray):
    params = {**ticket_of(range(6)).to_params(None), **stray}
    assert read_ticket(params) == ticket_of(range(6))
    assert read_ticket(params).address.engine_id is None


LIST = "expected a list of KV cache groups, got"
AT_LEAST = "expected a whole number of at least"
LEAST = (("block_size", 1), ("window", 0), ("first_block", 0))
GROUP = {"block_size": 4, "window": 0, "first_block": 0}
NAMED = "expected name and dtype of a model, got"
MODEL = {"name": "org/model", "dtype": "fp8"}
NUMBER = "expected a whole number of at least 1, got"
MISSING = object()
NUMBERS = ("remote_block_size", "tp_size", "pp_size", "remote_num_tokens", "remote_port")
BAD_NUMBERS = [(0, "0"), (-1, "-1"), (True, "True"), (1.0, "1.0"), ("1", "'1'"), (None, "None"), (MISSING, "None")]
TEXTS = ("remote_request_id", "remote_digest")
BAD_HOSTS = ["", "a\nb", "a\x00b", "\ud800"]
LONG_HOST = ("a" * 254, "'" + "a" * 99)  # of what a client sent, 100 letters are shown
BAD_TEXTS = [(1, "1"), (None, "None"), (["a"], "['a']"), (MISSING, "None")]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *((key, bad, f"kv_transfer_params.{key}: {NUMBER} {said}")
          for key in NUMBERS for bad, said in BAD_NUMBERS),
        *((key, bad, f"kv_transfer_params.{key}: expected a text, got {said}")
          for key in TEXTS for bad, said in BAD_TEXTS),
        *(("remote_host", bad, f"kv_transfer_params.remote_host: expected a host name or an address, got {said}")
          for bad, said in [*BAD_TEXTS, LONG_HOST, *((host, repr(host)) for host in BAD_HOSTS)]),
        ("remote_port", 65536, "kv_transfer_params.remote_port: workers would listen at 65536 to 65536, and ports "
         "are 1 to 65535"),
        ("tp_size", 56537, "kv_transfer_params.remote_port: workers would listen at 9000 to 65536, and ports "
         "are 1 to 65535"),
        ("pp_size", 56537, "kv_transfer_params.remote_port: workers would listen at 9000 to 65536, and ports "
         "are 1 to 65535"),
        *(("remote_groups", bad, f"kv_transfer_params.remote_groups: {LIST} {said}")
          for bad, said in [(None, "None"), (MISSING, "None"), ([], "[]"), ({"window": 4}, "{'window': 4}")]),
        *(("remote_groups", [GROUP, bad], "kv_transfer_params.remote_groups[1]: expected block_size, window and "
           f"first_block of a KV cache group, got {bad!r}") for bad in (None, 4, [4, 0, 0])),
        *(("remote_groups", [GROUP, {**GROUP, key: bad}], f"kv_transfer_params.remote_groups[1].{key}: {AT_LEAST} "
           f"{least}, got {bad!r}") for key, least in LEAST for bad in (least - 1, True, 1.0, "1", None)),
        *(("remote_model", bad, f"kv_transfer_params.remote_model: {NAMED} {bad!r}")
          for bad in ("m", [], {}, False,
                      *({**MODEL, key: value} for key in (*MODEL, "variant") for value in (None, 1)))),
    ],
)  # fmt: skip
def test_what_is_no_ticket(key, value, message):
    params = {**ticket_of(range(6)).to_params("engine"), key: value}
    if value is MISSING:
        del params[key]
    with pytest.raises(BadTicketError) as raised:
        read_ticket(params)
    assert str(raised.value) == message


@pytest.mark.parametrize(("tp", "pp", "port"), [(1, 1, 65535), (2, 3, 65530)])
def test_the_last_worker_may_listen_at_the_last_port(tp, pp, port):
    ticket = ticket_of(range(6), shape=shape(tp=tp, pp=pp), address=Address("there", port))
    assert read_ticket(ticket.to_params("engine")) == ticket
    with pytest.raises(BadTicketError, match=f"workers would listen at {port + 1} to 65536, and ports are"):
        read_ticket({**ticket.to_params("engine"), "remote_port": port + 1})


def test_a_host_may_have_the_longest_name_there_is():
    ticket = ticket_of(range(6), address=Address("a" * 253, 9000))
    assert read_ticket(ticket.to_params("engine")) == ticket


def image(identifier, offset, length=2):
    return SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=length))


def with_images(tokens, *images):
    request = Request("a", tokens)
    request.mm_features = list(images)
    return request


DIFFERENT = {
    "plain": Request("a", [1, 2, 3]),
    "another token": Request("a", [1, 2, 4]),
    "another order": Request("a", [2, 1, 3]),
    "shorter": Request("a", [1, 2]),
    "longer": Request("a", [1, 2, 3, 4]),
    "one digit run into the next": Request("a", [12, 3]),
    "a byte more": Request("a", [1, 2, 3 + (1 << 8)]),
    "beyond 32 bits": Request("a", [1, 2, 3 + (1 << 32)]),
    "the highest bit": Request("a", [1, 2, 3 - (1 << 63)]),
    "a salt": Request("a", [1, 2, 3], salt="s"),
    "another salt": Request("a", [1, 2, 3], salt="t"),
    "an empty salt": Request("a", [1, 2, 3], salt=""),
    "an adapter": Request("a", [1, 2, 3], adapter="s"),
    "another adapter": Request("a", [1, 2, 3], adapter="t"),
    "both": Request("a", [1, 2, 3], salt="s", adapter="t"),
    "both, swapped": Request("a", [1, 2, 3], salt="t", adapter="s"),
    "a salt that looks like no salt": Request("a", [1, 2, 3], salt="None"),
    "a salt that goes on": Request("a", [1, 2, 3], salt="s', 't"),
    "an image": with_images([1, 2, 3], image("i", 1)),
    "another image": with_images([1, 2, 3], image("j", 1)),
    "elsewhere": with_images([1, 2, 3], image("i", 0)),
    "of another length": with_images([1, 2, 3], image("i", 1, 1)),
    "two": with_images([1, 2, 3], image("i", 0, 1), image("i", 1)),
}


def test_whatever_makes_other_kv_makes_another_digest():
    digests = {name: digest_of(request, request.num_tokens) for name, request in DIFFERENT.items()}
    assert len(set(digests.values())) == len(digests), digests
    assert all(len(digest) == 32 for digest in digests.values())


def test_a_digest_is_the_same_in_every_release():
    """Else an engine of one release would refuse all tickets of another's."""
    told = {name: digest_of(DIFFERENT[name], 3) for name in ("plain", "both", "two")}
    assert told == {
        "plain": "7ced7c159918ec61f1415a627143d7a0",
        "both": "3dc56a9cc419d989c3d682929643d48d",
        "two": "7e058b5ac911ce0608546ab16f2aaa1f",
    }


@given(st.lists(st.integers(0, 1 << 20), max_size=20), st.none() | st.text(), st.none() | st.text(), st.data())
def test_the_same_beginning_has_the_same_digest(tokens, salt, adapter, data):
    count = data.draw(st.integers(0, len(tokens)))
    short = Request("a", tokens[:count], salt=salt, adapter=adapter)
    long = Request("b", tuple(tokens), output=[7], salt=salt, adapter=adapter)
    assert digest_of(short, count) == digest_of(long, count)


def test_an_image_that_comes_later_is_none_of_the_beginning():
    later = with_images([1, 2, 3, 9, 9], image("i", 3))
    assert digest_of(later, 3) == digest_of(Request("a", [1, 2, 3]), 3)
    assert digest_of(later, 4) != digest_of(Request("a", [1, 2, 3, 9]), 4)


def test_embeddings_have_no_digest():
    request = Request("a", [0, 0])
    assert is_of_tokens(request)
    request.prompt_embeds = object()
    assert not is_of_tokens(request)
