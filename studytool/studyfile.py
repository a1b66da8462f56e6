"""study.yaml → Study: read whole, checked whole; every fault is one line that names file and line."""

import re
from collections.abc import Callable
from pathlib import Path

from studytool import expression, model
from studytool.digest import sha256
from studytool.engine_terms import (
    ENGINE_DTYPES,
    ENGINE_OPS,
    ENGINE_REGIMES,
    ENGINE_ROWS,
    SIMULATED_COSTS,
    SIMULATED_FAULTS,
    SIMULATED_NUMBERS,
)
from studytool.errors import StudyFileError
from studytool.files import read_bytes
from studytool.looks import FIRST_LOOK
from studytool.metrics import METRICS, PPM, Condition
from studytool.model import NAME, Decide, Grid, Protocol, Split, SplitSpec, Study, Threshold
from studytool.possible import CHOICES
from studytool.runtime import key
from studytool.yamlnode import Mapping, Node, decimal_ppm, load

_MAX_SIZE = 10**9
Words = dict[str, tuple[str, ...]]


def read(path: Path, shown: str) -> Study:
    """Return the study declared in a file; `shown` is how messages name it. StudyFileError for any fault."""
    data = read_bytes(path, StudyFileError)
    return parse(data, shown, path.absolute().parent.name)


def parse(data: bytes, shown: str, folder: str) -> Study:
    """Return the study in a file's bytes; its name must be that of the folder that it stands in."""
    top = load(data, shown).mapping()
    schema = top.need("schema", lambda node: node.integer(0, 10**6))
    if schema != model.SCHEMA:
        raise top.need("schema", lambda node: node).error(f"found {schema}; this version reads {model.SCHEMA}")
    name = top.need("name", lambda node: node.text(NAME, "lower-case letters, digits and _"))
    if name != folder:
        raise top.need("name", lambda node: node).error(f"found {name}; expected the folder's name, {folder}")
    engine = top.need("engine", lambda node: node.choice(model.ENGINES))
    ops = top.need("op", lambda node: _choices(node, ENGINE_OPS[engine]))
    dtypes = top.need("dtypes", lambda node: _choices(node, ENGINE_DTYPES[engine]))
    class_key = top.need("class_key", _class_key)
    cc, board = top.take("device", _device, ("host", "any"))
    study = Study(
        path=shown,
        sha256=sha256(data),
        name=name,
        engine=engine,
        question=top.need("question", lambda node: node.text()).strip(),
        row=top.need("row", lambda node: _row(node, ENGINE_ROWS.get(engine, ()))),
        base=top.need("base", lambda node: node.choice(model.BASES)),
        cc=cc,
        board=board,
        ops=ops,
        dtypes=dtypes,
        class_key=class_key,
        guards=top.take("guards", lambda node: _choices(node, key.PREDICATES), ()),
        splits=top.need("splits", lambda node: _splits(node, {"op": ops, "dtype": dtypes})),
        protocol=top.take("protocol", lambda node: _protocol(node, ENGINE_REGIMES[engine]), Protocol()),
        decide=top.take("decide", _decide, Decide()),
        gate=top.need("gate", lambda node: tuple(_condition(item) for item in node.items())),
        simulated=top.take("simulated", _simulated, {}),
    )
    if engine == "cudnn" and not all(study.row.startswith(f"{op}_") for op in ops):
        raise top.need("row", lambda node: node).error(f"found {study.row}; expected a row of {', '.join(ops)} alone")
    if bool(study.simulated) != (engine == "simulated"):
        raise top.node.error(f"engine {engine} and simulated; expected both or neither to be simulated")
    top.done()
    return study


def _row(node: Node, rows: tuple[str, ...]) -> str:
    return node.choice(rows) if rows else node.text(NAME, "lower-case letters, digits and _")


def _choices(node: Node, allowed: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for item in node.one_or_more():
        value = item.choice(allowed)
        if value in found:
            raise item.error(f"{value} stands there twice")
        found.append(value)
    return tuple(found)


def _class_key(node: Node) -> tuple[str, ...]:
    features = _choices(node, key.FEATURES)
    if "dtype" not in features:
        raise node.error("found no dtype; expected it among the features, since each dtype is fitted by itself")
    return features


def _device(node: Node) -> tuple[str, str]:
    members = node.mapping()
    cc = members.take("cc", lambda child: child.text(r"[a-z0-9.\-]+", "a text such as '8.0', or host"), "host")
    board = members.take("board", lambda child: child.text(), "any")
    members.done()
    return cc, board


def _simulated(node: Node) -> dict[str, int | str]:
    members = node.mapping()
    values: dict[str, int | str] = {name: members.need(name, _expression) for name in SIMULATED_COSTS}
    for name in SIMULATED_FAULTS:
        if name in members.names:
            values[name] = members.need(name, _constraint)
    for name, plain in SIMULATED_NUMBERS.items():
        least = 1 if plain else 0
        values[name] = members.take(name, lambda c, least=least: c.integer(least, _MAX_SIZE), plain)  # type: ignore[misc]
    members.done()
    return values


def _expression(node: Node) -> str:
    text = node.text()
    _check_names(node, text)
    return text


def _protocol(node: Node, regimes: tuple[str, ...]) -> Protocol:
    members, plain = node.mapping(), Protocol()
    protocol = Protocol(
        repeats=members.take("repeats", lambda c: c.integer(3, 100), plain.repeats),
        blocks=members.take("blocks", _blocks, plain.blocks),
        regimes=members.take("regimes", lambda c: _choices(c, regimes), plain.regimes),
        min_sample_ns=members.take("min_sample_ns", lambda c: c.integer(1, 10**10), plain.min_sample_ns),
        case_timeout_s=members.take("case_timeout_s", lambda c: c.integer(1, 86_400), plain.case_timeout_s),
        distributions=members.take("distributions", lambda c: _choices(c, model.DISTRIBUTIONS), plain.distributions),
        stop_half_width_ppm=members.take("stop", _stop, 0),
        anchors=members.take("anchors", lambda c: c.integer(0, 1000), plain.anchors),
    )
    if protocol.stop_half_width_ppm and protocol.repeats < FIRST_LOOK:
        raise node.error(f"found stop with {protocol.repeats} repeats; expected at least {FIRST_LOOK}, the first look")
    members.done()
    return protocol


def _stop(node: Node) -> int:
    if node.is_text:
        node.choice(("fixed",))
        return 0
    members = node.mapping()
    half_width = members.need("half_width", lambda child: child.ppm(100, 10**6))
    members.done()
    return half_width


def _blocks(node: Node) -> int:
    blocks = node.integer(4, 100_000)
    if blocks % 4:
        raise node.error(f"found {blocks}; expected a multiple of four, so that the orders balance")
    return blocks


def _decide(node: Node) -> Decide:
    members, plain = node.mapping(), Decide()
    decide = Decide(
        margin_ppm=members.take("margin", lambda c: c.ppm(0, 10**6), plain.margin_ppm),
        max_regret_ppm=members.take("max_regret", lambda c: c.ppm(10**6, 10**7), plain.max_regret_ppm),
        noise_limit_ppm=members.take("noise_limit", lambda c: c.ppm(0, 10**6), plain.noise_limit_ppm),
        min_support=members.take("min_support", lambda c: c.integer(1, 1000), plain.min_support),
        scope=members.take("scope", lambda c: c.choice(model.SCOPES), plain.scope),
        thresholds=members.take("thresholds", lambda c: tuple(_threshold(item) for item in c.items()), ()),
    )
    members.done()
    return decide


def _threshold(node: Node) -> Threshold:
    direction, axis = node.text(r"(from|upto) \S+", "`from AXIS` or `upto AXIS`").split()
    if not key.is_axis(axis):
        raise node.error(f"found axis {axis}; expected integer fields joined by *")
    return Threshold(axis, direction)


def _condition(node: Node) -> Condition:
    text = node.text()
    match = re.fullmatch(r"(\w+)\s*(<=|>=|==)\s*(\S+)", text)
    if not match:
        raise node.error(f"found {node.shown}; expected `metric <= number`, `>=` or `==`")
    metric, op, number = match.groups()
    if metric not in METRICS:
        raise node.error(f"found metric {metric}; expected one of {', '.join(METRICS)}")
    try:
        value = decimal_ppm(number, 0, 10**15)
    except ValueError as error:
        raise node.error(str(error)) from None
    if METRICS[metric] == "count":
        if value % PPM:
            raise node.error(f"found {number}; expected an integer for the count {metric}")
        value //= PPM
    return Condition(metric, op, value)


def _splits(node: Node, declared: Words) -> dict[Split, SplitSpec]:
    members = node.mapping()
    splits = {
        Split.TRAIN: members.need("train", lambda child: _split(child, declared)),
        Split.HOLDOUT: members.need("holdout", lambda child: _split(child, declared, holdout=True)),
    }
    routing = members.take("routing", lambda child: _split(child, declared), None)
    if routing is not None:
        splits[Split.ROUTING] = routing
    members.done()
    return splits


def _split(node: Node, declared: Words, *, holdout: bool = False) -> SplitSpec:
    members = node.mapping()
    none: list[Grid] = []
    grids = [*members.take("grids", lambda child: [_grid(item, declared) for item in child.items()], none)]
    grids += members.take("cases", lambda child: [_grid(item, declared) for item in child.items()], none)
    if not grids:
        raise node.error("found neither grids nor cases; expected at least one case")
    spec = SplitSpec(
        line=node.line,
        grids=tuple(grids),
        where=members.take("where", lambda child: tuple(_constraint(item) for item in child.items()), ()),
        sample=members.take("sample", lambda child: child.integer(1, 10**6), 0),
        seed=_seed(members),
        differs=members.take("differs", lambda child: _choices(child, key.FEATURES), ()) if holdout else (),
    )
    members.done()
    return spec


def _seed(members: Mapping) -> int:
    sampled, seeded = "sample" in members.names, "seed" in members.names
    if sampled != seeded:
        raise members.node.error("found one of sample and seed; expected both or neither")
    return members.take("seed", lambda child: child.integer(0, 2**53), 0)


def _constraint(node: Node) -> str:
    text = _expression(node)
    if not expression.is_comparison(text):
        raise node.error(f"found {node.shown}; expected a comparison")
    return text


def _check_names(node: Node, text: str) -> None:
    try:
        unknown = sorted(expression.names(text) - set(key.FIELDS))
    except ValueError as error:
        raise node.error(str(error)) from None
    if unknown:
        raise node.error(f"found {unknown[0]} in `{text}`; expected fields of a case: {', '.join(key.FIELDS)}")


def _grid(node: Node, declared: Words) -> Grid:
    members = node.mapping()
    words = {**CHOICES, **declared}
    axes: list[tuple[str, tuple[int | str, ...]]] = []
    for name in key.FIELDS:
        values = members.take(name, _integers if name in key.INTEGER_FIELDS else _words(words[name]), None)
        if values is not None:
            axes.append((name, values))
    members.done()
    return Grid(line=node.line, axes=tuple(axes))


def _words(allowed: tuple[str, ...]) -> Callable[[Node], tuple[int | str, ...]]:
    return lambda node: _choices(node, allowed)


def _integers(node: Node) -> tuple[int | str, ...]:
    if node.is_mapping:
        return _range(node)
    values: dict[int | str, None] = {}
    for item in node.one_or_more():
        if item.is_text:
            value: int | str = item.text()
            _check_names(item, str(value))
        else:
            value = item.integer(0, _MAX_SIZE)
        if value in values:
            raise item.error(f"{value} stands there twice")
        values[value] = None
    return tuple(values)


def _range(node: Node) -> tuple[int, ...]:
    members = node.mapping()
    first = members.need("from", lambda child: child.integer(0, _MAX_SIZE))
    last = members.need("to", lambda child: child.integer(first, _MAX_SIZE))
    step = members.need("step", lambda child: child.integer(1, _MAX_SIZE))
    members.done()
    values = range(first, last + 1, step)
    if len(values) > 100_000:
        raise node.error(f"found a range of {len(values)} values; expected at most 100000")
    return tuple(values)
