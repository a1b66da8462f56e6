"""The quick look-up says what `explain` says of anything; it changes nothing, keeps nothing and opens nothing."""

import collections
import functools
import gc
import json
import random
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from bad_tables import KEY, ROWS
from factories import make_fields
from hypothesis import event, given, settings
from hypothesis import strategies as st
from sharing import examples

import studytool.runtime
from studytool import lines
from studytool.runtime import key, lookup
from studytool.runtime.lookup import Limit, Table

POOL: dict[str, Sequence[key.Value]] = {
    "op": ["sdpa_fwd", "sdpa_bwd"],
    "dtype": ["bf16", "f16"],
    "b": [1, 2],
    "h_q": [4, 8],
    "h_kv": [1, 4],
    "s_q": [1, 8, 128],
    "s_kv": [64, 128, 200],
    **dict.fromkeys(("d_qk", "d_v"), (64, 128)),
    "mask": ["none", "tl", "br"],
    "window": [0, 16, 500],
    "layout": ["dense", "thd"],
    "bias": ["none", "bool"],
    **dict.fromkeys(("padding", "stats", "sink", "dropout_pct", "deterministic"), (0, 1)),
}


class Loud(str):
    """A text that may not be looked at as one."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        raise RuntimeError("hashed")


class Sly(Loud):
    """A text that may not be compared, but has the hash of its letters, so that it can be a name."""

    def __hash__(self) -> int:
        return str.__hash__(self)


class LoudDict(dict[str, Any]):
    """A dictionary that may not be looked into."""

    def _no(self, *_args: object) -> Any:
        raise RuntimeError("looked into")

    __getitem__ = __contains__ = __iter__ = __len__ = get = items = keys = _no


ODD_VALUES = [True, 1.0, float("nan"), None, "1", b"1", 10**400, Loud("bf16"), [1], {}, (1,), 1j, object()]
ODD_NAMES = ["color", "", "board", 0, None, b"mask", ("mask",), Sly("color"), 1.5]


def _any_of(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of these values, none of which is looked at."""
    return st.integers(0, len(values) - 1).map(values.__getitem__)


def _drawn_from(names: tuple[str, ...]) -> dict[str, st.SearchStrategy[key.Value]]:
    return {name: st.sampled_from(POOL[name]) for name in names}


GOOD = st.one_of(
    *[st.fixed_dictionaries(_drawn_from(key.GEOMETRY))] * 8,
    *[st.fixed_dictionaries(_drawn_from((*key.GEOMETRY, "mask", "window")))] * 16,
    *(st.fixed_dictionaries(_drawn_from((*key.GEOMETRY, "mask", name))) for name in key.FLAGS),
)


def _limits(value: key.Value) -> list[Limit]:
    """Return limits that hold a value, and some that do not."""
    if isinstance(value, int):
        return [value, (0, value), (value, value), (value, 2**70), (0, 2**70), (value + 1, value + 9), "text", ("0",)]
    return [value, (value,), ("other", value), ("other", value, "more"), "other", ("other",)]


@st.composite
def _lines(draw: st.DrawFn, features: tuple[str, ...], case: dict[str, Any]) -> lines.Line:
    """Return an entry of the class that a case is in, such that the case is often inside of it."""
    rule, axis, bound = draw(st.sampled_from(sorted(lookup.RULES))), "", 0
    if rule.endswith(("from", "upto")):
        axis = draw(st.sampled_from(["s_kv", "b*h_kv", "b*h_kv*s_kv", "window", "b*s_q*window"]))
        bound = key.axis_value(case, axis) + draw(st.sampled_from([-1, 0, 0, 0, 1]))
    names = draw(st.lists(st.sampled_from([*key.FEATURES, *key.PREDICATES * 3]), max_size=2))
    names += [name for name in key.FLAGS if name in case and draw(st.booleans()) and name not in names]
    box: dict[str, Limit] = draw(st.sampled_from([{}, {"board": "A"}, {"board": "A", "cudnn": "9.27"}]))
    box = box | {name: draw(st.sampled_from(_limits(key.feature(case, name)))) for name in names}
    return lines.Line(key.class_key("r", "8.0", features, case), rule, axis, bound, box, "")


@st.composite
def _odd(draw: st.DrawFn, case: dict[str, Any]) -> Any:
    """Return something that is not quite a case."""
    kind = draw(st.sampled_from(["missing", "value", "value", "neutral value", "name", "whole"]))
    if kind == "missing":
        del case[draw(st.sampled_from(key.GEOMETRY))]
    elif kind == "name":
        case[draw(_any_of(ODD_NAMES))] = 0
    elif kind == "whole":
        wholes: list[Any] = [None, 5, "b", [*case], [*case.items()], MappingProxyType(case), LoudDict(case)]
        return draw(_any_of([*wholes, collections.OrderedDict(case), collections.UserDict(case)]))
    else:
        names = key.GEOMETRY if kind == "value" else tuple(key.NEUTRAL)
        case[draw(st.sampled_from(names))] = draw(_any_of(ODD_VALUES))
    return case


@st.composite
def _asked(draw: st.DrawFn) -> tuple[Table, Any, Any, Any, Any]:
    """Return a table of up to three entries and all else that a look-up is asked, often about one of them."""
    features = tuple(draw(st.lists(st.sampled_from(key.FEATURES), max_size=3, unique=True)))
    cases: list[dict[str, Any]] = draw(st.lists(GOOD, min_size=1, max_size=3))
    entries = [draw(_lines(features, case)) for case in cases]
    text = lines.table_text(lines.Text({"r": features}, {entry.key: lines.render(entry) for entry in entries}))
    case = dict(draw(GOOD if draw(st.integers(0, 4)) == 0 else st.sampled_from(cases)))
    return (
        lookup.parse(text.encode(), "t.py"),
        draw(_any_of(["r"] * 99 + ["q", None, Loud("r"), ["r"]])),
        draw(_any_of(["8.0"] * 99 + ["9.0", 8.0, Loud("8.0"), {}])),
        draw(_odd(case)) if draw(st.integers(0, 9)) == 0 else case,
        draw(_any_of(["A"] * 8 + ["", "B", None, Loud("A"), ["A"]])),
    )


def _source(entry: str) -> bytes:
    """Return the text of the table with one entry."""
    return f"{ROWS}TABLE = {{\n    {KEY}: {entry},\n}}\n".encode()


def _table(entry: str) -> Table:
    return lookup.parse(_source(entry), "t.py")


def _run(script: str, *flags: str) -> str:
    """Return what a script prints in an interpreter of its own."""
    command, root = [sys.executable, *flags, "-c", script], Path(studytool.runtime.__file__).parents[2]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=30)
    assert (run.stderr, run.returncode) == ("", 0)
    return run.stdout


@settings(max_examples=examples(700))
@given(_asked())
def test_quick_look_up_says_what_explain_says(asked: tuple[Table, Any, Any, Any, Any]) -> None:
    """Of every table and every case, well-formed or not, the quick way says what the slow way does; neither raises."""
    answer = lookup.explain(*asked)
    event(f"{answer.code} {answer.verdict}")

    assert lookup.lookup(*asked) is answer.verdict


@pytest.mark.parametrize("name", ["b", "s_kv", "window"])
@pytest.mark.parametrize("rule", ["upto", "never_upto", "from", "never_from"])
def test_size_below_zero_is_looked_up_alike(rule: str, name: str) -> None:
    """A size that no graph has is answered by the quick way as by the slow way."""
    table, case = _table(f"('{rule}', '{name}', 100, {{}})"), make_fields(**{name: -5})

    assert lookup.lookup(table, "r", "8.0", case) is lookup.explain(table, "r", "8.0", case).verdict


@pytest.mark.parametrize("name", ["op", "dtype", "mask", "heads", "layout"])
@pytest.mark.parametrize("limit", ["5", "(5, 6)"])
def test_number_as_the_limit_of_a_kind_never_holds(limit: str, name: str) -> None:
    """A box that asks for a number where features are texts holds for no case, and raises nothing."""
    table = _table(f"('always', {{'{name}': {limit}}})")

    assert lookup.explain(table, "r", "8.0", make_fields()).code == "BOX"
    assert lookup.lookup(table, "r", "8.0", make_fields()) is None


def test_wide_range_as_the_limit_of_a_kind_is_not_walked() -> None:
    """A look-up does not count through a range to find that a text is not in it: it would never come back."""
    source = _source(f"('always', {{'heads': (0, {2**62})}})")
    script = f"""
from studytool.runtime import lookup
print(lookup.lookup(lookup.parse({source!r}, "t.py"), "r", "8.0", {make_fields()!r}))
"""

    assert _run(script) == "None\n"


@pytest.mark.parametrize("name", ["b", "op", "mask", "window", "layout"])
def test_name_that_will_not_be_compared_is_never_led(name: str) -> None:
    """A name with the letters of a field, and a comparison that raises, is malformed; no exception leaves a look-up."""
    case: dict[str, Any] = {Sly(name): 1, **{known: value for known, value in make_fields().items() if known != name}}

    assert lookup.lookup(_table("('always', {})"), "r", "8.0", case) is None
    assert lookup.explain(_table("('always', {})"), "r", "8.0", case).verdict is None


BOX = "{'board': 'A', 'cudnn': '9.27', 's_kv': (70, 200), 'heads': ('gqa', 'mha'), 'square': 1, 'padding': (0, 1)}"


def _cases(count: int) -> list[dict[str, Any]]:
    """Return cases of which some are led, and some are not for each reason."""
    made = [make_fields(s_kv=64 + n % 200, s_q=64 + n % 200 if n % 5 else 1, mask="none") for n in range(count)]
    made[::3] = [make_fields(s_q=n, s_kv=n) for n in range(150, 150 + len(made[::3]))]
    made[::7] = [make_fields(padding=1, s_q=100, s_kv=100) for _ in made[::7]]
    made[::11] = [make_fields(sink=1) for _ in made[::11]]
    made[::13] = [{} for _ in made[::13]]
    return made


def test_threads_agree(request: pytest.FixtureRequest) -> None:
    """Eight threads that ask one table at the same time get the same answers, which are those of `explain`."""
    table, cases, start = _table(f"('always', {BOX})"), _cases(2000), threading.Barrier(8)
    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    expected = [lookup.explain(table, "r", "8.0", case, "A").verdict for case in cases]

    def ask(number: int) -> list[int]:
        order = random.Random(number).sample(range(2000), 2000) * 15
        start.wait()
        return [n for n in order if lookup.lookup(table, "r", "8.0", cases[n], "A") is not expected[n]]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [[]] * 8
    assert {*expected} == {True, None}


def test_look_ups_keep_nothing() -> None:
    """A hundred thousand look-ups, each of another case, leave no memory behind."""
    table, cases = _table(f"('always', {BOX})"), _cases(500)
    varied = make_fields(s_q=100, s_kv=100)

    def ask(count: int) -> None:
        for number in range(count):
            varied["b"] = number
            lookup.lookup(table, "r", "8.0", varied, "A")
            lookup.lookup(table, "r", "8.0", cases[number % 500], "A")

    ask(1000)
    gc.collect()
    tracemalloc.start()
    try:
        ask(10)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        ask(50_000)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert kept < 1024


WATCHED = """
import json, sys
sys.path.insert(0, {folder!r})
from elsewhere import lookup
table = lookup.load({table!r}, {{"cudnn": "9.27.1"}})
shipped = lookup.shipped()
seen, on = [], []
sys.addaudithook(lambda event, _args: seen.append(event) if on else None)
on.append(1)
said = [lookup.lookup(table, "r", "8.0", case, "A") for case in {cases!r}]
why = [lookup.explain(table, "r", "8.0", case, "A").code for case in {cases!r}]
none = lookup.lookup(lookup.shipped(), "r", "8.0", {{}})
on.clear()
print(json.dumps([said, why, none, seen, list(table.entries)]))
"""


def test_copied_folder_opens_nothing_after_it_has_read(tmp_path: Path) -> None:
    """Copied elsewhere, under -I -S, the runtime reads its tables once; a look-up opens and imports nothing at all."""
    shutil.copytree(Path(studytool.runtime.__file__).parent, tmp_path / "elsewhere")
    table, cases = tmp_path / "t.py", _cases(40)
    table.write_bytes(_source(f"('always', {BOX}),\n    {KEY.replace('bf16', 'f16')}: ('never', {{'cudnn': '9.27'}})"))
    script = WATCHED.format(folder=str(tmp_path), table=str(table), cases=cases)
    said, why, none, seen, entries = json.loads(_run(script, "-I", "-S"))
    here = lookup.load(table)

    assert said == [lookup.lookup(here, "r", "8.0", case, "A") for case in cases]
    assert set(why) == {"HIT", "BOX", "GUARD", "FEATURE"}
    assert (none, seen, len(entries)) == (None, [], 2)
