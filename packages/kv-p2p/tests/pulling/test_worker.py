"""The worker's side, over a wire that does as it is told, at times that are made up."""

from types import SimpleNamespace

import pytest
from kv_p2p_engine import OPTIONS, kv_cache_config, vllm_config
from kv_p2p_fake_wire import FakeWire, World, hold, pull, received, sent

from kv_api import KVConnectorTransferResults
from kv_p2p.clock import read_clock
from kv_p2p.pulling.metadata import P2PMetadata
from kv_p2p.pulling.worker import IDLE_SECONDS, QUIET_SECONDS, P2PWorkerSide

NOTHING = KVConnectorTransferResults()
POLL = ("poll",)


@pytest.fixture
def world():
    world = World()
    world.half.register_kv_caches({"layer": None})
    return world


class TestAStep:
    def test_the_wire_is_told_in_this_order(self, world):
        results, calls = world.step(
            holds=[hold("a"), hold("b")],
            pulls=[pull("c"), pull("d")],
            declined=[pull("e").source, pull("f").source],
        )
        assert results == NOTHING
        assert calls == [
            ("serve", "a.1"), ("serve", "b.1"), ("pull", "c"), ("pull", "d"),
            ("decline", "there.e"), ("decline", "there.f"), POLL,
        ]  # fmt: skip
        assert world.step() == (NOTHING, [POLL])

    def test_what_begins_begins_before_the_forward_pass(self, world):
        world.half.bind_connector_metadata(P2PMetadata(holds=[hold("a")], pulls=[pull("b")]))
        world.half.start_load_kv(SimpleNamespace())
        assert world.wire.calls == [("serve", "a.1"), ("pull", "b")]

    def test_an_idle_step_waits_only_for_what_is_under_way(self, world):
        wait = ("wait", IDLE_SECONDS)
        assert world.step(is_idle=True)[1] == [POLL]
        assert world.step(is_idle=True, declined=[pull("e").source])[1] == [("decline", "there.e"), POLL]
        assert world.step(is_idle=True, holds=[hold("a")])[1] == [("serve", "a.1"), wait, POLL]
        assert world.step(is_idle=False)[1] == [POLL]
        assert world.step(is_idle=True, ended={"served": ["a.1"]}) == (sent("a"), [wait, POLL])
        assert world.step(is_idle=True)[1] == [POLL]
        assert world.step(is_idle=True, pulls=[pull("b")])[1] == [("pull", "b"), wait, POLL]
        assert world.step(is_idle=True, ended={"pulled": ["b"]}) == (received("b"), [wait, POLL])
        assert world.step(is_idle=True)[1] == [POLL]

    def test_a_wait_is_short(self):
        assert 0 < IDLE_SECONDS <= 0.01

    def test_what_the_wire_does_not_know_from_here_changes_nothing(self, world):
        world.step(holds=[hold("a")], pulls=[pull("b")])
        strange = {"served": ["b", "a", "z.1"], "pulled": ["a", "z"], "failed": [("z", "no"), ("a", "no")]}
        assert world.step(ended=strange) == (NOTHING, [POLL])
        assert world.half.get_block_ids_with_load_errors() == set()
        assert world.step(ended={"served": ["a.1"], "pulled": ["b"]})[0] == KVConnectorTransferResults(
            {"a"}, {"b"}
        )

    def test_metadata_of_somebody_else(self, world):
        world.half.bind_connector_metadata(SimpleNamespace(holds=[]))
        for call in (lambda: world.half.start_load_kv(None), lambda: world.half.get_transfer_results(set())):
            with pytest.raises(TypeError) as raised:
                call()
            assert str(raised.value) == "connector metadata: expected P2PMetadata, got SimpleNamespace"

    def test_without_metadata(self, world):
        with pytest.raises(RuntimeError, match="P2PWorkerSide has no metadata"):
            world.half.start_load_kv(None)


class TestHolds:
    def test_one_that_was_pulled_is_reported_once(self, world):
        world.step(holds=[hold("a"), hold("b")])
        assert world.step(ended={"served": ["b.1"]})[0] == sent("b")
        assert world.step(ended={"served": ["b.1"]})[0] == NOTHING
        assert world.step(ended={"served": ["a.1"]})[0] == sent("a")

    def test_one_that_ends_in_the_step_in_which_it_begins(self, world):
        assert world.step(holds=[hold("a")], ended={"served": ["a.1"]})[0] == sent("a")

    def test_its_time_is_over(self, world, caplog):
        world.step(holds=[hold("a")])
        world.now += 50
        world.step(holds=[hold("b")])
        world.now += 49.9
        assert world.step() == (NOTHING, [POLL])
        world.now += 0.1
        assert world.step() == (sent("a"), [POLL, ("withdraw", "a.1")])
        assert caplog.messages == ["request a: its blocks were not pulled and are free again"]
        assert world.step() == (NOTHING, [POLL])
        world.now += 50
        assert world.step()[0] == sent("b")

    def test_of_many_whose_time_is_over_the_first_is_told_of_at_once(self, world, caplog):
        """The others together, with the first one that ends after a pause."""
        said = "request {}: its blocks were not pulled and are free again{}".format
        begins = {
            "a": 0,
            "b": 0,
            "c": 1,
            "d": QUIET_SECONDS - 1,
            "e": QUIET_SECONDS,
            "f": 99,
            "g": 2 * QUIET_SECONDS,
        }
        ends = {name: begin + OPTIONS.hold_seconds for name, begin in begins.items()}
        told, begun = {}, world.now
        for seconds in sorted({*begins.values(), *ends.values()}):
            world.now = begun + seconds
            world.step(holds=[hold(name) for name, begin in begins.items() if begin == seconds])
            told |= {message: seconds for message in caplog.messages if message not in told}
        assert told == {
            said("a", ""): ends["a"],
            said("e", ", and so are those of 3 before it"): ends["e"],
            said("g", ", and so are those of 1 before it"): ends["g"],
        }
        assert len(caplog.messages) == 3 and not world.half.held_requests

    def test_one_that_is_read_ends_later(self, world):
        world.step(holds=[hold("a")])
        world.now += 100
        world.wire.busy.add("a.1")
        for _ in range(2):
            assert world.step() == (NOTHING, [POLL, ("withdraw", "a.1")])
            world.now += 1
        world.wire.busy.clear()
        assert world.step() == (sent("a"), [POLL, ("withdraw", "a.1")])
        assert world.step(ended={"served": ["a.1"]}) == (NOTHING, [POLL])

    def test_or_is_served_in_the_end(self, world, caplog):
        world.step(holds=[hold("a")])
        world.now += 100
        world.wire.busy.add("a.1")
        world.step()
        assert world.step(ended={"served": ["a.1"]}) == (sent("a"), [POLL])
        assert not caplog.messages

    def test_one_that_is_revoked_ends_now(self, world):
        world.step(holds=[hold("a"), hold("b")])
        results, calls = world.step(revoked=["a", "unknown"], holds=[hold("c")])
        assert (results, calls) == (sent("a"), [("serve", "c.1"), POLL, ("withdraw", "a.1")])
        assert world.step(revoked=["a"]) == (NOTHING, [POLL])
        assert world.step(revoked=["b", "c"])[0] == sent("b", "c")

    def test_one_that_is_revoked_in_the_step_in_which_it_begins(self, world):
        assert world.step(holds=[hold("a")], revoked=["a"])[0] == sent("a")

    def test_one_that_is_revoked_and_read(self, world):
        world.step(holds=[hold("a")])
        world.wire.busy.add("a.1")
        assert world.step(revoked=["a"]) == (NOTHING, [POLL, ("withdraw", "a.1")])
        world.wire.busy.clear()
        assert world.step()[0] == sent("a")

    def test_an_id_that_comes_again(self, world):
        world.step(holds=[hold("a", 1)])
        world.step(ended={"served": ["a.1"]})
        world.now += 60
        world.step(holds=[hold("a", 2)])
        world.now += 60  # the time of the first would be over
        assert world.step(ended={"served": ["a.1"]}) == (NOTHING, [POLL])
        assert world.step(ended={"served": ["a.2"]})[0] == sent("a")


class TestPulls:
    def test_one_that_succeeds_is_reported_once(self, world):
        world.step(pulls=[pull("a"), pull("b")])
        assert world.step(ended={"pulled": ["b"]}) == (received("b"), [POLL])
        assert world.step(ended={"pulled": ["b", "a"]})[0] == received("a")
        assert world.half.get_block_ids_with_load_errors() == set()

    def test_of_a_long_reason_the_beginning_is_said(self, world, caplog):
        world.step(pulls=[pull("a", 3)])
        world.step(ended={"failed": [("a", "no hold " + "y" * 100_000)]})
        [message] = caplog.messages
        assert message == f"request a: its KV did not come from there:9000: no hold {'y' * 492}"

    def test_one_that_fails_is_reported_once_with_its_blocks_and_declines(self, world, caplog):
        world.step(pulls=[pull("a", 3, 4), pull("b", 5)])
        failed = {"failed": [("a", "no route")]}
        assert world.step(ended=failed) == (received(failed=["a"]), [POLL, ("decline", "there.a")])
        assert world.half.get_block_ids_with_load_errors() == {3, 4}
        assert world.half.get_block_ids_with_load_errors() == set()
        assert caplog.messages == ["request a: its KV did not come from there:9000: no route"]
        assert world.step(ended={**failed, "pulled": ["a"]}) == (NOTHING, [POLL])
        assert world.half.get_block_ids_with_load_errors() == set()
        assert world.step(ended={"failed": [("b", "x")]})[0] == received(failed=["b"])
        assert world.half.get_block_ids_with_load_errors() == {5}

    def test_several_in_one_step(self, world):
        world.step(pulls=[pull("a", 1), pull("b", 2), pull("c", 3)])
        ended = {"failed": [("a", "x"), ("c", "y")], "pulled": ["b"]}
        assert world.step(ended=ended)[0] == received("b", failed=["a", "c"])
        assert world.half.get_block_ids_with_load_errors() == {1, 3}

    def test_what_takes_too_long_is_given_up(self, world, caplog):
        world.step(pulls=[pull("a", 3), pull("b", 4)])
        world.now += 9.9
        assert world.step() == (NOTHING, [POLL])
        world.now += 0.1
        results, calls = world.step()
        assert results == received(failed=["a", "b"])
        assert calls == [POLL, ("give_up", "a"), ("decline", "there.a"), ("give_up", "b"), ("decline", "there.b")]
        assert world.half.get_block_ids_with_load_errors() == {3, 4}
        said = "its KV did not come from there:9000: no end within 10.0 seconds"
        assert caplog.messages == [f"request a: {said}", f"request b: {said}"]
        assert world.step() == (NOTHING, [POLL])

    def test_one_that_is_writing_is_given_up_later(self, world):
        world.step(pulls=[pull("a", 3)])
        world.now += 10
        world.wire.busy.add("a")
        for _ in range(2):
            assert world.step() == (NOTHING, [POLL, ("give_up", "a")])
            assert world.half.get_block_ids_with_load_errors() == set()
            world.now += 1
        world.wire.busy.clear()
        assert world.step()[0] == received(failed=["a"])
        assert world.half.get_block_ids_with_load_errors() == {3}

    def test_or_it_comes_in_the_end(self, world):
        world.step(pulls=[pull("a", 3)])
        world.now += 10
        world.wire.busy.add("a")
        world.step()
        assert world.step(ended={"pulled": ["a"]}) == (received("a"), [POLL])
        assert world.half.get_block_ids_with_load_errors() == set()

    def test_a_request_that_ended_meanwhile_is_waited_for(self, world):
        world.step(pulls=[pull("a")])
        assert world.step(finished=["a"]) == (NOTHING, [POLL])
        assert world.step(ended={"pulled": ["a"]})[0] == received("a")


def test_who_is_held_and_who_is_pulling_can_be_asked(world):
    half = world.half
    world.step(holds=[hold("a"), hold("b")], pulls=[pull("c"), pull("d")])
    assert (set(half.held_requests), set(half.pulling_requests)) == ({"a", "b"}, {"c", "d"})
    world.step(ended={"served": ["a.1"], "pulled": ["c"], "failed": [("d", "x")]})
    assert (set(half.held_requests), set(half.pulling_requests)) == ({"b"}, set())


class TestItsWire:
    def test_there_is_none_before_the_caches_and_none_after_the_end(self):
        world = World()
        said = "P2PConnector has no wire: register_kv_caches was not called, or shutdown was"
        for _ in range(2):
            with pytest.raises(RuntimeError) as raised:
                _ = world.half.wire
            assert str(raised.value) == said
            world.half.shutdown()
            world.half.register_kv_caches({"layer": None})
            assert world.half.wire is world.wire
            world.half.shutdown()
            assert world.wire.calls == [("close",)]
            world.half.shutdown()
            assert world.wire.calls == [("close",)]

    def test_it_is_made_of_the_caches(self):
        world, caches = World(), {"layer": object()}
        world.half.register_kv_caches(caches)
        assert world.caches == [caches]

    def test_new_caches_close_the_old_wire_first(self, world):
        seen = []

        def make_wire(kv_caches):
            seen.append(list(world.wires[0].calls))
            return FakeWire()

        world.half._make_wire = make_wire
        world.half.register_kv_caches({})
        assert seen == [[("close",)]]
        assert world.half.wire is not world.wires[0]

    def test_a_wire_that_can_not_be_made_leaves_none(self, world):
        def make_wire(kv_caches):
            raise OSError("no address")

        world.half._make_wire = make_wire
        with pytest.raises(OSError, match="no address"):
            world.half.register_kv_caches({})
        world.half.shutdown()
        assert world.wires[0].calls == [("close",)]
        with pytest.raises(RuntimeError, match="P2PConnector has no wire"):
            _ = world.half.wire

    def test_its_clock_is_the_clock(self):
        half = P2PWorkerSide(vllm_config(), kv_cache_config(), OPTIONS, (), World().make_wire)
        assert half.clock is read_clock
        assert half.clock() <= half.clock()


def test_recounting_finds_what_cannot_be(world):
    world.step(holds=[hold("a")])
    world.half._request_of.clear()
    with pytest.raises(AssertionError) as raised:
        world.half.check()
    assert str(raised.value) == "holds {'a.1': 'a'}, requests of holds {}"
