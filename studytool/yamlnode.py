"""YAML with its line numbers: a thin layer over PyYAML's nodes whose errors say file, line, found and expected.

Only plain data are taken: no tags, no anchors or aliases, at most MAX_BYTES and MAX_DEPTH.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TypeVar

import yaml

from studytool.errors import StudyFileError
from studytool.metrics import PPM

MAX_BYTES = 1 << 16
MAX_DEPTH = 16
_SURROGATE = re.compile("[\ud800-\udfff]")
T = TypeVar("T")
_DECIMAL = r"(?ai)[+-]?(\d{1,18}\.?|\d{0,18}\.\d{1,40})(e[+-]?\d{1,2})?"
_STR, _INT, _FLOAT, _NULL = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "null"))


class Node:
    """A YAML node with the file that it came from and the name under which it stands."""

    def __init__(self, path: str, name: str, node: yaml.Node) -> None:
        self._path, self.name, self._node = path, name, node

    @property
    def line(self) -> int:
        """Return the line on which the node begins, from 1."""
        return int(self._node.start_mark.line) + 1

    def error(self, message: str) -> StudyFileError:
        """Return the error that says where this node stands and what is wrong with it."""
        prefix = f"{self.name}: " if self.name else ""
        return StudyFileError(f"{self._path}:{self.line}: {prefix}{message}")

    @property
    def shown(self) -> str:
        """Return the node as an error message quotes it."""
        if isinstance(self._node, yaml.ScalarNode):
            return repr(self._node.value) if self._node.tag == _STR else str(self._node.value or "nothing")
        return "a mapping" if isinstance(self._node, yaml.MappingNode) else "a list"

    @property
    def is_list(self) -> bool:
        """Return whether the node is a list."""
        return isinstance(self._node, yaml.SequenceNode)

    @property
    def is_mapping(self) -> bool:
        """Return whether the node is a mapping."""
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_text(self) -> bool:
        """Return whether the node is a string."""
        return isinstance(self._node, yaml.ScalarNode) and self._node.tag == _STR

    def text(self, pattern: str = r"(?s).+", expected: str = "a text") -> str:
        """Return a string that matches the pattern whole."""
        if not self.is_text or not re.fullmatch(pattern, self._node.value) or _SURROGATE.search(self._node.value):
            raise self.error(f"found {self.shown}; expected {expected}")
        return str(self._node.value)

    def choice(self, allowed: Sequence[str]) -> str:
        """Return a string that is one of those allowed."""
        if not self.is_text or self._node.value not in allowed:
            raise self.error(f"found {self.shown}; expected one of {', '.join(allowed)}{_near(self.shown, allowed)}")
        return str(self._node.value)

    def integer(self, least: int, most: int) -> int:
        """Return an integer within bounds."""
        plain = isinstance(self._node, yaml.ScalarNode) and self._node.tag == _INT
        if not plain or not re.fullmatch(r"-?(0|[1-9]\d{0,17})", self._node.value):
            raise self.error(f"found {self.shown}; expected an integer")
        value = int(self._node.value)
        if not least <= value <= most:
            raise self.error(f"found {value}; expected {least} to {most}")
        return value

    def ppm(self, least: int, most: int) -> int:
        """Return a decimal number as parts per million, exactly, within bounds in ppm."""
        if not isinstance(self._node, yaml.ScalarNode) or self._node.tag not in {_INT, _FLOAT}:
            raise self.error(f"found {self.shown}; expected a number")
        try:
            return decimal_ppm(str(self._node.value), least, most)
        except ValueError as error:
            raise self.error(str(error)) from None

    def items(self) -> "list[Node]":
        """Return the members of a list that is not empty."""
        if not isinstance(self._node, yaml.SequenceNode) or not self._node.value:
            raise self.error(f"found {self.shown}; expected a list with at least one member")
        return [Node(self._path, self.name, child) for child in self._node.value]

    def one_or_more(self) -> "list[Node]":
        """Return the members of a list, or the node itself when it is a single value."""
        return self.items() if self.is_list else [self]

    def mapping(self) -> "Mapping":
        """Return the node as a mapping whose members are taken by name."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.error(f"found {self.shown}; expected a mapping")
        members: dict[str, tuple[Node, Node]] = {}
        for key_node, value_node in self._node.value:
            key = Node(self._path, self.name, key_node)
            if not key.is_text or not key_node.value.isprintable():
                raise key.error(f"found key {key.shown}; expected a name")
            name = str(key_node.value)
            if name in members:
                raise key.error(f"key {name} stands already in line {members[name][0].line}")
            full = f"{self.name}.{name}" if self.name else name
            members[name] = (key, Node(self._path, full, value_node))
        return Mapping(self, members)


class Mapping:
    """The members of a YAML mapping; each is taken once, and `done` refuses what nobody took."""

    def __init__(self, node: Node, members: dict[str, tuple[Node, Node]]) -> None:
        self.node, self._members, self._asked = node, members, set[str]()

    @property
    def names(self) -> list[str]:
        """Return the names of the members in the order of the file."""
        return list(self._members)

    def take(self, name: str, parse: Callable[[Node], T], default: T) -> T:
        """Return a member as `parse` reads it, or the default when it is not there."""
        self._asked.add(name)
        return parse(self._members[name][1]) if name in self._members else default

    def need(self, name: str, parse: Callable[[Node], T]) -> T:
        """Return a member as `parse` reads it; an error when it is not there."""
        self._asked.add(name)
        if name not in self._members:
            near = difflib.get_close_matches(name, self.names, n=1, cutoff=0.8)
            raise self.node.error(f"key {name} is missing{f'; is it {near[0]}?' if near else ''}")
        return parse(self._members[name][1])

    def done(self) -> None:
        """Raise for the first member that was never asked for, with the nearest name that was."""
        for name, (key, _) in self._members.items():
            if name not in self._asked:
                known = sorted(self._asked)
                raise key.error(f"unknown key {name}{_near(name, known) or '; expected ' + ', '.join(known)}")


def decimal_ppm(text: str, least: int, most: int) -> int:
    """Return a decimal text as parts per million, exactly; ValueError with what was found and expected."""
    if not re.fullmatch(_DECIMAL, text):
        raise ValueError(f"found {text}; expected a decimal number")
    scaled = Fraction(text) * PPM
    if scaled.denominator != 1:
        raise ValueError(f"found {text}; expected at most six decimals")
    if not least <= scaled <= most:
        raise ValueError(f"found {text}; expected {Decimal(least) / PPM} to {Decimal(most) / PPM}")
    return int(scaled)


def _near(found: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(found.strip("'"), known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def load(data: bytes, path: str) -> Node:
    """Return the document of a YAML file's bytes; StudyFileError with the line for anything that is not plain data."""
    if len(data) > MAX_BYTES:
        raise StudyFileError(f"{path}:1: {len(data)} bytes; expected at most {MAX_BYTES}")
    try:
        text = data.decode("utf-8")
        _refuse_tricks(text, path)
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise StudyFileError(f"{path}:{line}: not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise StudyFileError(f"{path}:{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a character or version beyond all is a ValueError
        raise StudyFileError(f"{path}:1: not YAML: {str(error).splitlines()[0]}") from None
    if document is None:
        raise StudyFileError(f"{path}:1: found nothing; expected a study")
    return Node(path, "", document)


def _refuse_tricks(text: str, path: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise StudyFileError(f"{path}:{line}: found an anchor or alias; expected plain data")
        if tag := getattr(event, "tag", None):
            raise StudyFileError(f"{path}:{line}: found the tag {tag!r}; expected plain data")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise StudyFileError(f"{path}:{line}: nested {depth} deep; expected at most {MAX_DEPTH}")
