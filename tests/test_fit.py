"""Train summary → entries, by example and by property: in doubt there is no entry, and no case that loses is led."""

from typing import Any

import pytest
from factories import class_outcome, make_case_summary, make_fit, make_levels, make_regime, make_summary, rule_of

from studytool.judge import FROST_FAILURES, judge
from studytool.model import Decide, Status, Threshold, Verdict
from studytool.studyjson import CaseSummary

FROM, UPTO = Threshold("s_kv", "from"), Threshold("s_kv", "upto")
LED = {"backend": "1", "frost": "5", "auto": "5", "default": "5"}
"""The plans of a case whose row leads by itself."""


def _decide(*thresholds: Threshold, **changes: Any) -> Decide:
    return Decide(thresholds=thresholds, **changes)


def _verdict(ratio_ppm: int, margin_ppm: int = 250_000, decide: Decide | None = None, **changes: Any) -> Verdict:
    summary = make_summary([make_case_summary(ratio_ppm, **changes)], decide=decide or _decide())
    return judge(summary, summary.cases[0], margin_ppm, exchanged=False).verdict


@pytest.mark.parametrize(
    ("ratio_ppm", "changes", "verdict"),
    [
        (800_000, {}, "WIN"),  # 1 / 1.25 exactly
        (800_001, {}, "NEUTRAL"),
        (800_000, {"high_ppm": 999_999}, "WIN"),
        (800_000, {"high_ppm": 1_000_000}, "NEUTRAL"),
        (1_010_000, {}, "NEUTRAL"),  # one plus the band exactly
        (1_010_001, {}, "LOSE"),
        (1_010_001, {"decide": _decide(max_regret_ppm=1_030_000)}, "NEUTRAL"),
        (1_030_000, {"decide": _decide(max_regret_ppm=1_030_000)}, "NEUTRAL"),
        (1_030_001, {"decide": _decide(max_regret_ppm=1_030_000)}, "LOSE"),
        (952_380, {"margin_ppm": 50_000}, "WIN"),  # 1 / 1.05 is 0.95238095...
        (952_381, {"margin_ppm": 50_000}, "NEUTRAL"),
        (999_999, {"margin_ppm": 0, "high_ppm": 999_999}, "WIN"),
        (700_000, {"repeats": 3}, "WIN"),
        (700_000, {"repeats": 2}, "INCONCLUSIVE"),
        (1_300_000, {"repeats": 2}, "INCONCLUSIVE"),
        (700_000, {"regimes": {}}, "INCONCLUSIVE"),
        *[(ratio, {"code": code}, "INCONCLUSIVE") for ratio in (700_000, 1_300_000) for code in ("DRIFT", "CONTROL")],
        (700_000, {"status": Status.NO_BACKEND}, "INCONCLUSIVE"),
        (700_000, {"status": Status.UNRESOLVABLE}, "INCONCLUSIVE"),
        *[(700_000, {"status": status}, "LOSE") for status in FROST_FAILURES],
    ],
)
def test_verdict_at_the_margin(ratio_ppm: int, changes: dict[str, Any], verdict: str) -> None:
    """A bound belongs to the verdict that it names, and what cannot be said is said to be so."""
    assert _verdict(ratio_ppm, **changes) == verdict


@pytest.mark.parametrize(
    ("other", "verdict"),
    [(700_000, "WIN"), (990_000, "NEUTRAL"), (1_300_000, "LOSE"), (None, "INCONCLUSIVE"), (0, "INCONCLUSIVE")],
)
def test_worst_regime_decides(other: int | None, verdict: str) -> None:
    """A verdict needs every regime of the study, and is that of the worst; 0 stands for a regime of two repeats."""
    regimes = {"cold": make_regime(600_000)}
    regimes |= {} if other is None else {"warm": make_regime(other or 700_000, repeats=5 if other else 2)}
    summary = make_summary([make_case_summary(regimes=regimes)], regimes=("cold", "warm"))
    found = judge(summary, summary.cases[0], 50_000, exchanged=False)

    assert found.verdict == verdict
    assert not other or found.ratio_ppm == other


def test_control_of_one_regime_is_that_of_the_case() -> None:
    """A case whose control fails in one regime is inconclusive, however fast and however slow the row is there."""
    regimes = {"cold": make_regime(600_000), "warm": make_regime(500_000, code="CONTROL")}
    summary = make_summary([make_case_summary(regimes=regimes)], regimes=("cold", "warm"))

    assert judge(summary, summary.cases[0], 50_000, exchanged=False).verdict == "INCONCLUSIVE"
    assert judge(summary, summary.cases[0], 50_000, exchanged=True).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(("band_ppm", "noisy"), [(25_000, False), (25_001, True), (0, False), (-1, True)])
def test_noise_gives_no_entries(band_ppm: int, noisy: bool) -> None:
    """At the noise limit there is an entry; beyond it, or with no control at all, there is none, with the code."""
    found = make_fit(make_levels("W W W W"), band_ppm=band_ppm)

    assert rule_of(found.outcomes[0]) == ("NOISE" if noisy else "always")
    assert found.text.count("\n") == (1 if noisy else 2)


@pytest.mark.parametrize(
    ("levels", "thresholds", "rule"),
    [
        ("W W W W", [FROM], "always"),
        ("W W W W", [], "always"),
        ("WN WN WW WW", [FROM], "always"),  # 6 of 8: exactly 3/4
        ("WN WN WN WW WW", [FROM], "from 128"),  # 7 of 10, but the run has 6 of 8
        ("WN WN WN WW", [FROM], "SUPPORT"),  # 5 of 8, and 4 of 6, and 3 wins
        ("WWWW W W", [FROM], "always"),
        ("WWWW W", [FROM], "SUPPORT"),  # two levels
        ("W W W", [FROM], "SUPPORT"),  # three wins
        ("N W W W W", [FROM], "always"),
        ("L W W W W", [FROM], "from 128"),
        ("L W W W W", [UPTO], "CONFLICT"),
        ("L W W W W", [], "CONFLICT"),
        ("L W W W W", [UPTO, FROM], "from 128"),
        ("I W W W W", [FROM], "from 128"),
        ("W W W W L", [FROM], "CONFLICT"),
        ("W W W W L", [UPTO], "upto 256"),
        ("W W W W I", [UPTO], "upto 256"),
        ("W W W W L W W W W", [FROM, UPTO], "from 384"),
        ("W W W W L W W W W", [UPTO, FROM], "upto 256"),
        ("W W LW W W W W", [FROM], "from 256"),  # a level with a win and a loss is not led
        ("L W W W W N", [FROM], "SUPPORT"),  # the end level holds no win; a bound would leave out the loss
        ("L W W W WN", [FROM], "from 128"),
        ("L N W W W W", [FROM], "from 192"),  # the run ends on a win
        ("L W N W W W W", [FROM], "from 128"),
        ("L W W W W L W", [FROM], "CONFLICT"),
        ("L W WN WN WN W", [FROM], "SUPPORT"),  # 5 of 8
        ("I W W W", [FROM], "NOISE"),
        ("N N N N", [FROM], "MARGIN"),
        ("L L L L", [FROM], "MARGIN"),
    ],
)
def test_forms(levels: str, thresholds: list[Threshold], rule: str) -> None:
    """The class gets `always`, else the longest supported run of the first pair that has one, else a code."""
    assert rule_of(class_outcome(make_levels(levels), decide=_decide(*thresholds))) == rule


def _backend_leads(levels: str, plans: dict[str, str]) -> list[CaseSummary]:
    """Return the cases of these levels with W where the backend is the faster one."""
    return [
        make_case_summary(10**12 // case.regimes["eager-warm"].ratio_ppm, plans=plans, **case.fields)
        for case in make_levels(levels)
    ]


@pytest.mark.parametrize(
    ("levels", "rule"), [("W W W W", "never"), ("L W W W W", "never_from 128"), ("N N N", "MARGIN")]
)
def test_never_where_the_base_leads(levels: str, rule: str) -> None:
    """Where the row leads every case by itself, the same rules hold with the legs exchanged; else they do not."""
    led, plain = _backend_leads(levels, LED), _backend_leads(levels, make_case_summary().plans)

    assert rule_of(class_outcome(led, decide=_decide(FROM))) == rule
    assert not rule_of(class_outcome(plain, decide=_decide(FROM))).startswith("never")
    assert not rule_of(class_outcome([*led[:-1], plain[-1]], decide=_decide(FROM))).startswith("never")


def test_failed_row_trails_where_the_base_leads() -> None:
    """A case that the row cannot run is one more reason to let it trail where it leads by itself."""
    failed = make_case_summary(status=Status.CRASHED, plans=LED, s_kv=256, regimes={})

    assert rule_of(class_outcome([*_backend_leads("W W W", LED), failed])) == "never"


@pytest.mark.parametrize(("low_ppm", "rule"), [(1_000_002, "never"), (1_000_000, "SUPPORT")])
def test_exchanged_upper_bound_is_the_lower_one(low_ppm: int, rule: str) -> None:
    """With the legs exchanged it is the lower bound that must be on the backend's side of one."""
    cases = [make_case_summary(1_400_000, s_kv=64 * n, plans=LED) for n in range(1, 4)]
    cases.append(make_case_summary(1_400_000, low_ppm=low_ppm, s_kv=256, plans=LED))

    assert rule_of(class_outcome(cases)) == rule


@pytest.mark.parametrize(("last_ppm", "rule"), [(640_000, "always"), (640_001, "SUPPORT")])
def test_geomean_just_met_and_just_missed(last_ppm: int, rule: str) -> None:
    """The geometric mean of a class must reach the margin as well, exactly, in integers."""
    ratios = [800_000, 800_000, 800_000, 1_000_000, last_ppm]
    cases = [make_case_summary(ratio, s_kv=64 * level) for level, ratio in enumerate(ratios, 1)]

    assert rule_of(class_outcome(cases, margin_ppm=250_000)) == rule


@pytest.mark.parametrize(("support", "rule"), [(5, "always"), (6, "SUPPORT")])
def test_support_is_the_study_s(support: int, rule: str) -> None:
    """A study may ask for more wins than four, and is told how many it asked for."""
    found = class_outcome(make_levels("W W W W W"), decide=_decide(FROM, min_support=support))

    assert rule_of(found) == rule
    assert found.line or found.detail.startswith("5 of 5 cases win; expected 6 on 3 sizes in a region where three")


@pytest.mark.parametrize(
    ("cases", "code", "detail"),
    [
        (
            make_levels("W W W"),
            "SUPPORT",
            "3 of 3 cases win; expected 4 on 3 sizes in a region where three in four win, and its geomean does",
        ),
        (make_levels("N N"), "MARGIN", "best 1.000: sdpa_fwd bf16 b1 h4 d64 S128/64"),
        (make_levels("W W I"), "NOISE", "sdpa_fwd bf16 b1 h4 d64 S128/192: too few repeats or regimes"),
        ([*make_levels("W W"), make_case_summary(code="DRIFT")], "NOISE", "sdpa_fwd bf16 b1 h4 d64 S128: DRIFT"),
        (
            [*make_levels("W W"), make_case_summary(status=Status.NO_BACKEND, regimes={})],
            "NOISE",
            "sdpa_fwd bf16 b1 h4 d64 S128: no_backend",
        ),
        (
            [*make_levels("W W W W"), make_case_summary(status=Status.WRONG_RESULT, b=9, regimes={})],
            "FAILED",
            "sdpa_fwd bf16 b9 h4 d64 S128: wrong_result",
        ),
        ([make_case_summary(status=Status.REFUSED, regimes={})], "SUPPORT", "no case of this class passes the guards"),
    ],
)
def test_codes_say_why(cases: list[CaseSummary], code: str, detail: str) -> None:
    """A class without an entry has a code, and the case or the count that it rests on."""
    found = class_outcome(cases)

    assert (found.line, found.code, found.detail) == (None, code, detail)


def test_noise_says_band_and_limit() -> None:
    """The code NOISE of a whole study says its band and its limit."""
    assert class_outcome(make_levels("W W W W"), band_ppm=30_000).detail == "A/A band 0.030, limit 0.025"
    assert class_outcome(make_levels("W W W W"), band_ppm=-1).detail == "A/A band unknown, limit 0.025"


def test_conflict_names_both_cases_and_what_separates_them() -> None:
    """A conflict names the best win and the worst loss in its way, and the un-keyed feature that tells them apart."""
    losers = [make_case_summary(ratio, s_kv=s_kv, bias="bool") for s_kv, ratio in ((64, 1_200_000), (128, 1_400_000))]
    found = class_outcome([*make_levels("W W W W"), *losers])
    mixed = class_outcome([*make_levels("W W W W"), *losers, make_case_summary(1_300_000, s_kv=64, h_q=8)])

    assert found.code == mixed.code == "CONFLICT"
    assert found.detail.startswith("sdpa_fwd bf16 b1 h4 d64 S128/")
    assert (
        "0.700, sdpa_fwd bf16 b1 h4 d64 S128 bias=bool 1.400; bias tells them apart: declare bias as a key"
        in found.detail
    )
    assert mixed.detail.endswith("; no single feature separates them")


@pytest.mark.parametrize(
    ("thresholds", "said"),
    [
        ([FROM], "S128 bias=bool 1.200; bias tells them apart: declare bias as a key"),
        ([FROM, UPTO], "S128 bias=bool 1.200; bias tells them apart: declare bias as a key"),
        ([UPTO], "S128/32 1.400; no single feature separates them"),
        ([UPTO, FROM], "S128/32 1.400; no single feature separates them"),
        ([], "S128/32 1.400; no single feature separates them"),
    ],
)
def test_conflict_is_with_what_no_bound_leaves_out(thresholds: list[Threshold], said: str) -> None:
    """The loss that is named, and told apart, is in the way: a bound does not leave it out, as it does a worse one."""
    losers = [make_case_summary(1_400_000, s_kv=32), make_case_summary(1_200_000, s_kv=128, bias="bool")]
    found = class_outcome([*make_levels("WN WN WN W"), *losers], decide=_decide(*thresholds))

    assert (found.code, found.detail.partition(", sdpa_fwd bf16 b1 h4 d64 ")[2]) == ("CONFLICT", said)


def test_losses_that_a_bound_leaves_out_are_no_conflict() -> None:
    """Where a bound leaves out every loss, what is missing is support; without such a bound it is a conflict."""
    losers = [make_case_summary(ratio, s_kv=s_kv) for ratio, s_kv in ((1_400_000, 32), (1_200_000, 16))]
    cases = [*make_levels("W W W"), *losers]
    bounded, unbounded = class_outcome(cases), class_outcome(cases, decide=_decide())

    assert (bounded.code, bounded.detail.partition(";")[0]) == ("SUPPORT", "3 of 5 cases win")
    assert unbounded.code == "CONFLICT"
    assert unbounded.detail.endswith(
        ", sdpa_fwd bf16 b1 h4 d64 S128/32 1.400; s_kv tells them apart: declare s_kv as a key"
    )


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"b": 9}, "b"),
        ({"b": 9, "layout": "thd"}, "layout"),
        ({"b": 9, "layout": "thd", "bias": "bool"}, "bias or layout"),
        ({"bias": "bool", "layout": "thd", "stats": 1}, "bias or layout or stats"),
    ],
)
def test_conflict_names_each_feature_with_the_fewest_values(changes: dict[str, Any], names: str) -> None:
    """Of the features that tell wins from losses those with the fewest values are named, and all of these."""
    losers = [make_case_summary(1_300_000, s_kv=s_kv, **changes) for s_kv in (64, 128)]
    found = class_outcome([*make_levels("WW WW WW WW"), *losers])

    declared = " or ".join(f"{name} as a key" for name in names.split(" or "))
    assert found.code == "CONFLICT"
    assert found.detail.endswith(f" 1.300; {names} tells them apart: declare {declared}")
