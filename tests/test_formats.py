"""docs/formats.md and docs/schemas are what the types say, and what the files of a finished study are."""

import copy
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scripted
from factories import BODIES, make_record, unchained

from studytool import clock, jsonl, ledger, lines
from studytool.layout import StudyPlace
from studytool.model import Case, Split, Status

DOCS = Path(__file__).resolve().parent.parent / "docs"
Json = Any


def load() -> ModuleType:
    """Return the program that makes the files, as a module that a test may change."""
    spec = importlib.util.spec_from_file_location("make_formats", DOCS / "make_formats.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = load()
FILES: dict[str, str] = MAKE.files()
SCHEMAS = {name: json.loads(FILES[f"schemas/{name}.schema.json"]) for name in MAKE.SCHEMAS}
PAGE = FILES["formats.md"]

TYPES: dict[str, Callable[[Json], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
}
SAID = {"title", "description", "default", "$defs", "$schema"}


def problems(value: Json, node: Json, root: Json, where: str = "") -> Iterator[str]:
    """Return what a JSON Schema says against a value; an error for a word of a schema that is not known here."""
    if unknown := node.keys() - SAID - CHECKS.keys():
        raise ValueError(f"{where}: {', '.join(unknown)}")
    for word, check in CHECKS.items():
        if word in node:
            yield from check(value, node, root, where)


def _alternatives(value: Json, node: Json, root: Json, where: str) -> Iterator[str]:
    for word, most in (("anyOf", 99), ("oneOf", 1)):
        fits = sum(not list(problems(value, part, root, where)) for part in node.get(word, ()))
        if word in node and not 1 <= fits <= most:
            yield f"{where}: {fits} of {word}"


def _members(value: Json, node: Json, root: Json, where: str) -> Iterator[str]:
    known = node.get("properties", {})
    for name, own in value.items() if isinstance(value, dict) else ():
        more = node.get("additionalProperties", True)
        if name in known or isinstance(more, dict):
            yield from problems(own, known.get(name, more), root, f"{where}.{name}")
        elif more is False:
            yield f"{where}.{name}: not known"


def _elements(value: Json, node: Json, root: Json, where: str) -> Iterator[str]:
    kinds = node.get("prefixItems", [])
    for number, own in enumerate(value if isinstance(value, list) else ()):
        part = kinds[number] if number < len(kinds) else node.get("items", {})
        yield from problems(own, part, root, f"{where}[{number}]")


def _told(holds: Callable[[Json, Json], bool], word: str) -> Callable[..., Iterator[str]]:
    """Return the check of a word that needs nothing but the value and what the word says."""

    def check(value: Json, node: Json, _root: Json, where: str) -> Iterator[str]:
        if not holds(value, node[word]):
            yield f"{where}: {value!r:.60}; expected {word} {node[word]!r:.60}"

    return check


def _missing(value: Json, names: list[str]) -> bool:
    return not isinstance(value, dict) or set(names) <= value.keys()


CHECKS: dict[str, Callable[[Json, Json, Json, str], Iterator[str]]] = {
    "$ref": lambda value, node, root, where: problems(
        value, root["$defs"][node["$ref"].removeprefix("#/$defs/")], root, where
    ),
    "type": _told(lambda value, kind: TYPES[kind](value), "type"),
    "const": _told(lambda value, only: type(value) is type(only) and value == only, "const"),
    "enum": _told(lambda value, allowed: value in allowed, "enum"),
    "minimum": _told(lambda value, least: type(value) is not int or value >= least, "minimum"),
    "maximum": _told(lambda value, most: type(value) is not int or value <= most, "maximum"),
    "minItems": _told(lambda value, least: not isinstance(value, list) or len(value) >= least, "minItems"),
    "maxItems": _told(lambda value, most: not isinstance(value, list) or len(value) <= most, "maxItems"),
    "required": _told(_missing, "required"),
    "anyOf": _alternatives,
    "oneOf": _alternatives,
    "properties": _members,
    "additionalProperties": lambda value, node, root, where: (
        iter(()) if "properties" in node else _members(value, node, root, where)
    ),
    "items": lambda value, node, root, where: (
        iter(()) if "prefixItems" in node else _elements(value, node, root, where)
    ),
    "prefixItems": _elements,
}
"""What each word of a schema demands."""


def faults(name: str, value: Json) -> list[str]:
    """Return what the schema of a file says against a value."""
    return list(problems(value, SCHEMAS[name], SCHEMAS[name]))


def json_lines(path: Path) -> list[Json]:
    """Return the lines of a file as JSON values."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def documents(place: StudyPlace, dtype: str) -> list[tuple[str, Json]]:
    """Return all that is JSON in a study's files, each with the name of its schema."""
    own = place.results(dtype)
    sessions = [json_lines(path) for path in sorted(own.records.glob("*.jsonl"))]
    header = own.lines.read_text().partition("\n")[0].removeprefix("# studytool lines ")
    return [
        *(("case", line) for split in Split for line in json_lines(place.cases(dtype, split))),
        ("gate", json.loads(place.gate.read_bytes())),
        ("manifest", json.loads(place.manifest.read_bytes())),
        *(("session", head) for head, *_ in sessions),
        *(("record", line) for _, *records in sessions for line in records),
        *(("event", line) for line in json_lines(own.ledger)),
        ("study", json.loads(own.study_json.read_bytes())),
        ("lines", json.loads(header)),
        ("score", json.loads(own.score.read_bytes())),
    ]


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a study whose hold-out has a crash, an attempt that is not scored, and no answer from its gate."""
    place = scripted.prepare(tmp_path_factory.mktemp("failing"))
    scripted.write(place, Split.HOLDOUT, scripted.by_length(scripted.HOLDOUT), stop_after=5)
    scripted.write(place, Split.HOLDOUT, scripted.by_length(scripted.HOLDOUT), attempt=2)
    scripted.write(place, Split.ROUTING, lambda _case: scripted.Timed(ended={1: Status.NO_FROST}))
    scripted.score_of(place)
    return place


@pytest.mark.parametrize("name", FILES)
def test_the_committed_files_are_what_the_types_say(name: str) -> None:
    """After a change of a type or a sentence, `python docs/make_formats.py` must be run."""
    assert (DOCS / name).read_text(encoding="utf-8") == FILES[name]


def test_no_schema_is_left_over() -> None:
    """Each schema that is there is made, and the page names each."""
    there = {f"schemas/{path.name}" for path in (DOCS / "schemas").iterdir()}

    assert there == FILES.keys() - {"formats.md"}
    assert {f"schemas/{name}" for name in re.findall(r"docs/schemas/(\S+?\.json)", PAGE)} == there


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_files_of_a_study_are_as_their_schemas_say(made: StudyPlace, dtype: str) -> None:
    """Every line and file of JSON of a finished study, of each schema at least one."""
    found = documents(made, dtype)

    assert [(name, faults(name, value)) for name, value in found if faults(name, value)] == []
    assert {name for name, _ in found} == SCHEMAS.keys()


def test_files_that_tell_of_failures_are_as_their_schemas_say(failing: StudyPlace) -> None:
    """A case that crashed, conditions without a value, attempts that are not scored, and every kind of event."""
    found = documents(failing, "bf16")
    scores = [value for name, value in found if name == "score"]

    assert [(name, faults(name, value)) for name, value in found if faults(name, value)] == []
    assert all(score["failed"] and score["unscored"] and score["open"] for score in scores)
    for kind, body in BODIES.items():
        event = {"schema": 1, "at": "", "event": kind, "body": body, "prev": "", "own": ""}
        assert faults("event", event) == []


def spoiled(value: Json) -> Iterator[Json]:
    """Return a value without each of its members, with one too many, and with each of another type."""
    for name in value:
        yield {other: part for other, part in value.items() if other != name}
        yield {**value, name: 1.5}
    yield {**value, "more": 1}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_that_is_not_so_is_found(made: StudyPlace, name: str) -> None:
    """A member that is missing, unknown or of another type is against the schema, as is another version."""
    value = next(value for kind, value in documents(made, "bf16") if kind == name)

    assert all(faults(name, bad) for bad in spoiled(value))
    if name != "case":
        assert faults(name, {**value, "schema": 2})


def test_a_fault_deep_inside_is_found(made: StudyPlace) -> None:
    """Parts of a record, of a case and of an event are held against what a reader demands of them."""
    found = dict(documents(made, "bf16"))
    record, case, study = found["record"], found["case"], found["study"]
    timed = next(value for kind, value in documents(made, "bf16") if kind == "record" and value["order"])
    changes: list[Callable[[Json], object]] = [
        lambda bad: bad["legs"]["frost"]["ns"].append(0),
        lambda bad: bad["legs"]["frost"]["ns"].append(1.0),
        lambda bad: bad["legs"]["frost"]["plan"].update(more=1),
        lambda bad: bad["legs"]["frost"].pop("plan"),
        lambda bad: bad["checks"].update(steady=None),
        lambda bad: bad.update(status="fine"),
    ]
    for change in changes:
        bad = copy.deepcopy(timed)
        change(bad)
        assert faults("record", bad)

    assert faults("record", {**record, "split": "test"})
    assert faults("case", {**case, "dtype": "f64"})
    assert faults("case", {**case, "b": 0})
    assert faults("case", {**case, "dropout_pct": 100})
    assert faults("study", {**study, "decide": {**study["decide"], "thresholds": [["s_kv"]]}})
    assert faults("study", {**study, "decide": {**study["decide"], "thresholds": [["s_kv", "from", "more"]]}})
    assert faults("event", {**found["event"], "event": "apply"})
    assert faults("event", {**found["event"], "event": "unheard"})


def test_a_word_that_is_not_known_is_not_passed_over() -> None:
    """What the little validator here does not know it does not take for granted."""
    with pytest.raises(ValueError, match="pattern"):
        list(problems("x", {"type": "string", "pattern": "y"}, {}))


def without_sentence(make: ModuleType) -> None:
    """Take the sentence of a field away."""
    del make.SENTENCES[Case]["window"]


def with_sentence(make: ModuleType) -> None:
    """Add a sentence of a field that is not there."""
    make.SENTENCES[Case]["colour"] = "What it looks like."


def without_body(make: ModuleType) -> None:
    """Take the sentence of what an event tells away."""
    del make.BODIES["apply"][1]["table"]


def with_type(make: ModuleType) -> None:
    """Add the sentences of a type that no file has."""
    make.SENTENCES[make.Split] = {}


def without(name: str) -> Callable[[ModuleType], None]:
    """Return what takes the last word of a list away."""
    return lambda make: getattr(make, name).popitem() and None


@pytest.mark.parametrize(
    "change",
    [
        without_sentence,
        with_sentence,
        without_body,
        with_type,
        *map(without, ("STATUSES", "SPLITS", "REGIMES", "METRICS", "BODIES", "COLUMNS")),
    ],
)
def test_a_name_without_a_sentence_is_an_error(change: Callable[[ModuleType], None]) -> None:
    """A new field, status, metric, event or column fails until someone says what it is."""
    make = load()
    change(make)

    with pytest.raises(ValueError, match=r"expected|sentences of no file"):
        make.files()


def sha256(data: bytes) -> str:
    """Return a SHA-256 by the library that everybody has."""
    return hashlib.sha256(data).hexdigest()


def spelled(value: Json) -> bytes:
    """Return the canonical JSON of a value as the page describes it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_the_chain_is_as_the_page_says(made: StudyPlace, tmp_path: Path) -> None:
    """Records, sessions, events, lines and frozen files name each other by hashes that the words suffice to compute."""
    own = made.results("bf16")
    for path in sorted(own.records.glob("*.jsonl")):
        raw = path.read_bytes().splitlines(keepends=True)
        assert [json.loads(line)["prev"] for line in raw] == ["", *map(sha256, raw[:-1])]
        assert all(line == spelled(json.loads(line)) + b"\n" for line in raw)
    events = json_lines(own.ledger)
    assert [event["own"] for event in events] == [sha256(spelled({**event, "own": ""})) for event in events]
    assert [event["prev"] for event in events] == ["", *(event["own"] for event in events[:-1])]
    manifest = json.loads(made.manifest.read_bytes())
    assert manifest["study_sha256"] == sha256(made.study_yaml.read_bytes())
    assert manifest["files"] == {name: sha256((made.frozen / name).read_bytes()) for name in manifest["files"]}
    study = json.loads(own.study_json.read_bytes())
    records = [json.loads(line) for path in own.records.glob("train-*") for line in path.read_bytes().splitlines()[1:]]
    records.sort(key=lambda record: (record["case"], record["repeat"], record["regime"]))
    assert study["records"] == sha256(b"".join(spelled({**record, "prev": ""}) + b"\n" for record in records))
    digests = [sha256(line) for line in made.cases("bf16", Split.TRAIN).read_bytes().splitlines()]
    assert digests == sorted(digests) == [case["digest"] for case in study["cases"]]
    bodies = {event["event"]: event["body"] for event in events}
    raw = made.manifest.read_bytes().splitlines(keepends=True)
    assert bodies["frozen"] == {"manifest": sha256(b"".join(raw)), "marks": [sha256(line)[:8] for line in raw]}
    assert bodies["score"]["score"] == sha256(own.score.read_bytes())

    first = jsonl.read(min(own.records.glob("train-*")))
    assert first is not None
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(first.path.read_bytes() + b'{"torn')
    found = jsonl.read(torn)
    assert found is not None
    assert (found.sha256, found.records) == (sha256(torn.read_bytes()), first.records)


def test_lines_and_table_are_as_the_page_says(made: StudyPlace) -> None:
    """Entries of lines.txt stand in table.py as they are; their digest is that of sessions and events."""
    own = made.results("bf16")
    head, *entries = own.lines.read_text().splitlines()
    table = made.table.read_text()
    rows = lines.read_table(table.encode(), "table.py")
    session = json_lines(min(own.records.glob("holdout-*")))[0]
    event = next(event for event in reversed(json_lines(own.ledger)) if event["event"] == "apply")["body"]

    assert json.loads(head.removeprefix("# studytool lines "))["study_json"] == sha256(own.study_json.read_bytes())
    assert entries
    assert all(f"\n{entry}\n" in table for entry in entries)
    assert session["entries"] == event["entries"] == sha256("\n".join(entries).encode())
    assert session["table"] == event["table"] == sha256(table.encode())
    assert all(entry in entries for entry in rows.entries.values())
    for entry in entries:
        assert re.fullmatch(
            r'    \(("[^"]*"|\d+)(, ("[^"]*"|\d+))*\): \("\w+", ("[\w*]+", \d+, )?\{.*\}\),  # win \d+/\d+ worst [\d.]+'
            r" geomean [\d.]+( of \d+)? ev [0-9a-f]{12} plans [^|]+ \| [^|]+ at \w.+",
            entry,
        )


def named(words: dict[str, str]) -> set[str]:
    """Return the names that a table of words describes."""
    return {name for joined in words for name in joined.split(", ")}


def test_what_records_count_is_described(made: StudyPlace) -> None:
    """Each name among checks, counters and states that a record can have has a sentence."""
    records = [value for dtype in ("bf16", "f16") for name, value in documents(made, dtype) if name == "record"]
    counters = {name for record in records for leg in record["legs"].values() for name in leg["counters"]}
    counters |= clock.HostClock().sample(lambda _count: None, 1).counters.keys()
    nvml = pytest.importorskip("studytool.engines.cudnn.nvml")

    assert {name for record in records for name in record["checks"]} <= named(MAKE.CHECKS)
    assert counters <= named(MAKE.COUNTERS)
    assert nvml._READINGS.keys() | {"floor_ns"} == named(MAKE.STATES)


def test_the_events_are_those_of_the_ledger() -> None:
    """The page tells of each event and of each of its members, and the ledger knows no other."""
    for kind, body in ledger.EVENTS.items():
        section = PAGE.partition(f"\n| `{kind}` |  | ")[2]
        rows = section.splitlines()[1 : 1 + len(body)]
        assert [row.split(" | ")[1].strip("`") for row in rows] == list(body)


def test_a_record_in_memory_is_one_of_the_schema() -> None:
    """What is written of a record that was never timed is as the schema says, too."""
    record = unchained(make_record(status=Status.TIMEOUT, error="too long"))

    assert faults("record", json.loads(jsonl._ENCODER.encode(record))) == []
