"""A split fleet: some servers prefill, the others decode. All run kv-p2p's connector, in one common time.

A request first goes to a prefilling server, for one token. When that has ended, a ``Relay`` sends the request to a
decoding server, with the ticket that the prefilling server returned, as vLLM's routers do. It chooses the server
with the fewest requests; of equals, the first. That server pulls the prompt's blocks, and sends the client all
tokens, the first one included. If the prefilling server held no blocks, the request has no ticket, and the
decoding server computes its prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kv_p2p.pulling.ticket import WANTED
from kv_sim.guard import LogCall
from kv_sim.replay.sizing.transfer_config import decode_config, prefill_config
from kv_sim.replay.timed.connectors.timed_config import decides_in_known_steps, timed_config
from kv_sim.replay.timed.durations.network import Network
from kv_sim.replay.timed.durations.wires import Wires
from kv_sim.replay.timed.engine.arrivals import HandedArrivals, TraceArrivals
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.drive import Drive
from kv_sim.replay.timed.engine.engine import QuickEngine, TimedEngine
from kv_sim.replay.timed.engine.request import Names, TracedRequest
from kv_sim.replay.timed.engine.seat import Seat
from kv_sim.replay.timed.engine.together import run_together
from kv_sim.replay.timed.runs.finished import Finished, finished_of
from kv_sim.replay.timed.runs.run import Share, scaled
from kv_sim.replay.timed.server.refuse import refuse_too_much
from kv_sim.replay.timed.server.settings import EngineSettings, Stepping
from kv_sim.replay.timed.server.sizes import plan
from kv_sim.replay.trace import TraceRequest

_ENDS = ("request_finished", "request_finished_all_groups")


@dataclass(eq=False)
class Decoder:
    """A decoding server, as the relay sees it."""

    engine: TimedEngine
    arrivals: HandedArrivals = field(default_factory=HandedArrivals)
    unfinished: int = 0
    """How many requests were sent there and have not ended."""

    def end(self, request: TracedRequest) -> None:
        """One of its requests has ended."""
        self.unfinished -= 1


class Relay:
    """Sends requests from prefilling to decoding servers."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self._decoders = decoders
        self._asked: dict[int, TraceRequest] = {}
        """The requests that are being prefilled, by number."""
        self._tickets: dict[str, dict[str, Any]] = {}

    def begin(self, engine: TimedEngine, index: int, traced: TraceRequest) -> TracedRequest:
        """Make the prefilling server's part of a request: its prompt and one token."""
        self._asked[index] = traced
        request = engine.make_request(index, replace(traced, output_tokens=1))
        request.kv_transfer_params = {WANTED: True}
        return request

    def hear(self, method: str, args: tuple[Any, ...], answer: Any) -> None:
        """A prefilling server's connector answered a call: note the ticket if it returned one."""
        if method in _ENDS and answer[1]:
            self._tickets[args[0].request_id] = answer[1]

    def send_on(self, done: TracedRequest) -> None:
        """Prefilling has ended: let the request arrive at a decoding server."""
        decoder = min(self._decoders, key=lambda one: one.unfinished)
        request = decoder.engine.make_request(done.index, self._asked.pop(done.index))
        request.kv_transfer_params = self._tickets.pop(done.request_id, None)
        request.times.served_before = done.times.end - done.times.scheduled
        decoder.unfinished += 1
        decoder.arrivals.hand(request, done.times.end)

    def check(self) -> None:
        """Recount at the end: no request is left between two servers."""
        assert not self._asked, f"requests {sorted(self._asked)} never ended prefilling"
        assert not any(one.unfinished for one in self._decoders), "a decoding server has unfinished requests"


@dataclass(frozen=True)
class SplitTransfers:
    """The ``--kv-transfer-config`` of prefilling and of decoding servers."""

    prefill: Mapping[str, Any]
    decode: Mapping[str, Any]

    @classmethod
    def beside(cls, transfer: Mapping[str, Any]) -> "SplitTransfers":
        """kv-p2p's connector for both; prefilling servers also have that of ``transfer``, if it names one."""
        return cls(prefill_config(transfer), decode_config())


def replay_split(
    shares: Sequence[Share],
    decoding: int,
    settings: EngineSettings,
    transfers: SplitTransfers,
    block_tokens: int,
) -> list[Finished]:
    """Replay the shares of the prefilling servers, and the same requests on ``decoding`` decoding servers."""
    sizes = plan(settings, block_tokens)
    refuse_too_much(settings, sizes)
    names, wires = Names(sizes.parts), Wires(Network(sizes.network, sizes.pull_ns, len(shares) + decoding))
    seats = (Seat(number, names, wires=wires) for number in range(len(shares) + decoding))

    def make(written: Mapping[str, Any], log: LogCall, books: Books) -> tuple[TimedEngine, Stepping]:
        seat = next(seats)
        timed = timed_config(written, settings.tp_size, seat)
        engine = QuickEngine(sizes, timed, log, seat)
        engine.link.log, engine.disk.log = books.copy_ended, books.disk_ended
        assert engine.wire is not None, "an engine of a split fleet has no wire"
        engine.wire.log = books.pull_ended
        return engine, settings.stepping if decides_in_known_steps(timed) else Stepping.SINGLE

    decoders, drives = [], []
    for _ in range(decoding):
        books = Books(sizes)
        engine, stepping = make(transfers.decode, books.called, books)
        decoder = Decoder(engine)
        decoders.append(decoder)
        drives.append(Drive(engine, books, decoder.arrivals, stepping, decoder.end))
    relay = Relay(decoders)
    for share in shares:
        books = Books(sizes)
        engine, stepping = make(transfers.prefill, partial(_log, books, relay), books)
        arrivals = TraceArrivals(scaled(share, settings), books, partial(relay.begin, engine))
        drives.append(Drive(engine, books, arrivals, stepping, relay.send_on))
    run_together(drives)
    relay.check()
    finished = [finished_of(drive.engine, drive.books) for drive in drives]
    return [one.of_outputs() for one in finished[:decoding]] + [one.of_prompts() for one in finished[decoding:]]


def _log(books: Books, relay: Relay, side: str, method: str, args: tuple[Any, ...], answer: Any) -> None:
    books.called(side, method, args, answer)
    relay.hear(method, args, answer)
