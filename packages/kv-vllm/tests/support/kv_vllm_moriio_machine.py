"""What vLLM's MoRIIOConnector has of a machine, in this process: processes, threads, sockets, executors and time.

Its threads are real and take turns with the world's: one runs when it is told to, until it waits for something.
What is sent lies in a box until the thread that listens there has its turn, in the order in which it was sent.
What an executor is given is done when somebody waits for it. Time goes on while somebody waits for what never
comes, and else only as far as a world's settings say.
"""

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty
from types import SimpleNamespace

import msgspec
import zmq
from kv_vllm_gpu import MINE, Jobs

from kv_sim.violation import DidNotReturn

AT_WORK = threading.local()
"""Of a thread: the process that it is of."""
LONG_SECONDS = 1.0
"""How long a wait is in which nothing can happen."""


class Ended(BaseException):
    """A thread is to end, which vLLM's never do."""


class Process:
    """One that has a connector: vLLM knows there whether it produces or consumes, and has threads."""

    def __init__(self, host, clock):
        self.host, self.clock = host, clock
        self.role = None
        self.threads, self.executors = [], []
        self.wire = None
        """Of a worker: what moves bytes."""
        self.is_closing = False

    @contextmanager
    def at_work(self):
        """Be it."""
        before = getattr(AT_WORK, "process", None)
        AT_WORK.process = self
        try:
            yield
        finally:
            AT_WORK.process = before

    def let_threads_work(self):
        """What its threads can do now, they do."""
        for thread in self.threads:
            thread.turn.let_thread_work()

    def sleep(self, seconds):
        """Somebody of it has to wait: what he can be waiting for happens, or a long time goes by."""
        worked = sum(executor.work() for executor in self.executors)
        if not (worked or self.wire.let_some_end()):
            self.clock.now += max(seconds, LONG_SECONDS)

    def close(self):
        """Let its threads come to their end."""
        self.is_closing = True
        self.let_threads_work()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} doesn't end"


def process():
    """The one that is at work."""
    return AT_WORK.process


class Clock:
    """Of a world: in the place of the module ``time``."""

    def __init__(self):
        self.now = 0.0


class Time:
    """In the place of the module ``time``: that of the world which is at work."""

    @staticmethod
    def monotonic():
        """Seconds."""
        return process().clock.now

    perf_counter = monotonic

    @staticmethod
    def sleep(seconds):
        """A thread of a connector's lets the world go on; the world itself waits."""
        if (turn := getattr(MINE, "jobs", None)) is not None:
            turn.rest()
        else:
            process().sleep(seconds)


# -- threads -----------------------------------------------------------------------------------


class Thread(threading.Thread):
    """One of a process's, which takes turns with the world's. It works once when it is started."""

    def __init__(self, **said):
        super().__init__(**said)
        self.turn, self.process, self.died_of = Jobs(), process(), None
        self.process.threads.append(self)

    def start(self):
        super().start()
        self.turn.let_thread_work()

    def run(self):
        """Until it is to end, or ends by an error, which is kept."""
        MINE.jobs, AT_WORK.process = self.turn, self.process
        self.turn._wait_for_turn()
        try:
            super().run()
        except Ended:
            pass
        except Exception as error:  # noqa: BLE001 - as any thread, it is gone, and nobody hears of it
            self.died_of = error
        finally:
            self.turn.end()


def rest():
    """Of a thread that waits: it is the world's turn, unless it is to end."""
    if process().is_closing:
        raise Ended
    MINE.jobs.rest()


class Tasks:
    """A ``Queue`` from which a thread takes what is there; else it waits for one turn."""

    def __init__(self):
        self._tasks = deque()

    def __class_getitem__(cls, kind):
        return cls

    def put(self, task):
        """For later."""
        self._tasks.append(task)

    def __iter__(self):
        return iter(self._tasks)

    def empty(self):
        """Whether nothing is there."""
        return not self._tasks

    def get_nowait(self):
        """The next one."""
        if not self._tasks:
            raise Empty
        return self._tasks.popleft()

    def get(self, timeout):
        """The same, a turn later if nothing is there."""
        if not self._tasks:
            rest()
        return self.get_nowait()


class Later:
    """An executor of one thread: what it was given is done in its order, when somebody waits."""

    def __init__(self, **said):
        self._calls = deque()
        process().executors.append(self)

    def submit(self, function, *args):
        """A future of it."""
        future = Awaited()
        future.work = self.work
        self._calls.append((future, function, args))
        return future

    def work(self):
        """Do all of it. Whether there was something."""
        had_some = bool(self._calls)
        while self._calls:
            future, function, args = self._calls.popleft()
            try:
                answer = function(*args)
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)
            else:
                future.set_result(answer)
        return had_some

    def shutdown(self, wait):
        """Whoever waits no more gets nothing."""


class Awaited(Future):
    """It is there when it is asked for."""

    def result(self, timeout=None):
        """Let the executor work."""
        if not self.done():
            self.work()
        return super().result(0)


# -- sockets -----------------------------------------------------------------------------------

BOXES = {}
"""Address -> what was sent there."""


class Listens:
    """A socket of who answers (``ROUTER``)."""

    def __init__(self, path):
        self._box = BOXES.setdefault(path.replace("*", process().host), deque())

    def recv_multipart(self):
        """Whom it is from, and what he says. It is waited for."""
        while not self._box:
            rest()
        return self._box.popleft()

    @staticmethod
    def send_multipart(said):
        """To one that asked."""
        who, *parts = said
        who.answers.append(parts)


class Asks:
    """A socket of who asks (``DEALER``), or only tells."""

    def __init__(self, path):
        self._path = path
        self.answers = deque()

    def send(self, said):
        """It is there at once; when it is read is another thing."""
        BOXES.setdefault(self._path, deque()).append((self, said))

    def recv_multipart(self):
        """The next answer. Whoever has to give it can."""
        for other in PROCESSES:
            if not self.answers:
                other.let_threads_work()
        if not self.answers:
            raise DidNotReturn(f"nobody answers at {self._path}, and it waits without an end")
        return self.answers.popleft()

    def close(self, linger):
        """What was sent was sent."""


@contextmanager
def zmq_ctx(socket_type, addr):
    """A socket of one of both kinds."""
    yield Listens(addr) if socket_type == zmq.ROUTER else Asks(addr)


def make_zmq_socket(ctx, path, socket_type, bind):
    """A socket of who tells."""
    assert socket_type == zmq.DEALER and not bind, "only that is known here"
    return Asks(path)


class Context:
    """Sockets have none."""

    @classmethod
    def instance(cls):
        """One is as good as another."""
        return cls()

    def destroy(self, linger):
        """Nothing is open."""


class Zmq:
    """zmq, for a module that makes no sockets by it."""

    Context = Context

    def __getattr__(self, name):
        return getattr(zmq, name)


MSGPACK = SimpleNamespace(
    dumps=msgspec.msgpack.encode,
    loads=msgspec.msgpack.decode,
    exceptions=SimpleNamespace(ExtraData=ValueError, UnpackException=ValueError),
)
"""In the place of a package that vLLM's CPU build comes without: one that it comes with writes the same."""

PROCESSES = []
"""Those of a world, the youngest."""
THREADING = SimpleNamespace(Thread=Thread, Lock=threading.Lock, RLock=threading.RLock, Event=threading.Event)
