"""Boards as cuDNN describes devices to itself: JSON files, each field with the source that it was taken from.

The fields are those of `cudnn.create_device_properties(text)`, of cuDNN 9.19 to 9.28.
"""

import json
from pathlib import Path

import msgspec

from studytool import model
from studytool.decode import decode
from studytool.errors import StudyError
from studytool.files import read_bytes

FOLDER = Path(__file__).parent / "boards"
SOURCES = ("read from device", "data sheet", "neutral")
"""Where a field is from; `neutral` ones say nothing of the board, such as its number in the machine."""

Value = int | str | tuple[int, ...]
FIELDS: dict[str, type] = {
    "version": int,
    "deviceName": str,
    "cudaDeviceId": int,
    "deviceVer": int,
    "multiProcessorCount": int,
    "driverVer": int,
    "totalGlobalMem": int,
    "maxGridSize": tuple,
    "maxBlockSize": tuple,
    "regsPerBlock": int,
    "smCountOrigin": int,
    "warpSize": int,
    "maxSharedMemoryPerBlock": int,
    "maxSharedMemoryPerBlockOptin": int,
    "oversizedSharedMemoryPerBlock": int,
    "reservedSharedMemoryPerBlock": int,
    "maxRegistersPerSM": int,
    "maxCtasPerSM": int,
    "maxThreadsPerBlock": int,
    "maxThreadsPerSM": int,
    "pciDeviceId": int,
    "isTccDriver": int,
    "supportCoopLaunch": int,
    "smClockRateKHz": int,
    "memClockRateKHz": int,
    "memoryBusWidth": int,
    "l2CacheSize": int,
}
"""What cuDNN asks for; flags are 0 or 1, sizes bytes, `deviceVer` 800 is compute capability 8.0."""


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One field of a board."""

    value: Value
    source: str


class Board(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A board: its short name here, and its fields."""

    schema: int
    name: str
    fields: dict[str, Field]

    @property
    def cc(self) -> str:
        """Return the compute capability, such as `8.0`."""
        version = int(str(self.fields["deviceVer"].value))
        return f"{version // 100}.{version % 100 // 10}"

    @property
    def device_name(self) -> str:
        """Return the name by which a driver calls the board."""
        return str(self.fields["deviceName"].value)

    @property
    def sm_count(self) -> int:
        """Return the number of SMs."""
        return int(str(self.fields["multiProcessorCount"].value))

    def description(self) -> str:
        """Return the text that `cudnn.create_device_properties` takes."""
        return json.dumps({name: field.value for name, field in sorted(self.fields.items())})


def names() -> list[str]:
    """Return the boards that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> Board:
    """Return a board by its name, or from a file; StudyError for one that is neither, or a file that is no board."""
    if name in names():
        return read(FOLDER / f"{name}.json")
    if name.endswith(".json"):
        return read(Path(name))
    raise StudyError(f"--board: found {name}; expected {', '.join(names())}, or a file NAME.json")


def read(path: Path) -> Board:
    """Return the board in a file; StudyError, with the file and what is wrong in it, for anything else."""
    board = decode(read_bytes(path), Board, str(path), "board", StudyError)
    if problem := _problem(board):
        raise StudyError(f"{path}: {problem}")
    return board


def of_device_name(name: str) -> Board | None:
    """Return the board that comes with the package under a driver's name for it, None where there is none."""
    found = (load(short) for short in names())
    return next((board for board in found if board.device_name == name), None)


def from_device(name: str, serialized: str) -> Board:
    """Return the board of a device that is here, from what `cudnn.create_device_properties(0).serialize()` gives."""
    fields = {
        key: Field(
            tuple(value) if isinstance(value, list) else int(value) if isinstance(value, bool) else value, SOURCES[0]
        )
        for key, value in json.loads(serialized).items()
    }
    board = Board(schema=model.SCHEMA, name=name, fields=fields)
    if problem := _problem(board):
        raise StudyError(f"cuDNN describes this GPU otherwise than expected: {problem}")
    return board


def text(board: Board) -> str:
    """Return the file of a board: a field a line."""
    lines = (
        f"  {json.dumps(name)}: {json.dumps(msgspec.to_builtins(field))}"
        for name, field in sorted(board.fields.items())
    )
    head = f'{{\n "schema": {board.schema},\n "name": {json.dumps(board.name)},\n "fields": {{\n'
    return head + ",\n".join(lines) + "\n }\n}\n"


def _problem(board: Board) -> str | None:
    if board.schema != model.SCHEMA:
        return f"schema {board.schema}; expected {model.SCHEMA}"
    if missing := [name for name in FIELDS if name not in board.fields]:
        return f"field {missing[0]} is missing"
    for name, field in board.fields.items():
        if name in FIELDS and type(field.value) is not FIELDS[name]:
            return f"field {name} is {field.value!r}; expected {FIELDS[name].__name__}"
        if field.source not in SOURCES:
            return f"field {name} has source {field.source!r}; expected one of {', '.join(SOURCES)}"
    return None
