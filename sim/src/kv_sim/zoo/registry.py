"""``PLANTED``: every planted bug, with where it was seen and who must catch it."""

from typing import Final

from kv_sim.examples.catalogue import LATER, MEMORY, PATIENT, several
from kv_sim.subject import Subject
from kv_sim.violation import Invariant
from kv_sim.zoo import hits, ranks, transfers
from kv_sim.zoo import several as multi
from kv_sim.zoo.planted import Planted, plant

_I = Invariant
_HOLDS: Final = Subject("AlwaysHolds", "kv_sim.zoo.transfers", traits=LATER.traits)
_ECHO: Final = Subject("Echo", "kv_sim.zoo.several", traits=LATER.traits)

_FOUND: Final = (
    plant(hits.KeysWithoutSalt, "#44701", _I.HITS, MEMORY, _I.CONTENT, _I.ACCOUNTING),
    plant(hits.ShortKeys, "#44250", _I.HITS, MEMORY, _I.CONTENT, _I.ACCOUNTING),
    plant(hits.ForgetsLaterChunks, "#53498", _I.HITS, MEMORY),
    plant(hits.ServesAfterReset, "#42695", _I.HITS, MEMORY),
    plant(hits.FullHit, "LMCache#5151", _I.PROTOCOL, MEMORY, _I.HITS, _I.ACCOUNTING),
    plant(hits.CountsLocalHits, "#28585", _I.ACCOUNTING, MEMORY),
    plant(hits.EvictsSilently, "#57159", _I.ACCOUNTING, MEMORY),
    plant(hits.HashesLag, "#52170", _I.NO_CRASH, MEMORY),
    plant(hits.ResumeAppends, "LMCache#2516", _I.CONTENT, MEMORY),
)

_MOVED: Final = (
    plant(transfers.StoresTooEarly, "#31341", _I.OWNERSHIP, LATER, _I.CONTENT),
    plant(transfers.NoFlush, "#29870", _I.OWNERSHIP, PATIENT, _I.CONTENT),
    plant(transfers.LoadNotAwaited, "", _I.OWNERSHIP, PATIENT, _I.CONTENT),
    plant(transfers.FailedStoreIndexed, "", _I.CONTENT, LATER),
    plant(transfers.FailedLoadIsFine, "LMCache#3388", _I.CONTENT, LATER),
    plant(transfers.FailedLoadIsSilent, "LMCache#5047", _I.LIVENESS, LATER),
    plant(transfers.AbortedLoadIsSilent, "#46283", _I.LIVENESS, LATER),
    plant(transfers.HoldsWhileLoading, "#25067", _I.PROTOCOL, LATER, _I.OWNERSHIP),
    plant(transfers.SampledTokenStored, "#54193", _I.HITS, LATER, _I.CONTENT),
    plant(transfers.EvictsPinned, "LMCache#987", _I.OWNERSHIP, LATER, _I.CONTENT),
    plant(transfers.LeaksFailedStores, "", _I.CONSERVATION, LATER),
    plant(transfers.LeaksMatches, "#44100", _I.CONSERVATION, LATER),
    plant(transfers.StoresSurviveReset, "#57727", _I.HITS, LATER),
    plant(transfers.ReportsEveryEnd, "#43226", _I.PROTOCOL, LATER, _I.OWNERSHIP, _I.CONSERVATION, _I.CONTENT),
    plant(transfers.AsksForEver, "", _I.WORK, PATIENT, _I.LIVENESS),
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
    plant(multi.UnionOfLoads, "#42831", _I.PROTOCOL, several(MEMORY, _ECHO), _I.CONSERVATION),
    plant(multi.FirstSaveCounts, "", _I.OWNERSHIP, several(LATER, LATER), _I.CONSERVATION, _I.CONTENT),
    plant(multi.StaleChoice, "", _I.NO_CRASH, several(LATER, MEMORY), _I.LIVENESS),
    plant(multi.FirstReportFrees, "#25067", _I.PROTOCOL, several(LATER, _HOLDS), _I.OWNERSHIP),
    plant(multi.NoPreemptions, "vllm-ascend#3332", _I.OWNERSHIP, several(PATIENT, MEMORY), _I.CONTENT),
    plant(multi.OneForgets, "#42695", _I.HITS, several(LATER, MEMORY)),
)

PLANTED: Final[tuple[Planted, ...]] = (*_FOUND, *_MOVED, *_RANKS, *_SEVERAL)
