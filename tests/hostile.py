"""What a stranger may have put where a file of a study was, as tables by the name of what is odd about it.

`CANARY` stands in code and in YAML tags for a path that comes to be when they are run, and only then.
"""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from studytool.digest import sha256

CANARY = "@canary@"
FILES = {
    "study.yaml": "studies/whole/study.yaml",
    "MANIFEST.json": "frozen_cases/whole/MANIFEST.json",
    "cases": "frozen_cases/whole/bf16.train.jsonl",
    "gate.json": "frozen_cases/whole/gate.json",
    "records": "studies/whole/bf16/records/holdout-01-001.jsonl",
    "ledger": "studies/whole/bf16/ledger.jsonl",
    "study.json": "studies/whole/bf16/study.json",
    "lines.txt": "studies/whole/bf16/lines.txt",
    "table.py": "studies/whole/table.py",
    "score.json": "studies/whole/bf16/score.json",
    "report.md": "studies/whole/bf16/report.md",
}
"""The files of a study that a reader has to be given, by the name that the tables call them."""

Alter = Callable[[Path], object]


def whole(data: bytes) -> Alter:
    """Return what puts these bytes in a file's place."""
    return lambda path: path.write_bytes(data)


def edit(change: Callable[[bytes], bytes]) -> Alter:
    """Return what changes a file's bytes, which must become others."""

    def alter(path: Path) -> None:
        old = path.read_bytes()
        new = change(old)
        assert new != old
        path.write_bytes(new)

    return alter


def put(spot: str, token: str) -> Alter:
    """Return what puts a token in the place of the only group of a pattern, at its first match."""

    def change(data: bytes) -> bytes:
        found = re.search(spot.encode(), data)
        assert found is not None
        return data[: found.start(1)] + token.encode() + data[found.end(1) :]

    return edit(change)


def instead(make: Callable[[Path], object]) -> Alter:
    """Return what takes a file away and makes something else of its name."""

    def alter(path: Path) -> None:
        path.unlink()
        make(path)

    return alter


def middle(data: bytes, odd: bytes) -> bytes:
    """Return the bytes with others put into their first line."""
    return data[:20] + odd + data[20:]


BYTES: dict[str, Alter] = {
    "empty": whole(b""),
    "a newline alone": whole(b"\n"),
    "not UTF-8": edit(lambda data: middle(data, b"\xff")),
    "overlong UTF-8": edit(lambda data: middle(data, b"\xc0\x80")),
    "UTF-8 of a surrogate": edit(lambda data: middle(data, b"\xed\xa0\x80")),
    "CRLF": edit(lambda data: data.replace(b"\n", b"\r\n")),
    "a BOM": edit(lambda data: b"\xef\xbb\xbf" + data),
    "UTF-16": edit(lambda data: data.decode().encode("utf-16")),
    "a NUL": edit(lambda data: middle(data, b"\0")),
    "a NUL at its end": edit(lambda data: data + b"\0"),
    "a line twice": edit(lambda data: data[: data.index(b"\n") + 1] + data),
    "its last line twice": edit(lambda data: data + data.splitlines(keepends=True)[-1]),
    "cut": edit(lambda data: data[: len(data) // 2]),
    "without its last newline": edit(lambda data: data[:-1]),
    "escape sequences": edit(lambda data: data + b"\x1b[2J\x1b]0;owned\x07\x9b31m\n"),
    "100,000 brackets": whole(b"[" * 100_000),
    "100,000 braces": whole(b'{"a":' * 100_000 + b"\n"),
    "a megabyte of one word": whole(b"a" * (1 << 20)),
}
"""What any file may hold instead of what was written."""

KINDS: dict[str, Alter] = {
    "a directory": instead(Path.mkdir),
    "a link to /etc/passwd": instead(lambda path: path.symlink_to("/etc/passwd")),
    "a link to /dev/zero": instead(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": instead(lambda path: path.symlink_to(path.name)),
    "a link to nothing": instead(lambda path: path.symlink_to("gone")),
    "a FIFO": instead(os.mkfifo),
}
"""What may stand in a file's place that is no file."""

TOKENS: dict[str, str] = {
    "NaN": "NaN",
    "Infinity": "Infinity",
    "-Infinity": "-Infinity",
    "1e999": "1e999",
    "-0": "-0",
    "zero": "0",
    "a negative": "-7",
    "401 digits": f"1{'0' * 400}",
    "4300 digits": "9" * 4300,
    "5000 digits": "9" * 5000,
    "beyond 64 bits": str(2**64),
    "a float": "1.5",
    "a whole float": "9.0",
    "a truth": "true",
    "null": "null",
    "a text": '"1"',
    "a list": "[1]",
    "an object": "{}",
    "a lone surrogate": r'"\ud800"',
    "a pair the wrong way round": r'"\udc00\ud800"',
    "an escape sequence": r'"\u001b[31m"',
    "nested 100,000 deep": "[" * 100_000 + "]" * 100_000,
}
"""JSON that is put where a positive integer belongs."""

SPOTS: dict[str, tuple[str, str]] = {
    "a count of MANIFEST.json": ("MANIFEST.json", r'"train":(\d+)'),
    "a size of a frozen case": ("cases", r'"b":(\d+)'),
    "a number of gate.json": ("gate.json", r'"min_support":(\d+)'),
    "the tick of a session": ("records", r'"tick_ns":(\d+)'),
    "a time of a record": ("records", r'"ns":\[(\d+)'),
    "the launches of a record": ("records", r'"inner":(\d+)'),
    "a number of the ledger": ("ledger", r'"lines":(\d+)'),
    "a ratio of study.json": ("study.json", r'"ratio_ppm":(\d+)'),
    "a number of score.json": ("score.json", r'"repeats": (\d+)'),
}
"""Where a positive integer stands in a file: the file, and a pattern whose only group is the number."""

SCHEMAS = {"0": "0", "2": "2", "a text": '"1"', "null": "null", "a float": "1.0", "a truth": "true", "-1": "-1"}
"""Versions of a file's format that this one does not read."""

VERSIONED = {
    "MANIFEST.json": ("MANIFEST.json", r'"schema": (1)'),
    "gate.json": ("gate.json", r'"schema": (1)'),
    "a session": ("records", r'"schema":(1)'),
    "a record": ("records", r'\n\{.*?"schema":(1)'),
    "the ledger": ("ledger", r'"schema":(1)'),
    "study.json": ("study.json", r'"schema": (1)'),
    "lines.txt": ("lines.txt", r'"schema":(1)'),
    "score.json": ("score.json", r'"schema": (1)'),
    "table.py": ("table.py", r"SCHEMA = (1)"),
    "study.yaml": ("study.yaml", r"schema: (1)"),
}
"""Where a file says the version of its format."""

TWICE: dict[str, tuple[str, Alter]] = {
    "MANIFEST.json": ("MANIFEST.json", put(r'("name"): "', '"name": "whole", "name"')),
    "a frozen case": ("cases", put(r'("b"):', '"b":1,"b"')),
    "gate.json": ("gate.json", put(r'("name"): "', '"name": "whole", "name"')),
    "a session": ("records", put(r'("attempt"):', '"attempt":1,"attempt"')),
    "a record": ("records", put(r'\n\{("attempt"):', '"attempt":1,"attempt"')),
    "the ledger": ("ledger", put(r'("event"):', '"event":"score","event"')),
    "the ledger, one escaped": ("ledger", put(r'("event"):', r'"\u0065vent":"score","event"')),
    "study.json": ("study.json", put(r'("attempt"): ', '"attempt": 1, "attempt"')),
    "lines.txt": ("lines.txt", put(r'("dtype"):', '"dtype":"bf16","dtype"')),
    "score.json": ("score.json", put(r'("repeats"): ', '"repeats": 3, "repeats"')),
    "table.py, a row": ("table.py", put(r'(    "open_engine"):', '    "open_engine": ("dtype",),\n    "open_engine"')),
    "table.py, in a box": ("table.py", put(r"256, (\{\})", '{"b": 1, "b": 1}')),
    "table.py, a part": ("table.py", put(r"(SCHEMA = 1)", "SCHEMA = 1\nSCHEMA = 1")),
}
"""A name that stands twice in one object: readers differ in which one they take."""

ESCAPE = r"\u001b[2J\u001b]0;owned\u0007\u009b31m\u202e\r\n"
ESCAPES: dict[str, tuple[str, str]] = {
    "the name in MANIFEST.json": ("MANIFEST.json", r'"name": "(whole)"'),
    "a file's name in MANIFEST.json": ("MANIFEST.json", r'"(gate)\.json"'),
    "a split in MANIFEST.json": ("MANIFEST.json", r'"(routing)":'),
    "the tool in MANIFEST.json": ("MANIFEST.json", r'"tool": "()'),
    "the board of a session": ("records", r'"board":"(simulated device)"'),
    "the study of a session": ("records", r'"study":"(whole)"'),
    "the reason of a session": ("records", r'"reason":"()"'),
    "a setting of a session": ("records", r'"(backend_ns)":'),
    "the case of a record": ("records", r'"case":"([0-9a-f]+)"'),
    "the regime of a record": ("records", r'"regime":"([a-z-]+)"'),
    "the status of a record": ("records", r'"status":"(ok)"'),
    "the error of a record": ("records", r'"error":"()"'),
    "the class of a record": ("records", r'"class":\["(open_engine)"'),
    "a leg of a record": ("records", r'"(auto)":'),
    "a plan of a record": ("records", r'"name":"([^"]*)"'),
    "a knob of a record": ("records", r'"(k1)":'),
    "a check of a record": ("records", r'"(took_ns)":'),
    "the link of a record": ("records", r'"prev":"([0-9a-f]+)"'),
    "an event of the ledger": ("ledger", r'"event":"(session)"'),
    "a name in the ledger": ("ledger", r'"(lines)":'),
    "a file in the ledger": ("ledger", r'"file":"(train)'),
    "the time in the ledger": ("ledger", r'"at":"(20)'),
    "the board of study.json": ("study.json", r'"board": "(simulated)'),
    "the study of lines.txt": ("lines.txt", r'"study":"(whole)"'),
    "a plan of score.json": ("score.json", r'"auto":"([^"]*)"'),
}
"""Texts of a file that a message may quote: the file, and a pattern whose only group is the text."""


STATEMENTS: dict[str, str] = {
    "an import": "import os",
    "a call": f'open("{CANARY}", "w")',
    "an import and a call": f'__import__("os").mkdir("{CANARY}")',
    "a walrus": f'(opened := open("{CANARY}", "w"))',
    "a function": "def load(): pass",
    "a decorator": f'@(lambda made: open("{CANARY}", "w"))\ndef made(): pass',
    "a default": f'def made(given=open("{CANARY}", "w")): pass',
    "a class": f'class Made:\n    opened = open("{CANARY}", "w")',
    "an annotation": f'opened: open("{CANARY}", "w") = 1',
    "an if": f'if open("{CANARY}", "w"): pass',
    "a with": f'with open("{CANARY}", "w"): pass',
    "a match": f'match open("{CANARY}", "w"):\n    case _: pass',
    "an assert": f'assert open("{CANARY}", "w")',
    "a del": f'del {{}}[open("{CANARY}", "w")]',
    "a raise": f'raise SystemExit(open("{CANARY}", "w"))',
    "a try": f'try: open("{CANARY}", "w")\nfinally: pass',
    "a loop": "while True: pass",
    "exec": f"exec(\"open('{CANARY}', 'w')\")",
    "an f-string": f"f\"{{open('{CANARY}', 'w')}}\"",
    "a comprehension": f'[open("{CANARY}", "w") for _ in (1,)]',
    "many statements": "1\n" * 100_000,
}
"""What may stand in a table beside its three assignments."""

VALUES: dict[str, str] = {
    "a call": f'open("{CANARY}", "w")',
    "a call of a lambda": f'(lambda: open("{CANARY}", "w"))()',
    "a lambda": "lambda: 0",
    "an import": f'__import__("os").mkdir("{CANARY}")',
    "a walrus": f'(opened := open("{CANARY}", "w"))',
    "an f-string": f"f\"{{open('{CANARY}', 'w')}}\"",
    "a comprehension": f'[open("{CANARY}", "w") for _ in (1,)]',
    "a generator": f'(*(open("{CANARY}", "w") for _ in (1,)),)',
    "a spread": f'{{**{{0: open("{CANARY}", "w")}}}}',
    "an if": f'(1 if open("{CANARY}", "w") else 1)',
    "an attribute": "().__class__.__base__.__subclasses__",
    "an index": f'(open("{CANARY}", "w"),)[0]',
    "a name": "print",
    "a huge power": "10 ** 10 ** 10",
    "a huge text": '"a" * 10 ** 10',
    "a huge shift": "1 << 10 ** 10",
    "a huge list": "[0] * 10 ** 10",
    "a complex of a huge integer": f"0x{'f' * 300} + 2j",
    "5000 digits": "9" * 5000,
    "400,000 bits": f"0x{'f' * 100_000}",
    "a sum of 100,000": "1" + "+1" * 100_000,
    "100,000 signs": "-" * 100_000 + "1",
    "100,000 nots": "not " * 100_000 + "1",
    "100,000 attributes": "a" + ".a" * 100_000,
    "100,000 calls": "a" + "()" * 100_000,
    "100,000 brackets": "(" * 100_000 + ")" * 100_000,
    "90 brackets": "[" * 90 + "]" * 90,
    "90 tuples": "(" * 90 + "1" + ",)" * 90,
    "a text of a surrogate": r'"\ud800"',
    "a text with an escape sequence": r'"\x1b[2J\u202e"',
    "bytes": 'b"a"',
    "a set": "{1, 2}",
    "an ellipsis": "...",
    "a float": "256.0",
    "infinity": "1e999",
    "a negative": "-256",
    "a truth": "True",
    "none": "None",
}
"""What may stand in a table in the place of an entry's bound, 256."""

CODE: dict[str, Alter] = {
    **{f"statement: {name}": put(r"\n()SCHEMA", f"{code}\n") for name, code in STATEMENTS.items()},
    **{f"bound: {name}": put(r'"s_kv", (256)', code) for name, code in VALUES.items()},
    "a coding line": edit(lambda data: b"# -*- coding: utf-7 -*-\n" + data),
    "a form feed": edit(lambda data: data.replace(b"SCHEMA", b"\x0cSCHEMA")),
    "a line continued": edit(lambda data: data.replace(b"SCHEMA =", b"SCHEMA \\\n=")),
    "an entry of no row": put(r'\n    \("(open_engine)"', "other"),
    "an entry twice": edit(lambda data: re.sub(rb'(?m)(^    \("open_engine".*\n)', rb"\1\1", data)),
}
"""Tables that are no tables."""

BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))])
YAML: dict[str, Alter] = {
    **{
        f"tag: {tag}": put("question: (.+)", f"{tag} [{CANARY}]")
        for tag in (
            "!!python/object/apply:os.mkdir",
            "!!python/object/new:os.mkdir",
            "!!python/object:os.mkdir",
            "!!python/module:os",
            "!!python/name:os.mkdir",
            "!!seq",
            "!!map",
            "!!set",
            "!local",
            "!<tag:yaml.org,2002:python/object/apply:os.mkdir>",
        )
    },
    "a tag by a directive": edit(
        lambda data: b"%TAG ! tag:yaml.org,2002:python/object/apply:\n---\n" + data.replace(b"Which", b"!os.mkdir [x]")
    ),
    "a version of YAML": edit(lambda data: b"%YAML 9.9\n---\n" + data),
    "a version of 5000 digits": edit(lambda data: b"%YAML 1." + b"9" * 5000 + b"\n---\n" + data),
    "a block that indents by nothing": put("question: (.+)", "|0\n x"),
    "a tag of odd bytes": put("question: (.+)", "!%ff x"),
    "a bomb of aliases": whole(BOMB.encode()),
    "an alias of itself": put("device: (.+)", "&d {cc: *d}"),
    "an alias of nothing": put("device: (.+)", "*gone"),
    "an anchor alone": put("device: ()", "&d "),
    "a merge key": put("device: (.+)", "{<<: {cc: host}, board: any}"),
    "a merge of a list": put("device: (.+)", "{<<: [{cc: host}], board: any}"),
    "a key twice": put("(base): ", "base: backend\nbase"),
    "a key twice, in quotes": put("(base): ", 'base: backend\n"base"'),
    "a key twice, inside": put("(board): ", "cc: any, board"),
    "a list as key": put("device: (.+)", "{[cc]: host}"),
    "a mapping as key": put("device: (.+)", "{{cc: host}: host}"),
    "an empty key": put("device: (.+)", "{: host}"),
    "a tab": put("(base: )library", "base:\t"),
    "a tab that indents": put("( ) train:", "\t"),
    "two documents": edit(lambda data: data + b"---\n" + data),
    "an end and more": edit(lambda data: data + b"...\n!!python/name:os.mkdir\n"),
    "a scalar of a megabyte": put("base: (library)", "l" * (1 << 20)),
    "a scalar of half a megabyte": put("base: (library)", "l" * (1 << 19)),
    "a name of half a megabyte": put("name: (whole)", "w" * (1 << 19)),
    "a key of half a megabyte": put("(base): ", "b" * (1 << 19)),
    "a line of escape sequences": put("base: (library)", r'"\e[2J\e]0;owned\a\x9b31m\u202e\r\n"'),
    "a key of escape sequences": put("(base): ", r'"\e[2J\u202e"'),
    "a surrogate": put("question: (.+)", r'"\ud800"'),
    "a NUL in quotes": put("question: (.+)", r'"\0"'),
    "a character beyond Unicode": put("question: (.+)", r'"\U00110000"'),
    "nested 100,000 deep": put("device: (.+)", "[" * 100_000 + "]" * 100_000),
    "nested 400,000 deep, as keys": put("device: (.+)", "? " * 400_000),
    "nested 30 deep, in blocks": edit(lambda data: data + b"".join(b" " * depth + b"more:\n" for depth in range(30))),
    "401 digits": put("repeats: (3)", f"1{'0' * 400}"),
    "5000 digits": put("repeats: (3)", "9" * 5000),
    "infinity": put("margin: (0.05)", ".inf"),
    "no number": put("margin: (0.05)", ".nan"),
    "1e999": put("margin: (0.05)", "1.0e+999"),
    "1e-999": put("margin: (0.05)", "1.0e-999"),
    "-0": put("repeats: (3)", "-0"),
    "minus nothing": put("margin: (0.05)", "-0.0"),
    "a negative": put("repeats: (3)", "-3"),
    "a float": put("repeats: (3)", "3.0"),
    "a binary": put("repeats: (3)", "0b11"),
    "a number of base 60": put("repeats: (3)", "0:3"),
    "a date": put("repeats: (3)", "2026-01-01"),
    "nothing": put("repeats: (3)", "~"),
    "a truth": put("repeats: (3)", "yes"),
    "foreign digits": put("repeats: (3)", "\u0663"),
    "code as an expression": put("frost_ns: (.+)", f"open('{CANARY}', 'w')"),
    "an import as an expression": put("frost_ns: (.+)", f"__import__('os').mkdir('{CANARY}')"),
    "a power as an expression": put("frost_ns: (.+)", "10 ** 10 ** 10"),
    "a huge text as an expression": put("frost_ns: (.+)", "'a' * 10 ** 10"),
    "a walrus as an expression": put("frost_ns: (.+)", "(s_kv := 1)"),
    "a deep expression": put("frost_ns: (.+)", f"{'(' * 90}s_kv{')' * 90}"),
    "a path as name": put("name: (whole)", "../whole"),
    "a size of 180 digits": put(r"s_kv: (\[64.*?\])", f"'{'*'.join(['999999999'] * 20)}'"),
    "a size of 8100 digits": put(
        r"s_kv: (\[64.*?\])", f"'{'*'.join('b' * 90)}', s_q: '{'*'.join(['s_kv'] * 10)}', b: 999999999"
    ),
}
"""Declarations that are none, or ask for what cannot be had."""


def everything(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is below a folder, by name: kind, size, time of change, and where it leads or what it holds.

    Links are not followed and large files not read. A name that is no text stands as Python writes it.
    """
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            facts = path.lstat()
            held = str(path.readlink()) if path.is_symlink() else ""
            if stat.S_ISREG(facts.st_mode) and facts.st_size < 1 << 21:
                held = sha256(path.read_bytes())
            found[ascii(path.relative_to(root).as_posix())] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, held)
    return found
