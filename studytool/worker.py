"""The process of one repeat: reads requests from standard input, answers each with one line, ends with its parent.

An exception that nobody expects ends the process, traceback on standard error: the parent records `error` and starts
another, since the state that a defect leaves behind is not one to measure in.
"""

import ctypes
import gc
import os
import signal
import sys
from typing import BinaryIO

import msgspec

from studytool import clock, fingerprint, measure
from studytool.engines import open_engine
from studytool.engines.base import Clock, Finding, Terms
from studytool.engines.preflight import preflight
from studytool.model import Fingerprint

PINS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
"""The environment that every worker is started with."""

_PR_SET_PDEATHSIG = 1


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer, to an engine's Terms: what was found here, and the fingerprint where nothing is missing."""

    findings: tuple[Finding, ...]
    fingerprint: Fingerprint | None


def main() -> None:
    """Serve requests until standard input ends."""
    _die_with_parent()
    answers = _own_output()
    lines = iter(sys.stdin.buffer.readline, b"")
    terms = msgspec.json.decode(next(lines), type=Terms)
    findings = tuple(preflight(terms))
    if any(finding.needed for finding in findings):
        _answer(answers, Opened(findings=findings, fingerprint=None))
        return
    engine = open_engine(terms)
    timer: Clock = engine.own_clock() or clock.HostClock()
    _answer(answers, Opened(findings=findings, fingerprint=fingerprint.take(engine, timer)))
    gc.collect()
    gc.freeze()
    gc.disable()
    for line in lines:
        request = msgspec.json.decode(line, type=measure.Request)
        begin = timer.now_ns()
        measured = measure.run_case(engine, timer, request)
        _answer(answers, msgspec.structs.replace(measured, took_ns=timer.now_ns() - begin))
        del measured
        gc.collect()  # a library's graph may refer to itself, and hold the device's memory


def _answer(answers: BinaryIO, value: msgspec.Struct) -> None:
    answers.write(msgspec.json.encode(value) + b"\n")
    answers.flush()


def _own_output() -> BinaryIO:
    """Return the pipe of answers, and send whatever a library prints to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
