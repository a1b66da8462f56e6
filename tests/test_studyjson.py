"""study.json: it reads back, and what it cannot say is one line."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from factories import make_case_summary, make_summary

from studytool import fit, studyjson
from studytool.errors import SummaryError
from studytool.model import Status

CASES = [make_case_summary(700_000 + size, s_kv=size, b=2) for size in (64, 128, 256)]
SUMMARY = make_summary([*CASES, make_case_summary(status=Status.CRASHED, regimes={}, error="é\n")], guards=("square",))


def _said(data: bytes) -> str:
    with pytest.raises(SummaryError) as caught:
        studyjson.decode(data, "study.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reads_back() -> None:
    """A summary reads back as it was written, and is written again as the same bytes."""
    data = studyjson.encode(SUMMARY)
    found = studyjson.decode(data, "study.json")

    assert found == SUMMARY
    assert studyjson.encode(found) == data


def test_has_one_line_a_case() -> None:
    """A case has a line of its own, so that a changed one is seen in a diff of lines."""
    lines = studyjson.encode(SUMMARY).decode().split("\n")

    assert [sum(case.digest in line for line in lines) for case in SUMMARY.cases] == [1] * 4


def _case(d: dict[str, Any], **changes: Any) -> None:
    d["cases"][0].update(changes)


def _fields(d: dict[str, Any], **changes: Any) -> None:
    d["cases"][0]["fields"].update(changes)


def _regime(d: dict[str, Any], **changes: Any) -> None:
    d["cases"][0]["regimes"]["eager-warm"].update(changes)


FIRST = SUMMARY.cases[0].digest
OUTSIDE = f"case {FIRST}: ratio 700064 outside of its interval"
BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "schema": (lambda d: d.update(schema=2), "schema 2; this version reads 1"),
    "unknown field": (lambda d: d.update(color=1), "not a study.json: Object contains unknown field `color`"),
    "missing field": (lambda d: d.pop("band_ppm"), "not a study.json: Object missing required field `band_ppm`"),
    "float": (lambda d: _regime(d, ratio_ppm=700064.5), "not a study.json: Expected `int`, got `float`"),
    "feature": (lambda d: d.update(class_key=["size"]), "found feature size; expected one of b, bias, "),
    "guard": (lambda d: d.update(guards=["square", "size"]), "found feature size; expected one of b, bias, "),
    "twice": (lambda d: d["cases"].append(d["cases"][0]), "a case is there twice"),
    "unknown case field": (lambda d: _fields(d, color=1), f"case {FIRST}: fields b, d_qk, "),
    "case field missing": (lambda d: d["cases"][0]["fields"].pop("b"), f"case {FIRST}: fields d_qk, "),
    "text for a size": (lambda d: _fields(d, s_kv="64"), f"case {FIRST}: a text where an integer is expected"),
    "other class": (
        lambda d: _fields(d, dtype="f16"),
        f"case {FIRST}: class ('open_engine', 'host', 'bf16') is not that of its fields",
    ),
    "other cc": (lambda d: d.update(cc="9.0"), f"case {FIRST}: class ('open_engine', 'host', 'bf16') is not"),
    "no frost plan": (
        lambda d: d["cases"][0]["plans"].pop("frost"),
        f"case {FIRST}: plans of auto, backend, default; expected backend, frost, auto, default",
    ),
    "ratio below": (lambda d: _regime(d, low_ppm=700_065), OUTSIDE),
    "ratio above": (lambda d: _regime(d, high_ppm=700_063), OUTSIDE),
    "no ratio": (lambda d: _regime(d, low_ppm=0), OUTSIDE),
    "axis": (
        lambda d: d["decide"].update(thresholds=[["mask", "from"]]),
        "threshold from mask; expected from or upto and a size axis",
    ),
    "direction": (
        lambda d: d["decide"].update(thresholds=[["s_kv", "above"]]),
        "threshold above s_kv; expected from or upto and a size axis",
    ),
    "scope": (
        lambda d: d["decide"].update(scope="all"),
        "no regimes, a negative margin, or a scope",
    ),
    "margin": (lambda d: d["decide"].update(margin_ppm=-1), "no regimes, a negative margin, or a scope"),
    "regimes": (lambda d: d.update(regimes=[]), "no regimes, a negative margin, or a scope"),
    "status": (lambda d: _case(d, status="fine"), "not a study.json: Invalid enum value 'fine'"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_summary_is_one_line(change: Callable[[dict[str, Any]], object], message: str) -> None:
    """What a summary cannot say is refused in one line that says what was found and expected."""
    built = json.loads(studyjson.encode(SUMMARY))
    change(built)

    assert _said(json.dumps(built).encode()).startswith(f"study.json: {message}")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"null", b'{"schema": "\xff"}'])
def test_bytes_that_are_no_summary_are_one_line(data: bytes) -> None:
    """Bytes that are no JSON, no UTF-8 or no summary are refused in one line."""
    assert _said(data).startswith("study.json: not a study.json: ")


def test_what_is_read_can_be_fitted() -> None:
    """The summary of these tests is fitted when nothing is wrong with it."""
    data = studyjson.encode(SUMMARY)

    assert len(fit.fit(studyjson.decode(data, "study.json"), data, 50_000, "box").outcomes) == 1
