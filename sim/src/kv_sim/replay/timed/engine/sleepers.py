"""Requests that decode inside a block: each step gives each of them one token, and nothing is decided about them.

Such a request *sleeps*: it is left out of the engine's steps, and its tokens are added once, when it wakes. It
wakes at the step that fills its block, allocates a block or ends it, or earlier if the scheduler has to look at
all running requests. The sleepers' share of a step's work is computed from three sums.

**Invariants** (``check``): the sums agree with the requests, and no request sleeps beyond its wake-up step.
"""

from heapq import heappop, heappush

from kv_sim.replay.timed.engine.request import TracedRequest


def quiet_steps(request: TracedRequest, block_size: int) -> int:
    """How many further steps a running request decodes inside its block, without filling it or ending."""
    computed = request.num_computed_tokens
    inside = computed % block_size
    if computed != request.num_tokens - 1 or request.num_output_tokens < 1 or inside == 0:
        return 0
    return min(block_size - 1 - inside, request.spec.output_tokens - 1 - request.num_output_tokens)


class Sleepers:
    """The sleeping requests of one engine."""

    def __init__(self) -> None:
        self.steps = 0
        """Steps so far."""
        self.context = 0
        """Tokens of context that all sleepers together read in the next step."""
        self._since: dict[int, tuple[int, TracedRequest]] = {}
        """Index -> the step count when it fell asleep, and the request."""
        self._alarms: list[tuple[int, int]] = []
        """(step count, index) of each sleeper."""

    def __len__(self) -> int:
        return len(self._since)

    def fall_asleep(self, request: TracedRequest, steps: int) -> None:
        """A request sleeps for ``steps`` steps."""
        assert steps > 0 and request.index not in self._since, f"{request} can't sleep for {steps} steps"
        self._since[request.index] = (self.steps, request)
        self.context += request.num_computed_tokens + 1
        heappush(self._alarms, (self.steps + steps, request.index))

    def next_alarm(self) -> int | None:
        """The step count at which the next sleeper must be awake."""
        return self._alarms[0][0] if self._alarms else None

    def pass_steps(self, count: int) -> None:
        """Note that ``count`` steps were taken."""
        self.steps += count
        self.context += count * len(self._since)

    def wake_due(self) -> list[TracedRequest]:
        """Wake the sleepers whose alarm is due."""
        woken = []
        while (alarm := self.next_alarm()) is not None and alarm <= self.steps:
            woken.append(self._wake(heappop(self._alarms)[1]))
        return woken

    def wake_all(self) -> list[TracedRequest]:
        """Wake all sleepers."""
        self._alarms.clear()
        return [self._wake(index) for index in list(self._since)]

    def _wake(self, index: int) -> TracedRequest:
        since, request = self._since.pop(index)
        slept = self.steps - since
        request.num_computed_tokens += slept
        request.num_output_tokens += slept
        self.context -= request.num_computed_tokens + 1
        return request

    def check(self) -> None:
        """Recount."""
        context = sum(r.num_computed_tokens + 1 + self.steps - since for since, r in self._since.values())
        assert context == self.context, f"the sleepers read {context} tokens, the sum says {self.context}"
        alarm = self.next_alarm()
        assert alarm is None or alarm >= self.steps, (
            f"an alarm at step {alarm} was missed, it is step {self.steps}"
        )
        assert sorted(index for _, index in self._alarms) == sorted(self._since), "sleepers and alarms differ"
