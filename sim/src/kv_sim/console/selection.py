"""From what somebody typed to the subjects that it means; a mistake is a ``ConfigError``.

A connector is named in one of three ways: a subject of the catalogue, ``module:Class``, or the name of a connector
that an installed package offers. Only the first kind comes with traits. Of any other connector nothing is assumed:
it claims what ``--traits`` says.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from kv_api import ConfigError, KVTransferConfig, UnknownNameError
from kv_api.errors import did_you_mean
from kv_sim.actions import Kind
from kv_sim.config import BUILTIN_ENGINE, MOST_ENGINES, WorldConfig
from kv_sim.console.values import parse_extra, parse_traits, refuse_files, with_spec
from kv_sim.engines import find_engine
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.failures.schedule_file import Schedule
from kv_sim.guard import NotCreated
from kv_sim.history.draws import config_for
from kv_sim.offload.stand_ins import why_not_driven
from kv_sim.subject import NOT_OF_PEERS, OF_PEERS, OF_TWO, PEERS, ROOM, SHARES, Subject, Trait
from kv_sim.violation import Violation
from kv_sim.world import World


def choose_subjects(
    connector: str | None,
    extra: str | None,
    traits: str | None,
    engine: str = BUILTIN_ENGINE,
    *,
    serves_peers: int | None = None,
    shares_store: bool | None = None,
) -> dict[str, Subject]:
    """The subjects to run, by name; the whole catalogue if no connector is named."""
    if connector is None:
        refuse_what_is_about_one(extra, traits, serves_peers, shares_store)
        return dict(SUBJECTS)
    subject = choose_subject(
        connector, extra, traits, engine, serves_peers=serves_peers, shares_store=shares_store
    )
    return {connector: subject}


def kind_of(options: argparse.Namespace) -> Mapping[str, Any]:
    """Whether a connector is said to serve peers, or to share a store, for ``choose_subject``."""
    return {"serves_peers": options.serves_peers, "shares_store": options.shares_store}


def refuse_what_is_about_one(
    extra: str | None, traits: str | None, serves_peers: int | None, shares_store: bool | None = None
) -> None:
    """Refuse options about one connector where none is named."""
    given_to = {"--extra": extra, "--traits": traits, PEERS[serves_peers or 1]: serves_peers, SHARES: shares_store}
    for option, given in given_to.items():
        if given is not None:
            raise ConfigError(f"{option} applies to one connector: name it with --connector")


def choose_name(options: argparse.Namespace) -> tuple[str, str | None]:
    """The connector that is named, or the one that offers a medium; and its settings."""
    if options.spec is not None:
        return options.name or "OffloadingConnector", with_spec(options.spec, options.extra)
    if options.name is None:
        raise ConfigError("name a connector, or an offloading medium with --spec")
    return options.name, options.extra


def choose_subject(
    connector: str,
    extra: str | None = None,
    traits: str | None = None,
    engine: str = BUILTIN_ENGINE,
    *,
    serves_peers: int | None = None,
    shares_store: bool | None = None,
) -> Subject:
    """One subject, for one engine: which connectors there are depends on that.

    ``serves_peers``: with how many engines in a world it does; None: as it is known to. So of ``shares_store``.
    """
    subject = _named(connector, engine)
    if serves_peers and (shares_store or subject.shares_store):
        raise ConfigError(f"{PEERS[serves_peers]} and {SHARES} exclude each other: give one of them")
    if shares_store:
        kept = subject.traits - OF_PEERS
        subject = replace(subject, shares_store=True, serves_peers=False, engines=MOST_ENGINES, traits=kept)
    if serves_peers:
        kept = subject.traits - NOT_OF_PEERS - (OF_TWO if serves_peers == 1 else frozenset())
        subject = replace(subject, serves_peers=True, engines=serves_peers, traits=kept)
    if extra is not None:
        subject = replace(subject, extra_config={**subject.extra_config, **parse_extra(extra)})
        subject = _with_what_is_kept(subject, parse_extra(extra), engine)
    if traits is not None:
        subject = replace(subject, traits=parse_traits(traits))
    for trait in sorted(subject.traits.difference(subject.possible_traits)):
        whose = "serve no other engines" if trait in NOT_OF_PEERS else f"serve other engines: {PEERS[1]}"
        whose = f"are driven in two engines: {PEERS[2]} or {SHARES}" if trait in OF_TWO else whose
        raise ConfigError(f"--traits: {trait.value!r} is a trait of connectors that {whose}")
    _check_class(connector, subject, engine)
    if extra is not None:
        _check_medium(connector, parse_extra(extra), subject, engine)
    return subject


def _with_what_is_kept(subject: Subject, extra: dict[str, Any], engine: str) -> Subject:
    """What settings of an offloading connector say of what it keeps: whole chunks, and from which offer on."""
    try:
        found = find_engine(engine).connector_class(subject.transfer_config(WorldConfig()))
    except ConfigError:
        return subject  # which is about to be told
    if "OffloadingConnector" not in {base.__name__ for base in found.__mro__}:
        return subject
    chunk, offers = extra.get("blocks_per_chunk"), extra.get("store_threshold")
    if isinstance(chunk, int) and chunk > 0:  # or it is refused
        subject = replace(subject, blocks_per_chunk=chunk)
    if isinstance(offers, int) and offers >= 0:
        subject = replace(subject, keeps_from=max(1, offers))
    return subject


def _named(connector: str, engine: str) -> Subject:
    if connector in SUBJECTS:
        return SUBJECTS[connector]
    module, colon, attribute = connector.partition(":")
    if colon:
        if not module or not attribute:
            raise ConfigError(f"--connector {connector!r}: expected module:Class")
        refuse_files("--connector", module, attribute)
        return Subject(attribute, module, traits=frozenset())
    try:
        return find_engine(engine).subject_named(connector)
    except UnknownNameError as error:
        if "." in connector:
            module, _, attribute = connector.rpartition(".")
            attribute = "Class" if attribute == "py" else attribute
            raise ConfigError(
                f"--connector: unknown connector {connector!r}; write your own as module:Class, as in "
                f"{module}:{attribute}"
            ) from None
        meant = did_you_mean(connector, SUBJECTS)
        others = str(error).replace(f"unknown connector {connector!r}; ", "")
        raise ConfigError(
            f"--connector: unknown connector {connector!r}{meant}; write your own as module:Class; kv-sim "
            f"subjects lists those of the testbed; installed connectors, {others}"
        ) from None


def _check_class(connector: str, subject: Subject, engine: str) -> None:
    """The connector can be imported, can be made, and can do what it claims."""
    transfer = subject.transfer_config(WorldConfig())
    _refuse_own_copies(connector, transfer, engine)
    if Trait.GROUPS in subject.traits:
        check_groups(subject, engine)
    try:
        World(config_for(subject, Random(0), engine), subject).break_off(None)
    except Violation as violation:
        if not isinstance(violation, NotCreated):
            for child in _children(transfer):
                _refuse_own_copies(connector, child, engine)
            return  # it is for a history to report
        raise ConfigError(
            f"--connector {connector!r}: can't create it: {violation.message} "
            f"(its kv_connector_extra_config is {json.dumps(subject.extra_config)}; --extra adds to it, "
            f"and so does the world: {' and '.join(ROOM)}, unless they are null)"
        ) from None


def _check_medium(connector: str, extra: dict[str, Any], subject: Subject, engine: str) -> None:
    """Who is given an offloading medium uses it: one that isn't there can't be used, so it is refused."""
    if "spec_name" not in extra:
        return
    absent = {"spec_name": "Absent", "spec_module_path": "kv_sim.absent"}
    plain = replace(subject, traits=frozenset(), extra_config={**subject.extra_config, **absent})
    try:
        World(config_for(plain, Random(0), engine), plain).break_off(None)
    except (ConfigError, Violation):
        return
    raise ConfigError(
        f"{connector} uses no offloading medium, so {extra['spec_name']!r} would not be tested; leave the "
        "connector out, and --spec tests it with OffloadingConnector"
    )


def _refuse_own_copies(connector: str, transfer: KVTransferConfig, engine: str) -> None:
    try:
        found = find_engine(engine).connector_class(transfer)
    except ConfigError as error:
        if "No module named 'vllm" in str(error):
            raise ConfigError(
                f"{error}; a connector written for vLLM needs an installed vLLM and the package kv-vllm: "
                "--engine vllm, in pytest --kv-engine vllm"
            ) from None
        if not _is_vllms(transfer):
            raise
        raise ConfigError(
            f"--connector {connector!r}: it derives from vLLM's own base class, so only vLLM's engine can drive "
            "it: --engine vllm, in pytest --kv-engine vllm (package kv-vllm)"
        ) from None
    problem = why_not_driven(found, transfer)
    if problem is not None:
        raise ConfigError(f"--connector {connector!r}: {problem}")


def _is_vllms(transfer: KVTransferConfig) -> bool:
    """Whether a class that was refused is one of vLLM's; its module was imported then."""
    module = sys.modules.get(transfer.kv_connector_module_path or "")
    found = getattr(module, transfer.kv_connector or "", None)
    return isinstance(found, type) and any(base.__module__.partition(".")[0] == "vllm" for base in found.__mro__)


def _children(transfer: KVTransferConfig) -> Iterator[KVTransferConfig]:
    """What a MultiConnector was made of, at any depth."""
    for child in map(KVTransferConfig.from_mapping, transfer.kv_connector_extra_config.get("connectors", ())):
        yield child
        yield from _children(child)


def check_groups(subject: Subject, engine: str) -> None:
    """Refuse a connector that works with one KV cache group where there are several."""
    transfer = subject.transfer_config(WorldConfig())
    if not find_engine(engine).supports_groups(transfer):
        raise ConfigError(
            f"{subject.kv_connector} can't be used with several KV cache groups (the trait 'groups'): "
            "its class doesn't derive from SupportsHMA"
        )


def unclaimed(schedule: Schedule) -> list[str]:
    """Traits that a schedule needs and its subject doesn't claim, each with the reason."""
    config, kinds = schedule.config, {action.kind for action in schedule.history}
    resets = any(action.kind is Kind.RESET and action.args["connector"] for action in schedule.history)
    needs: Mapping[Trait, tuple[bool, str]] = {
        Trait.GROUPS: (len(config.groups) > 1, f"its world has {len(config.groups)} groups"),
        Trait.STATES: (any(group.kind == "state" for group in config.groups), "its world has a group of states"),
        Trait.UNEQUAL: (config.is_unequal, "its groups have blocks of several sizes"),
        Trait.FINE: (config.is_fine, f"its blocks have {config.hashes_per_block} hashes each"),
        Trait.RANKS: (config.world_size > 1, f"its world has {config.world_size} ranks"),
        Trait.ZEROING: (
            config.writes_before_fences,
            "runner V2 writes new blocks before handle_preemptions",
        ),
        Trait.FAILURES: (bool(kinds & {Kind.FAIL, Kind.SPOIL, Kind.RESTART}), "copies fail"),
        Trait.LOSSES: (bool(kinds & {Kind.LOSE, Kind.FIND}), "a copy is lost"),
        Trait.REPEATS: (Kind.REPEAT in kinds, "the end of a copy is reported twice"),
        Trait.RESET: (resets, "the connector's cache is reset"),
        Trait.SLEEP: (Kind.SLEEP in kinds, "the engine sleeps"),
        Trait.IMAGES: (config.images, "prompts have images"),
        Trait.STRANGERS: (config.stranger != "none", "the second engine is a stranger"),
    }
    return [
        f"{t.value} ({why})" for t, (needed, why) in needs.items() if needed and t not in schedule.subject.traits
    ]
