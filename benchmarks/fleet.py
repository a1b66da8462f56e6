"""How far one driver reaches: boards in virtual time, real records on a real disk.

Boards are simulated by when they answer; the driver is the shipped one, with its records, its chains and its fsync.

    python benchmarks/fleet.py             # 1, 8, 64 and 512 boards, 2,000 and 10,000 cases; minutes
    python benchmarks/fleet.py --quick     # 1, 8 and 64 boards, 200 and 600 cases

Each row: lines per second of the driver's wall time (made, chained, written and synced), and per second of reading and
checking them all afterwards; virtual hours; how long the longest board was at it over the mean; what failures cost, as
a share of all board time; what the driver's memory grew by while it ran. `arrival`: cases are taken in the order of
their digests and not the longest first. A board fails after an exponential time of --hours on average, all that it had
is lost, and it is back after five minutes.
"""

import argparse
import heapq
import math
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from studytool import costs, fleet, freeze, studyfile
from studytool.attempts import Job
from studytool.board_events import Answered, Came, Lost
from studytool.layout import StudyPlace
from studytool.measure import Measured, Request
from studytool.model import LEGS, Fingerprint, LegRecord, Plan, Split, Status
from studytool.progress import Progress
from studytool.worker import Opened

YAML = """
schema: 1
name: fleet
question: How far does one driver reach?
engine: simulated
row: open_engine
base: backend
device: {cc: sim-1, board: any}
op: sdpa_fwd
dtypes: [bf16]
class_key: [dtype]
splits:
  train:
    grids: [{s_kv: {from: 8, to: LAST, step: 8}, h_q: [8, 16], d_qk: 64}]
  holdout:
    cases: [{s_kv: 4, h_q: 8, d_qk: 64}]
protocol: {repeats: 5, blocks: 16, anchors: 4}
gate: [slower_beyond_noise == 0]
simulated: {backend_ns: 1000 + s_kv, frost_ns: 1000 + s_kv}
"""

STARTUP_S = 5.0
BACK_S = 300.0
SECONDS_A_LINE = 1.0


class Row(NamedTuple):
    """One run: what the driver did, in virtual board time and in its own."""

    boards: int
    lines: int
    lines_per_s: float
    read_per_s: float
    hours: float
    balance: float
    lost: float
    failures: int
    grew_mib: float


class VirtualBoards:
    """Boards that answer in virtual time, and fail."""

    def __init__(self, count: int, seconds: dict[str, float], mean_hours: float, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._seconds, self._mean_s = seconds, mean_hours * 3600
        self._events: list[tuple[float, int, object]] = []
        self._number = 0
        self.busy_s = [0.0] * (count + 1)
        self.last_s = [0.0] * (count + 1)
        self.lost_s = self.now_s = 0.0
        self.failures = 0
        self._fails_s = [0.0] * (count + 1)
        self._pending_s = [0.0] * (count + 1)
        self._has: list[set[str]] = [set() for _ in range(count + 1)]
        for board in range(1, count + 1):
            self._come(board, 0.0)

    def ask(self, board: int, requests: Sequence[Request], timeout_s: int) -> None:  # noqa: ARG002 - as board_events.Boards
        """Answer after the time that the lines take, unless the board fails before."""
        cases = {request.case.label for request in requests}
        if cases != self._has[board]:  # what it had before is on disk now
            self._has[board], self._pending_s[board] = cases, 0.0
        took_s = STARTUP_S + sum(self._seconds[request.case.label] for request in requests)
        end_s = self.now_s + took_s
        if self._fails_s[board] < end_s:
            self._at(self._fails_s[board], Lost(board, "failed"))
            self._pending_s[board] += self._fails_s[board] - self.now_s
            return
        self.busy_s[board] += took_s
        self._pending_s[board] += took_s
        self._at(end_s, Answered(board, [_answer(request) for request in requests], int(STARTUP_S * 1e9)))

    def next(self) -> Came | Answered | Lost | None:
        """Return the next event in virtual time."""
        if not self._events:
            return None
        self.now_s, _, event = heapq.heappop(self._events)
        if isinstance(event, Lost):
            self.failures += 1
            self.lost_s += self._pending_s[event.board]
            self._come(event.board, self.now_s + BACK_S)
        elif isinstance(event, Answered):
            self.last_s[event.board] = self.now_s
        assert isinstance(event, Came | Answered | Lost)
        return event

    def _come(self, board: int, at_s: float) -> None:
        self._fails_s[board] = at_s + self._random.expovariate(1 / self._mean_s)
        self._pending_s[board] = 0.0
        opened = Opened(findings=(), fingerprint=msgspec.structs.replace(PRINTS, uuid=f"{board:016x}"))
        self._at(at_s, Came(board, opened, "", f"host-{(board - 1) // 8}"))

    def _at(self, at_s: float, event: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, event))


PRINTS = Fingerprint(
    board="virtual board",
    uuid="",
    cc="sim-1",
    cores=1,
    memory_bytes=1 << 30,
    tick_ns=1,
    versions={"simulated": "2"},
    settings={},
    device={},
    code="0" * 64,
)
BLOCKS = 16
LEG_RECORDS = {
    leg: LegRecord(
        plan=Plan(engine=5, name="plan"),
        inner=8,
        ns=tuple(150_000 + 37 * block for block in range(BLOCKS)),
        counters={"cpu_ns": tuple(149_000 + 41 * block for block in range(BLOCKS))},
    )
    for leg in LEGS
}


def _answer(request: Request) -> Measured:
    """Return samples of the size that real ones have."""
    return Measured(status=Status.OK, took_ns=10**9, legs=LEG_RECORDS, order=request.orders, checks={"steady": 1})


def measure(root: Path, boards: int, cases: int, hours: float, *, longest_first: bool) -> Row:
    """Return what one driver does with so many boards and cases."""
    place = StudyPlace(root, "fleet")
    place.folder.mkdir(parents=True)
    place.study_yaml.write_text(YAML.replace("LAST", str(cases // 2 * 8)))
    study = studyfile.read(place.study_yaml, "study.yaml")
    freeze.freeze(study, place, [], "")
    job = Job(study, place, freeze.verify(study, place), "bf16", Split.TRAIN)
    drawn = random.Random(1)  # noqa: S311 - a simulation
    seconds = {case.label: SECONDS_A_LINE * math.exp(0.7 * drawn.gauss(0, 1)) for case in job.cases.values()}
    virtual = VirtualBoards(boards, seconds, hours, seed=2)
    weigh = costs.weights
    costs.weights = lambda job, cells: costs.Weights(
        {case: seconds[job.cases[case].label] * len(lines) if longest_first else 1.0 for case, lines in cells.items()},
        STARTUP_S if longest_first else 0.0,
    )
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ends: dict[str, float] = {}

    def progress(_step: Progress) -> None:
        ends["at"], ends["kib"] = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    begin = time.perf_counter()
    try:
        attempt = fleet.time_split(job, virtual, lambda: "2026-01-01T00:00:00+00:00", progress, lambda _text: None)
    finally:
        costs.weights = weigh
    driven_s, read_s = ends["at"] - begin, time.perf_counter() - ends["at"]
    assert not attempt.missing
    lines = sum(len(file.records) for file in attempt.read)
    busy = virtual.busy_s[1:]
    return Row(
        boards=boards,
        lines=lines,
        lines_per_s=lines / driven_s,
        read_per_s=lines / read_s,
        hours=virtual.now_s / 3600,
        balance=max(virtual.last_s[1:]) / (sum(virtual.last_s[1:]) / boards),
        lost=virtual.lost_s / (sum(busy) + virtual.lost_s),
        failures=virtual.failures,
        grew_mib=(ends["kib"] - before_kib) / 1024,
    )


def run(boards: int, cases: int, hours: float, longest_first: bool, out: str | None) -> Row:
    """Return a row, measured in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        return measure(Path(folder), boards, cases, hours, longest_first=longest_first)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a glimpse")
    parser.add_argument("--hours", type=float, default=4.0, help="board hours of work between failures")
    parser.add_argument("--out", help="where to write the records (default: a temporary folder)")
    asked = parser.parse_args()
    sizes = [(1, 200), (8, 200), (64, 600)] if asked.quick else [(1, 2000), (8, 2000), (64, 2000), (512, 2000)]
    sizes += [] if asked.quick else [(512, 10_000)]
    print("boards | cases | order   | lines | lines/s | read/s | hours | longest/mean | lost   | failures | grew MiB")
    for boards, cases in sizes:
        for longest_first in (True, False):
            context = multiprocessing.get_context("spawn")  # a fresh process, whose memory is its own
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                row = pool.submit(run, boards, cases, asked.hours, longest_first, asked.out).result()
            order = "longest" if longest_first else "arrival"
            print(
                f"{row.boards:6} | {cases:5} | {order} | {row.lines:5} | {row.lines_per_s:7.0f} | {row.read_per_s:6.0f}"
                f" | {row.hours:5.2f} | {row.balance:12.3f} | {row.lost:6.2%} | {row.failures:8} | {row.grew_mib:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
