"""What parent and child of a planning process say to each other, a JSON line each."""

import msgspec

from studytool.model import Plan, Status


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The device to plan for; `base` decides the library's switch for opt-in rows."""

    device: str
    cc: str
    sm_count: int
    base: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that plan, such as 92700, and the engine ids of the library's rows; `problem` is "" where it can."""

    problem: str
    cudnn: int
    frontend: str
    rows: dict[str, int]


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A case's plans in the library's order, those of both sides; without any, why, in the library's words."""

    status: Status = Status.OK
    reason: str = ""
    plans: tuple[Plan, ...] = ()
    took_ns: int = 0
