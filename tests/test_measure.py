"""One case in one regime: proven, checked, warmed up, calibrated, timed in the order of its blocks."""

from collections.abc import Callable
from typing import Any

import pytest
from benches import FakeBench, FakeClock, FakeEngine, make_request

from studytool import measure
from studytool.engines.base import Order, PlanError
from studytool.engines.simulated import BACKEND, FROST
from studytool.measure import Measured
from studytool.model import LEGS, Plan, Status

OTHER = Plan(engine=5, name="eng5_k1=1", knobs={"k1": 1})


def _bench(tick_ns: int = 1) -> FakeBench:
    return FakeBench(FakeClock(tick_ns))


def _measured(bench: FakeBench, **changes: Any) -> Measured:
    return measure.run_case(FakeEngine(bench), bench.clock, make_request(**changes))


def _inner(found: Measured) -> dict[str, int]:
    return {leg: record.inner for leg, record in found.legs.items()}


def test_legs_are_timed_in_the_order_of_the_blocks() -> None:
    """Every block times each leg once in its own order, and each leg keeps all its samples in time order."""
    bench, request = _bench(), make_request()
    bench.cost = lambda _leg, inner, number: 1000 * inner - number
    found = measure.run_case(FakeEngine(bench), bench.clock, request)
    asked = [LEGS[int(index)] for block in request.orders for index in block]
    first = len(bench.launched) - 2 * len(asked)
    timed = bench.launched[first + 1 :: 2]
    calls = bench.clock.taken - len(asked)

    assert (found.status, found.order) == (Status.OK, request.orders)
    assert [leg for leg, _ in timed] == asked
    for leg in LEGS:
        places = [place for place, name in enumerate(asked) if name == leg]
        assert found.legs[leg].ns == tuple(1000 * found.legs[leg].inner - (first + 2 * place + 1) for place in places)
        assert found.legs[leg].counters == {"call": tuple(calls + place + 1 for place in places)}
        assert found.legs[leg].host_ns == ()


def test_record_has_plan_build_and_clock() -> None:
    """Each leg says its plan and how long that took to build; the clock rate is read before and after everything."""
    bench = _bench()
    found = _measured(bench)

    assert {leg: (found.legs[leg].plan, found.legs[leg].build_ns) for leg in LEGS} == {
        leg: (bench.plans[leg], bench.build_ns[leg]) for leg in LEGS
    }
    assert found.clock_mhz == (0, bench.clock.taken)
    assert found.checks == {"legs_o_ppb": 0, "float64_o_ppb": 0, "warmup_rounds": 5, "steady": 1, "trend_ppm": 0}


@pytest.mark.parametrize(
    ("tick_ns", "min_sample_ns", "cost", "expected"),
    [
        (1, 150_000, 1000, 150),
        (1, 150_000, 1001, 150),
        (1, 150_000, 150_000, 1),
        (1, 150_000, 149_999, 2),
        (1, 1, 10, 20),
        (40, 150_000, 1000, 150),
        (1000, 150_000, 1000, 200),
        (750, 150_000, 1000, 150),
        (751, 150_000, 1000, 151),
    ],
)
def test_sample_is_long_enough(tick_ns: int, min_sample_ns: int, cost: int, expected: int) -> None:
    """A sample has so many launches that it lasts 200 ticks and the study's shortest sample, and no more."""
    bench = _bench(tick_ns)
    bench.cost = lambda _leg, inner, _number: cost * inner
    found = _measured(bench, min_sample_ns=min_sample_ns)

    assert _inner(found) == dict.fromkeys(LEGS, expected)


def test_launches_grow_until_a_sample_is_long_enough() -> None:
    """Where many launches take less than the sum of single ones, their number grows until they last long enough."""
    bench = _bench()
    bench.cost = lambda _leg, inner, _number: 2000 if inner == 1 else 500 * inner
    found = _measured(bench)

    assert 300 <= _inner(found)["backend"] <= 330
    assert min(found.legs["backend"].ns) >= 150_000


def test_legs_of_one_plan_share_launches() -> None:
    """Legs that run one plan have one number of launches, whatever each took; another plan has its own."""
    bench = _bench()
    bench.cost = lambda leg, inner, _number: {"backend": 1000, "frost": 500, "auto": 700, "default": 3000}[leg] * inner
    found = _measured(bench)

    assert _inner(found) == {"backend": 150, "frost": 300, "auto": 150, "default": 150}


def _warmed(bench: FakeBench, found: Measured) -> list[str]:
    """Return the legs that were launched before calibration began."""
    return [leg for leg, _ in bench.launched[: 4 * int(found.checks["warmup_rounds"])]]


def test_warm_up_is_equal_and_ends_when_all_are_steady() -> None:
    """All legs are warmed up in turn, until the last five samples of each agree within one percent."""
    bench = _bench()

    def cost(leg: str, inner: int, number: int) -> int:
        return (1000 + (100 * max(0, 7 - number // 4) if leg == "default" else 0)) * inner

    bench.cost = cost
    found = _measured(bench)

    assert (found.checks["warmup_rounds"], found.checks["steady"]) == (12, 1)
    assert _warmed(bench, found) == [*LEGS] * 12
    assert _inner(found)["default"] == 150


@pytest.mark.parametrize(("swing", "steady"), [(10, 1), (11, 0)])
def test_one_percent_is_steady(swing: int, steady: int) -> None:
    """Samples that agree within one percent are steady, and just beyond it they are not."""
    bench = _bench()
    bench.cost = lambda _leg, inner, number: (1000 + swing * (number // 4 % 2)) * inner
    found = _measured(bench)

    assert (found.checks["steady"], found.checks["warmup_rounds"]) == (steady, 5 if steady else measure.WARMUP_ROUNDS)


def test_restless_case_is_timed_and_flagged() -> None:
    """A case that never comes to rest is timed after the last round of warming up, and its record says so."""
    bench = _bench()
    bench.cost = lambda _leg, inner, number: (1000 + 300 * (number // 4 % 2)) * inner
    found = _measured(bench)

    assert found.status is Status.OK
    assert (found.checks["warmup_rounds"], found.checks["steady"]) == (measure.WARMUP_ROUNDS, 0)
    assert _warmed(bench, found) == [*LEGS] * measure.WARMUP_ROUNDS


def test_long_restless_case_is_warmed_up_for_a_limited_time() -> None:
    """Warming up ends when its time is spent, though never before five rounds."""
    rounds = []
    for launch_ns in (measure.WARMUP_NS // 40, measure.WARMUP_NS):
        bench = _bench()
        bench.cost = lambda _leg, inner, number, ns=launch_ns: ns * inner * (1 + number // 4 % 2)  # type: ignore[misc]
        rounds.append(_measured(bench).checks["warmup_rounds"])

    assert rounds == [7, 5]


@pytest.mark.parametrize("short_leg", LEGS[:2])
def test_too_short_for_the_clock_is_unresolvable(short_leg: str) -> None:
    """Where no number of launches lasts long enough, the case is unresolvable and nothing is timed."""
    bench = _bench()
    bench.cost = lambda leg, inner, _number: 5 if leg == short_leg else 1000 * inner
    found = _measured(bench)

    assert (found.status, found.error, found.order) == (Status.UNRESOLVABLE, "no sample is long enough", ())
    assert all(record.ns == () for record in found.legs.values())
    assert max(inner for _, inner in bench.launched) == measure.INNER_LIMIT


def _after(calls: int, then: Plan | None) -> Callable[[FakeBench], Callable[[str], Plan | None]]:
    """Return what makes a bench name another plan for leg auto from a certain question on."""

    def of(bench: FakeBench) -> Callable[[str], Plan | None]:
        asked = [0]

        def answer(leg: str) -> Plan | None:
            asked[0] += 1
            return then if leg == "auto" and asked[0] > calls else bench.plans[leg]

        return answer

    return of


@pytest.mark.parametrize("plan", [OTHER, FROST, None])
@pytest.mark.parametrize("leg", LEGS)
def test_plan_that_ran_is_the_plan_that_was_named(leg: str, plan: Plan | None) -> None:
    """A leg that ran another plan than it is named for, or an unknown one, is declined before anything is timed."""
    bench = _bench()
    bench.plans["frost"] = OTHER if plan is FROST else FROST
    named = bench.plans[leg]
    bench.proven = lambda name: plan if name == leg else bench.plans[name]
    found = _measured(bench)
    ran = plan.name if plan else "no known plan"

    assert (found.status, found.order, bench.launched) == (Status.DECLINED, (), [])
    assert found.error == f"leg {leg} is named {named.name if named else ''} and ran {ran}"


@pytest.mark.parametrize("block", [1, 5, 8])
def test_plan_that_changes_between_blocks_is_declined(block: int) -> None:
    """A plan that changes while the blocks run spoils the case; its samples are not kept."""
    bench = _bench()
    bench.current = _after(8 + 4 * (block - 1), OTHER)(bench)
    found = _measured(bench)

    assert (found.status, found.order) == (Status.DECLINED, ())
    assert found.error == f"leg auto changed from {BACKEND.name} to {OTHER.name} between blocks"
    assert all(record.ns == () for record in found.legs.values())


def test_plan_is_proven_again_after_the_blocks() -> None:
    """A leg that says to the end that it runs its plan and does not is found out by the last proof."""
    bench = _bench()
    bench.proven = _after(4, OTHER)(bench)
    found = _measured(bench)

    assert (found.status, found.error) == (
        Status.DECLINED,
        f"leg auto is named {BACKEND.name} and ran {OTHER.name}",
    )
    assert bench.proofs == [*LEGS, *LEGS[:3]]
    assert all(record.ns == () for record in found.legs.values())


@pytest.mark.parametrize(
    ("missing", "status"),
    [("frost", Status.NO_FROST), ("backend", Status.NO_BACKEND), ("auto", Status.NO_BACKEND)],
)
def test_leg_without_a_plan_has_its_status(missing: str, status: Status) -> None:
    """A case without a plan on one side says so, keeps the plans of the others, and is not timed."""
    bench = _bench()
    bench.plans[missing] = None
    found = _measured(bench)

    assert (found.status, found.error, bench.launched) == (status, f"leg {missing} has no plan", [])
    assert {leg: record.plan for leg, record in found.legs.items()} == bench.plans


def test_routing_proves_auto_and_default_and_times_nothing() -> None:
    """Without blocks, auto and default are proven, sides may be missing, numbers are not looked at."""
    bench = _bench()
    bench.plans["frost"] = bench.plans["backend"] = None
    bench.results, bench.truth = {}, None
    found = _measured(bench, orders=())

    assert (found.status, found.order, bench.launched) == (Status.OK, (), [])
    assert bench.proofs == ["auto", "default"]
    assert found.legs["auto"].plan == BACKEND


@pytest.mark.parametrize("leg", ["auto", "default"])
def test_routing_declines_what_ran_something_else(leg: str) -> None:
    """A routing case whose auto or default ran another plan is declined."""
    bench = _bench()
    bench.proven = lambda name: OTHER if name == leg else bench.plans[name]

    assert _measured(bench, orders=()).status is Status.DECLINED


@pytest.mark.parametrize("status", [Status.REFUSED, Status.DECLINED])
def test_case_without_plans_has_the_engine_s_words(status: Status) -> None:
    """A case that the engine cannot prepare has the status and the words that the engine gives."""
    clock, engine = FakeClock(), FakeEngine(PlanError(status, "no such mask"))
    found = measure.run_case(engine, clock, make_request(base="backend", lookup=False))

    assert (found.status, found.error, found.legs) == (status, "no such mask", {})
    assert engine.asked[-1] == Order("backend", False)


def test_notes_stand_among_the_checks() -> None:
    """What there is to say of how a case was made ready is in the record, also what was noted while it was timed."""
    bench = _bench()

    def cost(_leg: str, inner: int, _number: int) -> int:
        bench.notes["late"] = 1
        return 1000 * inner

    bench.notes, bench.cost = {"plan_ns": 7, "steady": 9}, cost
    found = _measured(bench)

    assert {name: found.checks[name] for name in ("plan_ns", "late", "steady")} == {
        "plan_ns": 7,
        "late": 1,
        "steady": 1,
    }


def test_missing_plan_is_told_with_what_declined() -> None:
    """Where plans declined, a leg that has none says so in the engine's words, and the record keeps them."""
    bench = _bench()
    bench.plans["frost"], bench.notes = None, {"declined_frost": "row: no kernel"}
    found = _measured(bench)

    assert (found.status, found.error) == (Status.NO_FROST, "leg frost has no plan: row: no kernel")
    assert found.checks == bench.notes


def test_state_is_read_before_each_block() -> None:
    """The device is asked once a block, before its first sample; what is not timed has no blocks."""
    bench = _bench()
    found, blocks = _measured(bench), len(make_request().orders)
    first = bench.clock.taken - len(LEGS) * blocks

    assert found.blocks == {"taken": tuple(first + len(LEGS) * block for block in range(blocks))}
    assert _measured(bench, orders=()).blocks == {}


@pytest.mark.parametrize("place", ["armed", "outputs", "reference", "flush_probe_ns", "proven_plan"])
def test_engine_may_give_a_case_up_at_any_time(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """What the engine finds out only when a case is launched has the status and the words that it gives."""
    bench = _bench()

    def give_up(*_: object) -> Any:
        raise PlanError(Status.WRONG_RESULT, "the graph is empty")

    monkeypatch.setattr(bench, place, give_up)
    found = _measured(bench, regime="replay-cold")

    assert (found.status, found.error, found.order) == (Status.WRONG_RESULT, "the graph is empty", ())
