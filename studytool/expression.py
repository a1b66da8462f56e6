"""Integer expressions over the fields of a case, as study.yaml writes them: `s_kv // 4`, `window < s_kv`."""

import ast
import functools
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import cast

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISON: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Lt: cast("Callable[[object, object], bool]", operator.lt),
    ast.LtE: cast("Callable[[object, object], bool]", operator.le),
    ast.Gt: cast("Callable[[object, object], bool]", operator.gt),
    ast.GtE: cast("Callable[[object, object], bool]", operator.ge),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_PARTS = (ast.Compare, ast.BinOp, ast.Name, ast.Constant, ast.Load, *_ARITHMETIC, *_COMPARISON)
_REFUSAL = "only fields, integers, + - * // % and comparisons can be used"
MAX_LENGTH = 200
MOST = 10**18


@functools.lru_cache(1000)
def names(text: str) -> frozenset[str]:
    """Return the names that an expression reads; ValueError when it is no expression."""
    nodes = list(ast.walk(_parse(text)))
    if not all(isinstance(node, _PARTS) for node in nodes):
        raise ValueError(_REFUSAL)
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name))


def is_comparison(text: str) -> bool:
    """Return whether an expression is a comparison; ValueError when it is no expression."""
    return isinstance(_parse(text), ast.Compare)


def integer(text: str, fields: Mapping[str, int | str]) -> int:
    """Return the value of an integer expression; ValueError, saying why, when it has none.

    A comparison within it counts as 1 where it holds and as 0 where it does not.
    """
    node = _parse(text)
    value = _value(node, fields)
    if type(value) is not int or isinstance(node, ast.Compare):
        raise ValueError(f"`{text}` is not an integer")
    return value


def holds(text: str, fields: Mapping[str, int | str]) -> bool:
    """Return whether a comparison holds; ValueError, saying why, when it cannot be told."""
    node = _parse(text)
    if not isinstance(node, ast.Compare):
        raise ValueError(f"`{text}` is not a comparison")  # noqa: TRY004 - what is wrong is the text
    return _holds(node, fields)


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise ValueError(f"an expression of {len(text)} characters; expected at most {MAX_LENGTH}")
    if not text.isprintable():
        raise ValueError(f"{text!r} is not an expression on one line")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"`{text}` is not an expression") from None


def _holds(node: ast.Compare, fields: Mapping[str, int | str]) -> bool:
    values = [_value(side, fields) for side in (node.left, *node.comparators)]
    pairs = zip(node.ops, values, values[1:], strict=False)
    try:
        return all(_COMPARISON[type(op)](left, right) for op, left, right in pairs)
    except (KeyError, TypeError):
        raise ValueError(f"`{ast.unparse(node)}` compares what cannot be compared") from None


def _value(node: ast.expr, fields: Mapping[str, int | str]) -> int | str:
    if isinstance(node, ast.Constant) and type(node.value) in {int, str}:
        return cast("int | str", node.value)
    if isinstance(node, ast.Name):
        if node.id not in fields:
            raise ValueError(f"`{node.id}` is not a field that is known here")
        return fields[node.id]
    if isinstance(node, ast.Compare):
        return int(_holds(node, fields))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left, fields), _value(node.right, fields)
        if type(left) is int and type(right) is int:
            if isinstance(node.op, ast.FloorDiv | ast.Mod) and right == 0:
                raise ValueError("division by zero")
            value = _ARITHMETIC[type(node.op)](left, right)
            if abs(value) > MOST:
                raise ValueError(f"a value beyond {MOST}")
            return value
    raise ValueError(_REFUSAL)
