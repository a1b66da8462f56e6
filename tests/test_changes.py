"""What a change of a table means: its kind and the cases that it moves; lines that do nothing; two tables in one."""

from collections.abc import Mapping
from typing import Any

import pytest
from factories import make_case
from hypothesis import event, given, settings
from hypothesis import strategies as st
from sharing import examples

from studytool import changes, lines
from studytool.changes import Change, Device, Kind, Move
from studytool.errors import TableError
from studytool.lines import OPPOSITE, Line, Text
from studytool.model import Case, Split
from studytool.runtime import lookup
from studytool.runtime.lookup import Limit

DEVICE = Device("8.0", "A")
KEY: lookup.Key = ("r", "8.0", "bf16")
Parts = tuple[str, str, int, Mapping[str, Limit]]
"""Rule, axis, bound and box."""


def _always(**box: Limit) -> Parts:
    return "always", "", 0, box


def _line(parts: Parts, dtype: str = "bf16", row: str = "r", comment: str = "c") -> Line:
    return Line((row, "8.0", dtype), *parts, comment)


def _text(*found: Line, **rows: tuple[str, ...]) -> Text:
    """Return a table as text, which has row r with the dtype as its only feature."""
    return Text({"r": ("dtype",), **rows}, {line.key: lines.render(line) for line in found})


def _changes(before: Parts | None, after: Parts | None, *cases: Case) -> list[Change]:
    """Return what changes in a table of one entry, None for a table of none, and the train cases that it moves."""
    old, new = (_text(*([] if parts is None else [_line(parts)])) for parts in (before, after))
    return changes.changes(old, new, {Split.TRAIN: cases}, DEVICE)


def _kinds(before: Parts | None, after: Parts | None) -> list[str]:
    return [str(change.kind) for change in _changes(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (None, _always(), "ADDED"),
        (_always(), None, "REMOVED"),
        (_always(s_kv=(64, 128)), _always(s_kv=(64, 256)), "WIDENED"),
        (_always(s_kv=64), _always(s_kv=(64, 256)), "WIDENED"),
        (_always(s_kv=(64, 64)), _always(s_kv=64), None),
        (_always(heads=("gqa",)), _always(heads=("gqa", "mha")), "WIDENED"),
        (_always(heads="gqa"), _always(heads=("gqa", "mha")), "WIDENED"),
        (_always(square=1, b=1), _always(b=1), "WIDENED"),
        (_always(board="A"), _always(), "WIDENED"),
        (_always(cudnn="9.27"), _always(), "WIDENED"),
        (("from", "s_kv", 256, {}), ("from", "s_kv", 128, {}), "WIDENED"),
        (("upto", "s_kv", 128, {}), ("upto", "s_kv", 256, {}), "WIDENED"),
        (("never_from", "s_kv", 256, {}), ("never_from", "s_kv", 255, {}), "WIDENED"),
        (("from", "s_kv", 256, {}), _always(), "WIDENED"),
        (("never_upto", "s_kv", 256, {}), ("never", "", 0, {}), "WIDENED"),
        (("from", "s_kv", 256, {}), ("from", "b", 2, {}), "SHIFTED"),
        (("from", "s_kv", 256, {}), ("upto", "s_kv", 256, {}), "SHIFTED"),
        (("from", "s_kv", 256, {"b": 1}), ("from", "s_kv", 128, {"b": 2}), "SHIFTED"),
        (("from", "s_kv", 256, {"b": (1, 2)}), ("from", "s_kv", 128, {"b": 2}), "SHIFTED"),
        (_always(s_kv=(64, 128)), _always(s_kv=(65, 129)), "SHIFTED"),
        (_always(s_kv=(64, 128)), _always(heads="mha"), "SHIFTED"),
        (_always(heads=("gqa",)), _always(heads=("mha",)), "SHIFTED"),
        (_always(board="A"), _always(board="B"), "SHIFTED"),
        (_always(cudnn="9.27", sm_count=108), _always(cudnn="9.28", sm_count=108), "SHIFTED"),
        (_always(), ("never", "", 0, {}), "FLIPPED"),
        (("from", "s_kv", 256, {}), ("never_from", "s_kv", 256, {}), "FLIPPED"),
        (("never", "", 0, {"b": 1}), ("upto", "s_kv", 256, {}), "FLIPPED"),
    ],
)
def test_kind_by_example(before: Parts | None, after: Parts | None, kind: str | None) -> None:
    """Each kind of change is told; the other way round, what was wider is narrower, and so on."""
    back = {"WIDENED": "NARROWED", "ADDED": "REMOVED", "REMOVED": "ADDED", None: "RESTATED"}
    told = kind or "RESTATED"

    assert _kinds(before, after) == [told]
    assert _kinds(after, before) == [back.get(kind, told)]


def test_other_evidence_is_restated() -> None:
    """A line with another comment says the same; one that is not changed is not told at all."""
    line = _line(_always(b=1))
    found = changes.changes(_text(line), _text(line._replace(comment="d")), {}, DEVICE)

    assert [(change.kind, change.key) for change in found] == [(Kind.RESTATED, KEY)]
    assert changes.changes(_text(line), _text(line), {}, DEVICE) == []


SPLITS = {
    Split.TRAIN: [make_case(s_kv=64), make_case(s_kv=256)],
    Split.HOLDOUT: [make_case(s_kv=80), make_case(s_kv=256, b=2), make_case(s_kv=80, dtype="f16")],
    Split.ROUTING: [make_case(s_kv=80, bias="bool")],
}


def test_moves_are_told_by_split() -> None:
    """A change names each frozen case of each split that it decides otherwise, from what to what, and no other."""
    before = _text(_line(("from", "s_kv", 128, {})), _line(_always(), "f16"))
    after = _text(_line(("upto", "s_kv", 128, {})), _line(("never", "", 0, {}), "f16"))
    found = changes.changes(before, after, SPLITS, DEVICE)
    train, holdout = SPLITS[Split.TRAIN], SPLITS[Split.HOLDOUT]

    assert found == [
        Change(
            Kind.SHIFTED,
            KEY,
            (
                Move(Split.TRAIN, train[0], None, True),
                Move(Split.TRAIN, train[1], True, None),
                Move(Split.HOLDOUT, holdout[0], None, True),
                Move(Split.HOLDOUT, holdout[1], True, None),
            ),
        ),
        Change(Kind.FLIPPED, ("r", "8.0", "f16"), (Move(Split.HOLDOUT, holdout[2], True, False),)),
    ]
    assert changes.text(found) == (
        "SHIFTED   r 8.0 bf16\n"
        f"          train: {train[0].label}: no entry -> lead\n"
        f"          train: {train[1].label}: lead -> no entry\n"
        f"          holdout: {holdout[0].label}: no entry -> lead\n"
        f"          holdout: {holdout[1].label}: lead -> no entry\n"
        "FLIPPED   r 8.0 f16\n"
        f"          holdout: {holdout[2].label}: lead -> trail"
    )
    assert changes.text([]) == "no entry changes"


@pytest.mark.parametrize(
    ("device", "moved"), [(DEVICE, 2), (Device("8.0", "B"), 0), (Device("9.0", "A"), 0), (None, 0)]
)
def test_moves_are_those_of_the_device(device: Device | None, moved: int) -> None:
    """On another board or compute capability than the entry's nothing moves; without a device no case is asked."""
    (change,) = changes.changes(_text(), _text(_line(_always(board="A"))), {Split.TRAIN: SPLITS[Split.TRAIN]}, device)

    assert (change.kind, len(change.moves)) == (Kind.ADDED, moved)


SIZES = st.integers(1, 4)
RANGES = SIZES | st.tuples(SIZES, SIZES).map(lambda pair: (min(pair), max(pair)))
KINDS = st.lists(st.sampled_from(["mha", "gqa", "mqa"]), min_size=1, max_size=3, unique=True).map(tuple)
BOXES = st.fixed_dictionaries(
    {},
    optional={"b": RANGES, "s_kv": RANGES, "heads": KINDS | st.just("gqa"), "square": st.integers(0, 1)}
    | {"board": st.sampled_from("AB"), "cudnn": st.just("9.27")},
)
RULES = st.sampled_from(sorted(OPPOSITE))
PARTS = st.tuples(RULES, st.sampled_from(["s_kv", "b*s_kv"]), SIZES, BOXES).map(
    lambda parts: parts if parts[0].endswith(("from", "upto")) else (parts[0], "", 0, parts[3])
)
CASES = [
    make_case(b=b, s_q=s_q, s_kv=s_kv, h_kv=h_kv)
    for b in (1, 2, 4)
    for s_kv in (1, 2, 3, 4)
    for s_q in (1, s_kv)
    for h_kv in (1, 2, 4)
]


@given(PARTS)
def test_table_has_no_difference_to_itself(parts: Parts) -> None:
    """Nothing changes between a table and the same one, whatever it says."""
    assert _changes(parts, parts, *CASES) == []


@settings(max_examples=examples(400))
@given(PARTS, PARTS)
def test_kind_agrees_with_the_cases_that_it_moves(before: Parts, after: Parts) -> None:
    """Whatever an entry becomes: what is wider takes no case from it, what is narrower gives none, and so on."""
    event(_agrees(before, after))


@pytest.mark.parametrize("name", ["padding", "layout", "dropout_pct"])
def test_box_that_knows_a_flag_is_the_wider_one(name: str) -> None:
    """An entry without a flag in its box holds for no case that has it, so that one with the flag is no narrower."""
    value: Any = "thd" if name == "layout" else 1
    knows = _always(**{name: ("dense", "thd") if name == "layout" else (0, 1)})
    cases = [make_case(), make_case(**{name: value})]

    assert _agrees(knows, _always(), *cases) == "NARROWED"
    assert _agrees(_always(), knows, *cases) == "WIDENED"


def _agrees(before: Parts, after: Parts, *cases: Case) -> str:
    """Return the kind of a change, once it is shown that the cases move as it says, there and back."""
    found = _changes(before, after, *(cases or CASES))
    back = _changes(after, before, *(cases or CASES))
    if not found:
        return ""
    (change,), (reverse,) = found, back
    opposite = {Kind.WIDENED: Kind.NARROWED, Kind.NARROWED: Kind.WIDENED}
    moves = {(move.before, move.after) for move in change.moves}
    led = lookup.RULES[after[0]]
    assert reverse.kind == opposite.get(change.kind, change.kind)
    assert [(m.case, m.after, m.before) for m in reverse.moves] == [(m.case, m.before, m.after) for m in change.moves]
    allowed: dict[Kind, set[tuple[bool | None, bool | None]]] = {
        Kind.WIDENED: {(None, led)},
        Kind.NARROWED: {(led, None)},
        Kind.SHIFTED: {(None, led), (led, None)},
        Kind.RESTATED: set(),
        Kind.FLIPPED: {(not led, led), (not led, None), (None, led)},
    }
    assert moves <= allowed[change.kind]
    return str(change.kind)


def test_opposite_is_an_involution() -> None:
    """Each rule has an opposite, which says the opposite of the same cases, and whose opposite it is."""
    assert OPPOSITE.keys() == set(OPPOSITE.values()) == lookup.RULES.keys()
    for rule, opposite in OPPOSITE.items():
        assert OPPOSITE[opposite] == rule
        assert lookup.RULES[opposite] is not lookup.RULES[rule]
        assert opposite.removeprefix("never_") == rule.removeprefix("never_") or {rule, opposite} == {"always", "never"}


@pytest.mark.parametrize(
    ("parts", "useful"),
    [
        (_always(), True),
        (("from", "s_kv", 256, {}), True),
        (("from", "s_kv", 257, {}), False),
        (("never_upto", "s_kv", 63, {}), False),
        (("never_upto", "s_kv", 64, {}), True),
        (_always(b=9), False),
        (_always(square=0), True),
        (_always(board="A"), True),
        (_always(board="B"), False),
        (_always(bias="bool"), False),
    ],
)
def test_idle_line_is_found(parts: Parts, useful: bool) -> None:
    """A line outside of which all frozen cases lie changes nothing, and is found; one that decides a case is not."""
    other = _line(_always(), "f16")
    table = _text(_line(parts), other)
    cases = SPLITS[Split.TRAIN]

    assert changes.idle(table, [KEY], cases, DEVICE) == ([] if useful else [KEY])
    assert changes.idle(table, [KEY, other.key], cases, DEVICE) == [*([] if useful else [KEY]), other.key]
    assert changes.idle(table, [], cases, DEVICE) == []


def _merge(one: Text, other: Text) -> Text:
    numbers = tuple({name: 20 + n for n, name in enumerate(text.entries)} for text in (one, other))
    return changes.merge(one, other, ("a.py", "b.py"), numbers)


ENTRIES = st.dictionaries(st.sampled_from(["bf16", "f16", "f32", "fp8"]), PARTS)


@given(ENTRIES, ENTRIES)
def test_merge_keeps_all_or_names_both_lines(one: dict[str, Parts], other: dict[str, Parts]) -> None:
    """Two tables make one of all entries of both, in either order the same; a class in both is an error."""
    a, b = (_text(*(_line(parts, dtype) for dtype, parts in entries.items())) for entries in (one, other))
    shared = sorted(one.keys() & other.keys(), key=[*one].index)
    if not shared:
        assert lines.table_text(_merge(a, b)) == lines.table_text(_merge(b, a))
        assert _merge(a, b).entries == {**a.entries, **b.entries}
        assert len(_merge(a, b).entries) == len(one) + len(other)
        return
    places = [20 + [*entries].index(shared[0]) for entries in (one, other)]
    with pytest.raises(TableError) as caught:
        _merge(a, b)
    assert str(caught.value) == (
        f"a.py:{places[0]} and b.py:{places[1]}: both have an entry for ('r', '8.0', '{shared[0]}')"
    )


def test_merge_of_two_rows_keeps_both() -> None:
    """Tables of different rows make one that has the features of each."""
    one, other = _text(_line(_always())), Text({"q": ("dtype",)}, {})

    assert _merge(one, other) == Text({"r": ("dtype",), "q": ("dtype",)}, one.entries)


def test_merge_refuses_a_row_with_other_features() -> None:
    """A row whose keys are made of other features in the other table is an error that names table, row and both."""
    with pytest.raises(TableError, match=r"^b\.py: row r has features \('dtype',\) in the table; the lines have \(\)$"):
        _merge(_text(_line(_always())), _text(r=()))
