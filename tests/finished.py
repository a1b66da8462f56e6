"""A study of the simulated engine that went the whole path, made once and copied by the tests that change it."""

import shutil
from pathlib import Path

from studytool import opening, pipeline
from studytool.layout import StudyPlace
from studytool.pipeline import Hooks

WHOLE_YAML = """\
schema: 1
name: whole
question: From which length on does the open engine lead?
engine: simulated
row: open_engine
base: library
device: {cc: host, board: any}
op: sdpa_fwd
dtypes: [bf16, f16]
class_key: [dtype, d_qk]
splits:
  train:
    grids:
      - {s_kv: [64, 128, 256, 512, 1024, 2048], h_q: 4, d_qk: 64}
      - {dtype: f16, s_kv: [96, 192, 384, 768, 1536], h_q: 8, d_qk: 64, mask: tl, window: s_kv // 2}
  holdout:
    cases:
      - {s_kv: [80, 320, 640, 1280], h_q: 2, d_qk: 64, b: 2}
    differs: [s_kv, h_q]
  routing:
    cases:
      - {s_kv: 512, h_q: 4, d_qk: 64, bias: learned}
protocol: {repeats: 3, blocks: 8}
decide: {margin: 0.05, scope: class, thresholds: [from s_kv, upto s_kv]}
gate:
  - slower_beyond_noise == 0
  - auto_over_default_geomean <= 1.02
  - routing_changed == 0
simulated:
  backend_ns: s_kv * 1000
  frost_ns: s_kv * 500 + 64000 + window * 3000
  noise_ppm: 2000
  process_ppm: 1000
  seed: 7
"""
"""bf16 leads from 256 on; f16 has windows that lose at every size, so that it gets no entry."""


def hooks() -> Hooks:
    """Return hooks with a clock that stands still and nothing to see."""
    return Hooks(lambda: "2026-01-01T00:00:00+00:00", lambda _name, _step: None, lambda _text: None)


def declare(root: Path, text: str = WHOLE_YAML, name: str = "whole") -> StudyPlace:
    """Return the place of a study that was only declared."""
    place = StudyPlace(root, name)
    place.folder.mkdir(parents=True)
    place.study_yaml.write_text(text, encoding="utf-8")
    return place


def finish(root: Path) -> StudyPlace:
    """Return the place of a study that went the whole path below `root`."""
    place = declare(root)
    pipeline.run(opening.open_study(place), place, ("bf16", "f16"), hooks())
    return place


def copy(place: StudyPlace, root: Path) -> StudyPlace:
    """Return the place of a copy below `root`."""
    shutil.copytree(place.root, root, dirs_exist_ok=True)
    return StudyPlace(root, place.name)
