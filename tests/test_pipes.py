"""What a pipe does beyond what a worker's tests show: a child of any kind, its environment, and what it said before."""

import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from studytool.model import Status
from studytool.pipes import Failed, Pipe


class Word(msgspec.Struct):
    """A message of one word."""

    word: str


@pytest.fixture(name="child")
def _child() -> Iterator[Any]:
    """Return a maker of pipes to a started child that runs a source; they are stopped after the test."""
    made: list[Pipe] = []

    def child(source: str, **environment: str) -> Pipe:
        made.append(Pipe([sys.executable, "-S", "-c", f"import os, sys\n{source}"], environment))
        made[-1].start()
        return made[-1]

    yield child
    for pipe in made:
        pipe.stop()


ECHO = "for line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.flush()"
SPEAK_ONCE = """
mark = os.environ['MARK']
if not os.path.exists(mark):
    open(mark, 'w').close()
    print('the first one had a reason, and a long one', file=sys.stderr)
sys.exit(1)
"""


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_a_message_of_any_length_comes_back_whole(child: Any, size: int) -> None:
    """A message longer than any buffer of a pipe is written and answered whole, and the next one too."""
    pipe = child(ECHO)

    assert pipe.exchange(Word("x" * size), 60, Word) == Word("x" * size)
    assert pipe.exchange(Word("next"), 60, Word) == Word("next")
    assert pipe.is_running


def test_a_child_has_the_environment_that_it_is_given_and_no_other(child: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this process's own environment reaches it."""
    monkeypatch.setenv("OURS", "1")
    source = "sys.stdin.readline()\nprint('{\"word\": \"' + ' '.join(sorted(os.environ)) + '\"}', flush=True)"
    found = child(source, THEIRS="1").exchange(Word(""), 60, Word)

    assert set(found.word.split()) - {"LC_CTYPE"} == {"THEIRS"}


def test_what_an_earlier_process_said_is_not_told_of_a_later_one(child: Any, tmp_path: Any) -> None:
    """Each process's end is told by its own last words, not by those of the one before it."""
    pipe = child(SPEAK_ONCE, MARK=str(tmp_path / "mark"))
    first = pipe.exchange(Word(""), 60, Word)
    pipe.start()

    assert first == Failed(Status.ERROR, "the first one had a reason, and a long one")
    assert pipe.exchange(Word(""), 60, Word) == Failed(Status.ERROR, "ended with code 1")
    assert not pipe.is_running


@pytest.mark.parametrize("answer", ["no JSON", '{"word": 5}', "[]", "\\xff"])
def test_an_answer_that_is_none_is_a_failure(child: Any, answer: str) -> None:
    """What is no answer of the kind that was asked for is an error that shows it, and ends the process."""
    pipe = child(f"sys.stdin.readline()\nos.write(1, b'{answer}' + bytes([10]))\nsys.stdin.readline()")
    found = pipe.exchange(Word(""), 60, Word)

    assert found.status is Status.ERROR
    assert "which is no answer" in found.error
    assert "\n" not in found.error
    assert not pipe.is_running


def test_a_pipe_can_be_stopped_twice(child: Any) -> None:
    """Stopping what does not run does nothing."""
    pipe = child(ECHO)
    pipe.stop()
    pipe.stop()

    assert not pipe.is_running
