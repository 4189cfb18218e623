"""Connected pairs of pipes of each sort."""

import socket

from kv_p2p_background import LIMIT_SECONDS, Background

from kv_p2p.first.pipe.base import KVPipeBase
from kv_p2p.first.pipe.local import LocalPipe
from kv_p2p.first.pipe.rendezvous import Listener, Pipes, connect
from kv_p2p.first.pipe.tcp import TcpPipe

SORTS = ["local", "local of one", "tcp"]


def make_pair(sort: str) -> tuple[KVPipeBase, KVPipeBase]:
    if sort == "tcp":
        one, other = tcp_sockets()
        return TcpPipe(one), TcpPipe(other)
    return LocalPipe.pair(1 if sort == "local of one" else None)


def tcp_sockets() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def meet() -> tuple[Pipes, Pipes]:
    """The pipes of a producer and those of its consumer."""
    listener = Listener("127.0.0.1", 0)
    accepting = Background(listener.accept, 0, LIMIT_SECONDS)
    consumer = connect("127.0.0.1", listener.port, 0, LIMIT_SECONDS)
    producer: Pipes = accepting.result()
    listener.close()
    return producer, consumer
