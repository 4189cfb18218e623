"""``PLANTED``: every planted bug, with where it was seen and who must catch it."""

from dataclasses import replace
from typing import Final

from kv_sim.examples.catalogue import (
    LATER,
    LAYERWISE,
    MEMORY,
    OFFLOAD_FILE,
    OFFLOAD_FILE_SHARED,
    P2P,
    P2P_CROWDED,
    P2P_LASTING,
    P2P_TWO,
    PATIENT,
    SHARED,
    SUBJECTS,
    fenced,
    offloading,
    several,
)
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant
from kv_sim.zoo import (
    clients,
    contract,
    endings,
    failures,
    files,
    hits,
    holds,
    late,
    loads,
    media,
    offload,
    offload_books,
    offload_lives,
    offload_states,
    offload_waits,
    pulls,
    pulls_of_groups,
    ranks,
    shared,
    sleeps,
    transfers,
    unequal,
)
from kv_sim.zoo import several as multi
from kv_sim.zoo.planted import Planted, plant

_I = Invariant
_HOLDS: Final = Subject("AlwaysHolds", "kv_sim.zoo.transfers", traits=LATER.traits)
_ALL_GROUPS: Final = Subject("AllGroupsAlone", "kv_sim.zoo.several", traits=MEMORY.traits)
_ECHO: Final = Subject("Echo", "kv_sim.zoo.several", traits=LATER.traits)

_FOUND: Final = (
    plant(hits.KeysWithoutSalt, "#44701", _I.HITS, MEMORY, _I.CONTENT, _I.ACCOUNTING),
    plant(hits.KeysWithoutPrefix, "", _I.CONTENT, MEMORY, _I.ACCOUNTING, _I.HITS),
    plant(hits.KeysWithoutImages, "LMCache#4183", _I.CONTENT, MEMORY, _I.ACCOUNTING, _I.HITS),
    plant(hits.ShortKeys, "#44250", _I.HITS, MEMORY, _I.CONTENT, _I.ACCOUNTING),
    plant(hits.ForgetsLaterChunks, "#53498", _I.HITS, MEMORY),
    plant(hits.ServesAfterReset, "#42695", _I.HITS, MEMORY),
    plant(hits.FullHit, "LMCache#5151", _I.PROTOCOL, MEMORY, _I.HITS, _I.ACCOUNTING),
    plant(hits.CountsLocalHits, "#28585", _I.ACCOUNTING, MEMORY),
    plant(hits.EvictsSilently, "#57159", _I.ACCOUNTING, MEMORY),
    plant(hits.HashesLag, "#52170", _I.NO_CRASH, MEMORY),
    plant(hits.ResumeAppends, "LMCache#2516", _I.CONTENT, MEMORY),
    plant(hits.SessionAppends, "", _I.CONTENT, MEMORY),
)

_MOVED: Final = (
    plant(transfers.StoresTooEarly, "#31341", _I.OWNERSHIP, LATER, _I.CONTENT),
    plant(transfers.NoFlush, "#29870", _I.OWNERSHIP, PATIENT, _I.CONTENT),
    plant(transfers.LoadNotAwaited, "", _I.OWNERSHIP, PATIENT, _I.CONTENT),
    plant(transfers.FailedStoreIndexed, "", _I.CONTENT, LATER),
    plant(transfers.FailedLoadIsFine, "LMCache#3388", _I.CONTENT, LATER, _I.HITS),
    plant(transfers.FailedBlocksToldAgain, "", _I.PROTOCOL, LATER, _I.LIVENESS),
    plant(transfers.FailedLoadToldAgain, "", _I.PROTOCOL, LATER, _I.CONSERVATION),
    plant(transfers.FailedLoadIsSilent, "LMCache#5047", _I.LIVENESS, LATER),
    plant(transfers.AbortedLoadIsSilent, "#46283", _I.LIVENESS, LATER),
    plant(transfers.HoldsWhileLoading, "#25067", _I.PROTOCOL, LATER, _I.OWNERSHIP),
    plant(transfers.SampledTokenStored, "#54193", _I.HITS, LATER, _I.CONTENT),
    plant(transfers.EvictsPinned, "LMCache#987", _I.OWNERSHIP, LATER, _I.CONTENT),
    plant(transfers.LeaksFailedStores, "", _I.CONSERVATION, LATER),
    plant(transfers.LeaksMatches, "#44100", _I.CONSERVATION, LATER),
    plant(transfers.StoresSurviveReset, "#57727", _I.HITS, LATER),
    plant(transfers.ReportsEveryEnd, "#43226", _I.PROTOCOL, LATER, _I.OWNERSHIP, _I.CONSERVATION, _I.CONTENT),
    plant(transfers.AsksByWaiting, "", _I.WORK, LATER),
    plant(transfers.AsksForEver, "", _I.WORK, PATIENT, _I.LIVENESS),
    plant(endings.LeavesItsSocketOpen, "", _I.CONSERVATION, LATER),
)

_LOADED: Final = (
    plant(loads.FirstLoadUnpins, "LMCache#5098", _I.CONTENT, LATER, _I.OWNERSHIP),
    plant(loads.ToldAtFirstFailure, "#56104", _I.OWNERSHIP, LATER, _I.CONTENT),
    plant(loads.ResetFreesLoaded, "", _I.CONSERVATION, LATER, _I.OWNERSHIP, _I.CONTENT),
    plant(loads.KeepsWhatRestsOnFailures, "", _I.CONTENT, PATIENT),
    plant(loads.ForgetsWhatResumes, "", _I.LIVENESS, LATER),
    plant(loads.TrustsItsAnswer, "", _I.OWNERSHIP, LATER, _I.NO_CRASH, _I.PROTOCOL, _I.CONTENT),
    plant(loads.WaitsInTheLastLayer, "", _I.CONTENT, LAYERWISE),
)

_SLEPT: Final = (
    plant(sleeps.CountsOnSteps, "#45268", _I.OWNERSHIP, PATIENT, _I.CONTENT),
    plant(sleeps.LetsGoForGood, "", _I.NO_CRASH, LATER),
)

_TAKEN_FOR_GRANTED: Final = (
    plant(contract.TakesFromTheStep, "", _I.PROTOCOL, LATER),
    plant(contract.KeepsMetadataToItself, "", _I.NO_CRASH, LAYERWISE),
    plant(contract.CallInMetadata, "", _I.PROTOCOL, MEMORY),
    plant(contract.StatsOfTwoKinds, "", _I.NO_CRASH, LATER),
    plant(contract.SourceOfItsOwn, "", _I.ACCOUNTING, LATER),
    plant(contract.ObjectInParams, "", _I.PROTOCOL, LATER),
    plant(contract.WaitsForLoads, "", _I.WORK, LATER),
    plant(contract.CountsStepsUnderWay, "", _I.LIVENESS, LATER),
    plant(contract.CutsHashes, "", _I.PROTOCOL, LATER),
    plant(contract.EndedIdsEmptied, "", _I.CONSERVATION, LATER),
)

_RANKS: Final = (
    plant(ranks.SmallerRanks, "#50821", _I.GEOMETRY, LATER, _I.CONTENT),
    plant(ranks.SkipsWhenBusy, "SGLang#26921", _I.CONTENT, LATER, _I.GEOMETRY),
    plant(ranks.OneReportIsEnough, "#23917", _I.NO_CRASH, LATER, _I.OWNERSHIP),
)

_SEVERAL: Final = (
    plant(
        multi.LosersLoadToo,
        "#55209",
        _I.OWNERSHIP,
        several(LATER, MEMORY),
        _I.NO_CRASH,
        _I.CONTENT,
        _I.CONSERVATION,
        _I.LIVENESS,
    ),
    plant(multi.LosersGetNoBlocks, "#46951", _I.OWNERSHIP, SUBJECTS["offload+fenced"], _I.CONTENT),
    plant(multi.UnionOfLoads, "#42831", _I.PROTOCOL, several(MEMORY, _ECHO), _I.CONSERVATION),
    plant(multi.FirstSaveCounts, "", _I.OWNERSHIP, several(LATER, LATER), _I.CONSERVATION, _I.CONTENT),
    plant(multi.StaleChoice, "", _I.NO_CRASH, several(LATER, MEMORY), _I.LIVENESS),
    plant(multi.FirstReportFrees, "#25067", _I.PROTOCOL, several(LATER, _HOLDS), _I.OWNERSHIP),
    plant(multi.NoPreemptions, "vllm-ascend#3332", _I.OWNERSHIP, several(PATIENT, MEMORY), _I.CONTENT),
    plant(multi.ChildrenHearOfOneGroup, "#36549", _I.CONSERVATION, several(_ALL_GROUPS, MEMORY)),
    plant(multi.OneForgets, "#42695", _I.HITS, several(LATER, MEMORY)),
    plant(multi.EventsOfTheFirst, "", _I.ACCOUNTING, SUBJECTS["offload+offload"]),
    plant(multi.SourcesUnknown, "", _I.ACCOUNTING, SUBJECTS["later+memory"]),
    plant(multi.StatsByClass, "", _I.ACCOUNTING, several(offloading(), offloading(blocks_per_chunk=2))),
    plant(multi.StatsOfTheLastStep, "", _I.ACCOUNTING, several(offloading(), offloading(blocks_per_chunk=2))),
)

_FENCED: Final = offloading(without=frozenset({Trait.LOSSES, Trait.ZEROING}), hold_blocks="never")
_HELD: Final = offloading(without=frozenset({Trait.LOSSES}), hold_blocks="always")
_CHUNKS: Final = offloading(
    without=frozenset({Trait.LOSSES, Trait.ZEROING}), hold_blocks="never", blocks_per_chunk=2
)
_IN_STEP: Final = offloading(without=frozenset({Trait.LOSSES}), sync_load_budget_bytes=1 << 20)
_UNFAILING: Final = offloading(without=frozenset({Trait.LOSSES, Trait.FAILURES}))
"""No load fails: a failed one of several groups can be told of only if it is asynchronous."""

_OFFSET: Final = offloading(
    without=frozenset({Trait.LOSSES, Trait.ZEROING}),
    hold_blocks="never",
    spec_name="TwiceOffsetSpec",
    spec_module_path="kv_sim.zoo.offload_waits",
)
_HASTY: Final = fenced(load_timeout_seconds=1, store_timeout_seconds=1)
_TAILS: Final = offloading(without=frozenset({Trait.LOSSES}))

_FAILED: Final = (
    plant(failures.StepsLoadNotTold, "LMCache#3388", _I.CONTENT, _IN_STEP),
    plant(failures.FailedBlocksEmptied, "", _I.CONTENT, _TAILS),
    plant(failures.StoresRestOnFailures, "", _I.CONTENT, _IN_STEP),
    plant(failures.FailedBlocksNotHandedOn, "", _I.CONTENT, SUBJECTS["layerwise+patient"]),
)

_GIVEN_UP: Final = (
    plant(late.GivenUpIsNotFenced, "", _I.OWNERSHIP, _HASTY, _I.CONTENT),
    plant(late.GivenUpRoomIsFree, "", _I.OWNERSHIP, SUBJECTS["offload-hasty"], _I.CONTENT),
    plant(late.GivenUpPullGoesOn, "SGLang#35049", _I.OWNERSHIP, SUBJECTS["p2p-hasty"], _I.CONTENT),
    plant(late.GivenUpThoughHere, "SGLang#32267", _I.PROTOCOL, SUBJECTS["p2p-hasty"]),
    plant(late.WithdrawnHoldIsSent, "", _I.OWNERSHIP, P2P, _I.CONTENT),
    plant(late.AbortedPullGoesOn, "SGLang#35049", _I.OWNERSHIP, P2P, _I.CONTENT),
)


def _filed(name: str) -> Subject:
    """kv-offload-file with the engine of this spec."""
    return replace(OFFLOAD_FILE, extra_config={"spec_name": name, "spec_module_path": files.__name__})


_FILED: Final = (
    plant(files.WrittenBeforeCopied, "", _I.OWNERSHIP, _filed("WrittenTooEarlySpec"), _I.CONTENT, _I.NO_CRASH),
    plant(files.CopiedBeforeRead, "", _I.CONTENT, _filed("CopiedTooEarlySpec")),
    plant(files.FirstPartIsAll, "", _I.CONTENT, _filed("InPartSpec"), _I.HITS, _I.GEOMETRY),
    plant(files.BaysForBothWays, "", _I.OWNERSHIP, _filed("BothWaysSpec"), _I.CONTENT),
)


def _managed(name: str) -> Subject:
    """Host memory with the manager of this spec, of which no more is claimed than that it can be reset."""
    without = frozenset({Trait.LOSSES, Trait.ZEROING, Trait.KEEPS, Trait.EVENTS, Trait.COUNTS})
    return offloading(without=without, hold_blocks="never", spec_name=name, spec_module_path=media.__name__)


_BY_CHUNK: Final = replace(
    offloading(
        without=frozenset({Trait.LOSSES, Trait.ZEROING}),
        hold_blocks="never",
        eviction_policy="ChunkByChunk",
        cache_policy_module_path=media.__name__,
    ),
    evicts_oldest=True,
)

_MANAGED: Final = (
    plant(media.PinsNeverReturn, "LMCache#987", _I.CONSERVATION, _managed("KeepsPinsSpec")),
    plant(media.PlacesStayWithheld, "", _I.CONSERVATION, _managed("KeepsPlacesSpec")),
    plant(media.PlacesReturnTooEarly, "#57727", _I.OWNERSHIP, _managed("ForgetsJobsSpec")),
    plant(media.StoresInPart, "", _I.PROTOCOL, _managed("StoresInPartSpec"), _I.HITS, _I.WORK),
    plant(media.TruthForAResult, "", _I.PROTOCOL, _managed("SaysTrueSpec"), _I.WORK),
    plant(media.JobsToldTwice, "", _I.PROTOCOL, _managed("TellsTwiceSpec")),
    plant(media.FencesAreForNobody, "#29870", _I.OWNERSHIP, _managed("WaitsForNobodySpec"), _I.CONTENT),
    plant(media.FencesAreForAll, "#45595", _I.WORK, _managed("WaitsForAllSpec")),
    plant(media.BeginningsLeaveFirst, "#51787", _I.HITS, _BY_CHUNK),
)

_OFFLOADED: Final = (
    plant(offload.SampledTokenOffloaded, "#54193", _I.HITS, _FENCED, _I.CONTENT),
    plant(offload.StoresBeforeCompute, "#45704", _I.OWNERSHIP, _FENCED, _I.CONTENT),
    plant(offload.FreedBlocksNotFenced, "#29870", _I.OWNERSHIP, _FENCED, _I.CONTENT),
    plant(offload.OneChunkAStep, "#53498", _I.HITS, _FENCED),
    plant(offload.WindowEndsNotStored, "", _I.HITS, _FENCED),
    plant(offload.FailedStoreReadable, "", _I.CONTENT, _FENCED),
    plant(offload.BadChunkPromisedAgain, "LMCache#3388", _I.LIVENESS, _FENCED),
    plant(offload.BadChunkLeftToOthers, "", _I.HITS, _FENCED),
    plant(offload.LoadsPinNothing, "LMCache#993", _I.OWNERSHIP, _FENCED, _I.CONTENT, _I.LIVENESS),
    plant(offload.SubChunkOffsetIgnored, "#28950", _I.CONTENT, _CHUNKS),
    plant(offload.FailureKnowsOneGroup, "#45474", _I.PROTOCOL, _FENCED, _I.CONTENT),
    plant(offload.FailureKnowsNoWindow, "", _I.CONTENT, _FENCED),
    plant(offload.FailedLoadNotTold, "LMCache#3388", _I.CONTENT, _FENCED),
    plant(offload.AlwaysHolds, "#46240", _I.LIVENESS, _HELD, _I.PROTOCOL, _I.HITS),
    plant(offload_books.KeysWithoutGroup, "#44701", _I.CONTENT, _FENCED, _I.NO_CRASH),
    plant(offload_books.OneRankIsEnough, "#23917", _I.OWNERSHIP, _FENCED, _I.CONTENT),
    plant(offload_books.RoomOfTheFirst, "#50821", _I.NO_CRASH, _FENCED),
    plant(offload_books.ReplicasTakenForGranted, "#50821", _I.GEOMETRY, _FENCED, _I.CONTENT),
    plant(offload_books.ResetForgetsJobs, "#57727", _I.OWNERSHIP, _FENCED, _I.CONTENT, _I.NO_CRASH),
    plant(offload_books.AbortBeforeAllocationLeaks, "#44100", _I.CONSERVATION, _FENCED, _I.PROTOCOL),
    plant(offload_books.LocalHitsAreExternal, "#28585", _I.ACCOUNTING, _FENCED),
    plant(offload_books.EvictionsNotTold, "#57159", _I.ACCOUNTING, _FENCED),
    plant(clients.TakesItForAnObject, "", _I.NO_CRASH, _FENCED),
    plant(offload_lives.LoadsBesideItsStores, "#46014", _I.NO_CRASH, _FENCED),
    plant(offload_lives.JobsOfAnEarlierLife, "#51637", _I.NO_CRASH, _FENCED, _I.OWNERSHIP),
    plant(offload_waits.WaitsForFailedStores, "", _I.WORK, _FENCED, _I.LIVENESS),
    plant(offload_waits.PromisesWhatIsOnItsWay, "#56709", _I.HITS, _FENCED),
    plant(offload_waits.SharedLoadsInTurn, "#44294", _I.WORK, _FENCED, _I.LIVENESS),
    plant(offload_waits.EndsBeforeItsLastStore, "#49671", _I.PROTOCOL, _FENCED),
    plant(offload_waits.RankOffsetTwice, "#50821", _I.GEOMETRY, _OFFSET, _I.CONTENT),
    plant(offload.InStepLoadNotAwaited, "", _I.OWNERSHIP, _IN_STEP, _I.CONTENT),
    plant(offload_states.StatesStoredAfterTheirPass, "", _I.OWNERSHIP, _FENCED, _I.CONTENT, _I.HITS),
    plant(offload_states.StatesKeptUntilTheEnd, "", _I.OWNERSHIP, _FENCED, _I.CONTENT),
    plant(offload_states.LastStatesNotStored, "", _I.HITS, _FENCED),
    plant(offload_states.StatesLeftOut, "LMCache#2845", _I.CONTENT, _FENCED, _I.HITS),
    plant(offload_states.HitsBetweenStates, "#51094", _I.CONTENT, _FENCED, _I.HITS, _I.PROTOCOL),
    plant(offload_states.StatesLoadedInTheStep, "", _I.CONTENT, _UNFAILING),
    plant(offload_states.TailsNamedByTheHashBefore, "", _I.CONTENT, _TAILS),
    plant(offload_states.TailsReadFromTables, "", _I.OWNERSHIP, _TAILS, _I.CONTENT),
    plant(unequal.BlocksOfTheFirst, "LMCache#3571", _I.OWNERSHIP, _FENCED, _I.CONTENT, _I.HITS),
    plant(unequal.KeysOneHashEarly, "", _I.HITS, _FENCED, _I.CONTENT),
)

_HANDED_OVER: Final = (
    plant(pulls.FreedWhilePulled, "", _I.OWNERSHIP, P2P, _I.CONTENT),
    plant(pulls.TakesAnyTicket, "#44701", _I.CONTENT, P2P),
    plant(pulls.TakesTicketsOfOtherModels, "", _I.CONTENT, P2P_TWO),
    plant(pulls.TicketTakenAgain, "", _I.LIVENESS, P2P),
    plant(pulls.BrokenPullIsFine, "LMCache#3388", _I.CONTENT, P2P, _I.HITS),
    plant(pulls.AbortFreesTarget, "SGLang#35049", _I.OWNERSHIP, P2P, _I.CONTENT, _I.CONSERVATION),
    plant(pulls.LeavesABlock, "", _I.HITS, P2P, _I.PROTOCOL),
    plant(holds.NotDeclinedWithAllHere, "#18632", _I.LIVENESS, P2P_LASTING),
    plant(holds.NotDeclinedAtTheEnd, "#41269", _I.LIVENESS, P2P_LASTING),
    plant(holds.HoldsWholeBlocks, "", _I.HITS, P2P),
    plant(pulls.FailsWhatCame, "", _I.PROTOCOL, P2P),
    plant(pulls.DeclinesWhenAskedAgain, "", _I.HITS, P2P),
    plant(pulls.TicketsSurviveReset, "", _I.HITS, P2P),
    plant(pulls.HoldsSurviveReset, "", _I.HITS, P2P),
    plant(pulls.NewHoldsSurviveReset, "", _I.HITS, P2P),
    plant(pulls.OldTicketLeft, "", _I.HITS, P2P),
    plant(pulls.DeclinesWithLocalHits, "", _I.HITS, P2P),
    plant(holds.HoldsEndEarly, "", _I.PROTOCOL, P2P),
    plant(holds.DeliveryNotRequired, "#50297", _I.HITS, P2P_TWO),
    plant(holds.HoldsAllThereIs, "", _I.LIVENESS, P2P_CROWDED),
    plant(clients.TrustsWordsOfTickets, "", _I.NO_CRASH, P2P),
    plant(pulls_of_groups.LastTokenFromAWindowPassed, "", _I.CONTENT, P2P),
    plant(pulls_of_groups.GroupsSwapped, "", _I.CONTENT, P2P, _I.PROTOCOL),
    plant(pulls_of_groups.NullBlocksPulled, "", _I.PROTOCOL, P2P),
    plant(pulls_of_groups.PromisesWhatSlid, "", _I.PROTOCOL, P2P),
    plant(pulls.PullsTheFirstOnes, "", _I.CONTENT, P2P, _I.PROTOCOL),
    plant(pulls.PullsTheLastOnes, "#50558", _I.CONTENT, P2P),
    plant(unequal.HoldsOfTheFirstSize, "", _I.HITS, P2P, _I.PROTOCOL),
    plant(pulls_of_groups.FailedGroupsToldByBlock, "#45474", _I.PROTOCOL, P2P, _I.CONTENT),
)

_LENT: Final = (
    plant(offload_books.ConsumersNeverUnpin, "LMCache#2786", _I.CONSERVATION, OFFLOAD_FILE_SHARED, _I.HITS),
)

_SHARED: Final = (
    plant(shared.KeysWithoutModel, "", _I.HITS, SHARED, _I.CONTENT),
    plant(shared.KeysWithEndOfPath, "", _I.HITS, SHARED, _I.CONTENT),
    plant(shared.KeysWithoutType, "", _I.HITS, SHARED, _I.CONTENT),
    plant(shared.KeysWithoutRanks, "", _I.HITS, SHARED, _I.CONTENT, _I.NO_CRASH),
    plant(shared.FindsItsOwn, "", _I.HITS, SHARED),
    plant(shared.BelievesOldIndex, "", _I.CONTENT, SHARED, _I.HITS, _I.NO_CRASH),
    plant(shared.LoadsWithoutPinning, "", _I.CONTENT, SHARED, _I.NO_CRASH),
    plant(shared.FindsWhatIsPlanned, "", _I.CONTENT, SHARED, _I.NO_CRASH),
    plant(shared.ResetForgetsItsOwn, "", _I.HITS, SHARED),
)

PLANTED: Final[tuple[Planted, ...]] = (
    *_FOUND,
    *_MOVED,
    *_LOADED,
    *_SLEPT,
    *_TAKEN_FOR_GRANTED,
    *_RANKS,
    *_SEVERAL,
    *_FAILED,
    *_GIVEN_UP,
    *_OFFLOADED,
    *_FILED,
    *_MANAGED,
    *_HANDED_OVER,
    *(_LENT if "offload-file-shared" in SUBJECTS else ()),
    *_SHARED,
)
