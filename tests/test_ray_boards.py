"""Boards of a Ray cluster: a node that is lost in the middle costs nothing but time."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import benches
import finished
import pytest
from commands import Said, call
from factories import STUDY_YAML

import studytool
from studytool import pipeline, replay
from studytool.attempts import Job
from studytool.engines.simulated import WHICH_BOARD
from studytool.errors import StudyError
from studytool.progress import Progress

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from studytool import ray_boards  # noqa: E402 - which imports ray

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NODE = {"resources": {ray_boards.RESOURCE: 2}, "num_cpus": 1, "object_store_memory": 80 << 20}

MASKED = "      - {s_kv: [96, 160], h_q: 4, h_kv: 2, d_qk: 64, mask: tl}\n"


class Ray(NamedTuple):
    """A cluster whose head offers two boards, and its address."""

    cluster: Any
    address: str


def _running(folder: Path) -> list[str]:
    """Return the processes of a cluster in a folder that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] if str(folder).encode() in path.read_bytes() else []
    return found


def _offered() -> int:
    """Return how many boards the nodes offer of which the cluster thinks that they are alive."""
    return int(ray.cluster_resources().get(ray_boards.RESOURCE, 0))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ray]:
    """Return a cluster that is gone afterwards, with its folder."""
    folder = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # the path of a socket must be short
    head = {**NODE, "include_dashboard": False, "temp_dir": str(folder)}
    with contextlib.ExitStack() as after, pytest.MonkeyPatch.context() as patch:
        after.callback(shutil.rmtree, folder)
        patch.setenv("PYTHONPATH", str(Path(studytool.__file__).parent.parent))
        patch.delenv(WHICH_BOARD, raising=False)
        made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        after.callback(made.shutdown)
        after.callback(ray.shutdown)
        yield Ray(made, made.address)
    assert not folder.exists()
    assert _running(folder) == []


@pytest.fixture(autouse=True)
def _left() -> Iterator[None]:
    """Leave the cluster after each test."""
    yield
    ray.shutdown()


def timed(job: Job, address: str, after_a_case: Callable[[int], object], said: list[str], *more: object) -> Said:
    """Return how timing on a cluster ended; `after_a_case` is called with the count of cases that were written."""
    cases = iter(range(1, 10**6))

    def progress(_name: str, _step: Progress) -> None:
        after_a_case(next(cases))

    @contextlib.contextmanager
    def hooks(budget: Any = None) -> Iterator[pipeline.Hooks]:
        yield finished.hooks()._replace(progress=progress, say=said.append, budget=budget)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("studytool.cli.measuring.hooks", hooks)
        return call("time", job.place.folder, "--dtype", "bf16", "--ray", address, *more)


def one_machine(root: Path) -> bytes:
    """Return the study.json of one machine."""
    job = benches.make_job(root)
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        pipeline.time(job, finished.hooks())
    return job.results.study_json.read_bytes()


def test_a_node_that_is_lost_costs_no_line(tmp_path: Path, cluster: Ray) -> None:
    """A node is killed after the first case: each planned line is there once, and study.json is that of one machine."""
    job = benches.make_job(tmp_path / "fleet")
    node = cluster.cluster.add_node(**NODE)
    said: list[str] = []

    def kill(count: int) -> None:
        if count == 1:
            cluster.cluster.remove_node(node, allow_graceful=False)

    ended = timed(job, cluster.address, kill, said)
    deadline = time.monotonic() + 60
    while _offered() > 2 and time.monotonic() < deadline:  # so that other tests find no dead boards
        time.sleep(0.1)
    checks = replay.replay(job.study, job.place)
    states = {check.name: check.state for check in checks if check.dtype}

    assert (ended.code, ended.out) == (0, "bf16 train: attempt 1, 18 of 18 lines\n")  # what Ray says is on stderr
    assert benches.cells(job) == benches.planned(job)
    assert benches.on_disk(job) == benches.sealed(job)
    assert len(said) <= 2  # a board that had nothing when its node went is not missed
    assert all(" is lost: " in line and "\n" not in line for line in said)
    assert job.results.study_json.read_bytes() == one_machine(tmp_path / "lone")
    assert [states[name] for name in ("ledger", "records sealed", "study.json")] == ["ok"] * 3
    assert not [check for check in checks if check.state == replay.FAIL]
    assert not os.environ.get(WHICH_BOARD)


def test_a_fleet_of_one(tmp_path: Path, cluster: Ray) -> None:
    """With `--boards 1` one board measures all, in one lane, on the board that its actor was told to be."""
    text = STUDY_YAML.replace("[64, 128, 256, 512]", "64").replace(MASKED, "")
    job = benches.make_job(tmp_path, text=text)
    ended = timed(job, cluster.address, lambda _count: None, [], "--boards", "1")

    assert (ended.code, ended.out) == (0, "bf16 train: attempt 1, 3 of 3 lines\n")
    assert len(job.attempts()[0].lanes) == 1
    assert benches.cells(job) == benches.planned(job)


def test_as_many_boards_as_there_are(cluster: Ray) -> None:
    """What is asked for at most is what is there at most; a resource that no node offers is one line."""
    assert ray_boards.connect(cluster.address, "simulated", 1) == 1
    ray.shutdown()
    assert ray_boards.connect(cluster.address, "simulated", 4096) == _offered() == 2
    ray.shutdown()
    with pytest.raises(StudyError) as caught:
        ray_boards.connect(cluster.address, "cudnn", None)

    assert str(caught.value) == f"--ray: no node of {cluster.address} offers GPU"


@pytest.mark.parametrize("address", ["nonsense", ""])
def test_what_is_no_cluster_is_one_line(tmp_path: Path, address: str) -> None:
    """An address of no cluster is one line, exit 2, and nothing is written."""
    job = benches.make_job(tmp_path)
    said = call("time", job.place.folder, "--dtype", "bf16", "--ray", address)

    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"--ray: found {address}; expected local, or the address of a cluster: ")
    assert not job.results.folder.exists()


def test_a_dead_address_is_one_line(tmp_path: Path) -> None:
    """An address at which nobody listens is one line, exit 2, at once."""
    said = call("time", benches.make_job(tmp_path).place.folder, "--dtype", "bf16", "--ray", "127.0.0.1:1")

    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "nobody answers there" in said.err
