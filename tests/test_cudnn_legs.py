"""The legs of a case on cuDNN, on a fake device: which plans they have, and which cases are not timed and why."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import gpus
import pytest
from gpus import BWD, FWD, Fake, engines, small

from studytool.model import LEGS, Status

cudnn = pytest.importorskip("cudnn")
fakecudnn = pytest.importorskip("fakecudnn")
pytestmark = pytest.mark.torch

opened, forward = gpus.opened, gpus.forward


# Legs


@pytest.mark.parametrize(
    ("base", "lookup", "auto", "default"),
    [
        ("backend", None, 5, 5),
        ("backend", True, FWD, 5),
        ("backend", False, 5, 5),
        ("library", None, FWD, FWD),
        ("library", True, FWD, FWD),
        ("library", False, 5, FWD),
    ],
)
def test_four_legs_are_two_plans(forward: Fake, base: str, lookup: bool | None, auto: int, default: int) -> None:
    """Backend and frost are the first of their sides; auto and default each alias one of them, an A/A pair."""
    found = forward.run(small(mask="tl"), base=base, lookup=lookup)
    by_plan = {leg: record.plan.identity for leg, record in found.legs.items() if record.plan}

    assert (found.status, found.error) == (Status.OK, "")
    assert engines(found) == {"backend": 5, "frost": FWD, "auto": auto, "default": default}
    assert len(set(by_plan.values())) == 2
    assert all(found.legs[a].inner == found.legs[b].inner for a in LEGS for b in LEGS if by_plan[a] == by_plan[b])
    assert {ns / found.legs["frost"].inner for ns in found.legs["frost"].ns} == {40_000.0}
    assert {ns / found.legs["backend"].inner for ns in found.legs["backend"].ns} == {100_000.0}


def test_record_tells_of_planning_and_building(forward: Fake) -> None:
    """Planning is noted with its time, each leg with the time of its build, and legs of one plan share it."""
    bench = forward.bench(small(), lookup=True)
    found = forward.run(small(), lookup=True)

    assert int(bench.notes["plan_ns"]) > 0
    assert bench.build_ns["auto"] == bench.build_ns["frost"] > 0
    assert bench.build_ns["default"] == bench.build_ns["backend"] > 0
    assert found.checks.keys() >= {"plan_ns", "legs_o_ppb", "float64_o_ppb", "warmup_rounds"}
    assert not any(name.startswith("declined") for name in found.checks)


def test_blocks_and_host_times_come_from_the_device(forward: Fake) -> None:
    """Host times are kept apart, every sample says whether its queue ran dry, every block what the board said."""
    found = forward.run(small())

    assert set(found.legs["backend"].host_ns) == {fakecudnn.HOST_NS * found.legs["backend"].inner}
    assert {leg: record.counters for leg, record in found.legs.items()} == {leg: {"gap": (0,) * 4} for leg in LEGS}
    state = {**forward.device.board.readings, "floor_ns": 1}
    assert found.blocks == {name: (value,) * 4 for name, value in state.items()}
    assert found.clock_mhz == (fakecudnn.MHZ,) * 2


# Cases that are not timed


@pytest.mark.parametrize(
    ("changes", "row", "auto"),
    [
        ({"layout": "thd"}, "sdpa_fwd_prefill_sm80", FWD),
        ({"layout": "thd", "op": "sdpa_bwd"}, "sdpa_bwd_sm80", BWD),
        ({"layout": "paged"}, "sdpa_fwd_prefill_sm80", 5),
    ],
)
def test_packed_and_paged_cases_are_routed_not_timed(
    opened: Callable[..., Fake], changes: dict[str, Any], row: str, auto: int
) -> None:
    """What has no tensors here is planned all the same: routing is fine, timing is declined by name."""
    fake = opened(row)
    routed, timed = fake.run(small(**changes), lookup=True, orders=()), fake.run(small(**changes), lookup=True)

    assert (routed.status, routed.error, engines(routed)["auto"], engines(routed)["default"]) == (
        Status.OK,
        "",
        auto,
        5,
    )
    assert (timed.status, timed.error) == (
        (Status.DECLINED, f"layout {changes['layout']} is planned here, not timed")
        if auto != 5
        else (Status.NO_FROST, "leg frost has no plan")
    )
    assert not any(event.startswith("launch") for event in fake.device.log)


def test_refused_and_unspelled_cases_keep_their_words(forward: Fake) -> None:
    """An invalid graph and a feature without a spelling end with the status and the words of `graphs`."""
    refused, declined = forward.run(small(d_qk=60)), forward.run(small(dropout_pct=10))

    assert (refused.status, refused.error) == (Status.REFUSED, "hidden_dim should be multiple of 8")
    assert (declined.status, declined.error) == (Status.DECLINED, "dropout is not built for cuDNN here")


# Plans that are missing


def test_side_without_a_plan_is_named_with_its_reasons(forward: Fake) -> None:
    """A side that the library does not have, and one whose plans all decline, have their status; reasons are told."""
    said = "cudnnGraphNotSupportedError: no kernel"
    none = forward.run(small(d_qk=264, d_v=264))
    forward.fates.declines = {FWD: "no kernel"}
    declined = forward.run(small())
    forward.fates.declines = dict.fromkeys((5, 7, 3), "no kernel")
    closed = forward.run(small())
    forward.fates.declines, forward.fates.no_backend = {}, True
    absent = forward.run(small())
    name = "sdpa_fwd_prefill_sm80[PACK_GQA=0, SCHED_POLICY=0, SPLIT_KV=1]"

    assert (none.status, none.error) == (Status.NO_FROST, "leg frost has no plan")
    assert (declined.status, declined.error) == (Status.NO_FROST, f"leg frost has no plan: {name}: {said}")
    assert (closed.status, closed.error) == (
        Status.NO_BACKEND,
        f"leg backend has no plan: eng5: {said}; eng7: {said}; eng3: {said}",
    )
    assert (absent.status, absent.error) == (Status.NO_BACKEND, "leg backend has no plan")
    assert engines(declined) == {"backend": 5, "frost": None, "auto": 5, "default": 5}


def test_reasons_of_one_side_are_not_told_of_the_other(forward: Fake) -> None:
    """A side that the library does not have is not said to be missing for what a plan of the other side declined."""
    forward.fates.declines = {5: "needs more memory"}

    assert forward.run(small(d_qk=264, d_v=264)).error == "leg frost has no plan"


def test_plan_that_declines_falls_to_the_next(forward: Fake) -> None:
    """A plan that does not build is passed over by every leg, is built once, and stands in the record with why."""
    forward.fates.declines = {5: "needs more memory"}
    found = forward.run(small(), lookup=True)

    assert engines(found) == {"backend": 7, "frost": FWD, "auto": FWD, "default": 7}
    assert found.status is Status.OK
    assert found.checks["declined_backend"] == "eng5: cudnnGraphNotSupportedError: needs more memory"


def test_row_s_next_plan_is_taken_with_its_own_knobs(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the row's first plan declines its next one is the frost leg, told apart by its knobs."""
    build = cudnn.pygraph.build_plan_at_index
    asked: Counter[int] = Counter()

    def first_declines(graph: Any, index: int) -> None:
        asked[index] += 1
        if index == 0:
            raise NotImplementedError("no such schedule")
        build(graph, index)

    monkeypatch.setattr(cudnn.pygraph, "build_plan_at_index", first_declines)
    bench = forward.bench(small(mask="tl"), lookup=True)

    assert bench.plans["frost"].knobs["SCHED_POLICY"] == 1
    assert bench.plans["auto"] == bench.plans["frost"] == bench.proven_plan("auto")
    assert bench.notes["declined_frost"] == (
        "sdpa_fwd_prefill_sm80[PACK_GQA=0, SCHED_POLICY=2, SPLIT_KV=1]: NotImplementedError: no such schedule"
    )
    assert set(asked.values()) == {1}


def test_leg_without_a_plan_cannot_be_launched(forward: Fake) -> None:
    """A leg that has no plan is proven to have none, and is an error for whoever would launch it."""
    bench = forward.bench(small(d_qk=264, d_v=264))

    assert bench.proven_plan("frost") is None
    with pytest.raises(ValueError, match=r"\Aleg frost has no plan\Z"):
        bench.current_plan("frost")


def test_defect_of_the_library_is_no_status(forward: Fake) -> None:
    """An error of the planner that is no decline leaves `run_case`: the worker ends, and its parent says error."""
    forward.fates.key_error = {24}

    with pytest.raises(KeyError, match="576"):
        forward.run(small())


def test_graph_whose_plans_all_have_gone_is_declined(forward: Fake) -> None:
    """A graph that neither side serves is declined in the library's words."""
    forward.fates.no_backend = True
    found = forward.run(small(d_qk=264, d_v=264))

    assert found.status is Status.DECLINED
    assert "no engine" in found.error
