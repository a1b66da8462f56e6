"""Builders for tests: valid values, of which a test changes what it is about."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from studytool import fit, jsonl, ledger, studyfile
from studytool.fit import Fit, Outcome
from studytool.grid import case_digest
from studytool.jsonl import SessionFile
from studytool.model import (
    LEGS,
    Case,
    Decide,
    Fingerprint,
    LegRecord,
    Plan,
    Record,
    Session,
    Split,
    Status,
    Study,
    Threshold,
)
from studytool.runtime import key
from studytool.studyjson import CaseSummary, RegimeSummary, Summary

STUDY_YAML = """\
schema: 1
name: tiny
question: Which engine leads?
engine: simulated
row: open_engine
base: library
device: {cc: host, board: any}
op: [sdpa_fwd]
dtypes: [bf16]
class_key: [op, dtype, mask]
splits:
  train:
    grids:
      - {s_kv: [64, 128, 256, 512], h_q: 4, d_qk: 64}
      - {s_kv: [96, 160], h_q: 4, h_kv: 2, d_qk: 64, mask: tl}
  holdout:
    cases:
      - {s_kv: [80, 144], h_q: 2, d_qk: 32}
    differs: [s_kv, d_qk]
  routing:
    cases:
      - {s_kv: 128, h_q: 4, d_qk: 64, layout: strided}
protocol: {repeats: 3, blocks: 8}
decide: {margin: 0.05, thresholds: [from s_kv]}
gate:
  - slower_beyond_noise == 0
  - auto_over_default_geomean <= 1.02
simulated: {backend_ns: s_kv * 1000, frost_ns: s_kv * 500 + 64000}
"""
"""A small valid study, named tiny: six train cases, two hold-out cases and one routing case."""


def make_case(**changes: Any) -> Case:
    """Return a small square case with these fields changed."""
    fields: dict[str, Any] = {
        "op": "sdpa_fwd",
        "dtype": "bf16",
        "b": 1,
        "h_q": 4,
        "h_kv": 4,
        "s_q": 128,
        "s_kv": 128,
        "d_qk": 64,
        "d_v": 64,
    }
    return Case(**{**fields, **changes})


def make_fields(**changes: Any) -> dict[str, Any]:
    """Return the fields of a small square case, as a look-up takes them, with these changed."""
    return {**make_case().fields, **changes}


def make_study(text: str = STUDY_YAML, **changes: Any) -> Study:
    """Return the study of a text, as it would stand in studies/tiny, with these attributes changed."""
    study = studyfile.parse(text.encode(), "study.yaml", "tiny")
    return msgspec.structs.replace(study, **changes)


ORDERS = ("0132", "1203", "2310", "3021")
"""Four blocks in which every leg is once in each place and once after each other leg."""


def make_leg(ns: Iterable[int] = (200_000,) * 4, plan: int = 1, **changes: Any) -> LegRecord:
    """Return a leg of two launches a sample with these times and this plan."""
    return LegRecord(plan=Plan(engine=plan, name=f"engine {plan}"), inner=2, ns=tuple(ns), **changes)


def make_record(**changes: Any) -> Record:
    """Return an ok train record: frost, plan 5, takes half as long as the other legs, which are all plan 1."""
    case = changes.pop("of", make_case())
    fields: dict[str, Any] = {
        "schema": 1,
        "case": case_digest(case),
        "split": Split.TRAIN,
        "repeat": 1,
        "regime": "eager-warm",
        "attempt": 1,
        "status": Status.OK,
        "class_key": ("open_engine", "host", case.op, case.dtype, key.feature(case.fields, "mask")),
        "lookup": None,
        "legs": {**dict.fromkeys(LEGS, make_leg()), "frost": make_leg((100_000,) * 4, plan=5)},
        "order": ORDERS,
        "clock_mhz": (3000, 3000),
        "blocks": {},
        "checks": {},
        "error": "",
        "prev": "",
    }
    if changes.get("status", Status.OK) is not Status.OK:
        fields |= {"legs": {}, "order": ()}
    return Record(**{**fields, **changes})


def make_fingerprint(**changes: Any) -> Fingerprint:
    """Return the fingerprint of a made-up board with a clock of 1 ns."""
    fields: dict[str, Any] = {
        "board": "Board",
        "uuid": "u1",
        "cc": "host",
        "cores": 4,
        "memory_bytes": 1 << 30,
        "tick_ns": 1,
        "versions": {"engine": "1.0"},
        "settings": {},
        "device": {},
        "code": "c0de",
    }
    return Fingerprint(**{**fields, **changes})


def make_session(**changes: Any) -> Session:
    """Return the first session of the first train attempt at the study tiny."""
    fields: dict[str, Any] = {
        "schema": 1,
        "study": "tiny",
        "manifest": "m",
        "dtype": "bf16",
        "split": Split.TRAIN,
        "attempt": 1,
        "session": 1,
        "table": "t",
        "entries": "e",
        "started": "2026-01-01T00:00:00+00:00",
        "reason": "",
        "predicted_ns": 0,
        "fingerprint": make_fingerprint(),
        "prev": "",
        "lane": "",
    }
    return Session(**{**fields, **changes})


def write_session(path: Path, session: Session, records: Iterable[Record]) -> SessionFile:
    """Write a records file and return it as it is read."""
    with jsonl.Writer(path, session) as writer:
        for record in records:
            writer.append(record)
    found = jsonl.read(path)
    assert found is not None
    return found


def make_regime(ratio_ppm: int, **changes: Any) -> RegimeSummary:
    """Return a regime of five repeats with this ratio, at most 1000 ppm off."""
    fields = {
        "repeats": 5,
        "code": "",
        "ratio_ppm": ratio_ppm,
        "low_ppm": max(1, ratio_ppm - 1000),
        "high_ppm": ratio_ppm + 1000,
        "leg_ns": dict.fromkeys(LEGS, 100_000),
    }
    return RegimeSummary(**{**fields, **changes})


def make_case_summary(ratio_ppm: int = 700_000, **changes: Any) -> CaseSummary:
    """Return a train case with this ratio in one regime; what names no member changes a field of the case."""
    members = {name: changes.pop(name) for name in CaseSummary.__struct_fields__ if name in changes}
    regime = {name: changes.pop(name) for name in RegimeSummary.__struct_fields__ if name in changes}
    case = make_case(**changes)
    fields: dict[str, Any] = {
        "digest": case_digest(case),
        "label": case.label,
        "fields": case.fields,
        "class_key": (),
        "status": Status.OK,
        "error": "",
        "plans": {"backend": "1", "frost": "5", "auto": "1", "default": "1"},
        "regimes": {"eager-warm": make_regime(ratio_ppm, **regime)},
    }
    return CaseSummary(**{**fields, **members})


def make_summary(cases: Sequence[CaseSummary] = (), **changes: Any) -> Summary:
    """Return a train summary of these cases, put into the classes that its `class_key` makes of them."""
    fields: dict[str, Any] = {
        "schema": 1,
        "study": "tiny",
        "study_sha256": "5",
        "manifest_sha256": "f",
        "dtype": "bf16",
        "row": "open_engine",
        "base": "library",
        "cc": "host",
        "board": "Board",
        "versions": {"engine": "1.0"},
        "measured": {},
        "code": "c0de",
        "class_key": ("dtype",),
        "guards": (),
        "regimes": ("eager-warm",),
        "decide": Decide(thresholds=(Threshold("s_kv", "from"),)),
        "attempt": 1,
        "records": "",
        "band_ppm": 10_000,
    }
    fields |= changes
    place = fields["row"], fields["cc"], fields["class_key"]
    keyed = [msgspec.structs.replace(case, class_key=key.class_key(*place, case.fields)) for case in cases]
    return Summary(**fields, cases=tuple(keyed))


def unchained(record: Record) -> Record:
    """Return a record as it was before it was appended."""
    return msgspec.structs.replace(record, prev="")


def watch_disk(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by `write N` (whole lines) and `sync` as they are asked of the system."""
    seen: list[str] = []
    write, sync = os.write, os.fsync

    def watched_write(handle: int, data: bytes) -> int:
        seen.append(f"write {len(data.splitlines())}" if data.endswith(b"\n") else "write torn")
        return write(handle, data)

    def watched_sync(handle: int) -> None:
        seen.append("sync")
        sync(handle)

    patch.setattr(os, "write", watched_write)
    patch.setattr(os, "fsync", watched_sync)
    return seen


RATIOS = {"W": 700_000, "N": 1_000_000, "L": 1_300_000, "I": 700_000}


def make_levels(levels: str, **changes: Any) -> list[CaseSummary]:
    """Return cases of levels 64, 128, ... of s_kv, one word a level, one letter a case.

    W wins, N is neutral, L loses, and I, of two repeats, is inconclusive.
    """
    return [
        make_case_summary(RATIOS[letter], s_kv=64 * level, b=b, repeats=2 if letter == "I" else 5, **changes)
        for level, word in enumerate(levels.split(), 1)
        for b, letter in enumerate(word, 1)
    ]


def make_fit(cases: Sequence[CaseSummary], margin_ppm: int = 50_000, scope: str = "box", **changes: Any) -> Fit:
    """Return the fit of a summary of these cases."""
    return fit.fit(make_summary(cases, **changes), b"study.json", margin_ppm, scope)


def class_outcome(
    cases: Sequence[CaseSummary], margin_ppm: int = 50_000, scope: str = "box", **changes: Any
) -> Outcome:
    """Return what becomes of the one class that these cases are in."""
    (outcome,) = make_fit(cases, margin_ppm, scope, **changes).outcomes
    return outcome


def rule_of(outcome: Outcome) -> str:
    """Return an outcome in short: the rule and its bound, or the code."""
    line = outcome.line
    return f"{line.rule} {line.bound or ''}".strip() if line else outcome.code


BODIES: dict[str, ledger.Body] = {
    "frozen": {"manifest": "m", "marks": []},
    "session": {"file": "train-01-001.jsonl", "sha256": "5", "lines": 1},
    "apply": {"dtype": "bf16", "lines": "l", "margin_ppm": 50_000, "scope": "box", "table": "t", "entries": "e"},
    "score": {"score": "5"},
    "driver": {"name": "full_study.py", "sha256": "5" * 64},
}


def make_body(event: str, **changes: int | str | list[str]) -> ledger.Body:
    """Return what an event of this kind tells, with these members changed."""
    return {**BODIES[event], **changes}
