"""The contract table and the classes say the same."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kv_api
from kv_api import contract
from kv_api.contract import CONTRACT, HMA_CONTRACT, Kind, Member, Phase, Side
from kv_api.side import ConnectorSide

ROWS = {row.name: row for row in CONTRACT}


def public_members(cls: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(cls, name)
        for name in dir(cls)
        if not name.startswith("_") and not hasattr(object, name)
    }


def test_every_public_member_has_exactly_one_row() -> None:
    assert len(ROWS) == len(CONTRACT)
    assert set(public_members(kv_api.KVConnectorBase_V1)) - {"register"} == set(ROWS)
    assert set(public_members(kv_api.SupportsHMA)) - {"register"} == {row.name for row in HMA_CONTRACT}


@pytest.mark.parametrize("row", CONTRACT, ids=lambda row: row.name)
def test_a_row_describes_its_member(row: Member) -> None:
    member = public_members(kv_api.KVConnectorBase_V1)[row.name]
    kind = {classmethod: Kind.CLASSMETHOD, property: Kind.PROPERTY}.get(type(member), Kind.METHOD)
    assert row.kind is kind
    assert row.abstract == (row.name in kv_api.KVConnectorBase_V1.__abstractmethods__)
    homes = {
        Side.SCHEDULER: kv_api.SchedulerSide,
        Side.WORKER: kv_api.WorkerSide,
        Side.CLASS: kv_api.KVConnectorBase_V1,
        Side.BOTH: kv_api.KVConnectorBase_V1 if row.name == "role" else ConnectorSide,
    }
    assert row.name in vars(homes[row.side])
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    assert inspect.getdoc(function), f"{row.name} has no contract"


def test_the_abstract_methods_are_the_seven_of_vllm() -> None:
    assert kv_api.KVConnectorBase_V1.__abstractmethods__ == {
        "start_load_kv",
        "wait_for_layer_load",
        "save_kv_layer",
        "wait_for_save",
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "build_connector_meta",
    }


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("SupportsHMA", "request_finished_all_groups"),
        ("SchedulerSide", "build_connector_meta get_num_new_matched_tokens update_state_after_alloc"),
        ("WorkerSide", "save_kv_layer start_load_kv wait_for_layer_load wait_for_save"),
        ("OffloadingManager", "lookup on_new_request prepare_load prepare_store"),
        ("OffloadingWorker", "get_finished submit_load submit_store wait"),
        ("OffloadingSpec", "get_manager get_worker"),
        ("KVConnectorWorkerMetadata", "aggregate"),
        ("KVConnectorPromMetrics", "observe"),
        (
            "KVConnectorKVEvents",
            "add_events aggregate clear_events get_all_events get_number_of_workers increment_workers",
        ),
    ],
)
def test_what_a_subclass_has_to_write(name: str, methods: str) -> None:
    assert sorted(getattr(kv_api, name).__abstractmethods__) == methods.split()


def test_the_hooks_of_one_step_stand_in_the_order_of_an_engine() -> None:
    order = [
        "on_new_request",
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "build_connector_meta",
        "handle_preemptions",
        "bind_connector_metadata",
        "wait_for_layer_load",
        "wait_for_save",
        "get_transfer_results",
        "get_block_ids_with_load_errors",
        "clear_connector_metadata",
        "request_finished",
        "update_connector_output",
    ]
    assert [row.name for row in CONTRACT if row.name in order] == order
    phases = [ROWS[name].phase for name in order]
    assert phases == sorted(phases)


def test_start_load_may_follow_the_layers_so_only_its_place_before_the_end_is_fixed() -> None:
    assert Phase.BEGIN == ROWS["start_load_kv"].phase < ROWS["wait_for_save"].phase


def test_member_finds_rows_and_names_what_it_does_not_find() -> None:
    assert contract.member("reset_cache").since == "0.13"
    assert contract.member("request_finished_all_groups").abstract
    with pytest.raises(KeyError, match=r"^.no member 'reset_cash' in the contract.$"):
        contract.member("reset_cash")


def test_the_printed_table_is_the_committed_one() -> None:
    document = Path(__file__).parents[1].joinpath("CONTRACT.md").read_text(encoding="utf-8")
    table = [line for line in document.splitlines() if line.startswith("|")]
    assert contract.markdown_table().splitlines() == table, (
        "run python -m kv_api.contract and put it into CONTRACT.md"
    )


def test_the_module_prints_its_table() -> None:
    done = subprocess.run([sys.executable, "-m", "kv_api.contract"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{contract.markdown_table()}\n"
