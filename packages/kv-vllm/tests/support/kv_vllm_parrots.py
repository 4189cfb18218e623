"""Schedulers that are none: they make the calls of a trace again, maybe with something changed."""

from kv_vllm.differential.trace import Call, Reset, Schedule, Turn


class Parrot:
    """Makes the calls of ``turns`` through a script."""

    def __init__(self, turns, script):
        self.turns = iter([Turn(turn.event, list(turn.calls)) for turn in turns])
        self.script = script

    def apply(self, event):
        turn = next(self.turns)
        for call in self.change(turn):
            assert self.script.compare(call.name, call.arguments) == call.answer
        if isinstance(turn.event, Schedule):
            return turn.event.answer
        return self.answer(turn.event) if isinstance(turn.event, Reset) else None

    def change(self, turn):
        """The calls to make in a turn."""
        return turn.calls

    def answer(self, event):
        """What a reset answers."""
        return event.answer


def altered(call, **arguments):
    """A call with other arguments."""
    return Call(call.name, {**call.arguments, **arguments}, call.answer)
