"""``MooncakeCarrier``: moves blocks by Mooncake's transfer engine, over RDMA if the network has it.

The engine finds its peers by itself ("P2PHANDSHAKE": no metadata server), and listens at a port of its own choice.
"""

from typing import Final

from kv_api import ConfigError
from kv_p2p.extra_config import EXTRA
from kv_p2p.log import place_of
from kv_p2p.pulling.carrier import MOONCAKE, CarrierError, Slot

_NO_SERVER: Final = "P2PHANDSHAKE"


class MooncakeCarrier:
    """One transfer engine of one worker."""

    name: Final = MOONCAKE

    def __init__(self, host: str, protocol: str, device: str) -> None:
        try:
            from mooncake.engine import TransferEngine
        except ImportError as error:
            raise ConfigError(
                f"{EXTRA}.carrier: 'mooncake' needs mooncake-transfer-engine (without CUDA "
                f"mooncake-transfer-engine-non-cuda) and the system's libibverbs: {error}"
            ) from error
        self._engine = TransferEngine()
        code = self._engine.initialize(host, _NO_SERVER, protocol, device)
        if code:
            what = f"protocol {protocol!r}, device {device!r}, host {host!r}"
            raise ConfigError(f"{EXTRA}: Mooncake's transfer engine doesn't start with {what} (code {code})")
        self.session = place_of(host, self._engine.get_rpc_port())
        self._addresses: list[int] = []

    def make_slot(self, size: int) -> Slot:
        """Memory that is registered with the engine."""
        slot = Slot.mapped(size)
        code = self._engine.register_memory(slot.address, len(slot.owner))
        if code:
            raise CarrierError(f"Mooncake's transfer engine can't register {len(slot.owner)} bytes (code {code})")
        self._addresses.append(slot.address)
        return slot

    def read(self, session: str, address: int, into: Slot, size: int) -> None:
        """Have the transfer engine read it."""
        code = self._engine.transfer_sync_read(session, into.address, address, size)
        if code:
            raise CarrierError(f"Mooncake's transfer engine can't read {size} bytes from {session} (code {code})")

    def close(self) -> None:
        """Release all memory."""
        while self._addresses:
            self._engine.unregister_memory(self._addresses.pop())
