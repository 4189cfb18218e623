"""``NixlCarrier``: moves blocks by NIXL, the library that vLLM's own NixlConnector uses.

An agent's session is its metadata: how it is reached, and which memory it has registered. It changes when the
agent makes more slots. Before a read from a new session, the reading agent loads that metadata. Agents need no
server to find each other.

After a failed read the carrier forgets the other agent, and the next read loads its metadata again; otherwise the
agent would stay unreachable after its connection had broken once. When many agents are known, the one that was
read from least recently is forgotten, too: an engine that restarts is a new agent, and nobody reports that the old
one has gone.
"""

import threading
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from typing import Any, Final
from uuid import uuid4

from kv_api import ConfigError
from kv_p2p.extra_config import EXTRA
from kv_p2p.pulling.carrier import NIXL, CarrierError, LingeringReadError, Slot

DRAM: Final = "DRAM"
"""NIXL's name of host memory."""
UNDER_WAY: Final = "PROC"
DONE: Final = "DONE"
MOST_SESSIONS: Final = 256
"""Other agents that are known at a time, at most; agents that are being read from may exceed it."""
POLL_SECONDS: Final = 50e-6
"""Seconds between two looks at a transfer's state; even on a fast network a frame takes several times as long."""


class NixlCarrier:
    """One agent of one worker."""

    name: Final = NIXL

    def __init__(self, backend: str, seconds: float, *, serves: bool) -> None:
        self._seconds = seconds
        self._agent = _make_agent(backend, serves=serves)
        self._lock = threading.Lock()
        self._registered: list[Any] = []
        self._session = self._describe()
        self._peers: dict[str, Any] = {}
        """Names of other agents, by each of their sessions that was loaded; the most recently used is last."""
        self._reads: Counter[Any] = Counter()
        """For each agent, how many reads from it are running."""
        self._broken: set[Any] = set()
        """Agents with a failed read, until no read from them is running."""

    @property
    def session(self) -> str:
        """This agent's current metadata, for other agents."""
        return self._session

    def _describe(self) -> str:
        return b64encode(self._agent.get_agent_metadata()).decode("ascii")

    def make_slot(self, size: int) -> Slot:
        """Memory that is registered with the agent."""
        slot = Slot.mapped(size)
        place = (slot.address, len(slot.owner), 0, "")
        with self._lock, _told(f"NIXL can't register {len(slot.owner)} bytes"):
            self._registered.append(self._agent.register_memory([place], DRAM))
            self._session = self._describe()
        return slot

    def read(self, session: str, address: int, into: Slot, size: int) -> None:
        """Have the agent read it, and ask again and again whether it has."""
        with _told(f"NIXL can't read {size} bytes"), self._peer(session) as peer:
            here, there = (
                self._agent.get_xfer_descs([(begin, size, 0)], DRAM) for begin in (into.address, address)
            )
            handle = self._agent.initialize_xfer("READ", here, there, peer)
            try:
                state = self._transfer(handle)
            finally:
                self._release(handle)
            if state == UNDER_WAY:
                raise CarrierError(f"NIXL hasn't read {size} bytes within {self._seconds:g} s")
            if state != DONE:
                raise CarrierError(f"NIXL's transfer of {size} bytes ended with {state}")

    def _transfer(self, handle: Any) -> str:
        end = monotonic() + self._seconds
        state: str = self._agent.transfer(handle)
        while state == UNDER_WAY and monotonic() < end:
            sleep(POLL_SECONDS)
            state = self._agent.check_xfer_state(handle)
        return state

    def _release(self, handle: Any) -> None:
        try:
            self._agent.release_xfer_handle(handle)
        except Exception as error:  # NIXL's exceptions have no base class of their own
            said = f"NIXL can't end a transfer: {type(error).__name__}: {error}"
            raise LingeringReadError(said, has_ended=partial(self._has_ended, handle)) from error

    def _has_ended(self, handle: Any) -> bool:
        """Whether a transfer that NIXL couldn't cancel has ended by now."""
        try:
            self._release(handle)
        except LingeringReadError:
            return False
        return True

    @contextmanager
    def _peer(self, session: str) -> Iterator[Any]:
        """The other agent of a session, in the context of a read from it."""
        with self._lock:
            peer = self._peers.pop(session, None)
            if peer is None:
                peer = self._agent.add_remote_agent(b64decode(session))
            self._peers[session] = peer
            self._reads[peer] += 1
            if len(self._peers) > MOST_SESSIONS:
                self._forget_one()
        has_read = False
        try:
            yield peer
            has_read = True
        finally:
            with self._lock:
                self._reads[peer] -= 1
                if not has_read:
                    self._broken.add(peer)
                if peer in self._broken and not self._reads[peer]:
                    self._forget(peer)

    def _forget_one(self) -> None:
        idle = next((peer for peer in self._peers.values() if not self._reads[peer]), None)
        if idle is not None:
            self._forget(idle)

    def _forget(self, peer: Any) -> None:
        self._broken.discard(peer)
        del self._reads[peer]
        self._peers = {session: name for session, name in self._peers.items() if name != peer}
        self._agent.remove_remote_agent(peer)

    def close(self) -> None:
        """Release all memory, and forget all other agents."""
        with self._lock:
            for peer in {*self._peers.values()}:
                self._agent.remove_remote_agent(peer)
            self._peers.clear()
            self._reads.clear()
            while self._registered:
                self._agent.deregister_memory(self._registered.pop())

    def check(self) -> None:
        """Recount: no read is running, and each agent known by a session has a count of reads."""
        with self._lock:
            assert not any(self._reads.values()) and not self._broken, f"{self._reads}, broken: {self._broken}"
            assert {*self._reads} == {*self._peers.values()}, f"{self._reads}, known: {self._peers}"


def _make_agent(backend: str, *, serves: bool) -> Any:
    try:
        from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
    except ImportError as error:
        raise ConfigError(f"{EXTRA}.carrier: 'nixl' needs the package nixl: {error}") from error
    config = nixl_agent_config(
        # NIXL's progress thread, which never sleeps. It answers reads over TCP; an agent that only reads needs
        # none.
        enable_prog_thread=serves,
        backends=[],
        # One lock for all calls; without it, only one thread may use an agent.
        sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT,
    )
    agent = nixl_agent(f"kv-p2p {uuid4()}", config)
    known = sorted(agent.get_plugin_list())
    if backend not in known:
        raise ConfigError(f"{EXTRA}.nixl_backend: expected one of {', '.join(known)}, got {backend!r}")
    try:
        agent.create_backend(backend)
    except Exception as error:
        raise ConfigError(
            f"{EXTRA}.nixl_backend: {backend!r} doesn't start: {type(error).__name__}: {error}"
        ) from error
    return agent


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn exceptions of NIXL into ``CarrierError``."""
    try:
        yield
    except CarrierError:
        raise
    except Exception as error:  # NIXL's exceptions have no base class of their own
        raise CarrierError(f"{what}: {type(error).__name__}: {error}") from error
