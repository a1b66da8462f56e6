"""Kinds of bad tables: the text, or the entry in line 6, and the error that follows `t.py:`."""

ROWS = 'SCHEMA = 1\nROWS = {\n    "r": ("dtype", "mask"),\n}\n'
KEY = "('r', '8.0', 'bf16', 'none')"

BAD_TABLES = {
    "no SCHEMA": ("ROWS = {}\nTABLE = {}\n", "1: found ROWS, TABLE; expected SCHEMA, ROWS, TABLE"),
    "nothing": ("", "1: found nothing; expected SCHEMA, ROWS, TABLE"),
    "schema": ("SCHEMA = 2\nROWS = {}\nTABLE = {}\n", "1: schema 2; expected 1"),
    "schema is a truth": ("SCHEMA = True\nROWS = {}\nTABLE = {}\n", "1: schema True; expected 1"),
    "schema beyond print": ("SCHEMA = 0x" + "f" * 5000 + "\nROWS = {}\nTABLE = {}\n", "1: not a literal"),
    "not Python": ("SCHEMA = 1\nROWS = {\n", "2: not Python: '{' was never closed"),
    "nested": ("SCHEMA = " + "(" * 5000 + ")" * 5000, "1: not Python: too many nested parentheses"),
    "rows are a call": ("SCHEMA = 1\nROWS = dict()\nTABLE = {}\n", "2: expected a dictionary"),
    "row twice": ('SCHEMA = 1\nROWS = {"r": (),\n"r": ()}\nTABLE = {}\n', "3: row 'r' is not a new name"),
    "row of no feature": (
        'SCHEMA = 1\nROWS = {"r": ("size",)}\nTABLE = {}\n',
        "2: features of r: found ('size',), expected a tuple of feature names",
    ),
    "features in a list": (
        'SCHEMA = 1\nROWS = {"r": ["dtype"]}\nTABLE = {}\n',
        "2: features of r: found ['dtype'], expected a tuple of feature names",
    ),
    "rows of rows": ("SCHEMA = 1\nROWS = {**{}}\nTABLE = {}\n", "2: expected `key: value`, found `**`"),
    **{
        f"code: {code}": (
            f"SCHEMA = 1\n{code}\nROWS = {{}}\nTABLE = {{}}\n",
            "2: expected SCHEMA, ROWS and TABLE, each once, and nothing else",
        )
        for code in (
            "import os",
            "print(1)",
            "x = 1",
            "SCHEMA = 1",
            "def f(): pass",
            "ROWS: dict = {}",
            "ROWS = x = {}",
        )
    },
}
BAD_ENTRIES = {
    "a call": ('("r", "8.0", str(), "none"): ("always", {})', "6: not a literal"),
    "an import": (f"{KEY}: ('always', __import__('os').environ)", "6: not a literal"),
    "a name": (f"{KEY}: (always, {{}})", "6: not a literal"),
    "a comprehension": (f"{KEY}: ('always', {{n: 1 for n in 'b'}})", "6: not a literal"),
    "a spread": ("**{}", "6: expected `key: value`, found `**`"),
    "a spread box": (f"{KEY}: ('always', {{**{{}}}})", "6: not a literal"),
    "key of no tuple": ("'r': ('always', {})", "6: key 'r'; expected (row, cc, feature values)"),
    "key of a float": (
        "('r', '8.0', 'bf16', 1.5): ('always', {})",
        "6: key ('r', '8.0', 'bf16', 1.5); expected (row, cc, feature values)",
    ),
    "key of a truth": (
        "('r', '8.0', 'bf16', True): ('always', {})",
        "6: key ('r', '8.0', 'bf16', True); expected (row, cc, feature values)",
    ),
    "cc is no text": (
        "('r', 8, 'bf16', 'none'): ('always', {})",
        "6: key ('r', 8, 'bf16', 'none'); expected (row, cc, feature values)",
    ),
    "key too short": (
        "('r', '8.0', 'bf16'): ('always', {})",
        "6: key ('r', '8.0', 'bf16') does not have the features of ROWS['r']",
    ),
    "key of no row": (
        "('q', '8.0', 'bf16', 'none'): ('always', {})",
        "6: key ('q', '8.0', 'bf16', 'none') does not have the features of ROWS['q']",
    ),
    "a name twice in the box": (
        f"{KEY}: ('always', {{'b': 1, 'b': 2}})",
        f"6: a name stands twice in the box of {KEY}",
    ),
}
BAD_VALUES = [
    "('always',)",
    "('always', {}, {})",
    "('always', 's_kv', 5, {})",
    "('from', {})",
    "('from', 's_kv', '5', {})",
    "('from', 's_kv', True, {})",
    "('from', 'mask', 5, {})",
    "('from', '', 5, {})",
    "('maybe', {})",
    "('always', ())",
    "('always', {'size': 1})",
    "('always', {'s_kv': (1, 2, 3)})",
    "('always', {'s_kv': (2, 1)})",
    "('always', {'s_kv': (1,)})",
    "('always', {'s_kv': ()})",
    "('always', {'s_kv': 1.5})",
    "('always', {'s_kv': True})",
    "('always', {'mask': ('tl', 1)})",
    "('always', {'board': ('a', 'b')})",
    "['always', {}]",
    "None",
]
