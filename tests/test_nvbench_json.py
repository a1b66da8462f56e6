"""The JSON of nvbench: what its comparison reads is there, and is what the samples say."""

import json
import math
import statistics
from fractions import Fraction
from pathlib import Path
from typing import Any

import benches
import msgspec
import pytest
from factories import make_case, make_fingerprint, make_leg, make_record, make_session, make_study
from test_export import attempts_of, said, taken

from studytool.attempts import Attempt
from studytool.export import Taken
from studytool.jsonl import SessionFile
from studytool.layout import StudyPlace
from studytool.model import LEGS, Record, Split, Status
from studytool.nvbench import nvbench_bytes
from studytool.runtime import key

MEAN, NOISE = "nv/cold/time/gpu/mean", "nv/cold/time/gpu/stdev/relative"
Json = dict[str, Any]


def root_of(*found: Taken) -> Json:
    """Return what is written of some attempts."""
    root: Json = json.loads(nvbench_bytes(found))
    return root


def states_of(*found: Taken) -> list[Json]:
    """Return the states of the one benchmark."""
    (bench,) = root_of(*found)["benchmarks"]
    states: list[Json] = bench["states"]
    return states


def axes_of(state: Json) -> dict[str, str]:
    """Return the values of a state's axes by name."""
    return {axis["name"]: axis["value"] for axis in state["axis_values"]}


def number(state: Json, tag: str) -> float:
    """Return the value of a summary, as a reader that knows its type does."""
    (summary,) = (summary for summary in state["summaries"] if summary["tag"] == tag)
    (value,) = (part for part in summary["data"] if part["name"] == "value")
    assert value["type"] in {"float64", "int64"}
    assert isinstance(value["value"], str)
    return float(value["value"])


def compared(reference: Json, other: Json) -> dict[str, str]:
    """Return per state what a comparison says of it, read as nvbench_compare.py reads the two files.

    It matches benchmarks by name and axes, then states by name, formats each axis by the type that the benchmark gives
    it, and holds the difference of the means against the lesser noise.
    """
    assert reference["devices"] == other["devices"]
    known = {device["id"]: device["name"] for device in other["devices"]}
    found: dict[str, str] = {}
    for bench in other["benchmarks"]:
        (same,) = (b for b in reference["benchmarks"] if (b["name"], b["axes"]) == (bench["name"], bench["axes"]))
        types = {axis["name"]: (axis["type"], axis["flags"]) for axis in bench["axes"]}
        for state in bench["states"]:
            assert known[state["device"]]
            assert state["device"] in bench["devices"]
            (partner,) = (s for s in same["states"] if s["name"] == state["name"])
            for axis in state["axis_values"]:
                assert types[axis["name"]] == (axis["type"], "")
                assert axis["type"] == "string" or int(axis["value"]) >= 0
            if state["is_skipped"] or partner["is_skipped"]:
                assert state["skip_reason"] or partner["skip_reason"]
                found[state["name"]] = "????"
                continue
            before, after = number(partner, MEAN), number(state, MEAN)
            change = (after - before) / before
            close = abs(change) <= min(number(partner, NOISE), number(state, NOISE))
            found[state["name"]] = "SAME" if close else "FAST" if change < 0 else "SLOW"
    return found


def test_a_comparison_reads_it(made: StudyPlace) -> None:
    """A study against itself is the same in every state that was timed; a leg twice as slow is found."""
    found = attempts_of(made)
    root = root_of(*found)
    states = [state for bench in root["benchmarks"] for state in bench["states"]]
    cases = {digest: case for item in found for digest, case in item.job.cases.items()}
    slower = [
        Taken(item.job, item.attempt._replace(files=tuple(map(slowed, item.attempt.files))))
        for item in found
        if item.job.split is not Split.ROUTING
    ]
    timed = [item for item in found if item.job.split is not Split.ROUTING]
    said_of = compared(root_of(*timed), root_of(*slower))

    assert root["meta"]["version"]["json"] == {"major": 1, "minor": 0, "patch": 0, "string": "1.0.0"}
    assert [bench["name"] for bench in root["benchmarks"]] == ["sdpa_fwd"]
    assert len(states) == len({state["name"] for state in states}) == 4 * len(cases)
    assert set(compared(root, root).values()) == {"SAME", "????"}
    assert {name.rpartition("leg=")[2]: verdict for name, verdict in said_of.items()} == {
        **dict.fromkeys(LEGS, "SAME"),
        "frost": "SLOW",
    }
    assert len(said_of) == 4 * sum(len(item.job.cases) for item in timed)


def slowed(file: SessionFile) -> SessionFile:
    """Return a records file in which frost takes twice as long."""

    def slow(record: Record) -> Record:
        frost = record.legs["frost"]
        legs = {**record.legs, "frost": msgspec.structs.replace(frost, ns=tuple(2 * ns for ns in frost.ns))}
        return msgspec.structs.replace(record, legs=legs)

    return file._replace(records=tuple(map(slow, file.records)))


def test_times_are_those_of_the_samples(made: StudyPlace) -> None:
    """Each state's numbers are what another library makes of a leg's samples in all repeats."""
    found = attempts_of(made, Split.TRAIN)
    records = [record for file in found[0].attempt.files for record in file.records]
    states = states_of(*found)
    labels = {case.label: digest for digest, case in found[0].job.cases.items()}

    for state in states:
        axes = axes_of(state)
        digest = labels[make_case(h_q=4, h_kv=4, s_q=int(axes["s_q"]), s_kv=int(axes["s_kv"])).label]
        own = [record.legs[axes["leg"]] for record in records if record.case == digest]
        times = [ns / leg.inner / 1e9 for leg in own for ns in leg.ns]
        quartiles = [sorted(times)[math.floor(share * (len(times) - 1) + 0.5)] for share in (0.25, 0.5, 0.75)]
        assert (len(own), number(state, "nv/cold/sample_size")) == (3, len(times))
        assert number(state, MEAN) == pytest.approx(statistics.fmean(times), rel=1e-12)
        assert number(state, NOISE) == pytest.approx(statistics.stdev(times) / statistics.fmean(times), rel=1e-9)
        assert number(state, "nv/cold/time/gpu/stdev/absolute") == pytest.approx(statistics.stdev(times), rel=1e-9)
        assert number(state, "nv/cold/time/gpu/min") == min(times)
        assert number(state, "nv/cold/time/gpu/max") == max(times)
        for name, value in zip(("q1", "median", "q3"), quartiles, strict=True):
            assert number(state, f"nv/cold/time/gpu/{name}") == pytest.approx(value, rel=1e-12)
        low, middle, high = (number(state, f"nv/cold/time/gpu/{name}") for name in ("q1", "median", "q3"))
        assert number(state, "nv/cold/time/gpu/iqr/absolute") == pytest.approx(high - low, abs=1e-15)
        assert number(state, "nv/cold/time/gpu/iqr/relative") == pytest.approx((high - low) / middle, abs=1e-9)
        (plan,) = (s["data"][0]["value"] for s in state["summaries"] if s["tag"] == "studytool/plan")
        assert plan == own[0].plan.identity if own[0].plan else False


def test_numbers_are_texts_that_are_exact() -> None:
    """Samples of other counts of launches are put on one scale; seconds are the nearest float, and no order matters."""
    legs = {name: make_leg((300, 301, 302, 304)) for name in LEGS}
    thirds = {name: msgspec.structs.replace(leg, inner=3, ns=leg.ns[::-1]) for name, leg in legs.items()}
    records = [make_record(legs=legs), make_record(legs=thirds, repeat=2)]
    (state, *_), (turned, *_) = states_of(taken(*records)), states_of(taken(*records[::-1]))

    assert state == turned
    assert number(state, MEAN) == float(Fraction(1207 * 5, 48 * 10**9))
    assert number(state, "nv/cold/time/gpu/min") == 100e-9
    assert number(state, "nv/cold/time/gpu/max") == 152e-9
    assert {part["value"] for s in state["summaries"] for part in s["data"] if s["tag"] == MEAN} == {
        "1.2572916666666667e-07"
    }


@pytest.mark.parametrize(("count", "finite"), [(1, False), (2, True)])
def test_noise_of_few_samples_is_infinite(count: int, finite: bool) -> None:
    """Of fewer than five samples nvbench says no noise; its own word for it can be read."""
    legs = {name: make_leg((200, 201, 202, 203)) for name in LEGS}
    (state, *_) = states_of(taken(*(make_record(legs=legs, repeat=repeat + 1) for repeat in range(count))))

    assert math.isfinite(number(state, NOISE)) is finite
    assert math.isfinite(number(state, "nv/cold/time/gpu/stdev/absolute")) is finite


def test_a_failed_case_is_skipped_with_its_reason() -> None:
    """What is no time is no state with one: failures of one line, plans that changed, and what was not measured."""
    cases = [make_case(s_kv=64 * number) for number in range(2, 7)]
    changed = {**make_record().legs, "auto": make_leg((9, 9, 9, 9), plan=5)}
    records = [
        make_record(of=cases[0]),
        make_record(of=cases[1]),
        make_record(of=cases[1], repeat=2, status=Status.WRONG_RESULT, error="legs_o_ppb is 7"),
        make_record(of=cases[2], status=Status.CRASHED),
        make_record(of=cases[3]),
        make_record(of=cases[3], repeat=2, legs=changed),
    ]
    reasons = {
        case.label: {
            state.get("skip_reason", "") for state in states_of(taken(*records, cases=cases)) if is_of(state, case)
        }
        for case in cases
    }

    assert reasons == {
        cases[0].label: {""},
        cases[1].label: {"wrong_result: legs_o_ppb is 7"},
        cases[2].label: {"crashed"},
        cases[3].label: {"declined: leg auto ran plans 1 and 5 in different repeats"},
        cases[4].label: {"not measured yet"},
    }
    for state in states_of(taken(*records, cases=cases)):
        assert state["is_skipped"] is ("skip_reason" in state) is (state["summaries"] is None)


def is_of(state: Json, case: Any) -> bool:
    """Return whether a state is one of a case."""
    return axes_of(state)["s_kv"] == str(case.s_kv)


def test_a_session_without_lines_has_states_without_times() -> None:
    """A process that was killed before its first line leaves the device and the cases."""
    root = root_of(taken())

    assert [device["name"] for device in root["devices"]] == ["Board"]
    assert {state["skip_reason"] for state in root["benchmarks"][0]["states"]} == {"not measured yet"}


def test_routing_cases_are_planned_and_skipped(made: StudyPlace) -> None:
    """A case that is not timed is there all the same, with the field that makes it what it is."""
    states = states_of(*attempts_of(made, Split.ROUTING))

    assert {state["skip_reason"] for state in states} == {"planned, not timed"}
    assert {axes_of(state)["bias"] for state in states} == {"learned"}
    assert [axes_of(state)["leg"] for state in states] == list(LEGS)


def test_a_routing_case_is_planned_in_one_regime(made: StudyPlace) -> None:
    """Whatever regimes are timed, a routing case has the states of the first."""
    (found,) = attempts_of(made, Split.ROUTING)
    study = found.job.study
    protocol = msgspec.structs.replace(study.protocol, regimes=("eager-warm", "eager-cold"))
    job = found.job._replace(study=msgspec.structs.replace(study, protocol=protocol))

    assert {axes_of(state)["regime"] for state in states_of(found._replace(job=job))} == {"eager-warm"}


def test_a_state_is_named_by_its_device_and_axes() -> None:
    """Axes are the fields that a case must have, those that some case has, the regime and the leg."""
    cases = [make_case(s_kv=256, mask="br", window=96), make_case()]
    records = [make_record(of=case, regime="eager-warm") for case in cases]
    (bench,) = root_of(taken(*records, cases=cases))["benchmarks"]
    names = [axis["name"] for axis in bench["axes"]]

    assert names == [*key.GEOMETRY[1:], "mask", "window", "regime", "leg"]
    assert [[value["value"] for value in axis["values"]] for axis in bench["axes"]][-4:] == [
        ["br", "none"],
        [0, 96],
        ["eager-warm"],
        list(LEGS),
    ]
    assert bench["states"][0]["name"] == (
        "Device=0 dtype=bf16 b=1 h_q=4 h_kv=4 s_q=128 s_kv=256 d_qk=64 d_v=64 mask=br window=96 regime=eager-warm"
        " leg=backend"
    )
    for axis in bench["axes"]:
        assert all(value["input_string"] == str(value["value"]) for value in axis["values"])
        assert axis["type"] == ("string" if isinstance(axis["values"][0]["value"], str) else "int64")


def test_each_op_is_a_benchmark_and_each_regime_a_state() -> None:
    """A study of two ops and two regimes has two benchmarks; a case of two regimes fails in both or in none."""
    study = make_study()
    protocol = msgspec.structs.replace(study.protocol, regimes=("eager-warm", "eager-cold"))
    cases = [make_case(), make_case(op="sdpa_bwd")]
    records = [
        make_record(of=cases[0]),
        make_record(of=cases[0], regime="eager-cold"),
        make_record(of=cases[1]),
        make_record(of=cases[1], regime="eager-cold", status=Status.TIMEOUT),
    ]
    job, attempt = taken(*records, cases=cases)
    asked = Taken(job._replace(study=msgspec.structs.replace(study, protocol=protocol)), attempt)
    benches_found = {bench["name"]: bench for bench in root_of(asked)["benchmarks"]}

    assert [bench["index"] for bench in benches_found.values()] == [0, 1]
    assert {
        op: [(axes_of(state)["regime"], state["is_skipped"]) for state in bench["states"]][::4]
        for op, bench in benches_found.items()
    } == {
        "sdpa_fwd": [("eager-warm", False), ("eager-cold", False)],
        "sdpa_bwd": [("eager-warm", True), ("eager-cold", True)],
    }
    assert {bench["min_samples"] for bench in benches_found.values()} == {3 * 8}


def test_boards_are_numbered_and_tell_what_they_are() -> None:
    """Two kinds of board are two devices; two of one kind are one, since no serial is told."""
    gpu = {"cc": "9.0", "board": "NVIDIA H200", "memory_bytes": 7, "settings": {"sm_count": "132"}}
    cases = [make_case(), make_case(s_kv=256)]
    one = taken(make_record(of=cases[0]), cases=cases, fingerprint=make_fingerprint())
    two = taken(make_record(of=cases[1]), cases=cases, fingerprint=make_fingerprint(uuid="u2", **gpu))
    three = make_session(fingerprint=make_fingerprint(uuid="u3", **gpu))
    files = [*one.attempt.files, *two.attempt.files, two.attempt.files[0]._replace(session=three, records=())]
    root = root_of(Taken(one.job, Attempt(1, tuple(files), 2, frozenset(), ())))
    by_size = {axes_of(state)["s_kv"]: state for state in root["benchmarks"][0]["states"]}

    assert root["devices"] == [
        {"id": 0, "name": "Board"},
        {"id": 1, "name": "NVIDIA H200", "sm_version": 900, "global_memory_size": 7, "number_of_sms": 132},
    ]
    assert root["benchmarks"][0]["devices"] == [0, 1]
    assert (by_size["128"]["device"], by_size["256"]["device"]) == (0, 1)
    assert by_size["256"]["name"].startswith("Device=1 ")


def test_a_name_that_is_not_ascii_is_written_as_it_is() -> None:
    """As nvbench does: UTF-8, indented, one line end at the end."""
    data = nvbench_bytes([taken(make_record(), fingerprint=make_fingerprint(board="Böard"))])

    assert "Böard".encode() in data
    assert data.endswith(b"}\n")
    assert b"\r" not in data


def test_an_attempt_that_was_stopped_says_what_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that have lines are told from those lines, the others are skipped."""
    benches.inline(monkeypatch)
    job = benches.make_job(tmp_path)
    benches.stopped(job, 2)
    (bench,) = json.loads(said(job.place, "--format", "nvbench-json").out)["benchmarks"]

    assert sum(state["is_skipped"] for state in bench["states"]) == 4 * (6 - 2)
    assert {state.get("skip_reason") for state in bench["states"]} == {None, "not measured yet"}
    assert len(bench["states"]) == 4 * 6
