"""Canonical JSON, digests and seeded orders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studytool import digest

_LEAVES = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]))
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé"), inner, max_size=4)
)


def test_float_by_itself_is_refused() -> None:
    """A float that stands in nothing is refused as well."""
    with pytest.raises(TypeError, match=r"^1\.0 is a float"):
        digest.canonical(1.0)


def test_canonical_has_one_spelling() -> None:
    """Canonical JSON has sorted keys, no spaces, and UTF-8 as it is."""
    spelled = digest.canonical({"b": [1, "é"], "a": None})

    assert spelled == '{"a":null,"b":[1,"é"]}'.encode()


@given(st.dictionaries(st.text("abcdé"), _VALUES, min_size=2))
def test_digest_is_blind_to_key_order(value: dict[str, Any]) -> None:
    """The order in which keys were put in changes no digest."""
    turned = dict(reversed(value.items()))

    assert digest.digest(turned) == digest.digest(value)


@given(_VALUES)
def test_canonical_reads_back(value: object) -> None:
    """Canonical JSON reads back as the value, so two values never share a spelling."""
    back = json.loads(digest.canonical(value))

    assert back == value


@given(st.dictionaries(st.text("abcdé"), _VALUES))
def test_pretty_says_the_same(value: dict[str, object]) -> None:
    """Pretty JSON reads back as the value, is blind to key order, and ends with one line end."""
    spelled = digest.pretty(value)

    assert json.loads(spelled) == value
    assert spelled == digest.pretty(dict(reversed(value.items())))
    assert spelled.endswith(b"}\n")


def test_pretty_has_a_member_a_line() -> None:
    """Each member has its line, and so has each element of a list or map of structures."""
    spelled = digest.pretty({"b": {"y": {"n": 1}, "x": {}}, "a": [[2, 1], {"z": 0}], "c": [1, 2], "d": {"e": 1}})

    assert spelled.decode().splitlines() == [
        "{",
        ' "a": [',
        "  [2,1],",
        '  {"z":0}',
        " ],",
        ' "b": {',
        '  "x": {},',
        '  "y": {"n":1}',
        " },",
        ' "c": [1,2],',
        ' "d": {"e":1}',
        "}",
    ]


@given(_VALUES, _VALUES)
def test_digest_changes_with_any_value(one: object, other: object) -> None:
    """Digests are equal just where the canonical bytes are."""
    same = digest.canonical(one) == digest.canonical(other)

    assert (digest.digest(one) == digest.digest(other)) is same


def test_digest_tells_one_from_true_and_from_text() -> None:
    """An integer, a truth value and a text that look alike have three digests."""
    digests = {digest.digest({"a": value}) for value in (1, True, "1")}

    assert len(digests) == 3


def test_digest_is_pinned() -> None:
    """The digest of a known value is what it was when the first study was frozen."""
    found = digest.digest({"s_q": 16, "op": "sdpa_fwd"})

    assert found == "40b265b4fc44efe4b31930ea27b8cf5134006270bd20a238d9d3ff8758c45bb9"


@pytest.mark.parametrize("spell", [digest.canonical, digest.pretty, digest.digest])
@pytest.mark.parametrize(
    "value",
    [
        1.0,
        float("nan"),
        [0.5],
        {"a": 2.0},
        {"a": [{"b": (1, 0.25)}]},
        {1.5: "a"},
        [[[[[[1, 2, {"deep": [float("inf")]}]]]]]],
        [{"a": 1}, {"b": 0.5}],
        {"a": {"b": 0.5}},
    ],
    ids=repr,
)
def test_floats_are_refused(spell: Callable[[dict[str, object]], object], value: object) -> None:
    """A float is refused at any depth, also as a key."""
    with pytest.raises(TypeError, match="is a float; canonical JSON holds integers and strings"):
        spell({"member": value})


@given(st.integers(0, 40), st.text())
def test_permutation_is_one(n: int, seed: str) -> None:
    """A permutation holds each number once, and is the same each time."""
    order = digest.permutation(n, seed)

    assert sorted(order) == list(range(n))
    assert order == digest.permutation(n, seed)


def test_permutation_depends_on_every_part() -> None:
    """Another part, in any place, gives another permutation."""
    orders = {digest.permutation(30, *parts) for parts in (("a", 1), ("a", 2), ("b", 1), (1, "a"))}

    assert len(orders) == 4


def test_rank_keeps_its_parts_apart() -> None:
    """Text that moves from one part to the next changes the rank."""
    assert digest.rank("ab", "c") != digest.rank("a", "bc")


def test_tree_digest_covers_names_and_bytes(tmp_path: Path) -> None:
    """The digest of files depends on their bytes and relative names, not on the order or the folder."""
    for folder in ("x", "y"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "a").write_bytes(b"1")
        (tmp_path / folder / "sub" / "b").write_bytes(b"2")

    def tree(folder: str) -> str:
        root = tmp_path / folder
        return digest.tree_digest([path for path in sorted(root.rglob("*")) if path.is_file()], root)

    plain = tree("x")
    turned = digest.tree_digest([tmp_path / "y" / "sub" / "b", tmp_path / "y" / "a"], tmp_path / "y")
    (tmp_path / "x" / "a").write_bytes(b"3")
    (tmp_path / "y" / "a").rename(tmp_path / "y" / "c")

    assert turned == plain
    assert len({plain, tree("x"), tree("y")}) == 3


def test_line_marks_name_the_changed_line() -> None:
    """There is a mark for every line, and only a changed line's mark changes, also by its line end."""
    before, after = digest.line_marks(b"a\nb\nc\n"), digest.line_marks(b"a\nB\nc")

    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, False]
