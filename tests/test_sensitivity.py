"""How much a line depends on the margin and on single cases: what a sweep tells, and what is kept without a case."""

import itertools
from collections.abc import Sequence

import pytest
from factories import class_outcome, make_case_summary, make_fit, make_levels, make_summary
from hypothesis import event, given
from hypothesis import strategies as st

from studytool import lines, sensitivity
from studytool.explain import explain_rows, explain_text
from studytool.fit import Outcome
from studytool.metrics import PPM
from studytool.model import Decide, Threshold
from studytool.runtime import key
from studytool.sensitivity import MARGINS_PPM, Stretch
from studytool.studyjson import CaseSummary, Summary

FROM, UPTO = Threshold("s_kv", "from"), Threshold("s_kv", "upto")
PAIRS = st.sampled_from([FROM, UPTO, Threshold("b*s_kv", "from"), Threshold("b*s_kv", "upto")])
RATIOS = st.lists(st.lists(st.integers(600_000, 1_040_000), min_size=1, max_size=3), min_size=3, max_size=8)
"""Per level of s_kv the ratios of its cases, of which only those above 1.01 lose."""


def _cases(levels: Sequence[Sequence[int]], mask: str = "none") -> list[CaseSummary]:
    """Return cases with these ratios in ppm: level by level of s_kv, with b 1, 2, ... in each."""
    return [
        make_case_summary(ratio, s_kv=64 * level, b=b, mask=mask)
        for level, ratios in enumerate(levels, 1)
        for b, ratio in enumerate(ratios, 1)
    ]


def _sweep(cases: Sequence[CaseSummary], *pairs: Threshold) -> list[Stretch]:
    summary = make_summary(cases, class_key=("mask",), decide=Decide(thresholds=pairs))
    return sensitivity.sweep(summary, b"study.json", "box")


def _kept(cases: Sequence[CaseSummary], *pairs: Threshold) -> tuple[str, int | None]:
    """Return a class's rule at margin 0.05, and without how many single cases it decides the others as it does."""
    summary = make_summary(cases, decide=Decide(thresholds=pairs or (FROM,)))
    outcome = _outcome(summary)
    return lines.rule_text(outcome.line), sensitivity.kept(summary, outcome, 50_000, "box")


def _outcome(summary: Summary) -> Outcome:
    return class_outcome(summary.cases, decide=summary.decide)


def test_margins_go_from_one_to_twenty_percent() -> None:
    """A sweep asks each whole percent from 0.01 to 0.20, both included."""
    assert [*MARGINS_PPM] == [percent * PPM // 100 for percent in range(1, 21)]


def test_equal_neighbours_are_one_stretch() -> None:
    """Margins at which a class gets the same are one stretch; a line that changes or vanishes begins another."""
    ratios = [[990_000], [890_000], *[[850_000]] * 5]  # 1/1.12 is 0.893, 1/1.13 0.885, 1/1.17 0.855, 1/1.18 0.847
    losing = [[1_300_000], *ratios[1:]]

    assert _sweep(_cases(ratios), FROM) == [
        Stretch(("open_engine", "host", "none"), "always", 10_000, 120_000),
        Stretch(("open_engine", "host", "none"), "from s_kv 192", 130_000, 170_000),
        Stretch(("open_engine", "host", "none"), "MARGIN", 180_000, 200_000),
    ]
    assert [stretch[1:] for stretch in _sweep(_cases(losing), FROM)] == [
        ("from s_kv 128", 10_000, 120_000),
        ("from s_kv 192", 130_000, 170_000),
        ("MARGIN", 180_000, 200_000),
    ]


def test_line_that_depends_on_no_margin_is_one_stretch() -> None:
    """Of a class that wins by far, and one that never does, there is one stretch each from 0.01 to 0.20."""
    found = _sweep([*make_levels("W W W W"), *make_levels("N N N N", mask="tl")], FROM)

    assert [(s.class_key[2], *s[1:]) for s in found] == [
        ("none", "always", 10_000, 200_000),
        ("tl", "MARGIN", 10_000, 200_000),
    ]


TEXT = """\
br    always at 0.01-0.20
none  from s_kv 128 at 0.01-0.12; from s_kv 192 at 0.13; SUPPORT at 0.14-0.17; MARGIN at 0.18-0.20
tl    CONFLICT at 0.01-0.20
"""


def test_text_has_one_line_a_class() -> None:
    """A sweep as text has a line a class, in the order of keys, aligned, with each stretch and its span."""
    ratios = [[1_300_000], [890_000], [880_000], [850_000], [850_000], [850_000]]
    cases = [*_cases(ratios), *make_levels("W W W W", mask="br"), *make_levels("W W L W", mask="tl")]

    assert sensitivity.sweep_text(_sweep(cases, FROM)) == TEXT
    assert sensitivity.sweep_text([]) == ""


@given(RATIOS, st.booleans(), PAIRS)
def test_larger_margin_of_a_sweep_only_shrinks(levels: list[list[int]], turned: bool, pair: Threshold) -> None:
    """With one pair, what a class gets leads at each margin of a sweep no case that it does not lead at the last."""
    cases = _cases([sorted(ratios) for ratios in sorted(levels, key=min, reverse=turned)])
    stretches = _sweep(cases, pair)
    led = [_led(stretch.rule, cases) for stretch in stretches]
    event(f"{len(stretches)} stretches, {sum(map(bool, led))} with a line")

    assert [margin for s in stretches for margin in range(s.first_ppm, s.last_ppm + 1, 10_000)] == [*MARGINS_PPM]
    assert all(one.rule != other.rule for one, other in itertools.pairwise(stretches))
    assert all(few <= many for many, few in itertools.pairwise(led))


def _led(rule: str, cases: Sequence[CaseSummary]) -> set[str]:
    """Return the digests of the cases that a rule of a sweep holds for; none where it is a code."""
    name, axis, bound = [*rule.split(), "s_kv", "0"][:3]
    sizes = {case.digest: key.axis_value(case.fields, axis) for case in cases}
    if name == "always":
        return {*sizes}
    if name == "from":
        return {digest for digest, size in sizes.items() if size >= int(bound)}
    return {digest for digest, size in sizes.items() if size <= int(bound)} if name == "upto" else set()


@pytest.mark.parametrize(
    ("levels", "rule", "count"),
    [
        ("W W W W W W", "always", 6),
        ("W W W W W N", "always", 6),
        ("L W W W W W", "from s_kv 128", 6),  # without the loss it is `always`, of the same cases
        ("L W W W W W W", "from s_kv 128", 7),
        ("L WW WW WW", "from s_kv 128", 7),
        ("W W W W", "always", 0),  # four wins are what it takes
        ("L W W W W", "from s_kv 128", 1),
        ("W W W W W N N", "SUPPORT", None),
        ("WW WW W", "always", 4),  # the one win of the last level makes it three levels
        ("W W L L", "CONFLICT", None),
        ("L L L", "MARGIN", None),
    ],
)
def test_kept_without_each_case(levels: str, rule: str, count: int | None) -> None:
    """A robust line is kept without any one case; it is not where one carries the support; no line, no count."""
    found, kept = _kept(make_levels(levels))

    assert (found, kept) == (rule if count is not None else "", count)
    assert count is not None or class_outcome(make_levels(levels)).code == rule


def test_bound_that_moves_to_the_next_size_is_kept() -> None:
    """Without the case at its bound a line begins at the next size: it decides all others as before."""
    cases = make_levels("L W W W W W")
    without = [case for case in cases if case.fields["s_kv"] != 128]

    assert lines.rule_text(class_outcome(without, decide=Decide(thresholds=(FROM,))).line) == "from s_kv 192"
    assert _kept(cases) == ("from s_kv 128", 6)


def test_case_that_keeps_a_line_from_growing_is_not_kept() -> None:
    """A line that leads more without a case, one that stood alone in its way, is told apart from a stable one."""
    found = class_outcome(make_levels("W W L W W W W W"))

    assert lines.rule_text(found.line) == "from s_kv 256"
    assert _kept(make_levels("W W L W W W W W")) == ("from s_kv 256", 7)


def test_line_that_trails_is_kept_alike() -> None:
    """Where the row leads by itself, what trails is counted in the same way."""
    plans = {"backend": "1", "frost": "5", "auto": "5", "default": "5"}
    cases = [make_case_summary(1_400_000, s_kv=64 * n, plans=plans) for n in range(1, 7)]

    assert _kept(cases) == ("never", 6)
    assert _kept(cases[:4]) == ("never", 0)


@given(RATIOS, PAIRS)
def test_kept_is_a_count_of_cases(levels: list[list[int]], pair: Threshold) -> None:
    """There is a count just where there is a line, and it is at most that of the cases."""
    rule, kept = _kept(_cases(levels), pair)

    assert (kept is None) is (rule == "")
    assert kept is None or 0 <= kept <= sum(map(len, levels))


def test_explanation_has_a_column_of_what_is_kept() -> None:
    """--explain says after a rule without how many single cases it stays, and nothing where there is no line."""
    cases = [*make_levels("L W W W W"), *make_levels("W W L", mask="tl")]
    summary = make_summary(cases, class_key=("mask",))
    found = make_fit(cases, class_key=("mask",))
    kept = {o.class_key: sensitivity.kept(summary, o, 50_000, "box") for o in found.outcomes}
    head, led, not_led = explain_text(found, kept).splitlines()
    place = head.index("stable")

    assert [row["kept"] for row in explain_rows(found, kept)] == [1, None]
    assert [line[place : place + 6].rstrip() for line in (led, not_led)] == ["1/5", ""]
    assert led[: place - 2].endswith("from s_kv 128")
    assert not_led[: place - 2].rstrip().endswith("CONFLICT")
