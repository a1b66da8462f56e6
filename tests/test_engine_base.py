"""Four legs follow from the ranked plans of two sides."""

import pytest
from benches import SIMULATED, FakeBench, FakeClock, FakeEngine, as_engine

from studytool.engines import open_engine
from studytool.engines.base import Bench, Clock, Order, PlanError, Terms, leg_plans
from studytool.engines.simulated import Simulated
from studytool.model import Plan, Status

B1, B2 = Plan(engine=1, name="b1"), Plan(engine=2, name="b2")
F1, F2 = Plan(engine=11, name="f1"), Plan(engine=12, name="f2")
PLANS = {plan.name: plan for plan in (B1, B2, F1, F2)}


@pytest.mark.parametrize(
    ("base", "lookup", "library", "backend", "frost", "auto", "default"),
    [
        # the library's own list decides; the table lifts the row, puts it last, or says nothing
        ("library", None, "b1 f1", "b1", "f1", "b1", "b1"),
        ("library", True, "b1 f1", "b1", "f1", "f1", "b1"),
        ("library", False, "b1 f1", "b1", "f1", "b1", "b1"),
        ("library", None, "f1 b1", "b1", "f1", "f1", "f1"),
        ("library", True, "f1 b1", "b1", "f1", "f1", "f1"),
        ("library", False, "f1 b1", "b1", "f1", "b1", "f1"),
        # one side only: there is nothing to lift, or nothing to come before the row
        ("library", None, "b1", "b1", "", "b1", "b1"),
        ("library", True, "b1", "b1", "", "b1", "b1"),
        ("library", False, "b1", "b1", "", "b1", "b1"),
        ("library", None, "f1", "", "f1", "f1", "f1"),
        ("library", True, "f1", "", "f1", "f1", "f1"),
        ("library", False, "f1", "", "f1", "f1", "f1"),
        # a list of the library that holds only the row: the backend is there all the same
        ("library", None, "f1", "b1", "f1", "f1", "f1"),
        ("library", False, "f1", "b1", "f1", "b1", "f1"),
        # a list of the library that holds neither side is its own; the row comes first when it is lifted
        ("library", None, "b2", "b1", "f1", "b2", "b2"),
        ("library", True, "b2", "b1", "f1", "f1", "b2"),
        ("library", False, "b2", "b1", "f1", "b2", "b2"),
        # a trail-only row: the backend leads without an entry, whatever the library says
        ("backend", None, "f1 b1", "b1 b2", "f1", "b1", "b1"),
        ("backend", True, "f1 b1", "b1 b2", "f1", "f1", "b1"),
        ("backend", False, "f1 b1", "b1 b2", "f1", "b1", "b1"),
        ("backend", None, "", "", "f1", "f1", "f1"),
        ("backend", True, "", "", "f1 f2", "f1", "f1"),
        ("backend", False, "", "", "f1 f2", "f1", "f1"),
        ("backend", None, "f1", "b1", "", "b1", "b1"),
        ("backend", True, "f1", "b1", "", "b1", "b1"),
        ("backend", False, "f1", "b1", "", "b1", "b1"),
        # the order within a side is kept, and the row's other plans are not lifted past its first
        ("library", True, "b1 f1 f2 b2", "b1 b2", "f2 f1", "f2", "b1"),
        ("library", False, "f1 f2 b2 b1", "b2 b1", "f1 f2", "b2", "f1"),
        # no plan at all
        ("library", None, "", "", "", "", ""),
        ("library", True, "", "", "", "", ""),
        ("library", False, "", "", "", "", ""),
        ("backend", None, "", "", "", "", ""),
        ("backend", True, "", "", "", "", ""),
        ("backend", False, "", "", "", "", ""),
    ],
)
def test_legs_follow_from_plans(
    base: str, lookup: bool | None, library: str, backend: str, frost: str, auto: str, default: str
) -> None:
    """Backend and frost are the first of their side; auto is what base and look-up make it; default knows no table."""
    sides = [[PLANS[name] for name in names.split()] for names in (library, backend, frost)]
    legs = leg_plans(Order(base, lookup), *sides)

    assert legs == {
        "backend": sides[1][0] if backend else None,
        "frost": sides[2][0] if frost else None,
        "auto": PLANS.get(auto),
        "default": PLANS.get(default),
    }


def test_plans_are_told_apart_by_identity() -> None:
    """A plan of the row that the library lists under another name is the row's, but other knobs make another plan."""
    renamed = Plan(engine=11, name="the library's name")
    tuned = Plan(engine=11, name="f1", knobs={"k1": 2})

    assert leg_plans(Order("library", False), [renamed, B1], [B1], [F1])["auto"] == B1
    assert leg_plans(Order("library", False), [tuned, B1], [B1], [F1])["auto"] == tuned


def test_fakes_and_engines_keep_the_protocol() -> None:
    """What the tests measure with has the shape of an engine, a bench and a clock, as mypy checks here."""
    clock: Clock = FakeClock()
    bench: Bench = FakeBench(FakeClock())
    engine = as_engine(FakeEngine(bench))

    assert (clock.tick_ns, engine.own_clock(), as_engine(Simulated(SIMULATED)).own_clock() is None) == (1, None, False)


def test_engine_is_opened_by_name() -> None:
    """The simulated engine is opened with what the study declares, without any library."""
    engine = open_engine(Terms(engine="simulated", row="", base="library", simulated={**SIMULATED, "tick_ns": 40}))
    clock = engine.own_clock()

    assert isinstance(engine, Simulated)
    assert clock is not None
    assert clock.tick_ns == 40


def test_plan_error_has_status_and_words() -> None:
    """The error of a case without a plan says which status it gives, and why."""
    error = PlanError(Status.REFUSED, "no such mask")

    assert (error.status, str(error)) == (Status.REFUSED, "no such mask")
