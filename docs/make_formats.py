"""Writes formats.md and schemas/ from the types that read and write the files: `python docs/make_formats.py`.

What a field is stands here, once, in SENTENCES; a field without a sentence, and a sentence without a field, is an
error. tests/test_formats.py fails where what is committed is not what this makes.
"""
# ruff: noqa: INP001

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from studytool import bundle, export, ledger, lines, metrics, model, possible
from studytool.freeze import Exclusion, Manifest
from studytool.ledger import Event
from studytool.model import Case, Decide, Fingerprint, LegRecord, Plan, Record, Session, Split, Status, Threshold
from studytool.runtime import key, lookup, tables
from studytool.studyjson import CaseSummary, RegimeSummary, Summary

HERE = Path(__file__).resolve().parent
Json = dict[str, Any]


class Gate(msgspec.Struct, forbid_unknown_fields=True):
    """gate.json: what a score must show, and how entries are decided; frozen with the cases."""

    schema: int
    name: str
    gate: tuple[str, ...]
    decide: Decide


class Checked(msgspec.Struct, forbid_unknown_fields=True):
    """One condition of the gate, held against a score."""

    condition: str
    value: int | None
    holds: bool | None


class Unscored(msgspec.Struct, forbid_unknown_fields=True):
    """An attempt that was made and is not the one that is scored."""

    split: Split
    attempt: int
    lines: int
    planned: int
    verdict: str
    reason: str


class Failed(msgspec.Struct, forbid_unknown_fields=True):
    """A hold-out case that no ratio speaks of."""

    case: str
    label: str
    status: Status
    error: str


class Coverage(msgspec.Struct, forbid_unknown_fields=True):
    """What the table says of the hold-out cases, and what no case of either split varied."""

    leads: int
    trails: int
    abstains: int
    constant: dict[str, key.Value]


class ScoredCase(msgspec.Struct, forbid_unknown_fields=True):
    """A hold-out case that is ok in every line, in one regime."""

    case: str
    label: str
    class_key: tuple[key.Value, ...] = msgspec.field(name="class")
    regime: str
    code: str
    host_bound: bool
    lookup: bool | None
    plans: dict[str, str]
    leg_ns: dict[str, int]
    host_ns: dict[str, int]
    regret_ppm: dict[str, int]
    frost_over_backend_ppm: int
    auto_over_default_ppm: tuple[int, int, int]
    spread_ppm: dict[str, int]


class Routed(msgspec.Struct, forbid_unknown_fields=True):
    """A routing case: what would run with the table and without."""

    case: str
    label: str
    lookup: bool | None
    auto: str
    default: str
    auto_name: str
    default_name: str
    status: Status
    error: str


class AnchorRatios(msgspec.Struct, forbid_unknown_fields=True):
    """A case that several lanes measured: frost over backend in each of them, in one regime."""

    case: str
    label: str
    regime: str
    frost_over_backend_ppm: dict[str, int]


class MeasuredOn(msgspec.Struct, forbid_unknown_fields=True):
    """Which boards measured the hold-out, in which lanes, and how far each lane is off the others on the anchors."""

    boards: tuple[str, ...]
    lanes: dict[str, str]
    neighbours: int
    anchors: tuple[AnchorRatios, ...]
    offsets_ppm: dict[str, dict[str, tuple[int, int, int]]]
    apart: tuple[str, ...]


class Score(msgspec.Struct, forbid_unknown_fields=True):
    """score.json: what the hold-out and routing records say, recomputed from them by whoever doubts it."""

    schema: int
    study: str
    dtype: str
    manifest_sha256: str
    attempts: dict[str, int]
    records: dict[str, str]
    reasons: dict[str, str]
    unscored: tuple[Unscored, ...]
    repeats: int
    metrics: dict[str, int | None]
    intervals: dict[str, tuple[int, int]]
    statuses: dict[str, int]
    failed: tuple[Failed, ...]
    gate: tuple[Checked, ...]
    verdict: Literal["PASS", "FAIL", "CANNOT SAY"]
    open: tuple[str, ...]
    regimes: dict[str, dict[str, int]]
    health: dict[str, int | tuple[int, int, int]]
    boards: MeasuredOn
    coverage: Coverage
    host_bound: int
    unsteady: int
    cases: tuple[ScoredCase, ...]
    routing: tuple[Routed, ...]


SCHEMAS: dict[str, type] = {
    "case": Case,
    "gate": Gate,
    "manifest": Manifest,
    "session": Session,
    "record": Record,
    "event": Event,
    "study": Summary,
    "lines": lines.Header,
    "score": Score,
}
"""The type of each schema, by the first part of its file's name."""

_SCHEMA = "The version of the file's format."
_DIGEST = "The case's digest: the SHA-256 of its frozen line, without the line end."
_LABEL = "The case as engineers write it, such as `sdpa_bwd bf16 b12 h48/6 d128 S16484 br w96`."
_CLASS = "The class: the row, the compute capability, and the values of the study's `class_key`, in its order."
_LOOKUP = "What the table answers: true (the row leads), false (it trails), null (no entry)."
_STATUS = "How it ended; see Statuses."
_ERROR = "What kept it from being timed, in the engine's own words without paths; empty where nothing did."
_STUDY = "The study's name."
_DTYPE = "The dtype; each is fitted and scored by itself."
_MANIFEST = "The SHA-256 of the MANIFEST.json that the cases are from."
_ATTEMPT = "The number of the attempt at the split, from 1."

SENTENCES: dict[type, dict[str, str]] = {
    Case: {
        "op": "What is computed: the forward, the backward, or both in one.",
        "dtype": "The type of the inputs.",
        "b": "Batches.",
        "h_q": "Heads of the queries.",
        "h_kv": "Heads of the keys and values; `h_q` is a multiple of it.",
        "s_q": "Length of the queries.",
        "s_kv": "Length of the keys and values.",
        "d_qk": "Head dimension of queries and keys.",
        "d_v": "Head dimension of the values.",
        "mask": "The causal mask: none, aligned top-left, or aligned bottom-right.",
        "window": "Keys that a query sees to its left, itself included; 0: all.",
        "layout": "How tensors lie; strided: the last dimension is not contiguous, broadcast: heads share K and V.",
        "bias": "An extra boolean mask, an additive bias with a gradient, or none.",
        "padding": "1: sequences have lengths of their own below `s_q` and `s_kv`.",
        "stats": "1: the forward also writes softmax statistics.",
        "sink": "1: there is an attention sink per head.",
        "dropout_pct": "The dropout probability in percent.",
        "deterministic": "1: a backward is asked for that gives the same bits each time.",
    },
    Gate: {
        "schema": _SCHEMA,
        "name": _STUDY,
        "gate": "The conditions, as study.yaml writes them, such as `auto_over_default_geomean <= 1.02`.",
        "decide": "How train records become entries.",
    },
    Decide: {
        "margin_ppm": "How much faster a lead must be: a case wins at a ratio of at most 1/(1+margin).",
        "max_regret_ppm": "The ratio above which a case loses; 0: one plus the A/A band.",
        "noise_limit_ppm": "The largest A/A band, and disturbance of a case, at which anything is concluded.",
        "min_support": "How many cases of a class must win.",
        "scope": "`box`: entries hold inside what was measured, on that board; `class`: for the whole class.",
        "thresholds": "Size axes and directions by which a class may be cut, in the order of preference.",
    },
    Manifest: {
        "schema": _SCHEMA,
        "name": _STUDY,
        "study_sha256": "The SHA-256 of study.yaml.",
        "files": "The SHA-256 of each frozen file, by its name.",
        "counts": "How many cases each split has, over all dtypes.",
        "tool": "The version of studytool that froze.",
        "commit": "The git commit of the tree around the study, empty outside of one.",
        "disjoint_from": "Earlier studies with which hold-out and routing share no case.",
    },
    Exclusion: {
        "name": "The earlier study's name.",
        "sha256": "The SHA-256 of its MANIFEST.json.",
    },
    Session: {
        "schema": _SCHEMA,
        "study": _STUDY,
        "manifest": _MANIFEST,
        "dtype": _DTYPE,
        "split": "The split; see Splits.",
        "attempt": _ATTEMPT,
        "session": "The number of the session within the attempt, from 1: each start of the tool that measures is one.",
        "table": "The SHA-256 of the table that was in force.",
        "entries": "The digest of its entries of this row and dtype; see table.py.",
        "started": "When the session began.",
        "reason": "Why the attempt was made, where there was one before it.",
        "predicted_ns": "How long the session was expected to take, 0 where nothing like it was measured before.",
        "fingerprint": "The machine and the code that measured.",
        "prev": "The SHA-256 of the whole file of the session before, of the same lane; see Chain rules.",
        "lane": "A shard such as `3of16`, or a board of a fleet, `b` and its hashed id; empty for a machine alone.",
    },
    Fingerprint: {
        "board": "The name of the GPU, or of the processor.",
        "uuid": "A hash that tells boards of one name apart; it is no serial.",
        "cc": "The compute capability or instruction set, such as `9.0` or `x86-avx2`.",
        "cores": "The processor's cores.",
        "memory_bytes": "The memory of the board, or of the host.",
        "tick_ns": "The tick of the clock that times were taken with.",
        "versions": "Versions of the libraries and of the system, by name.",
        "settings": "What of the device must be the same in sessions that are compared.",
        "device": "What else the device said of itself when the session began.",
        "code": "The digest of the measuring code, the versions and the settings.",
    },
    Record: {
        "schema": _SCHEMA,
        "case": _DIGEST,
        "split": "The session's split.",
        "repeat": "The repeat, from 1: each is a fresh process.",
        "regime": "How blocks were launched, such as `eager-warm`; see Regimes.",
        "attempt": "The session's attempt.",
        "status": _STATUS,
        "class": _CLASS,
        "lookup": _LOOKUP,
        "legs": "The legs that were planned, by name: `backend`, `frost`, `auto`, `default`.",
        "order": "Per block the legs in the order in which they were timed, as digits: 0 `backend`, 1 `frost`,"
        " 2 `auto`, 3 `default`. Empty where nothing was timed.",
        "clock_mhz": "The device's clock before and after all blocks, nothing where it cannot be read.",
        "blocks": "What the device said of itself before each block, by name; see What a record counts.",
        "checks": "What was found besides times, by name; see What a record counts.",
        "error": _ERROR,
        "prev": "The SHA-256 of the line before; see Chain rules.",
    },
    LegRecord: {
        "plan": "What the leg ran, null where it has no plan.",
        "inner": "How many launches each sample has.",
        "ns": "The time of each sample, that is of `inner` launches together, one per block in the order of blocks.",
        "host_ns": "What the host took to enqueue each sample, where that is kept apart from the device's time.",
        "build_ns": "How long the plan took to be built and run for the first time.",
        "counters": "One integer per sample and name; see What a record counts.",
    },
    Plan: {
        "engine": "The engine's id.",
        "name": "The engine's own name of the plan.",
        "knobs": "The values of its knobs. Two plans are one where id and knobs are equal.",
    },
    Event: {
        "schema": _SCHEMA,
        "at": "When it happened.",
        "event": "What happened; see Events.",
        "body": "What the event tells; see Events.",
        "prev": "The `own` of the line before, empty in the first line.",
        "own": "The digest of this line with an empty `own`.",
    },
    Summary: {
        "schema": _SCHEMA,
        "study": _STUDY,
        "study_sha256": "The SHA-256 of study.yaml.",
        "manifest_sha256": _MANIFEST,
        "dtype": _DTYPE,
        "row": "The row that an entry lifts.",
        "base": "The order without an entry: the `library`'s own, or `backend` first.",
        "cc": "The compute capability of the board that measured.",
        "board": "The name of the board that measured.",
        "versions": "The versions that measured, by name.",
        "measured": "What a box says of library and board: versions by major and minor, SMs, memory in GiB.",
        "code": "The digest of the code that measured.",
        "class_key": "The features of which each combination is a class.",
        "guards": "The features that must hold for an entry to lead.",
        "regimes": "The regimes that were timed.",
        "decide": "How entries are decided.",
        "attempt": "The train attempt that is summed up.",
        "records": "The SHA-256 of what its records say: by case, repeat and regime, each a line with an empty `prev`.",
        "band_ppm": "The A/A band: the 95th percentile of what legs of one plan differ by; -1 where there are none.",
        "cases": "All train cases, sorted by digest.",
    },
    CaseSummary: {
        "digest": _DIGEST,
        "label": _LABEL,
        "fields": "The fields of the case, as it was frozen.",
        "class": _CLASS,
        "status": "How the case ended: the worst of its lines; see Statuses.",
        "error": "Why, where it is not ok.",
        "plans": "The plan of each leg as text, such as `7[k24=2]`, empty where there is none.",
        "regimes": "What was measured, by regime; none where nothing was.",
    },
    RegimeSummary: {
        "repeats": "How many repeats were timed.",
        "code": "What fails in the case's control, such as `DRIFT`; empty where nothing does.",
        "ratio_ppm": "Frost's time over the backend's.",
        "low_ppm": "The lower bound of its 95 % interval over repeats.",
        "high_ppm": "The upper bound.",
        "leg_ns": "The time of each leg per launch: the median over repeats of the median over blocks.",
    },
    lines.Header: {
        "schema": _SCHEMA,
        "study": _STUDY,
        "dtype": _DTYPE,
        "row": "The row whose entries these are.",
        "features": "The features of its keys, in order.",
        "margin_ppm": "The margin that the lines were made with.",
        "scope": "The scope that they were made with: `box` or `class`.",
        "study_json": "The SHA-256 of the study.json that they were made from.",
    },
    Score: {
        "schema": _SCHEMA,
        "study": _STUDY,
        "dtype": _DTYPE,
        "manifest_sha256": _MANIFEST,
        "attempts": "Which attempt of each split is scored.",
        "records": "The SHA-256 of each hold-out and routing records file, by name.",
        "reasons": "Why an attempt was made, where it is not the first, by split and attempt.",
        "unscored": "The attempts that are not scored.",
        "repeats": "How many repeats a case has at most.",
        "metrics": "The metrics that a gate may name; see Metrics. Null where there is none.",
        "intervals": "95 % bootstrap intervals of geometric means in ppm, classes resampled before cases.",
        "statuses": "How many hold-out cases ended how; they add up to all.",
        "failed": "The cases that did not end ok.",
        "gate": "The gate's conditions with what was found.",
        "verdict": "What the gate says.",
        "open": "What keeps the gate from an answer.",
        "regimes": "The metrics of each regime by itself, in ppm.",
        "health": "What disturbed the hold-out: `carry_over_ppm` with its interval, and the medians or largest of the"
        " other effects; empty where nothing was timed.",
        "boards": "Where the hold-out was measured.",
        "coverage": "What the table says of the cases.",
        "host_bound": "How many lines have a leg whose host took longer than the device.",
        "unsteady": "How many lines have a leg that was still changing after the warm-up.",
        "cases": "The cases that are ok in every line, by digest and regime.",
        "routing": "The routing cases, by digest.",
    },
    MeasuredOn: {
        "boards": "The hashed ids of the boards.",
        "lanes": "The board of each lane; none where one machine measured all.",
        "neighbours": "On how many other boards of one host a fleet measured meanwhile, at most.",
        "anchors": "The cases that several lanes measured, in each regime.",
        "offsets_ppm": "By regime and lane how far its ratios are off the others', as a ratio with its interval.",
        "apart": "The lanes that are off by more than the A/A band with their whole interval.",
    },
    AnchorRatios: {
        "case": _DIGEST,
        "label": _LABEL,
        "regime": "The regime.",
        "frost_over_backend_ppm": "Frost's time over the backend's, by lane.",
    },
    Checked: {
        "condition": "The condition as study.yaml writes it.",
        "value": "What was found, in ppm or as a count; null where the score has no such number.",
        "holds": "Whether it holds; null where there is no value.",
    },
    Unscored: {
        "split": "The split; see Splits.",
        "attempt": _ATTEMPT,
        "lines": "How many lines it has.",
        "planned": "How many it should have.",
        "verdict": "What the gate would say of it; empty where it is not whole or had other entries.",
        "reason": "Why it was made.",
    },
    Failed: {"case": _DIGEST, "label": _LABEL, "status": "How it ended; see Statuses.", "error": _ERROR},
    Coverage: {
        "leads": "For how many cases the row leads.",
        "trails": "For how many it trails.",
        "abstains": "For how many there is no entry.",
        "constant": "The features that have one value in all train and hold-out cases, with it.",
    },
    ScoredCase: {
        "case": _DIGEST,
        "label": _LABEL,
        "class": _CLASS,
        "regime": "How it was launched; see Regimes.",
        "code": "What fails in its control; empty where nothing does.",
        "host_bound": "Whether a leg's host took longer than the device.",
        "lookup": _LOOKUP,
        "plans": "The plan of each leg as text.",
        "leg_ns": "The time of each leg per launch: the median over repeats of the median over blocks.",
        "host_ns": "The host's time of each leg per launch, where it is kept apart.",
        "regret_ppm": "The time of each leg over the faster of frost and backend.",
        "frost_over_backend_ppm": "Frost's time over the backend's.",
        "auto_over_default_ppm": "The time with the table over that without, then the bounds of its 95 % interval.",
        "spread_ppm": "How far each leg's repeats lie apart.",
    },
    Routed: {
        "case": _DIGEST,
        "label": _LABEL,
        "lookup": _LOOKUP,
        "auto": "The plan with the table.",
        "default": "The plan without.",
        "auto_name": "The engine's name of the plan with the table.",
        "default_name": "The engine's name of the plan without.",
        "status": _STATUS,
        "error": _ERROR,
    },
}
"""What each field is, by the name that it has in a file."""

STATUSES: dict[str, str] = {
    "ok": "Timed, or as a routing case planned.",
    "refused": "The graph is invalid.",
    "declined": "An engine will not run it, or ran something else than it was named for.",
    "no_frost": "The row has no plan for it.",
    "no_backend": "The backend has no plan for it.",
    "wrong_result": "Legs, or a leg and the float64 reference, differ by more than the tolerance.",
    "error": "Something raised.",
    "crashed": "The process ended.",
    "timeout": "It took longer than `case_timeout_s`.",
    "unresolvable": "It is shorter than the clock can tell.",
}
SPLITS: dict[str, str] = {
    "train": "Fits the entries.",
    "holdout": "Judges them.",
    "routing": "Is planned and not timed: graphs that the table must leave alone.",
}
REGIMES: dict[str, str] = {
    "eager-warm": "Launched by themselves, caches as they are.",
    "eager-cold": "Launched by themselves, caches flushed before every launch.",
    "replay-warm": "Replayed from a captured graph, caches as they are.",
    "replay-cold": "Replayed from a captured graph, caches flushed before every launch.",
}
UNITS: dict[str, str] = {
    "_ns": "nanoseconds",
    "_s": "seconds",
    "_ppm": "parts per million: a ratio of 1 is 1000000, a share or a relative difference of 1 % is 10000",
    "_ppb": "parts per billion",
    "_pct": "percent",
    "_mhz": "megahertz",
    "_mw": "milliwatts",
    "_c": "degrees Celsius",
    "_bytes": "bytes",
    "_gib": "gibibytes, 2^30 bytes",
    "_sha256": "a SHA-256 in 64 hexadecimal digits",
}
CHECKS: dict[str, str] = {
    "legs_o_ppb, legs_grad_ppb, legs_stats_ppb": "The largest relative L2 difference of a leg's output, gradients and"
    " softmax statistics from the backend's.",
    "float64_o_ppb, float64_grad_ppb, float64_stats_ppb": "The same from a float64 reference.",
    "warmup_rounds": "Rounds of the warm-up, in each of which every leg is timed once.",
    "steady": "1: the last launches of the warm-up agreed.",
    "trend_ppm": "By how much a leg still changed where they did not.",
    "flush_probe_ppm": "In a cold regime: a read after a flush over the same read at once.",
    "took_ns": "What the whole line cost.",
    "startup_ns": "What the start of the process cost, in the first line after it.",
    "look_half_width_ppm": "With a stop rule: the half width of the case's interval after this repeat.",
    "look_stop": "1: the case is measured no more.",
    "plan_ns": "What building and planning the graph took.",
    "declined_backend, declined_frost": "Which plans of a side did not build, and why.",
    "nodes_ENGINE": "How many nodes a captured launch of an engine has.",
}
COUNTERS: dict[str, str] = {
    "cpu_ns": "On a CPU: the thread's time on the processor.",
    "minor_faults": "On a CPU: page faults that need no disk.",
    "preemptions": "On a CPU: involuntary switches to other processes.",
    "gap": "On a GPU: 1 where the device had to wait for the host.",
}
STATES: dict[str, str] = {
    "sm_mhz": "The clock of the SMs.",
    "memory_mhz": "The clock of the memory.",
    "throttle": "NVML's bit mask of reasons to run slower.",
    "power_mw": "The power that is drawn.",
    "temperature_c": "The temperature of the GPU.",
    "processes": "How many processes compute on the board.",
    "floor_ns": "What an empty kernel takes on this clock.",
}
METRICS: dict[str, str] = {
    "cases": "Hold-out cases.",
    "cases_timed": "Those that are ok in every line.",
    "inconclusive": "Those of them whose control fails in some regime.",
    "reached": "Those of them for which there is an entry.",
    "regret_default_geomean": "The geometric mean of the regret without the table.",
    "regret_default_max": "The largest regret without the table.",
    "regret_auto_geomean": "The geometric mean of the regret with the table.",
    "regret_auto_max": "The largest regret with the table.",
    "regret_backend_geomean": "That of always the backend.",
    "regret_frost_geomean": "That of always frost.",
    "auto_over_default_geomean": "The geometric mean of the time with the table over that without.",
    "auto_over_default_min": "The least of these ratios.",
    "auto_over_default_max": "The largest of these ratios.",
    "slower_beyond_noise": "Cases that the table makes slower by more than the A/A band and with their whole interval.",
    "routing_changed": "Routing cases that do not keep their plan.",
    "band": "The A/A band: the 95th percentile of what legs of one plan differ by.",
    "spread_median": "The median of what a leg's repeats lie apart by.",
    "spread_p90": "The 90th percentile of it.",
    "spread_max": "The largest of it.",
    "control_min": "The least ratio of two legs of one plan.",
    "control_max": "The largest ratio of two legs of one plan.",
    "closed_gap": "Which share of the gap between the better fixed choice and the faster engine of each case the table"
    " closes; 1 is all.",
}
BODIES: dict[str, tuple[str, dict[str, str]]] = {
    "frozen": (
        "The manifest that holds from here on; the first event of every ledger.",
        {
            "manifest": "The SHA-256 of MANIFEST.json.",
            "marks": "The first eight digits of the SHA-256 of each of its lines, line end included, by which a changed"
            " line can be named.",
        },
    ),
    "session": (
        "A records file was finished.",
        {
            "file": "Its name.",
            "sha256": "The SHA-256 of the whole file.",
            "lines": "How many whole lines it has.",
        },
    ),
    "apply": (
        "Lines went into the study's table; every ledger of the study is told.",
        {
            "dtype": "The dtype of the lines.",
            "lines": "The SHA-256 of the lines file.",
            "margin_ppm": "The margin that it was made with.",
            "scope": "The scope that it was made with.",
            "table": "The SHA-256 of the table afterwards.",
            "entries": "The digest of the entries of the row and of this ledger's dtype afterwards.",
        },
    ),
    "score": (
        "score.json was written and is not what it was before: a per-case look at the hold-out.",
        {"score": "The SHA-256 of score.json."},
    ),
    "driver": (
        "A script was started on the study; its copy in `drivers/` is named by the first twelve digits of its hash, a"
        " hyphen and its name.",
        {"name": "Its file's name.", "sha256": "The SHA-256 of the script."},
    ),
}
COLUMNS: dict[str, str] = {
    "case": _DIGEST,
    "label": _LABEL,
    **SENTENCES[Case],
    "class": "The class, as a JSON list.",
    "split": "The split.",
    "attempt": _ATTEMPT,
    "repeat": "The repeat, from 1.",
    "regime": "The regime.",
    "leg": "`backend`, `frost`, `auto` or `default`; empty where a line has no legs.",
    "plan": "The identity of the plan that the leg ran: the engine's id with its knobs.",
    "plan_name": "The engine's own name of the plan.",
    "block": "The block, from 1.",
    "place": "The place within the block, from 1.",
    "inner": "How many launches the sample has.",
    "ns": "The time of the sample.",
    "ns_per_launch": f"`ns` over `inner`: exact where it ends within {export.DECIMALS} decimals, else rounded there.",
    "host_ns": "What the host took to enqueue the sample, where that is kept apart.",
    "status": "How the line ended.",
    "error": "Why, where it is not ok.",
    "clock_mhz": "The device's clock before and after all blocks of the line, as a JSON list.",
}

PAGE = """\
# File formats

Made by `python docs/make_formats.py` from the types that read and write the files; a test fails where they differ.
The JSON Schema of each file is in `docs/schemas/`. What study.yaml may say is in
[README](../README.md#declaring-a-study).

## What all files have in common

Text is UTF-8, and lines end with LF. JSON is *canonical*: members sorted by name, no spaces, nothing escaped but what
must be, integers and texts and no floats, so that a value has one spelling and one hash. Files that people compare by
lines (MANIFEST.json, gate.json, study.json, score.json) have each member on a line of its own, and in lists and maps of
structures each element; the rest of a line is canonical. A reader refuses a line of records or of a ledger that is not
spelled so, and any other version than `schema` $schema. A frozen case is its fields alone, without `schema`.

A *digest* is the SHA-256 of canonical JSON, or of what is said, in hexadecimal. Attempts, sessions and repeats count
from 1. Times of day are ISO 8601 in UTC. Records tell of no machine's name, user or folder. The end of a name is its
unit:

$units

Records are checked by the [chain rules](#chain-rules), and what is not recorded there is recomputed from them.

```
studies/NAME/study.yaml                 what is asked
studies/NAME/table.py                   the table that the hold-out is timed with
studies/NAME/drivers/                   copies of the scripts that were started
studies/NAME/DTYPE/records/             SPLIT-ATTEMPT-SESSION.jsonl, such as holdout-01-001.jsonl; in lanes
                                        SPLIT-ATTEMPT-LANE-SESSION.jsonl, such as train-01-3of16-001.jsonl
studies/NAME/DTYPE/ledger.jsonl         what was done when
studies/NAME/DTYPE/study.json           the train records in numbers
studies/NAME/DTYPE/lines.txt            the entries that they decide
studies/NAME/DTYPE/score.json           the hold-out in numbers
studies/NAME/DTYPE/report.md            the same for people
studies/NAME/report.md                  the same over all dtypes
frozen_cases/NAME/DTYPE.SPLIT.jsonl     cases
frozen_cases/NAME/gate.json             what a score must show
frozen_cases/NAME/MANIFEST.json         hashes of both
```

### Splits

$splits

### Statuses

$statuses

### Regimes

$regimes

## Frozen files

### DTYPE.SPLIT.jsonl

One case a line, sorted by digest: `docs/schemas/case.schema.json`. A field that has the value under *left out at* is
left out, so that a field that is added one day changes no digest. The digest of a case is the SHA-256 of its line,
without the line end.

$Case

### gate.json

`docs/schemas/gate.schema.json`.

$Gate

$Decide

### MANIFEST.json

`docs/schemas/manifest.schema.json`. `freeze` prints one line to be posted before anything is timed: `frozen`, the name,
`sha256:` and the hash of this file, and the counts.

$Manifest

$Exclusion

## Records

A records file is what one session measured. It is only appended to; each line is on disk before the next case begins.

### The first line

`docs/schemas/session.schema.json`. The fingerprint's `board`, `cc`, `versions`, `settings` and `code` are equal in all
sessions of an attempt, and those of the hold-out are equal to those of the train split.

$Session

$Fingerprint

### Every other line

One case in one repeat and regime: `docs/schemas/record.schema.json`.

$Record

$LegRecord

$Plan

A plan as text is its engine's id, with its knobs in brackets where it has any: `5`, `7[k24=2,k27=0]`.

A leg has as many samples as `order` has blocks. Sample number n of a leg is of block n. Blocks come in fours, in which
each leg is once in each place and once after each other leg; which fours is a function of study.yaml's hash, the case,
the repeat and the regime, and a reader recomputes it.

### What a record counts

`checks`, as far as they apply:

$checks

`counters` of a leg, one value a sample:

$counters

`blocks`, one value a block; -1 where the board did not answer:

$states

## Chain rules

- `prev` of a record is the SHA-256 of the line before it, line end included; that of the first record is of the
  session line.
- `prev` of a session is the SHA-256 of the whole file of the session before it in the same attempt and lane, a torn
  last line included; it is empty in a lane's first session.
- Only the last line of a records file may lack its line end. It is dropped, and its case measured again whole, in the
  next session.
- Every planned line is in an attempt once: each case, repeat and regime of a split, of a routing split its first regime
  once. With a stop rule a case ends after the repeat whose look says so. Anchors are in each lane once, and count as
  the lane has them that has most lines of them, of several the first by name.
- All lines of a case are of one board, an anchor's within a lane.
- `own` of a ledger's event is the digest of the event with an empty `own`, and `prev` the `own` of the line before.
- A ledger's `session` events hold the hash of each finished records file, its first event that of the manifest; the
  manifest holds those of the frozen files and of study.yaml, study.json and score.json those of their records, and the
  header of lines.txt that of study.json.

A chain shows that files agree with one another, not when they were made.

## ledger.jsonl

One event a line (`docs/schemas/event.schema.json`), one ledger a dtype.

$Event

### Events

$bodies

A hold-out is FRESH until the entries change after it was timed or looked at; then it is SPENT.

## study.json

The train split of one dtype in integers, which is all that the generator reads: `docs/schemas/study.schema.json`.

$Summary

$CaseSummary

$RegimeSummary

## lines.txt

The first line is `# studytool lines ` and a header in canonical JSON (`docs/schemas/lines.schema.json`); each further
line is an entry as table.py has it, sorted by the canonical JSON of its key.

$Header

## table.py

A Python module of literals that is read with `ast` and never executed: a docstring, `SCHEMA = $table_schema`, `ROWS`
and `TABLE`, formatted as black would, one entry a line, sorted, so that a table changes by whole lines. At most
$table_bytes bytes, $table_entries entries, and literals nested $table_depth deep.

`ROWS` gives per row the features of its keys, in order. An entry of `TABLE` is

```
    (row, cc, *features): (rule, {box}),  # evidence
    (row, cc, *features): (rule, axis, bound, {box}),  # evidence
```

- *key*: the row, the compute capability, and the values of the row's features: its class.
- *rule*: one of
  $rules.
  The first three say that the row leads, the others that it trails: always, from `bound` on, or up to `bound`, on
  `axis`, which is a size or a product of at most four, such as `b*h_kv`.
- *box*: what must hold besides: a feature's only value, an inclusive range `(low, high)`, or a tuple of texts of which
  it is one. `board` is the name of the board;
  $measured
  are a library's version by major and minor, and the board's SMs and memory in GiB. A case has no entry where one of
  $flags
  is off its neutral value and neither in the key nor in the box.
- *evidence*: `win 4/4` cases of those that the entry is for, the `worst` and `geomean` of their ratios, `of 6` in the
  class where some are left out, `ev` and the first twelve digits of a digest of cases and ratios, the `plans` of
  backend and frost that it rests on, and `at` which case it has the least to spare.

`entries` of sessions and events is the SHA-256 of the entry lines of one row and dtype, sorted by key and joined by LF.

## score.json

`docs/schemas/score.schema.json`. Regret is a leg's time over the faster of frost and backend; noise can put it a hair
below 1.

$Score

$ScoredCase

$Checked

$Failed

$Unscored

$Coverage

$MeasuredOn

$AnchorRatios

$Routed

### Metrics

Ratios are in ppm; those of regret and of times are the worst over the regimes.

$metrics

## report.md

Written from study.json, score.json, the ledger and the sessions, and nothing else; `replay` writes it again and
compares it byte by byte.

## Bundles

`studytool bundle` writes a gzipped tar (USTAR) of plain files named `studies/NAME/...` and `frozen_cases/NAME/...`,
sorted by name, with mode 0644, without owners, times and directories, so that the same study gives the same bytes.
It has study.yaml, table.py, the copies in `drivers/`, the frozen files and, per dtype, records, ledger.jsonl,
study.json, lines.txt, score.json and report.md; the report.md over all dtypes; and the frozen files of the earlier
studies that the manifest names, as far as they are there. A reader takes at most $max_files files, $max_file_bytes
bytes each, $max_bytes bytes in all and $max_ratio times the archive's size; names have letters, digits, `_`, `.` and
`-`, and at most six parts; links, other kinds of members, and names that are there twice are refused.

## Exports

`studytool export` writes the last attempts, complete or not, for other tools.

### CSV and Parquet

One row a sample, in the order of timing; a leg without samples has one row with empty cells. `counter_NAME` and
`state_NAME` follow as far as records have counters and states.

$columns

CSV is UTF-8 with LF and a head line. A text that a spreadsheet might run, since the first that is seen of it is one of
`=` `+` `-` `@`, and one that begins with an apostrophe, has an apostrophe before it; take one away to have the text.
Parquet has 64-bit integers, `decimal128(38, $decimals)`, a list of integers, and texts as they are.

### nvbench-json

What nvbench writes with `--json`, version 1.0.0: a benchmark an op, and a state a case, regime and leg, whose axes are
the fields that a case must have, those that some case has, `regime` and `leg`. Summaries are those of isolated (cold)
times, in seconds per launch, whatever the regime, over the samples of all repeats together. A case that did not end ok
in each of its lines is a skipped state, as are cases that are only planned or not measured yet.
"""


def schema(kind: type) -> Json:
    """Return the JSON Schema of a type, with a description of each field; ValueError where one has none."""
    found = msgspec.json.schema(kind)
    for name, node in found["$defs"].items():
        described = next((own for own in SENTENCES if own.__name__ == name), None)
        node["description"] = " ".join(node.get("description", "").split())
        if "properties" in node:
            if described is None or set(SENTENCES[described]) != set(node["properties"]):
                raise ValueError(f"{name}: fields {sorted(node['properties'])}; expected a sentence for each")
            for field, own in node["properties"].items():
                own["description"] = SENTENCES[described][field]
                own.update({"const": model.SCHEMA} if field == "schema" else {})
    if kind is Case:
        _narrow_case(found["$defs"]["Case"]["properties"])
    if kind is Event:
        found["$defs"]["Event"]["oneOf"] = [_event_schema(name, body) for name, body in ledger.EVENTS.items()]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _narrow_case(properties: Json) -> None:
    """Add what a reader demands of single fields of a case."""
    for name, node in properties.items():
        if name in key.INTEGER_FIELDS:
            node["minimum"] = int(name in key.GEOMETRY)
            node.update({"maximum": possible.MOST[name]} if name in possible.MOST else {})
        else:
            node["enum"] = list(possible.CHOICES[name])


def _event_schema(name: str, body: dict[str, type]) -> Json:
    """Return what is so of an event of one kind."""
    kinds: dict[type, Json] = {
        str: {"type": "string"},
        int: {"type": "integer"},
        list: {"type": "array", "items": {"type": "string"}},
    }
    told, sentences = BODIES.get(name, ("", {}))
    if set(sentences) != set(body):
        raise ValueError(f"event {name}: {sorted(body)}; expected a sentence for each")
    members = {member: {**kinds[kind], "description": sentences[member]} for member, kind in body.items()}
    shape = {"type": "object", "properties": members, "required": list(body), "additionalProperties": False}
    return {"description": told, "properties": {"event": {"const": name}, "body": shape}}


def type_text(node: Json) -> str:
    """Return a type of JSON Schema in a few words."""
    if "$ref" in node:
        return f"`{node['$ref'].rpartition('/')[2]}`"
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "anyOf" in node:
        return " or ".join(type_text(part) for part in node["anyOf"])
    if "prefixItems" in node:
        return f"list of {len(node['prefixItems'])}: {', '.join(type_text(part) for part in node['prefixItems'])}"
    if node["type"] == "array":
        return f"list of {type_text(node['items'])}"
    if node["type"] == "object":
        return f"map to {type_text(node['additionalProperties'])}"
    return {"string": "text", "boolean": "true or false"}.get(node["type"], str(node["type"]))


def fields_table(kind: type, defs: Json) -> str:
    """Return the table of a type's fields under the type's name; that of a case says what is left out."""
    rows = []
    for name, node in defs[kind.__name__]["properties"].items():
        neutral = [f"`{key.NEUTRAL[name]}`" if name in key.NEUTRAL else ""] if kind is Case else []
        rows.append((f"`{name}`", type_text(node), *neutral, node["description"]))
    head = ("member", "type", *(["left out at"] if kind is Case else []), "what it is")
    return f"**{kind.__name__}**\n\n{markdown_table(head, rows)}"


def words_table(words: dict[str, str], head: tuple[str, str]) -> str:
    """Return a table of names and sentences; names joined by a comma are several."""
    rows = [(", ".join(f"`{part}`" for part in name.split(", ")), sentence) for name, sentence in words.items()]
    return markdown_table(head, rows)


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines_of = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines_of)


def bodies_table() -> str:
    """Return the table of a ledger's events."""
    rows = []
    for name, (told, sentences) in BODIES.items():
        rows.append((f"`{name}`", "", told))
        rows += [("", f"`{member}`", sentence) for member, sentence in sentences.items()]
    return markdown_table(("event", "tells", "what it is"), rows)


def page() -> str:
    """Return formats.md; ValueError where names of the code and of the sentences differ."""
    for words, names in (
        (STATUSES, Status),
        (SPLITS, Split),
        (REGIMES, model.REGIMES),
        (METRICS, metrics.METRICS),
        (BODIES, ledger.EVENTS),
        (COLUMNS, export.COLUMNS),
    ):
        if list(map(str, names)) != list(words):
            raise ValueError(f"{', '.join(words)}; expected {', '.join(names)}")
    defs: Json = {}
    for kind in SCHEMAS.values():
        defs |= schema(kind)["$defs"]
    threshold = " and ".join(Threshold._fields)
    described = {name: node for name, node in defs.items() if "properties" in node}
    kinds = {kind.__name__: kind for kind in SENTENCES}
    if unused := kinds.keys() - described.keys():
        raise ValueError(f"{', '.join(unused)}: sentences of no file")
    parts = {name: fields_table(kind, defs) for name, kind in kinds.items()}
    parts["Decide"] += f"\n\nA `Threshold` is a list of two, {threshold}: such as `s_kv` and `from`."
    parts |= {
        "schema": str(model.SCHEMA),
        "units": words_table(UNITS, ("ending", "unit")),
        "splits": words_table(SPLITS, ("split", "what it is for")),
        "statuses": words_table(STATUSES, ("status", "what it means")),
        "regimes": words_table(REGIMES, ("regime", "how blocks are launched")),
        "checks": words_table(CHECKS, ("name", "what it is")),
        "counters": words_table(COUNTERS, ("name", "what it is")),
        "states": words_table(STATES, ("name", "what it is")),
        "metrics": words_table(METRICS, ("metric", "what it is")),
        "bodies": bodies_table(),
        "columns": words_table(COLUMNS, ("column", "what it is")),
        "table_schema": str(lookup.SCHEMA),
        "table_bytes": str(tables.MAX_BYTES),
        "table_entries": str(tables.MAX_ENTRIES),
        "table_depth": str(tables.MAX_DEPTH),
        "rules": ", ".join(f"`{rule}`" for rule in lookup.RULES),
        "measured": ", ".join(f"`{name}`" for name in lookup.MEASURED),
        "flags": ", ".join(f"`{name}`" for name in key.FLAGS),
        "max_files": str(bundle.MAX_FILES),
        "max_file_bytes": str(bundle.MAX_FILE_BYTES),
        "max_bytes": str(bundle.MAX_BYTES),
        "max_ratio": str(bundle.MAX_RATIO),
        "decimals": str(export.DECIMALS),
    }
    return string.Template(PAGE).substitute(parts)


def files() -> dict[str, str]:
    """Return the text of each file that this makes, by its name in docs/."""
    schemas = {
        f"schemas/{name}.schema.json": json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"
        for name, kind in SCHEMAS.items()
    }
    return {"formats.md": page(), **schemas}


if __name__ == "__main__":
    for name, text in files().items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
