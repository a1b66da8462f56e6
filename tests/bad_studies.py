"""Kinds of bad study.yaml: what stands in the small study, what takes its place, and the error after `study.yaml:`."""

from factories import STUDY_YAML

from studytool.metrics import METRICS as _METRICS
from studytool.runtime import key

FIELDS, METRICS, FEATURES = ", ".join(key.FIELDS), ", ".join(_METRICS), ", ".join(key.FEATURES)
G14 = "s_kv: [96, 160], h_q: 4, h_kv: 2, d_qk: 64, mask: tl"

BAD = {
    "unknown key": ("device: {cc", "devise: {cc", "7: unknown key devise; did you mean device?"),
    "unknown key, nothing near": (
        "protocol: {repeats: 3",
        "protocol: {zzz: 3",
        "23: protocol: unknown key zzz; expected anchors, blocks, case_timeout_s, distributions, min_sample_ns, "
        "regimes, repeats, stop",
    ),
    "unknown key of a grid": ("h_kv: 2", "h_vk: 2", "15: splits.train.grids: unknown key h_vk; did you mean h_kv?"),
    "unknown split": ("  routing:", "  routine:", "20: splits: unknown key routine; did you mean routing?"),
    "missing key": ("row: open_engine\n", "", "1: key row is missing"),
    "missing part of a range": ("[96, 160]", "{from: 96, to: 160}", "15: splits.train.grids.s_kv: key step is missing"),
    "duplicate key": ("base: library", "base: library\nrow: other", "7: key row stands already in line 5"),
    "schema": ("schema: 1", "schema: 2", "1: schema: found 2; this version reads 1"),
    "schema is text": ("schema: 1", "schema: '1'", "1: schema: found '1'; expected an integer"),
    "folder": ("name: tiny", "name: tinny", "2: name: found tinny; expected the folder's name, tiny"),
    "name": ("name: tiny", "name: Tiny", "2: name: found 'Tiny'; expected lower-case letters, digits and _"),
    "empty text": ("question: Which engine leads?", "question:", "3: question: found nothing; expected a text"),
    "choice": (
        "engine: simulated",
        "engine: simulate",
        "4: engine: found 'simulate'; expected one of cudnn, torch_sdpa, simulated; did you mean simulated?",
    ),
    "choice of no text": ("base: library", "base: yes", "6: base: found yes; expected one of library, backend"),
    "said twice": ("dtypes: [bf16]", "dtypes: [bf16, bf16]", "9: dtypes: bf16 stands there twice"),
    "empty list": ("op: [sdpa_fwd]", "op: []", "8: op: found a list; expected a list with at least one member"),
    "no mapping": ("device: {cc: host, board: any}", "device: host", "7: device: found 'host'; expected a mapping"),
    "cc without quotes": ("cc: host", "cc: 8.0", "7: device.cc: found 8.0; expected a text such as '8.0', or host"),
    "class key without dtype": (
        "class_key: [op, dtype, mask]",
        "class_key: [op, mask]",
        "10: class_key: found no dtype; expected it among the features, since each dtype is fitted by itself",
    ),
    "class key of no feature": (
        "class_key: [op, dtype, mask]",
        "class_key: [op, dtype, head]",
        f"10: class_key: found 'head'; expected one of {FEATURES}; did you mean heads?",
    ),
    "guard that is no predicate": (
        "class_key: ",
        "guards: mask\nclass_key: ",
        "10: guards: found 'mask'; expected one of square, window_binds",
    ),
    "simulated without a device": (
        "simulated: {backend_ns: s_kv * 1000, frost_ns: s_kv * 500 + 64000}\n",
        "",
        "1: engine simulated and simulated; expected both or neither to be simulated",
    ),
    "row of another engine": (
        "engine: simulated",
        "engine: torch_sdpa",
        "5: row: found 'open_engine'; expected one of torch_sdpa_math",
    ),
    "regime of no engine": (
        "blocks: 8",
        "blocks: 8, regimes: [eager-hot]",
        "23: protocol.regimes: found 'eager-hot'; expected one of eager-warm, eager-cold, replay-warm, replay-cold; did"
        " you mean eager-cold?",
    ),
    "stop before the first look": (
        "blocks: 8",
        "blocks: 8, stop: {half_width: 0.01}",
        "23: protocol: found stop with 3 repeats; expected at least 8, the first look",
    ),
    "simulated device of another engine": (
        "engine: simulated\nrow: open_engine",
        "engine: torch_sdpa\nrow: torch_sdpa_math",
        "1: engine torch_sdpa and simulated; expected both or neither to be simulated",
    ),
    "simulated cost is missing": ("frost_ns: s", "seed: 1} #", "28: simulated: key frost_ns is missing"),
    "simulated number": (
        "{backend_ns",
        "{noise: 3, backend_ns",
        "28: simulated: unknown key noise; did you mean noise_ppm?",
    ),
    "simulated fault is no comparison": (
        "{backend_ns",
        "{crashed: s_q, backend_ns",
        "28: simulated.crashed: found 's_q'; expected a comparison",
    ),
    "float where an integer": ("h_q: 2", "h_q: 2.0", "18: splits.holdout.cases.h_q: found 2.0; expected an integer"),
    "truth where an integer": ("h_q: 2", "h_q: true", "18: splits.holdout.cases.h_q: found true; expected an integer"),
    "octal": ("h_q: 2", "h_q: 010", "18: splits.holdout.cases.h_q: found 010; expected an integer"),
    "hexadecimal": ("h_q: 2", "h_q: 0x2", "18: splits.holdout.cases.h_q: found 0x2; expected an integer"),
    "negative size": ("h_q: 2", "h_q: -2", "18: splits.holdout.cases.h_q: found -2; expected 0 to 1000000000"),
    "size twice": ("[80, 144]", "[80, 144, 80]", "18: splits.holdout.cases.s_kv: 80 stands there twice"),
    "too few repeats": ("repeats: 3", "repeats: 2", "23: protocol.repeats: found 2; expected 3 to 100"),
    "blocks": (
        "blocks: 8",
        "blocks: 10",
        "23: protocol.blocks: found 10; expected a multiple of four, so that the orders balance",
    ),
    "seven decimals": (
        "margin: 0.05",
        "margin: 0.0500001",
        "24: decide.margin: found 0.0500001; expected at most six decimals",
    ),
    "thirty-four decimals": (
        "margin: 0.05",
        "margin: 1.0000000000000000000000000000000001",
        "24: decide.margin: found 1.0000000000000000000000000000000001; expected at most six decimals",
    ),
    "margin out of bounds": ("margin: 0.05", "margin: 1.5", "24: decide.margin: found 1.5; expected 0 to 1"),
    "margin in words": ("margin: 0.05", "margin: five", "24: decide.margin: found 'five'; expected a number"),
    "margin beyond all": (
        "margin: 0.05",
        "margin: 1.0e+999999999",
        "24: decide.margin: found 1.0e+999999999; expected a decimal number",
    ),
    "margin with underscores": (
        "margin: 0.05",
        "margin: 0_0.0",
        "24: decide.margin: found 0_0.0; expected a decimal number",
    ),
    "threshold": (
        "[from s_kv]",
        "[over s_kv]",
        "24: decide.thresholds: found 'over s_kv'; expected `from AXIS` or `upto AXIS`",
    ),
    "threshold on no axis": (
        "[from s_kv]",
        "[from s_kv*mask]",
        "24: decide.thresholds: found axis s_kv*mask; expected integer fields joined by *",
    ),
    "gate metric": (
        "slower_beyond_noise == 0",
        "slower == 0",
        f"26: gate: found metric slower; expected one of {METRICS}",
    ),
    "gate without a sign": (
        "slower_beyond_noise == 0",
        "slower_beyond_noise < 1",
        "26: gate: found 'slower_beyond_noise < 1'; expected `metric <= number`, `>=` or `==`",
    ),
    "gate with half a case": (
        "slower_beyond_noise == 0",
        "slower_beyond_noise == 0.5",
        "26: gate: found 0.5; expected an integer for the count slower_beyond_noise",
    ),
    "gate without a number": ("<= 1.02", "<= nan", "27: gate: found nan; expected a decimal number"),
    "gate with foreign digits": ("<= 1.02", "<= ٣", "27: gate: found ٣; expected a decimal number"),
    "sample without seed": (
        "    differs: [s_kv, d_qk]",
        "    sample: 1",
        "17: splits.holdout: found one of sample and seed; expected both or neither",
    ),
    "seed without sample": (
        "    differs: [s_kv, d_qk]",
        "    seed: 1",
        "17: splits.holdout: found one of sample and seed; expected both or neither",
    ),
    "split without cases": (
        "    cases:\n      - {s_kv: [80, 144], h_q: 2, d_qk: 32}\n",
        "",
        "17: splits.holdout: found neither grids nor cases; expected at least one case",
    ),
    "dtype of another study": (
        "mask: tl",
        "dtype: f16",
        "15: splits.train.grids.dtype: found 'f16'; expected one of bf16; did you mean bf16?",
    ),
    "bad expression": ("h_kv: 2", "h_kv: h_q //", "15: splits.train.grids.h_kv: `h_q //` is not an expression"),
    "unknown field in an expression": (
        "h_kv: 2",
        "h_kv: heads // 2",
        f"15: splits.train.grids.h_kv: found heads in `heads // 2`; expected fields of a case: {FIELDS}",
    ),
    "unknown field in a constraint": (
        "    differs: [s_kv, d_qk]",
        "    where: [width < 3]",
        f"19: splits.holdout.where: found width in `width < 3`; expected fields of a case: {FIELDS}",
    ),
    "expression of two lines": (
        "    differs: [s_kv, d_qk]",
        "    where: ['(s_q +\n\n        1) < 3']",
        "19: splits.holdout.where: '(s_q +\\n1) < 3' is not an expression on one line",
    ),
    "range upside down": (
        "[96, 160]",
        "{from: 160, to: 96, step: 8}",
        "15: splits.train.grids.s_kv.to: found 96; expected 160 to 1000000000",
    ),
    "range too long": (
        "[96, 160]",
        "{from: 1, to: 200000, step: 1}",
        "15: splits.train.grids.s_kv: found a range of 200000 values; expected at most 100000",
    ),
    "anchor": ("op: [sdpa_fwd]", "op: &op [sdpa_fwd]", "8: found an anchor or alias; expected plain data"),
    "alias": ("op: [sdpa_fwd]", "op: *op", "8: found an anchor or alias; expected plain data"),
    "tag": ("name: tiny", "name: !!str tiny", "2: found the tag 'tag:yaml.org,2002:str'; expected plain data"),
    "tag of two lines": ("name: tiny", "name: !<a%0Ab> tiny", "2: found the tag 'a\\nb'; expected plain data"),
    "merge key": ("device: {cc: host", "device: {<<: {cc: host}", "7: device: found key <<; expected a name"),
    "key of no text": ("device: {cc: host", "device: {8: host", "7: device: found key 8; expected a name"),
    "key of two lines": (
        "device: {cc: host",
        'device: {"c\\nc": host',
        "7: device: found key 'c\\nc'; expected a name",
    ),
    "not YAML": ("op: [sdpa_fwd]", "op: [sdpa_fwd", "9: not YAML: expected ',' or ']', but got ':'"),
    "tab": ("base: library", "base:\tlibrary", "6: not YAML: found character '\\t' that cannot start any token"),
    "control character": (
        "Which",
        "\x07Which",
        "1: not YAML: unacceptable character #x0007: special characters are not allowed",
    ),
    "two documents": ("gate:", "---\ngate:", "25: not YAML: but found another document"),
    "too deep": ("op: [sdpa_fwd]", "op: " + "[" * 17, "8: nested 17 deep; expected at most 16"),
    "too large": (
        "base: library",
        "base: library  #" + "." * 2**20,
        f"1: {len(STUDY_YAML) + 3 + 2**20} bytes; expected at most 65536",
    ),
    "empty grid": (G14, "mask: tl", "15: the grid has no h_q; expected op, dtype, b, h_q, h_kv, s_q, s_kv, d_qk, d_v"),
    "nothing left": (
        "    differs: [s_kv, d_qk]",
        "    where: [s_kv < 80]",
        "17: holdout: no case of dtype bf16; expected at least one",
    ),
    "heads": ("h_kv: 2", "h_kv: 3", "15: sdpa_fwd bf16 b1 h4/3 d64 S96 tl: h_q 4 is not a multiple of h_kv 3"),
    "no heads": ("h_kv: 2", "h_kv: 0", "15: sdpa_fwd bf16 b1 h4/0 d64 S96 tl: h_kv is 0; expected at least 1"),
    "bottom-right": (
        "mask: tl",
        "mask: br, s_q: s_kv + 1",
        "15: sdpa_fwd bf16 b1 h4/2 d64 S97/96 br: s_q 97 exceeds s_kv 96 under a bottom-right mask or a window",
    ),
    "window of few keys": (
        "mask: tl",
        "mask: tl, s_q: s_kv + 1, window: 8",
        "15: sdpa_fwd bf16 b1 h4/2 d64 S97/96 tl w8: s_q 97 exceeds s_kv 96 under a bottom-right mask or a window",
    ),
    "window without causal": (
        "mask: tl",
        "window: 8",
        "15: sdpa_fwd bf16 b1 h4/2 d64 S96 w8: window 8 without a causal mask; expected mask tl or br",
    ),
    "dropout of all": (
        "mask: tl",
        "dropout_pct: 100",
        "15: sdpa_fwd bf16 b1 h4/2 d64 S96 dropout_pct=100: dropout_pct is 100; expected 0 to 99",
    ),
    "duplicate case": (
        "{" + G14 + "}",
        "{s_kv: 128, h_q: 4, d_qk: 64}",
        "15: train: sdpa_fwd bf16 b1 h4 d64 S128 stands already in the grid of line 14",
    ),
    "circle": ("h_kv: 2", "h_kv: b * 2, b: h_kv", "15: b, h_kv: the expressions need each other or an absent field"),
    "no integer": ("h_kv: 2", "h_kv: dtype", "15: `dtype` is not an integer"),
    "quotient": (
        "h_kv: 2",
        "h_kv: h_q / 2",
        "15: splits.train.grids.h_kv: only fields, integers, + - * // % and comparisons can be used",
    ),
    "two comparisons": (
        "    differs: [s_kv, d_qk]",
        "    where: [s_kv < 3 or b < 2]",
        "19: splits.holdout.where: only fields, integers, + - * // % and comparisons can be used",
    ),
    "comparison within a text": (
        "    differs: [s_kv, d_qk]",
        "    where: [\"'<'\"]",
        "19: splits.holdout.where: found \"'<'\"; expected a comparison",
    ),
    "no comparison": (
        "    differs: [s_kv, d_qk]",
        "    where: [s_kv]",
        "19: splits.holdout.where: found 's_kv'; expected a comparison",
    ),
    "sample too large": (
        "    differs: [s_kv, d_qk]",
        "    sample: 3\n    seed: 1",
        "17: holdout: sample 3 of 2 cases of dtype bf16; expected fewer",
    ),
}
