"""One study in which everything goes wrong once: each case ends as it should, and nothing is lost from the counts."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from benches import inline, patch_worker, run
from commands import call, scores
from devices import trained

from studytool.attempts import Job
from studytool.engine_terms import SIMULATED_FAULTS
from studytool.layout import StudyPlace
from studytool.model import Record, Status

FATES = {
    "refused": (Status.REFUSED, "the simulated engine says refused"),
    "declined": (Status.DECLINED, "the simulated engine says declined"),
    "no_frost": (Status.NO_FROST, "leg frost has no plan"),
    "no_backend": (Status.NO_BACKEND, "leg backend has no plan"),
    "wrong_result": (Status.WRONG_RESULT, "legs_o_ppb is 500000000; expected at most 12000000"),
    "error": (Status.ERROR, "RuntimeError: the simulated engine has a defect"),
    "crashed": (Status.CRASHED, "ended by SIGKILL"),
    "timeout": (Status.TIMEOUT, "no answer in 1 s"),
    "stale_output": (Status.WRONG_RESULT, "legs_o_ppb is 1000000000000000000; expected at most 12000000"),
    "empty_graph": (Status.WRONG_RESULT, "legs_o_ppb is 1000000000000000000; expected at most 12000000"),
    "plan_change": (Status.DECLINED, "leg backend changed from eng5_k1=0 to eng6_k1=1 between blocks"),
    "out_of_memory": (Status.ERROR, "MemoryError: the simulated device is out of memory"),
    "cold_is_warm": (Status.OK, ""),
}
"""How a case with each declared fault ends."""

PLACES = {name: 1000 + 8 * number for number, name in enumerate(FATES)}
SHORT, WELL = 16, (600, 700)
"""The lengths of the hold-out: one for each fault, one that is too short for the clock, and two that are well."""

ENDS = {SHORT: (Status.UNRESOLVABLE, "no sample is long enough"), **dict.fromkeys(WELL, (Status.OK, ""))}
ENDS |= {PLACES[name]: end for name, end in FATES.items()}
LOW_LIMIT = "from studytool import measure\nmeasure.INNER_LIMIT = 2000\n"
"""What the workers run first, so that the case that is too short is given up at once."""

FAULTY_YAML = """\
schema: 1
name: tiny
question: Does one bad case spoil the run?
engine: simulated
row: open_engine
base: library
device: {{cc: host, board: any}}
op: sdpa_fwd
dtypes: [bf16]
class_key: [dtype]
splits:
  train:
    grids:
      - {{s_kv: [64, 128, 256, 512], h_q: 4, d_qk: 64}}
  holdout:
    cases:
      - {{s_kv: {lengths}, h_q: 2, d_qk: 64}}
protocol: {{repeats: 3, blocks: 4, regimes: [replay-cold], case_timeout_s: 1}}
decide: {{margin: 0.05, scope: class, thresholds: [from s_kv]}}
gate:
  - slower_beyond_noise == 0
  - inconclusive == 0
simulated: {{backend_ns: (s_kv - 16) * 1000, frost_ns: (s_kv - 16) * 500, tick_ns: 10000, {faults}}}
"""


def _text(lengths: Sequence[int], faults: str) -> str:
    return FAULTY_YAML.format(lengths=[*lengths], faults=faults)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return the hold-out, timed with every fault there is."""
    faults = ", ".join(f"{name}: s_kv == {place}" for name, place in PLACES.items())
    found = trained(tmp_path_factory.mktemp("faults"), _text([*ENDS], faults))
    with pytest.MonkeyPatch.context() as patch:
        patch_worker(tmp_path_factory.mktemp("site"), patch, LOW_LIMIT)
        run(found)
    return found


@pytest.fixture(scope="module")
def records(job: Job) -> list[Record]:
    """Return the records of the hold-out."""
    return [record for file in job.attempts()[-1].files for record in file.records]


def test_every_fault_and_every_status_is_planted() -> None:
    """The study declares each fault that a device can have, and each status is the end of a case."""
    assert set(FATES) == set(SIMULATED_FAULTS)
    assert {status for status, _ in ENDS.values()} == set(Status)


def test_each_case_ends_as_its_fault_says(job: Job, records: list[Record]) -> None:
    """Each fault gives its status and its words in every repeat, and samples only where a case is ok."""
    found = {(job.cases[record.case].s_kv, record.repeat): (record.status, record.error) for record in records}

    assert found == {(s_kv, repeat): end for s_kv, end in ENDS.items() for repeat in (1, 2, 3)}
    assert all(bool(record.order) is (record.status is Status.OK) for record in records)


def test_nothing_is_lost(job: Job, records: list[Record]) -> None:
    """Every planned line is there once, in one file, though workers were killed in between; nothing is missing."""
    (attempt,) = job.attempts()

    assert (attempt.found, attempt.planned, attempt.missing, len(attempt.files)) == (48, 48, frozenset(), 1)
    assert set(Counter((record.case, record.repeat) for record in records).values()) == {1}


def test_well_cases_are_not_disturbed(job: Job, records: list[Record]) -> None:
    """Cases beside those that fail have their declared times in every repeat, from whichever worker."""
    found = [record for record in records if job.cases[record.case].s_kv in WELL]

    assert len(found) == 6
    for record in found:
        frost, truth = record.legs["frost"], (job.cases[record.case].s_kv - 16) * 500
        assert sum(frost.ns) / len(frost.ns) / frost.inner == pytest.approx(truth, rel=0.01)


def test_score_counts_what_is_left_out(job: Job) -> None:
    """The score's statuses add up to its cases, and what failed is listed with label, status and reason."""
    call("score", job.place.folder, "--dtype", "bf16")
    found = json.loads(job.results.score.read_bytes())
    failed = {(row["label"].rpartition(" S")[2], row["status"], row["error"]) for row in found["failed"]}

    assert found["statuses"] == Counter(str(status) for status, _ in ENDS.values())
    assert sum(found["statuses"].values()) == found["metrics"]["cases"] == len(ENDS)
    assert (found["metrics"]["cases_timed"], found["metrics"]["inconclusive"]) == (3, 1)
    assert failed == {(str(s_kv), str(status), said) for s_kv, (status, said) in ENDS.items() if status != "ok"}
    assert {case["label"].rpartition(" S")[2]: case["code"] for case in found["cases"]} == {
        str(PLACES["cold_is_warm"]): "CONTROL",
        **{str(s_kv): "" for s_kv in WELL},
    }


def test_report_says_how_many_are_left_out_and_why(job: Job) -> None:
    """The report has each status with its count, each failed case with its reason, and the one whose control fails."""
    call("score", job.place.folder, "--dtype", "bf16")
    said = call("report", job.place.folder, "--dtype", "bf16")
    text = job.results.report.read_text(encoding="utf-8")
    counts = Counter(str(status) for status, _ in ENDS.values())

    assert said == (0, f"{job.results.report}\n{job.results.page}\n", "")
    assert f"| bf16 | 3 of {len(ENDS)} |" in text
    assert f"- Cases by status: {', '.join(f'{counts[name]} {name}' for name in sorted(counts))}." in text
    for case in job.cases.values():
        status, error = ENDS[case.s_kv]
        assert (f"- {status}: {case.label}: {error}.\n" in text) is (status is not Status.OK)
    assert f" S{PLACES['cold_is_warm']} CONTROL.\n" in text


def test_score_exits_1_where_a_control_fails(job: Job) -> None:
    """The gate asks for no inconclusive case, so that the one whose control fails makes the score exit 1."""
    assert call("score", job.place.folder, "--dtype", "bf16") == (1, scores(job.place, "bf16"), "the gate fails\n")


def _exit(root: Path, monkeypatch: pytest.MonkeyPatch, faults: str) -> tuple[int, StudyPlace]:
    """Return how `score` ends for a study of the two well cases with these faults, and the place of the study."""
    text = _text(WELL, faults)
    if faults.startswith("noise"):
        text = text.replace("  - inconclusive == 0\n", "")  # or the gate itself would fail
    job = trained(root, text)
    inline(monkeypatch)
    run(job)
    return call("score", job.place.folder, "--dtype", "bf16").code, job.place


@pytest.mark.parametrize(
    ("faults", "code", "statuses", "verdict"),
    [
        ("seed: 1", 0, {"ok": 2}, "PASS"),
        ("refused: s_kv == 600", 0, {"ok": 1, "refused": 1}, "PASS"),
        ("declined: s_kv == 600", 3, {"ok": 1, "declined": 1}, "CANNOT SAY"),
        ("cold_is_warm: s_kv == 600", 1, {"ok": 2}, "FAIL"),
        ("refused: s_kv >= 600", 3, {"refused": 2}, "CANNOT SAY"),
        ("wrong_result: s_kv >= 600", 3, {"wrong_result": 2}, "CANNOT SAY"),
        ("noise_ppm: 400000", 3, {"ok": 2}, "CANNOT SAY"),
    ],
    ids=["well", "one refused", "one declined", "not cold", "all refused", "all wrong", "too noisy"],
)
def test_score_exits_as_the_hold_out_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    faults: str,
    code: int,
    statuses: dict[str, int],
    verdict: str,
) -> None:
    """Exit 0 where the gate holds, 1 where it does not, 3 where it cannot be said: a case that failed, or the noise."""
    found, place = _exit(tmp_path, monkeypatch, faults)
    score = json.loads(place.results("bf16").score.read_bytes())

    assert (found, score["verdict"], score["statuses"]) == (code, verdict, statuses)
