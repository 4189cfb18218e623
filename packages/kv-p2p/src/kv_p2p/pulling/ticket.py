"""A *ticket*: a producer's description of the blocks that it holds, which a client takes to another engine.

In ``kv_transfer_params`` it has the keys that vLLM's routers know (``do_remote_prefill``, ``remote_host``, …), so
a router that works with vLLM's own connectors works with this one. A ticket identifies the KV by a digest of the
prompt and by the engine's model. A client may send it with another prompt, salt or adapter, or to an engine of
another model. The text is right even then: the engine computes the prompt as if there were no ticket. A ticket has
no block ids: the consumer names blocks by their places in the prompt. A group with a window has lost its first
blocks, so a ticket has the first place of each group.
"""

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from kv_api import Request
from kv_p2p.extra_config import LAST_PORT
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.model import Model

WANTED: Final = "do_remote_decode"
"""The key that asks for a hold: the request's blocks are held for another engine when it ends."""
TICKET: Final = "do_remote_prefill"
"""The key that says that these parameters are a ticket: the request's KV is in another engine."""
_WHERE: Final = "kv_transfer_params"
MOST_SHOWN: Final = 100
"""The most characters of a client's value that an error shows, and so the log."""
_LONGEST_HOST: Final = 253
"""Characters of a domain name, at most."""


class BadTicketError(ValueError):
    """These parameters are not a ticket that this engine can take."""


@dataclass(frozen=True)
class Address:
    """Where the workers of an engine listen: rank r at ``port`` + r."""

    host: str
    port: int
    engine_id: str | None = field(default=None, compare=False)
    """The engine that issued the ticket. None: the ticket doesn't name it."""


@dataclass(frozen=True)
class Shape:
    """The settings in which two engines must agree."""

    block_size: int
    tp_size: int
    pp_size: int
    groups: tuple[Group, ...]
    """KV cache groups, in the order of the block tables."""
    model: Model | None = field(default=None, repr=False)
    """None: the engine doesn't name its model. It is compared apart, with an error of its own."""


@dataclass(frozen=True)
class Ticket:
    """Blocks that a producer holds, described for another engine."""

    address: Address
    shape: Shape
    hold_id: str
    """Names the hold at its producer."""
    digest: str
    """The digest of the tokens, images, salt and adapter."""
    num_tokens: int
    """How many tokens of the prompt it covers, from the first on."""
    first_places: tuple[int, ...]
    """The first place of each KV cache group at which a block is held."""

    def to_params(self, engine_id: str | None) -> dict[str, Any]:
        """The ``kv_transfer_params`` of the request's output."""
        return {
            TICKET: True,
            WANTED: False,
            "remote_engine_id": engine_id,
            "remote_request_id": self.hold_id,
            "remote_host": self.address.host,
            "remote_port": self.address.port,
            "remote_block_size": self.shape.block_size,
            "remote_groups": [
                {"block_size": group.block_size, "window": group.window, "first_block": first}
                for group, first in zip(self.shape.groups, self.first_places, strict=True)
            ],
            "remote_num_tokens": self.num_tokens,
            "remote_digest": self.digest,
            "tp_size": self.shape.tp_size,
            "pp_size": self.shape.pp_size,
            **({} if self.shape.model is None else {"remote_model": self.shape.model.to_json()}),
        }


def read_ticket(params: Any) -> Ticket:
    """Read a ticket that ``to_params`` wrote. A client may send anything; a BadTicketError if it is no ticket."""
    if not isinstance(params, dict):
        raise BadTicketError(f"{_WHERE}: expected an object, got {params!r:.{MOST_SHOWN}}")

    def text(key: str) -> str:
        value = params.get(key)
        if not isinstance(value, str):
            raise BadTicketError(f"{_WHERE}.{key}: expected a text, got {value!r:.{MOST_SHOWN}}")
        return value

    def number(key: str) -> int:
        return _number(f"{_WHERE}.{key}", params.get(key), 1)

    def host(key: str) -> str:
        value = params.get(key)
        if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_HOST or not value.isprintable():
            raise BadTicketError(
                f"{_WHERE}.{key}: expected a host name or an address, got {value!r:.{MOST_SHOWN}}"
            )
        return value

    groups, first_places = _read_groups(f"{_WHERE}.remote_groups", params.get("remote_groups"))
    model = _read_model(f"{_WHERE}.remote_model", params.get("remote_model"))
    shape = Shape(number("remote_block_size"), number("tp_size"), number("pp_size"), groups, model)
    engine_id = params.get("remote_engine_id")
    engine_id = engine_id if isinstance(engine_id, str) else None  # not needed, and a router may put in its own
    address = Address(host("remote_host"), number("remote_port"), engine_id)
    last_port = address.port + shape.tp_size * shape.pp_size - 1
    if last_port > LAST_PORT:
        raise BadTicketError(
            f"{_WHERE}.remote_port: workers would listen at {address.port} to {last_port}, and ports "
            f"are 1 to {LAST_PORT}"
        )
    hold_id, digest = text("remote_request_id"), text("remote_digest")
    return Ticket(address, shape, hold_id, digest, number("remote_num_tokens"), first_places)


def _read_groups(where: str, given: object) -> tuple[tuple[Group, ...], tuple[int, ...]]:
    """The KV cache groups of a ticket, and the first place of each."""
    if not isinstance(given, list) or not given:
        raise BadTicketError(f"{where}: expected a list of KV cache groups, got {given!r:.{MOST_SHOWN}}")
    groups, first_places = [], []
    for index, group in enumerate(given):
        place = f"{where}[{index}]"
        if not isinstance(group, dict):
            expected = "block_size, window and first_block of a KV cache group"
            raise BadTicketError(f"{place}: expected {expected}, got {group!r:.{MOST_SHOWN}}")
        size = _number(f"{place}.block_size", group.get("block_size"), 1)
        groups.append(Group(size, _number(f"{place}.window", group.get("window"), 0)))
        first_places.append(_number(f"{place}.first_block", group.get("first_block"), 0))
    return tuple(groups), tuple(first_places)


def _read_model(where: str, given: object) -> Model | None:
    """The model of a ticket; None if the ticket doesn't name one."""
    if given is None:
        return None
    said = given if isinstance(given, dict) else {}
    name, dtype, variant = said.get("name"), said.get("dtype"), said.get("variant", "")
    if not (isinstance(name, str) and isinstance(dtype, str) and isinstance(variant, str)):
        raise BadTicketError(f"{where}: expected name and dtype of a model, got {given!r:.{MOST_SHOWN}}")
    return Model(name, dtype, variant)


def _number(where: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadTicketError(f"{where}: expected a whole number of at least {least}, got {value!r:.{MOST_SHOWN}}")
    return value


def is_of_tokens(request: Request) -> bool:
    """Whether the whole prompt is tokens; a digest doesn't cover prompts with embeddings."""
    return getattr(request, "prompt_embeds", None) is None


def digest_of(request: Request, num_tokens: int) -> str:
    """The digest that identifies the KV of a request's first tokens, with the images among them."""
    adapter = request.lora_request
    names = (request.cache_salt, adapter.lora_name if adapter is not None else None)
    digest = blake2b(repr(names).encode(), digest_size=16)
    digest.update(array("q", request.all_token_ids[:num_tokens]).tobytes())
    images = [
        (image.identifier, image.mm_position.offset, image.mm_position.length)
        for image in getattr(request, "mm_features", None) or ()
        if image.mm_position.offset < num_tokens
    ]
    digest.update(repr(images).encode() if images else b"")
    return digest.hexdigest()
