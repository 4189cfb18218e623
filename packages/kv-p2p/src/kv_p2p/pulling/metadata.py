"""What the scheduler's half tells the workers."""

from dataclasses import dataclass, field

from kv_api import KVConnectorMetadata
from kv_p2p.pulling.ticket import Address


@dataclass(frozen=True)
class Source:
    """A hold of another engine's."""

    address: Address
    hold_id: str
    digest: str


@dataclass(frozen=True)
class Hold:
    """Blocks that wait to be pulled."""

    request_id: str
    hold_id: str
    digest: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True)
class Pull:
    """Blocks to fill with those of a hold, from its ``first`` on."""

    request_id: str
    source: Source
    first: int
    block_ids: tuple[int, ...]


@dataclass
class P2PMetadata(KVConnectorMetadata):
    """What begins, and what ends early, in this step."""

    holds: list[Hold] = field(default_factory=list)
    pulls: list[Pull] = field(default_factory=list)
    declined: list[Source] = field(default_factory=list)
    """Tickets that this engine doesn't take."""
    revoked: list[str] = field(default_factory=list)
    """Requests whose hold ends now, pulled or not."""
    is_idle: bool = False
    """The step computes nothing, so its workers may wait a little for what is under way."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.holds or self.pulls or self.declined or self.revoked)
