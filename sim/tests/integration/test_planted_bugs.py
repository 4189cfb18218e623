"""The testbed is as good as the bugs it finds: each planted one, soon, in a short history, by its checker."""

from functools import cache
from pathlib import Path

import pytest

from kv_offload.scheduler.loading.matching import Matching
from kv_offload.scheduler.outcomes import Outcomes
from kv_sim.actions import Kind
from kv_sim.failures.shrink import Shrinker, shrink
from kv_sim.fuzz import Failure, replay
from kv_sim.violation import Invariant
from kv_sim.zoo.hunt import PATIENCE, hunt
from kv_sim.zoo.offload import PartedScheduler
from kv_sim.zoo.planted import Planted, with_parts
from kv_sim.zoo.registry import PLANTED

FIRST_SEED = 0
LATE = {
    "AbortedLoadIsSilent": 5,
    "BadChunkPromisedAgain": 124,
    "BrokenPullIsFine": 5,
    "CountsLocalHits": 29,
    "CountsOnSteps": 117,
    "DeclinesWhenAskedAgain": 4,
    "DeclinesWithLocalHits": 4,
    "EvictionsNotTold": 1,
    "EvictsPinned": 69,
    "FailedBlocksEmptied": 53,
    "FailedBlocksNotHandedOn": 34,
    "FailedBlocksToldAgain": 7,
    "FailedLoadIsSilent": 7,
    "FailedLoadNotTold": 7,
    "FailedLoadToldAgain": 7,
    "FailedStoreIndexed": 34,
    "FailedStoreReadable": 7,
    "FailureKnowsNoWindow": 176,
    "FailureKnowsOneGroup": 124,
    "FirstLoadUnpins": 13,
    "FirstReportFrees": 7,
    "FirstSaveCounts": 4,
    "ForgetsWhatResumes": 15,
    "GivenUpIsNotFenced": 263,
    "GivenUpPullGoesOn": 80,
    "GivenUpRoomIsFree": 80,
    "HoldsSurviveReset": 312,
    "HoldsWhileLoading": 5,
    "KeepsWhatRestsOnFailures": 167,
    "LastTokenFromAWindowPassed": 288,
    "LeaksMatches": 19,
    "LetsGoForGood": 9,
    "LoadsPinNothing": 126,
    "LocalHitsAreExternal": 32,
    "LosersGetNoBlocks": 88,
    "NewHoldsSurviveReset": 337,
    "NoFlush": 4,
    "OneReportIsEnough": 4,
    "PinsNeverReturn": 5,
    "PlacesReturnTooEarly": 26,
    "PromisesWhatSlid": 185,
    "ResetForgetsJobs": 33,
    "ResetFreesLoaded": 177,
    "ResumeAppends": 40,
    "RoomOfTheFirst": 50,
    "SampledTokenOffloaded": 90,
    "SampledTokenStored": 62,
    "ServesAfterReset": 13,
    "SessionAppends": 62,
    "SharedLoadsInTurn": 117,
    "ShortKeys": 1,
    "StatesKeptUntilTheEnd": 350,
    "StatesStoredAfterTheirPass": 128,
    "StepsLoadNotTold": 7,
    "StoresRestOnFailures": 75,
    "StoresSurviveReset": 244,
    "StoresTooEarly": 17,
    "SubChunkOffsetIgnored": 20,
    "TailsNamedByTheHashBefore": 350,
    "TailsReadFromTables": 150,
    "TakesAnyTicket": 69,
    "TicketTakenAgain": 24,
    "TicketsSurviveReset": 35,
    "ToldAtFirstFailure": 194,
    "WaitsForFailedStores": 7,
    "WaitsInTheLastLayer": 22,
}
"""Where to begin with bugs that few histories show, or whose first ones take long to shrink, for time's sake.
Nobody has to keep these right: a bug that isn't found from there on is looked for from the first seed."""
SOME = 40
"""Histories that are looked at from there on."""
QUICK = 30
"""Actions of a history in which nothing is found; ``kv-sim zoo`` lets all of them be long."""
FEW = 3
"""Histories that are looked at when a checker is off; the same command looks at more."""
SOON = 20
"""Histories in which every checker catches one."""
SHORT = 20
"""Actions of a history that somebody can read."""
TRIES = 500
"""Of shrinking, at most. The same command makes a history as short as can be, which takes four times as long."""


@pytest.fixture(scope="module", params=PLANTED, ids=lambda planted: planted.name)
def planted(request: pytest.FixtureRequest) -> Planted:
    """Of the module: all tests of one bug run one after the other, and share what was found."""
    planted: Planted = request.param
    return planted


@cache
def found(planted: Planted) -> Failure:
    first = LATE.get(planted.name, FIRST_SEED)
    for seeds in (range(first, first + SOME), range(FIRST_SEED, FIRST_SEED + PATIENCE)):
        _, failure = hunt(planted.subject, seeds)
        if failure is not None:
            return failure
    pytest.fail(f"{planted.name} survives {PATIENCE} histories: {planted.mechanism}")


@cache
def shrunk(planted: Planted) -> Failure:
    shrinker = Shrinker(found(planted), frozenset(), TRIES, lambda: len(shrinker.best.history) > SHORT)
    shrinker.run()
    return shrinker.best


def test_it_is_found(planted: Planted) -> None:
    failure = found(planted)
    assert failure.violation.invariant in {planted.invariant, *planted.others}


def test_it_shrinks_to_a_short_history_that_still_fails_the_same_way(planted: Planted) -> None:
    short = shrunk(planted)
    assert len(short.history) <= SHORT, "\n".join(map(str, short.history))
    world, violation = replay(short.subject, short.config, short.history)
    assert violation is not None
    assert violation.invariant is found(planted).violation.invariant
    assert world is not None
    assert world.history == short.history, "a shrunk history holds what is taken, and nothing else"


def test_without_its_checker_it_survives_unless_others_are_listed(planted: Planted) -> None:
    seed = found(planted).seed
    assert seed is not None
    # What all checkers let pass, some of them let pass, too.
    seeds = range(seed, max(FIRST_SEED + FEW, seed + 1))
    without = frozenset({planted.invariant})
    if not planted.others:
        _, failure = hunt(planted.subject, range(FIRST_SEED, FIRST_SEED + FEW), without, actions=QUICK)
        assert failure is None, str(failure.violation)
    else:
        _, failure = hunt(planted.subject, seeds, without)
        assert failure is None or failure.violation.invariant in planted.others, str(failure.violation)


@pytest.mark.parametrize("invariant", Invariant)
def test_every_checker_catches_one(invariant: Invariant) -> None:
    for planted in PLANTED:
        if planted.invariant is invariant:
            _, failure = hunt(planted.subject, range(FIRST_SEED, FIRST_SEED + SOON))
            if failure is not None and failure.violation.invariant is invariant:
                return
    pytest.fail(f"of the bugs that {invariant} is expected to catch it catches none in {SOON} histories")


def test_the_registry_names_each_bug_once_and_says_what_it_is() -> None:
    assert len({planted.name for planted in PLANTED}) == len(PLANTED) >= 12
    assert all(planted.mechanism and planted.invariant not in planted.others for planted in PLANTED)


def test_the_documentation_has_the_table_of_all() -> None:
    text = (Path(__file__).parents[3] / "docs" / "zoo.md").read_text(encoding="utf-8")
    _, _, printed = text.partition("$ kv-sim zoo --jobs 2\n")
    _, *rows = printed.partition("\n```")[0].splitlines()
    heads = [f"{planted.name:26} {planted.issue:16} {planted.invariant:12} " for planted in PLANTED]
    assert [row[: len(head)] for row, head in zip(rows, heads, strict=False)] == heads
    assert " found; median " in rows[len(heads)]


def test_it_keeps_a_history_that_does_not_fail() -> None:
    failure = found(next(planted for planted in PLANTED if planted.invariant is Invariant.WORK))
    cured = Failure(failure.subject, failure.config, failure.history, failure.violation)
    assert shrink(cured, without=frozenset({Invariant.WORK, Invariant.LIVENESS})) is cured


def test_it_stops_when_its_tries_are_spent() -> None:
    failure = found(PLANTED[0])
    assert len(shrink(failure, most_replays=1).history) == len(failure.history)
    assert any(action.kind is Kind.ADD for action in shrink(failure, most_replays=40).history)


@pytest.mark.parametrize("parts", [{"outcome": Outcomes}, {"outcomes": Matching}])
def test_a_wrong_part_stands_for_a_right_one(parts: dict[str, type]) -> None:
    """Otherwise nothing would be planted, or something else."""
    with pytest.raises(AssertionError, match=r"^PartedScheduler\.outcome"):
        with_parts(PartedScheduler, **parts)
