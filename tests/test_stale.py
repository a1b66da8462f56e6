"""Which lines of a table rest on plans that are no longer picked, and which cases to time again."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from controls import (
    ALWAYS,
    BACKEND_PLAN,
    CLASSES,
    FROST_PLAN,
    OTHER_PLAN,
    OTHER_ROW_PLAN,
    WAS,
    Rule,
    StandIn,
    both,
    for_mask,
    fresh_table,
    key_of,
    listed,
    plans_of,
    refused,
    table_of,
)
from factories import class_outcome, make_case, make_case_summary, make_fit, make_levels

from studytool import lines, stale
from studytool.errors import TableError
from studytool.model import Case, Decide, Plan, Status, Threshold
from studytool.planning.messages import Planned
from studytool.stale import Judged, State, Witness


def judged(text: str, answer: Callable[[Case], Planned], cases: Any = ()) -> list[Judged]:
    """Return what becomes of each line of a table when this is what is planned."""
    data = text.encode()
    table, entries = lines.parse_table(data, "t.py"), lines.read_table(data, "t.py")
    cc = str(next(iter(table.entries))[1]) if table.entries else "8.0"
    return stale.judge(table, entries, ("t.py", cc), StandIn(answer), dict(cases))


def test_a_line_whose_plans_are_picked_still_is_fresh() -> None:
    """Every line is judged, in the table's order, by the first plan of each side alone."""
    found = judged(fresh_table(), lambda _case: listed(OTHER_ROW_PLAN, BACKEND_PLAN, OTHER_PLAN, FROST_PLAN))

    assert [(item.key[-1], item.state, item.detail) for item in found] == [
        (mask, "FRESH", "") for mask in sorted(CLASSES)
    ]
    assert [item.line for item in found] == [13, 14, 15]


OTHER_FROST = Plan(engine=20601, name="sdpa_bwd_sm80[T=1]", knobs={"T": 1})


@pytest.mark.parametrize(
    ("plans", "state", "detail"),
    [
        ((OTHER_PLAN, BACKEND_PLAN, FROST_PLAN), "STALE", "backend was 7[KERNEL_CFG=2], is 8"),
        ((OTHER_FROST, BACKEND_PLAN), "STALE", "frost was 20601, is 20601[T=1]"),
        ((OTHER_FROST, OTHER_PLAN), "STALE", "backend was 7[KERNEL_CFG=2], is 8"),
        ((BACKEND_PLAN, OTHER_ROW_PLAN), "DEAD", "no frost plan"),
        ((OTHER_PLAN, OTHER_ROW_PLAN), "DEAD", "no frost plan"),
        ((FROST_PLAN,), "DEAD", "no backend plan"),
    ],
)
def test_a_line_with_another_plan_is_stale_and_one_without_is_dead(
    plans: tuple[Plan, ...], state: str, detail: str
) -> None:
    """The one line that differs is told with its case and both ids; the others stay fresh."""
    found = judged(fresh_table(), for_mask("tl", listed(*plans)))

    assert [(item.key[-1], item.state, item.detail) for item in found] == [
        ("br", "FRESH", ""),
        ("none", "FRESH", ""),
        ("tl", state, f"{CLASSES['tl'].label}: {detail}"),
    ]


def test_a_line_whose_case_is_not_planned_is_dead_with_the_reason() -> None:
    """What the library says of a case that it does not plan stands in the detail."""
    found = judged(fresh_table(), for_mask("br", refused(Status.ERROR, "KeyError: 576")))

    assert (found[0].state, found[0].detail) == ("DEAD", f"{CLASSES['br'].label}: no backend plan: KeyError: 576")


def test_a_line_that_was_measured_with_several_plans_takes_each() -> None:
    """Where a line's evidence names more than one plan of a side, any of them is fresh, and all are told."""
    text = table_of({"none": f"ev 5 plans 7[KERNEL_CFG=2] 8 | 20601 20601[T=1] at {CLASSES['none'].label}"})
    other = Plan(engine=9, name="eng9")

    assert judged(text, lambda _case: listed(BACKEND_PLAN, FROST_PLAN))[0].state == "FRESH"
    assert judged(text, lambda _case: listed(OTHER_PLAN, OTHER_FROST))[0].state == "FRESH"
    assert judged(text, lambda _case: listed(other, FROST_PLAN))[0].detail == (
        f"{CLASSES['none'].label}: backend was 7[KERNEL_CFG=2] or 8, is 9"
    )


def witness(case: Case, backend: str = "7[KERNEL_CFG=2]", frost: str = "20601") -> Witness:
    """Return a case with the plans that it ran."""
    return Witness(case, {"backend": frozenset({backend}), "frost": frozenset({frost})})


@pytest.mark.parametrize(
    ("backends", "state", "named"),
    [(("7[KERNEL_CFG=2]", "7[KERNEL_CFG=2]"), "FRESH", None), (("7[KERNEL_CFG=2]", "6"), "STALE", 256)],
)
def test_a_line_is_as_bad_as_the_worst_of_its_cases(backends: Sequence[str], state: str, named: int | None) -> None:
    """With the study's cases each is judged by the plans that it ran itself, and the first of the worst is named."""
    cases = [witness(make_case(s_q=s, s_kv=s), backend) for s, backend in zip((64, 256), backends, strict=True)]
    found = judged(fresh_table(), both, {key_of("none"): cases})[1]

    assert (found.key, found.state) == (key_of("none"), state)
    assert found.detail == (f"{cases[-1].case.label}: backend was 6, is 7[KERNEL_CFG=2]" if named else "")


def test_dead_is_worse_than_stale() -> None:
    """One case without a plan makes a line dead, though another one has only a different plan."""
    cases = [witness(make_case(s_q=s, s_kv=s), backend="6") for s in (64, 256)]
    found = judged(
        fresh_table(),
        lambda case: listed(BACKEND_PLAN) if case.s_kv == 256 else both(case),
        {key_of("none"): cases},
    )

    assert [item.state for item in found] == ["FRESH", "DEAD", "FRESH"]
    assert found[1].detail == f"{cases[1].case.label}: no frost plan"
    assert [*State] == ["FRESH", "STALE", "DEAD"]


BAD_EVIDENCE = {
    "a version before this one": "win 4/4 worst 0.500 geomean 0.500 ev e7b5c3e26cc3",
    "no comment": "",
    "one side": "ev 5 plans 7 at sdpa_fwd bf16 b1 h4 d64 S128",
    "no case": "ev 5 plans 7 | 20601",
}


@pytest.mark.parametrize("comment", BAD_EVIDENCE.values(), ids=BAD_EVIDENCE.keys())
def test_a_line_whose_evidence_names_no_plans_is_one_clear_error(comment: str) -> None:
    """Such a line is told with file and line, and what would be one."""
    expected = "t.py:13: its evidence names no plans; expected a line made by this version's gen.py"
    with pytest.raises(TableError, match=rf"\A{re.escape(expected)}\Z"):
        judged(table_of({"none": comment}), both)


def test_a_line_whose_case_cannot_be_read_is_one_clear_error() -> None:
    """A case that is no label, or an impossible one, is told with file and line."""
    for label, words in (("sdpa_fwd bf16", "is not the label of a case"), (f"{CLASSES['none'].label} w5", "window 5")):
        with pytest.raises(TableError, match=rf"\At\.py:13: '{label}'(:)? {words}"):
            judged(table_of({"none": f"ev 5 {WAS} {label}"}), both)


# What a fit writes, and what is read of it

FROM, UPTO = Threshold("s_kv", "from"), Threshold("s_kv", "upto")


def test_the_plans_and_the_closest_case_of_a_fit_stand_on_its_line() -> None:
    """A line ends in the first plans of both sides, each once, and the case of its region that has least to spare."""
    loser = make_case_summary(1_300_000, s_kv=64, plans=plans_of("6", "5"))
    seen = [(600_000, "8[K=1,L=2]", "5"), (700_000, "7", "5"), (900_000, "7", "5[T=64]"), (500_000, "7", "5")]
    region = [
        make_case_summary(ratio, s_q=64 * level, s_kv=64 * level, plans=plans_of(backend, frost))
        for level, (ratio, backend, frost) in enumerate(seen, 2)
    ]
    found = make_fit([loser, *region], decide=Decide(thresholds=(FROM,)))
    _, text = lines.read_lines(found.text.encode(), "lines.txt")
    ((entry_key, line),) = text.entries.items()

    assert line.partition(" plans ")[2] == "7 8[K=1,L=2] | 5 5[T=64] at sdpa_fwd bf16 b1 h4 d64 S256"
    assert stale.witness_of(text.entries[entry_key], "lines.txt:2") == Witness(
        make_case(s_q=256, s_kv=256),
        {"backend": frozenset({"7", "8[K=1,L=2]"}), "frost": frozenset({"5", "5[T=64]"})},
    )


def test_of_two_closest_cases_one_is_named_in_any_order() -> None:
    """Where two cases have as little to spare, the same one is named in whatever order they stand."""
    cases = make_levels("W W W WW")
    found = {line.comment for some in (cases, cases[::-1]) if (line := class_outcome(some).line)}

    assert len(found) == 1


# Which cases to time again


def again(rule: Rule, *sizes: tuple[int, int]) -> list[tuple[int, int]]:
    """Return of these cases, by b and s_kv, those to time again under a rule, as (b, s_kv)."""
    entry = lines.parse_table(table_of({"none": "ev"}, rule).encode(), "t.py").entries[key_of("none")]
    return [(c.b, c.s_kv) for c in stale.again(entry, [make_case(b=b, s_q=s, s_kv=s) for b, s in sizes])]


LEVELS = [(1, 64), (2, 128), (3, 256), (4, 512)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (("from", "s_kv", 256), [(3, 256), (2, 128)]),
        (("never_from", "s_kv", 256), [(3, 256), (2, 128)]),
        (("upto", "s_kv", 128), [(2, 128), (3, 256)]),
        (("never_upto", "s_kv", 128), [(2, 128), (3, 256)]),
        (("from", "s_kv", 64), [(1, 64)]),
        (("upto", "s_kv", 512), [(4, 512)]),
        (("from", "b*s_kv", 700), [(3, 256), (2, 128)]),
        (("always", "", 0), [(1, 64), (4, 512)]),
        (("never", "", 0), [(1, 64), (4, 512)]),
    ],
)
def test_the_fewest_cases_to_time_again_are_one_on_each_side_of_the_bound(rule: Rule, expected: Any) -> None:
    """A bound needs the nearest case on each side where there is one, a line without a bound the ends of its class."""
    assert again(rule, *LEVELS) == again(rule, *LEVELS[::-1]) == expected


def test_without_a_bound_the_ends_are_those_of_the_work() -> None:
    """The smallest and the largest case are those by batches, heads and both lengths."""
    assert again(ALWAYS, (64, 64), (1, 128), (1, 256)) == [(1, 128), (64, 64)]
    assert again(ALWAYS, (1, 128)) == [(1, 128)]
    assert again(ALWAYS) == []
    assert again(("from", "s_kv", 64)) == []
