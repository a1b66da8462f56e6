"""What a simulated device measures of one case, and the record and the ratio that it makes."""

from pathlib import Path
from typing import Any

import finished
import pytest
from benches import SIMULATED, inline, make_job, make_request, run
from factories import make_record

from studytool import editing, measure, noise, pipeline, results, schedule, stats
from studytool.attempts import Job
from studytool.engine_terms import SIMULATED_COSTS, SIMULATED_FAULTS, SIMULATED_NUMBERS
from studytool.engines.simulated import Simulated, VirtualClock
from studytool.measure import Measured
from studytool.model import LEGS, Record, Split, Status
from studytool.noise import Health

DECLARED = {*SIMULATED_COSTS, *SIMULATED_FAULTS, *SIMULATED_NUMBERS}


def measured(
    *, repeat: int = 1, blocks: int = 24, regime: str = "eager-warm", queued: bool = True, **changes: Any
) -> Measured:
    """Return what a device measures in one repeat; what names nothing of a device changes the request.

    Without changes the backend takes 128 us a launch and frost half of that.
    """
    device = Simulated({**SIMULATED, **{name: changes.pop(name) for name in DECLARED & changes.keys()}})
    asked = {
        "regime": regime,
        "orders": schedule.block_orders("study", "case", repeat, regime, blocks),
        "seed": repeat,
        "process_seed": repeat,
        **changes,
    }
    return measure.run_case(device, VirtualClock(device, queued=queued), make_request(**asked))


def record_of(found: Measured, **changes: Any) -> Record:
    """Return the record of what was measured."""
    assert found.status is Status.OK
    return make_record(legs=found.legs, order=found.order, checks=found.checks, **changes)


def health_of(found: Measured, tick_ns: int = 1) -> Health:
    """Return the health of what was measured."""
    return noise.health(record_of(found), tick_ns)


def log_ratio(found: Measured, a: str = "frost", b: str = "backend", tick_ns: int = 1) -> float:
    """Return the paired log ratio of two legs."""
    one, other = (stats.per_launch_ns(found.legs[leg].ns, found.legs[leg].inner) for leg in (a, b))
    return stats.paired_log_ratio(one, other, tick_ns, min(min(found.legs[leg].ns) for leg in LEGS))


def fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time the legs of every block in one order."""
    monkeypatch.setattr(schedule, "block_orders", lambda *arguments: ("0123",) * arguments[-1])


def trained(root: Path, text: str) -> Job:
    """Return the job of the hold-out of a study, named tiny, whose train split was timed here and applied."""
    job = make_job(root, text=text)
    with pytest.MonkeyPatch.context() as patch:
        inline(patch)
        run(job)
    job.results.study_json.write_bytes(results.train(job).data)
    pipeline.generate(job)
    editing.apply_lines(job.results.lines, job.place.table, finished.hooks().now)
    return make_job(root, Split.HOLDOUT)
