"""What tests of plan lists share: 336 graphs that no table may move, and a planner that says what it is told."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import msgspec
import pytest
import scripted
from factories import make_case, make_fingerprint
from scripted import FROST, SCRIPTED_YAML, Timed

from studytool import lines, opening, predictions, reporting
from studytool.layout import StudyPlace
from studytool.model import Case, Plan, Record, Split, Status
from studytool.planning.deviceless import Planner
from studytool.planning.messages import Found, Planned
from studytool.runtime import lookup

DIMS = {
    "8.0": ((64, 64), (128, 128), (192, 128), (256, 256)),
    "9.0": ((512, 512), (384, 384), (256, 256), (128, 128)),
    "10.0": ((128, 128), (192, 128), (256, 256), (512, 512)),
    "12.0": ((128, 128), (64, 64), (192, 128), (256, 256)),
}
"""Head dimensions of the controls per cc, such that every FROST row of it is met."""

MASKS: tuple[dict[str, Any], ...] = ({}, {"mask": "tl"}, {"mask": "tl", "window": 256}, {"mask": "br"})
LIKE_A_CLASS: dict[str, Any] = {"h_q": 16, "h_kv": 4, "mask": "br", "window": 256}
ODD: tuple[dict[str, Any], ...] = ({"h_kv": 1}, {"padding": 1}, {"sink": 1}, {"layout": "thd"})
"""What keeps a graph like those of a class out of it: MQA, or a feature that no entry knows."""

ROWS_MET = {
    "library": {"fwd_prefill_sm90": 26, "fwd_prefill_sm100": 42, "fwd_prefill_sm120": 42, "bwd_sm100": 8},
    "backend": {"fwd_prefill_sm80": 42, "bwd_sm80": 42, "bwd_sm100_d256": 16, "bwd_sm100_d128": 5, "bwd_sm120": 40},
}
"""How many controls have plans of each FROST row; base `backend` offers its own ones beside those of `library`."""


def rows_met(base: str) -> dict[str, int]:
    """Return of how many controls each row has plans under a base."""
    found = ROWS_MET["library"] | (ROWS_MET["backend"] if base == "backend" else {})
    return {f"sdpa_{name}": count for name, count in found.items()}


def control_cases(dtypes: Sequence[str]) -> Iterator[tuple[str, Case]]:
    """Return the controls with their cc: per cc and op 32 plain graphs, and 10 that are like a class but for one thing.

    The class is one of the A100 study, and so are the dtypes.
    """
    for cc, dims in DIMS.items():
        for op in ("sdpa_fwd", "sdpa_bwd"):
            shape: dict[str, Any] = {"op": op, "b": 2, "s_q": 2048, "s_kv": 2048}
            for d_qk, d_v in dims:
                for mask in MASKS:
                    for h_kv in (16, 4):
                        yield cc, Case(**shape, dtype="bf16", h_q=16, h_kv=h_kv, d_qk=d_qk, d_v=d_v, **mask)
            own = {"stats": 1} if op == "sdpa_fwd" else {"deterministic": 1}
            dim = 512 if cc == "9.0" else 128
            for dtype in dtypes:
                for odd in (*ODD, own):
                    yield cc, Case(**shape, dtype=dtype, d_qk=dim, d_v=dim, **(LIKE_A_CLASS | odd))


BACKEND_PLAN = Plan(engine=7, name="eng7_k24=2", knobs={"KERNEL_CFG": 2})
OTHER_PLAN = Plan(engine=8, name="eng8")
FROST_PLAN = Plan(engine=20601, name="sdpa_bwd_sm80")
OTHER_ROW_PLAN = Plan(engine=20511, name="sdpa_fwd_prefill_sm100")


def listed(*plans: Plan) -> Planned:
    """Return an answer with these plans, that took two milliseconds."""
    return Planned(plans=plans, took_ns=2_000_000)


def refused(status: Status, reason: str) -> Planned:
    """Return an answer without plans, that took no time."""
    return Planned(status=status, reason=reason)


class StandIn(Planner):
    """Answers what a function says of a case, in place of a process; two names are those of FROST_PLAN's row."""

    def __init__(self, answer: Callable[[Case], Planned], row: int = FROST_PLAN.engine, cudnn: int = 92700) -> None:
        self.found = Found(problem="", cudnn=cudnn, frontend="1.32.0", rows={"open_engine": row, CUDNN_ROW: row})
        self.answer, self.asked, self.entered = answer, list[Case](), 0

    def __enter__(self) -> "StandIn":
        self.entered += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.entered -= 1

    def plan(self, case: Case) -> Planned:
        """Return the answer, and note the case."""
        self.asked.append(case)
        return self.answer(case)


def stand_in(patch: pytest.MonkeyPatch, planner: StandIn | dict[str | None, StandIn]) -> list[tuple[Any, ...]]:
    """Let every command ask this planner, or the one of its cuDNN version; return a list that says what was asked."""
    opened: list[tuple[Any, ...]] = []

    def open_planner(self: predictions.Asked, board: Any, base: str) -> StandIn:
        opened.append((board.name, self.cudnn, base))
        return planner[self.cudnn] if isinstance(planner, dict) else planner

    patch.setattr(predictions.Asked, "planner", open_planner)
    return opened


CUDNN_ROW = "sdpa_fwd_scripted"
CUDNN_YAML = (
    SCRIPTED_YAML.replace("engine: simulated", "engine: cudnn")
    .replace("row: open_engine", f"row: {CUDNN_ROW}")
    .partition("simulated: {")[0]
)
"""The scripted study, declared for cuDNN."""


def seen_study(
    root: Path, board: str = "NVIDIA H200", versions: Iterable[tuple[str, str]] = (("cudnn", "92700"),)
) -> StudyPlace:
    """Return a cuDNN study that went the whole path, with records of a board that hold plans 1 and, of the row, 5."""
    lifted = Timed(backend=200_000, default=200_000, auto_plan=FROST, lookup=True)
    held_out = {80: Timed(frost=150_000), 320: lifted, 640: lifted, 1280: lifted}
    line_of = scripted.line_of

    def renamed(*what: Any) -> Record:
        record = line_of(*what)
        return msgspec.structs.replace(record, class_key=(CUDNN_ROW, *record.class_key[1:]))

    def own_entries(table: lines.Text, _row: str, dtype: str) -> str:
        return lines.entries_digest(table, CUDNN_ROW, dtype)

    prints = make_fingerprint(board=board, versions=dict(versions), settings={"sm_count": "132"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripted, "make_fingerprint", lambda: prints)
        patch.setattr(scripted, "line_of", renamed)
        patch.setattr(scripted, "lines", SimpleNamespace(read_table=lines.read_table, entries_digest=own_entries))
        place = scripted.prepare(root, CUDNN_YAML)
        scripted.write(place, Split.HOLDOUT, scripted.by_length(held_out))
        scripted.write(place, Split.ROUTING, lambda _case: Timed())
        scripted.score_of(place)
        reporting.report(opening.job_of(opening.open_study(place), place, "bf16", Split.HOLDOUT))
    return place


def as_seen(_case: Case) -> Planned:
    """Return the two plans that the records of `seen_study` hold."""
    return listed(Plan(engine=scripted.BACKEND, name="eng1"), Plan(engine=FROST, name="row"))


FEATURES = ("op", "dtype", "mask")
WAS = "plans 7[KERNEL_CFG=2] | 20601 at"
Rule = tuple[str, str, int]
ALWAYS: Rule = ("always", "", 0)
CLASSES = {"none": make_case(), "tl": make_case(mask="tl"), "br": make_case(mask="br")}
"""A case of each class of these tables, by mask."""


def key_of(mask: str) -> lookup.Key:
    """Return the key of a class."""
    return ("open_engine", "9.0", "sdpa_fwd", "bf16", mask)


def table_of(comments: dict[str, str], rule: Rule = ALWAYS) -> str:
    """Return a table with a line for each of these masks, with these comments."""
    made = {key_of(m): lines.render(lines.Line(key_of(m), *rule, {}, text)) for m, text in comments.items()}
    return lines.table_text(lines.Text({"open_engine": FEATURES}, made))


def fresh_table() -> str:
    """Return a table with a line for each class, measured with the two plans."""
    return table_of({mask: f"win 4/4 ev 5 {WAS} {case.label}" for mask, case in CLASSES.items()})


def both(_case: Case) -> Planned:
    """Return the two plans that the lines were measured with."""
    return listed(BACKEND_PLAN, FROST_PLAN)


def for_mask(mask: str, answer: Planned) -> Callable[[Case], Planned]:
    """Return what answers so for one class, and as before for the others."""
    return lambda case: answer if case.mask == mask else both(case)


def plans_of(backend: str, frost: str) -> dict[str, str]:
    """Return the plans of a train case where the backend leads."""
    return {"backend": backend, "frost": frost, "auto": backend, "default": backend}
