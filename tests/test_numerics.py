"""Legs are held against each other and against float64 before anything is timed."""

from typing import Any

import numpy as np
import pytest
from benches import NUMBERS, FakeBench, FakeClock, FakeEngine, make_request
from factories import make_case

from studytool import measure
from studytool.measure import Measured
from studytool.model import LEGS, Status


def _bench() -> FakeBench:
    return FakeBench(FakeClock())


def _measured(bench: FakeBench, **changes: Any) -> Measured:
    return measure.run_case(FakeEngine(bench), bench.clock, make_request(**changes))


WRONG: dict[str, tuple[Any, Any]] = {
    "NaN": (np.where(NUMBERS == 3, np.nan, NUMBERS), None),
    "all NaN": (np.full(8, np.nan), None),
    "infinite": (np.where(NUMBERS == 3, np.inf, NUMBERS), None),
    "wrong values": (NUMBERS * 1.05, None),
    "wrong shape": (NUMBERS.reshape(2, 4), None),
    "too few": (NUMBERS[:7], None),
    "zeros": (np.zeros(8), None),
    "huge": (np.full(8, 1e30), None),
    "not zero": (np.full(8, 1e-9), np.zeros(8)),
}


@pytest.mark.parametrize("leg", LEGS)
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
def test_wrong_output_is_never_timed(name: str, leg: str) -> None:
    """One leg with other numbers than the rest gives wrong_result, says which check failed, and is not timed."""
    wrong, right = WRONG[name]
    bench = _bench()
    right = NUMBERS if right is None else right
    bench.results, bench.truth = {other: {"O": right} for other in LEGS}, {"O": right}
    bench.results[leg] = {"O": wrong}
    found = _measured(bench)

    assert (found.status, found.order, bench.launched) == (Status.WRONG_RESULT, (), [])
    assert found.error.startswith("legs_o_ppb is ")
    assert 0 < int(found.checks["float64_o_ppb"]) <= measure.PPB**2


def test_all_legs_alike_and_wrong_is_wrong() -> None:
    """Legs that agree with each other and not with float64 are wrong."""
    bench = _bench()
    bench.results = {leg: {"O": NUMBERS * 1.05} for leg in LEGS}
    found = _measured(bench)

    assert (found.status, found.checks) == (
        Status.WRONG_RESULT,
        {"legs_o_ppb": 0, "float64_o_ppb": 50_000_000},
    )
    assert found.error == "float64_o_ppb is 50000000; expected at most 6000000"


def test_stale_output_is_wrong() -> None:
    """A leg that leaves the NaN in its output that was put there beforehand computed nothing."""
    bench = _bench()
    kept = {leg: {"O": np.full(8, np.nan)} for leg in LEGS}
    bench.results, bench.truth = kept, None

    assert _measured(bench).status is Status.WRONG_RESULT


def test_legs_are_compared_without_a_reference() -> None:
    """A case too large for a float64 reference is still checked: legs against each other."""
    right, wrong = _bench(), _bench()
    right.truth = wrong.truth = None
    wrong.results["auto"] = {"O": NUMBERS * 1.05}

    assert _measured(right).checks == {
        "legs_o_ppb": 0,
        "warmup_rounds": 5,
        "steady": 1,
        "trend_ppm": 0,
    }
    assert _measured(wrong).error == "legs_o_ppb is 50000000; expected at most 12000000"


KINDS = {"O": "o", "dK": "grad", "Stats": "stats"}
"""The name in a check of each kind of output."""


@pytest.mark.parametrize(("dtype", "kind"), [(dtype, kind) for dtype in measure.TOLERANCE_PPB for kind in KINDS])
@pytest.mark.parametrize(("beyond", "status"), [(0, Status.OK), (1, Status.WRONG_RESULT)])
@pytest.mark.parametrize("against", ["legs", "float64"])
def test_tolerance_at_its_bound(dtype: str, kind: str, beyond: int, status: Status, against: str) -> None:
    """Each dtype and kind of output has its tolerance, legs against each other twice that; at the bound it holds.

    Statistics are float32 whatever the dtype is, and have one tolerance.
    """
    bench = _bench()
    factor = 2 if against == "legs" else 1
    one = {"O": measure.TOLERANCE_PPB[dtype][0], "dK": measure.TOLERANCE_PPB[dtype][1], "Stats": 200_000}[kind]
    error = one * factor + beyond
    off = {"O": np.array([1.0]), kind: np.array([1 + error / measure.PPB])}
    bench.results = {leg: {"O": np.array([1.0]), kind: np.array([1.0])} for leg in LEGS}
    if against == "legs":
        bench.results["frost"], bench.truth = off, None
    else:
        bench.results, bench.truth = dict.fromkeys(LEGS, off), {"O": np.array([1.0]), kind: np.array([1.0])}
    found = _measured(bench, case=make_case(dtype=dtype))
    name = f"{against}_{KINDS[kind]}_ppb"

    assert (found.status, found.checks[name]) == (status, error)


def test_worst_gradient_counts() -> None:
    """Of several gradients the worst one is kept."""
    bench = _bench()
    good, bad = np.array([1.0]), np.array([1.5])
    bench.results = {leg: {"O": good, "dQ": bad, "dK": good} for leg in LEGS}
    bench.truth = {"O": good, "dQ": good, "dK": good}
    found = _measured(bench)

    assert found.checks == {"legs_o_ppb": 0, "legs_grad_ppb": 0, "float64_o_ppb": 0, "float64_grad_ppb": 500_000_000}


@pytest.mark.parametrize(
    ("found", "reference", "error"),
    [
        ([0.0], [0.0], 0),
        ([2.0], [1.0], 10**9),
        ([3.0, 4.0], [0.0, 4.0], 750_000_000),
        ([1e200], [1e-200], 10**18),
        ([1.0], [5e-324], 10**18),
        ([1e-100], [0.0], 10**18),
        ([np.nan], [np.nan], 10**18),
        ([1.0, 1.0], [1.0], 10**18),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_relative_error(found: list[float], reference: list[float], error: int) -> None:
    """The error is the L2 norm of the difference over that of the reference, and never above its cap."""
    a, b = ({"O": np.array(side)} for side in (found, reference))

    assert measure.relative_error_ppb(a, b, "O") == error
