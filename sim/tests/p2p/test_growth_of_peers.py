"""Whether work grows with what is held for other engines, or was pulled: what is measured, and what is said."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kv_sim.actions import Kind
from kv_sim.cli.main import main
from kv_sim.engine.engine import Engine
from kv_sim.examples.catalogue import LATER, P2P, P2P_TWO
from kv_sim.growth import kept
from kv_sim.growth.kept import measure_kept
from kv_sim.growth.metered import MeteredWorld, Unguarded
from kv_sim.growth.models import MODELS
from kv_sim.growth.situations import OF_PEERS, OUTPUTS, SITUATIONS, UnitWork, situations_for
from kv_sim.history.coverage import PULLED
from kv_sim.subject import Subject

PATIENT = replace(P2P, extra_config={**P2P.extra_config, "hold_seconds": 10_000, "pull_seconds": 10_000})
FULL = MODELS["full attention"]
ENGINES = pytest.mark.parametrize("engines", [1, 2])


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> list[Unguarded]:
    """All that are made."""
    made: list[Unguarded] = []

    class Watched(Unguarded):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("kv_sim.growth.metered.Unguarded", Watched)
    return made


class CountsHolds:
    """In the place of a meter: what is held in each step is the work."""

    def __init__(self, connector: Any, worlds: list[Unguarded]) -> None:
        self._worlds = worlds

    def take(self) -> Counter[str]:
        requests = [request for one in self._worlds[-1].engines for request in one.scheduler.requests.values()]
        return Counter(held=sum(request.is_held for request in requests), steps=1)


def adds(world: Unguarded) -> list[tuple[int, int, int]]:
    """Of all requests that came: at which engine, the tokens of its prompt, and those that it samples."""
    args = [action.args for action in world.history if action.kind is Kind.ADD]
    specs = [(each.get("engine", 0), each["spec"]) for each in args]
    return [(at, spec["shared_tokens"] + spec["own_tokens"], spec["output_tokens"]) for at, spec in specs]


def test_they_are_of_connectors_that_serve_others() -> None:
    assert situations_for(LATER) is SITUATIONS
    assert [*situations_for(P2P)] == [*SITUATIONS, *OF_PEERS]


@ENGINES
def test_a_prompt_is_held_and_pulled(engines: int, worlds: list[Unguarded]) -> None:
    work, most = OF_PEERS["a prompt that is pulled"].measure(replace(PATIENT, engines=engines), FULL, 64)
    assert work > 0 and most
    (world,) = worlds
    assert adds(world) == [(0, 257, 1), (engines - 1, 257, 1)]
    assert world.coverage.situations[PULLED] == 1
    assert (world.config.prefix_caching, world.config.num_blocks) == (engines == 2, 144)


@ENGINES
def test_threads_of_a_connector_s_own_get_on_meanwhile(
    engines: int, worlds: list[Unguarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Engine] = []
    monkeypatch.setattr(Engine, "let_others_work", lambda engine: asked.append(engine))
    world = MeteredWorld(replace(PATIENT, engines=engines), FULL, "builtin", 80)
    steps = world.hold(8)
    assert (world.held, asked) == (1, [*worlds[0].engines] * len(steps))
    world.come()
    assert world.held == 0
    world.end()


def test_a_pull_is_over_when_the_hold_has_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever held it may hear of that some steps after the puller has gone."""
    held, late, steps = MeteredWorld.held.fget, list[int](), []
    assert held is not None
    monkeypatch.setattr(MeteredWorld, "held", property(lambda world: late.pop() if late else held(world)))
    for more in (0, 3):
        world = MeteredWorld(PATIENT, FULL, "builtin", 80)
        world.hold(8)
        late += [1] * (1 + more)
        steps.append(len(world.come()))
        world.end()
    assert steps[1] == steps[0] + 3


@pytest.mark.parametrize("situation", ["a prompt, from arrival to end", "requests that decode"])
def test_one_engine_works_while_the_other_has_nothing_to_do(situation: str) -> None:
    assert SITUATIONS[situation].measure(replace(PATIENT, engines=2), FULL, 8).work > 0


@ENGINES
def test_one_decodes_while_others_are_held(
    engines: int, worlds: list[Unguarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_sim.growth.metered.Meter", partial(CountsHolds, worlds=worlds))
    found = OF_PEERS["a request beside holds"].measure(replace(PATIENT, engines=engines), FULL, 5)
    assert found == UnitWork((5 + 1) * engines, "held")
    (world,) = worlds
    assert adds(world)[:6] == [(0, 5, 1)] * 5 + [(0, 5, OUTPUTS)]
    assert world.config.num_blocks == 42


@ENGINES
def test_one_is_held_and_pulled_after_others(engines: int, worlds: list[Unguarded]) -> None:
    few, many = (
        OF_PEERS["a pull after others"].measure(replace(PATIENT, engines=engines), FULL, n) for n in (2, 5)
    )
    assert few == many
    for world, count in zip(worlds, (2, 5), strict=True):
        assert adds(world) == [(0, 9, 1), (engines - 1, 9, 1)] * (count + 1)
        assert (world.coverage.situations[PULLED], world.config.num_blocks) == (count + 1, 3 * count + 16)


@pytest.mark.parametrize("situation", OF_PEERS)
def test_where_nothing_is_held_nothing_is_measured(situation: str) -> None:
    nothing = Subject("HoldsNothing", "broken_peers", PATIENT.extra_config, frozenset(), serves_peers=True)
    assert OF_PEERS[situation].measure(nothing, FULL, 2).work == 0


@pytest.mark.parametrize("subject", [PATIENT, P2P_TWO], ids=["one engine", "two"])
def test_in_a_round_one_is_pulled_too(
    subject: Subject, worlds: list[Unguarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "ROUNDS", (1, 3))
    sides = measure_kept(partial(MeteredWorld, subject, FULL, "builtin"))
    names = [f"{words}{side}" for words in ("engine 0 ", "engine 1 ") for side in ("scheduler", "worker")]
    assert [one.side for one in sides] == (names if subject.engines == 2 else ["scheduler", "worker"])
    assert [one.growth for one in sides] == [0] * len(sides)
    assert [world.coverage.situations[PULLED] for world in worlds] == [1, 3]


@pytest.mark.once
def test_what_grows_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    smaller = {name: each._replace(sizes=(2, 8, 32)) for name, each in OF_PEERS.items()}
    monkeypatch.setattr("kv_sim.growth.command.situations_for", lambda subject: smaller)
    monkeypatch.setattr(kept, "ROUNDS", (2, 6, 10))
    extra = '{"hold_seconds": 10000, "pull_seconds": 9, "max_held_blocks": 1048576}'
    patient = ["--extra", extra, "--traits", "holds", "--two-engines"]
    assert main(["growth", "broken_peers:LooksAtHolds", *patient]) == 1
    beside, after, keeps = [line for line in capsys.readouterr().out.splitlines() if line.startswith("GROWS: ")]
    assert beside.startswith(
        "GROWS: a request beside holds, full attention: with 32 holds instead of 2, a step is "
    )
    assert after.startswith("GROWS: a pull after others, full attention: with 32 pulls instead of 2, a pull is ")
    assert beside.endswith(", most of it in build_connector_meta")
    assert keeps == (
        "GROWS: what the engine 0 scheduler's side keeps of one prompt, full attention: after 10 rounds instead "
        "of 2 it is 10 things instead of 2, in LooksAtHolds._scheduler.ended"
    )
