"""Shrinking: from a history that fails to a short one that fails the same way.

Delta debugging over recorded actions: a change is kept if the same invariant still breaks, and actions that are no
longer legal are left out at once. First runs of actions are removed. Then requests are made plainer and shorter,
and the world plainer. Runs of small actions are replaced by one ``step``, ``settle`` or ``reset``. Copies are
renumbered, since removing a copy changes the numbers of later ones. All of this is repeated until nothing gets
simpler. At last ``run_ahead`` is set in a world whose steps overlap.

What is left running or open at the end is waited for in each try that fails. So tries wait for a short time, and
only the last history for all of it. If that one doesn't fail, all is tried again with time enough.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from kv_sim.actions import Action, Kind
from kv_sim.config import GroupConfig, WorldConfig
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engines import find_engine
from kv_sim.fuzz import Failure, replay
from kv_sim.violation import Invariant, LeftBehind

MACROS: Final = (
    Action(Kind.STEP),
    Action(Kind.SETTLE),
    Action(Kind.RESET, {"running": True, "connector": False}),
)
"""Actions that do the work of several, plainest first."""

PLAIN: Final[dict[str, tuple[Any, ...]]] = {
    "tp_size": (1,),
    "pp_size": (1,),
    "stages": ("alike",),
    "pauses": (False,),
    "groups": ((GroupConfig(),),),
    "layers": (1,),
    "run_ahead": (0, 1),
    "async_scheduling": (False,),
    "drafter": ("text", "model", "eagle"),
    "spec_tokens": (0,),
    "zero_new_blocks": (False,),
    "runner": (1,),
    "role": ("kv_both",),
    "max_step_tokens": (64,),
    "max_running": (4,),
    "num_blocks": (40,),
    "stranger": ("none", "model"),
}
"""Values of a world, plainest first: few parts, and room to do much in one step."""

MOST_COPIES: Final = 6
"""Copy numbers that are tried in the place of one."""

LITTLE_PATIENCE: Final = 0.1
"""The part of the usual time that a try waits for what is left behind."""


def shrink(
    failure: Failure,
    *,
    without: frozenset[Invariant] = frozenset(),
    most_replays: int = 2000,
    goes_on: Callable[[], bool] = lambda: True,
    tells: Callable[[int], object] = lambda actions: None,
) -> Failure:
    """A failure of the same invariant with as few actions as can be found in ``most_replays`` tries.

    If a replay takes long, ``goes_on`` says when to stop; ``tells`` is called before each replay with the number
    of actions that are left. The checkers of ``without`` are off in replays.
    """
    shrinker = Shrinker(failure, without, most_replays, goes_on, tells)
    if isinstance(failure.violation, LeftBehind):
        shrinker.patience = LITTLE_PATIENCE
        shrinker.run()
        if shrinker.fails_with_patience():
            return shrinker.best
        shrinker = Shrinker(failure, without, shrinker.tries_left, goes_on, tells)
    shrinker.run()
    return shrinker.best


class Shrinker:
    """The best failure so far, and how many tries are left."""

    def __init__(
        self,
        failure: Failure,
        without: frozenset[Invariant],
        most_replays: int,
        goes_on: Callable[[], bool],
        tells: Callable[[int], object] = lambda actions: None,
    ) -> None:
        self.best = failure
        self.tries_left = most_replays
        self.patience = 1.0
        """The part of the usual time that a try gives what must end after a history."""
        self._goes_on = goes_on
        self._tells = tells
        self._without = without
        self._tried: set[tuple[WorldConfig, tuple[str, ...]]] = set()

    def run(self) -> None:
        """Try all changes, again and again, until nothing gets simpler or there are no tries left."""
        if not self.try_history(self.best.history):
            return
        if self.best.config.is_unequal:  # before requests are so short that they fill only the smaller blocks
            self.try_history(self.best.history, _with_groups(self.best.config, _whole(self.best.config)))
        before = None
        while before != (self.best.history, self.best.config) and self.may_try:
            before = (self.best.history, self.best.config)
            self.remove_chunks()
            self.simplify_requests()
            self.simplify_world()
            self.merge()
            self.renumber_copies()
        self.say_that_it_runs_ahead()

    def fails_with_patience(self) -> bool:
        """Whether the best failure is one as well if what it leaves behind has all the time to end."""
        _, violation = replay(self.best.subject, self.best.config, self.best.history, self._without)
        return violation is not None and violation.invariant is self.best.violation.invariant

    @property
    def may_try(self) -> bool:
        """Whether there is a try left."""
        return self.tries_left > 0 and self._goes_on()

    def try_history(self, history: list[Action], config: WorldConfig | None = None) -> bool:
        """Keep a history, and maybe another world, if it still fails."""
        config = config or self.best.config
        key = _key(config, history)
        if not self.may_try or key in self._tried or not self._has_room(history, config):
            return False
        self.tries_left -= 1
        self._tried.add(key)
        self._tells(len(self.best.history))
        how: dict[str, Any] = {} if self.patience == 1 else {"patience": self.patience}
        world, violation = replay(self.best.subject, config, history, self._without, **how)
        if violation is None or violation.invariant is not self.best.violation.invariant:
            return False
        taken = list(world.history) if world is not None else []
        self.best = replace(self.best, config=config, history=taken, violation=violation)
        return True

    def _has_room(self, history: list[Action], config: WorldConfig) -> bool:
        """Whether all requests fit into a world: in one that is too small they might wait for ever."""
        most = config.longest_request
        if most >= self.best.config.longest_request:
            return True
        specs = [RequestSpec.from_json(action.args["spec"]) for action in history if action.kind is Kind.ADD]
        return all(spec.total_tokens <= most for spec in specs)

    def _try_at(self, index: int, length: int, *instead: Action) -> bool:
        """Replace ``length`` actions by others.

        If that removes requests, also try it with later copies renumbered, as if each request had begun a copy.
        """
        history = self.best.history
        before, part, after = history[:index], history[index : index + length], history[index + length :]
        requests = sum(action.kind is Kind.ADD for action in part) - sum(a.kind is Kind.ADD for a in instead)
        if self.try_history([*before, *instead, *after]):
            return True
        if requests <= 0 or not any("copy" in action.args for action in after):
            return False
        return self.try_history([*before, *instead, *(_renumbered(action, requests) for action in after)])

    def remove_chunks(self) -> None:
        """Remove as many actions as possible, in halves, quarters, … and single actions."""
        size = max(1, len(self.best.history) // 2)
        while size:
            start = 0
            while start < len(self.best.history):
                if not self._try_at(start, size):
                    start += size
            size //= 2

    def merge(self) -> None:
        """Replace runs of actions by one of ``MACROS``."""
        for place, macro in enumerate(MACROS):
            for length in (4, 2, 1):
                start = 0
                while start + length <= len(self.best.history):
                    part = self.best.history[start : start + length]
                    if length > 1 or (part[0].kind is not Kind.ADD and _place(part[0]) > place):
                        self._try_at(start, length, _at_engine_of(part[0], macro))
                    start += 1

    def simplify_world(self) -> None:
        """Try plainer worlds, as far as the engine supports them: the plainest one, then one value at a time."""
        fit = find_engine(self.best.config.engine).fit
        values_of = {name: values[0] for name, values in PLAIN.items() if name != "groups"}
        plainest = replace(_with_groups(self.best.config, PLAIN["groups"][0]), **values_of)
        self.try_history(self.best.history, fit(plainest))
        for name, values in PLAIN.items():
            config = self.best.config
            for value in values:
                if getattr(config, name) == value:
                    break
                simpler = _with_groups(config, value) if name == "groups" else replace(config, **{name: value})
                if not simpler.run_ahead:
                    simpler = replace(simpler, async_scheduling=False)
                if self.try_history(self.best.history, fit(simpler)):
                    break

    def say_that_it_runs_ahead(self) -> None:
        """Set ``run_ahead`` if it is needed: only with it can other actions happen within a step."""
        config = find_engine(self.best.config.engine).fit(replace(self.best.config, run_ahead=1))
        if not self.best.config.run_ahead and any(action.kind is Kind.SCHEDULE for action in self.best.history):
            self._tried.discard(_key(config, self.best.history))
            self.try_history(self.best.history, config)

    def simplify_requests(self) -> None:
        """Make requests plainer and shorter."""
        index = 0
        while index < len(self.best.history):
            spec = self._spec_at(index)
            for change in _plainer(spec, self.best.config.block_size) if spec else ():
                self._change_request(index, change)
            while any(self._change_request(index, change) for change in _less(self._spec_at(index))):
                pass
            index += 1

    def _spec_at(self, index: int) -> dict[str, Any]:
        """The request that is added at this index; empty if there is another action, or none."""
        action = self.best.history[index] if index < len(self.best.history) else None
        return action.args["spec"] if action is not None and action.kind is Kind.ADD else {}

    def _change_request(self, index: int, change: dict[str, Any]) -> bool:
        spec = self._spec_at(index)
        if not spec or all(spec.get(name) == value for name, value in change.items()):
            return False
        changed = RequestSpec.from_json({**spec, **change}).to_json()
        return self._try_at(index, 1, Action(Kind.ADD, {"spec": changed}))

    def renumber_copies(self) -> None:
        """Let actions on copies name copies with lower numbers, of the first rank."""
        for index in range(len(self.best.history)):
            if index >= len(self.best.history) or "copy" not in self.best.history[index].args:
                continue
            action = self.best.history[index]
            for rank, copy in [(0, number) for number in range(MOST_COPIES)]:
                if (action.args["rank"], action.args["copy"]) <= (rank, copy):
                    break
                if self._try_at(index, 1, Action(action.kind, {**action.args, "rank": rank, "copy": copy})):
                    break


def _at_engine_of(action: Action, macro: Action) -> Action:
    """A macro, at the engine of an action."""
    where = {name: value for name, value in action.args.items() if name == "engine"}
    return Action(macro.kind, {**where, **macro.args})


def _key(config: WorldConfig, history: list[Action]) -> tuple[WorldConfig, tuple[str, ...]]:
    """A world and its actions, to compare them."""
    return config, tuple(map(str, history))


def _place(action: Action) -> int:
    """Where an action is in ``MACROS``, the plainest first. Any other action comes after all of them."""
    kinds = [macro.kind for macro in MACROS]
    return kinds.index(action.kind) if action.kind in kinds else len(kinds)


def _renumbered(action: Action, by: int) -> Action:
    """The same action on a copy with a lower number."""
    if "copy" not in action.args:
        return action
    return Action(action.kind, {**action.args, "copy": max(0, action.args["copy"] - by)})


def _less(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Changes after which more actions may be removable."""
    return [*_fewer_turns(spec), *_fewer_words(spec)]


def _fewer_turns(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Changes that make a session a plain request, leave out a turn of it, or make its turns plainer."""
    turns = spec.get("turns")
    if turns is None:
        return []
    fewer = [turns[:index] + turns[index + 1 :] for index in range(len(turns))]
    samples = [{**turn, "output_tokens": 1, "max_tokens": 1} for turn in turns]
    short = [{**turn, "tokens": 1} for turn in samples]
    return [{"turns": changed} for changed in (None, *fewer, samples, short)]


def _fewer_words(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Changes of what a client sends: nothing, or one key less."""
    sent = spec.get("kv_transfer_params")
    if sent is None:
        return []
    words = sent if isinstance(sent, dict) and len(sent) > 1 else {}
    fewer = [{other: value for other, value in words.items() if other != word} for word in words]
    return [{"kv_transfer_params": changed} for changed in (None, *fewer)]


def _plainer(spec: dict[str, Any], block_size: int) -> list[dict[str, Any]]:
    """Changes that make a request plainer; the shortest prompts first."""
    shared = spec["shared_tokens"]
    lengths = sorted({block_size, block_size + 1, 2 * block_size, 2 * block_size + 1, shared // 2})
    changes: list[dict[str, Any]] = [
        {"own_tokens": 0},
        {"salt": None},
        {"adapter": None},
        *([{"image": None}] if spec.get("image") is not None else []),
        {"skip_reading_prefix_cache": False},
        {"output_tokens": 1, "max_tokens": 1},
    ]
    return changes + [{"shared_tokens": length} for length in reversed(lengths) if 0 < length < shared]


def _whole(config: WorldConfig) -> tuple[GroupConfig, ...]:
    """A world's groups with blocks of one size."""
    return tuple(replace(group, parts=1) for group in config.groups)


def _with_groups(config: WorldConfig, groups: tuple[GroupConfig, ...]) -> WorldConfig:
    """A world with groups whose blocks have one size: it needs no more hashes for blocks of several."""
    return replace(config, groups=groups, hashes_per_block=1 if config.is_unequal else config.hashes_per_block)
