"""Who answers the scheduler of vLLM's MooncakeStoreConnector, and who asks, without a socket.

The thread that answers is vLLM's, and works while the scheduler waits for it.
"""

import queue
import threading
from concurrent.futures import Future

import zmq

from kv_sim.violation import DidNotReturn

SERVERS = {}
"""By path, who answers there."""


class Server:
    """A socket of one thread, which waits there for what is asked."""

    def __init__(self, path):
        SERVERS[path] = self
        self._asked, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
        self.thread = None

    def recv_multipart(self, copy):
        """What is asked next."""
        self.thread = threading.current_thread()
        return [zmq.Frame(frame) for frame in self._asked.get()]

    def send(self, answer):
        """Answer."""
        self._answers.put(answer)

    def ask(self, frames):
        """Have the thread answer."""
        self._asked.put(frames)

    def answer(self):
        """What it says."""
        while True:
            try:
                return self._answers.get(timeout=1)
            except queue.Empty:
                if not self.thread.is_alive():
                    raise DidNotReturn("who should answer has ended, and it would wait for ever") from None

    def close(self, linger=0):
        """Let its thread come to its end, if it is told that by then: nothing is asked."""
        self._asked.put([b""])


class Client:
    """A socket of the scheduler's."""

    def __init__(self, path):
        self._server = SERVERS[path]

    def send_multipart(self, frames, copy):
        """Ask."""
        self._server.ask(frames)

    def send(self, frame):
        """Ask with one word."""
        self._server.ask([frame])

    def recv(self):
        """What is answered."""
        return self._server.answer()

    def close(self, linger=0):
        """Nothing is open."""


def make_socket(context, path, kind, bind):
    """In the place of vLLM's."""
    return Server(path) if bind else Client(path)


class Asked(Future):
    """What is known, and told to who looks for the second time."""

    looks = 0

    def done(self):
        self.looks += 1
        return self.looks > 1 and super().done()


class AtOnce:
    """In the place of an executor: who gives it something to do does that."""

    def __init__(self, **said):
        """One works at it."""

    def submit(self, function, *args):
        """A future with what came of it."""
        future = Asked()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def shutdown(self, **said):
        """Nothing is under way."""
