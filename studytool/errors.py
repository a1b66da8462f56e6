"""The errors that a person sees, each one line and one exit code.

StudyError                  exit 2: bad usage or bad input
├── StudyFileError          study.yaml asks for something that it cannot have
├── FrozenError             frozen cases are missing, differ, or would be overwritten
├── RecordError             a records file cannot be read
├── LedgerError             a ledger cannot be read, or its chain is broken
├── TableError              table or lines text is not what a table may be
├── SummaryError            study.json cannot be read
├── BundleError             an archive cannot be packed or unpacked
├── DeviceError             this machine cannot measure what the study asks for
├── CheckFailedError        exit 1: a check did not hold (gate, replay, --check)
├── NotApplicableError      a check of a replay has nothing to look at; no command ends with it
└── CannotSayError          exit 3: incomplete or inconclusive; nothing is wrong, but there is no answer yet
"""


class StudyError(Exception):
    """The root of all errors that end a command with one line; `exit_code` is the command's."""

    exit_code = 2


class StudyFileError(StudyError):
    """study.yaml asks for something that it cannot have."""


class FrozenError(StudyError):
    """Frozen cases are missing, differ from their manifest, or would be overwritten."""


class RecordError(StudyError):
    """A records file cannot be read; the message names file and line."""


class LedgerError(StudyError):
    """A ledger cannot be read, or its chain is broken; the message names file and line."""


class TableError(StudyError):
    """Table or lines text is not what a table may be; the message names file and line."""


class SummaryError(StudyError):
    """study.json cannot be read; the message names what was found and expected."""


class BundleError(StudyError):
    """An archive cannot be packed, or is not one that may be unpacked; the message names the file in it."""


class DeviceError(StudyError):
    """The machine at hand cannot measure what the study asks for."""


class CheckFailedError(StudyError):
    """A check did not hold: a gate, a replay, or a comparison that was asked for."""

    exit_code = 1


class NotApplicableError(StudyError):
    """A check has nothing to look at here."""


class CannotSayError(StudyError):
    """There is no answer yet: records are incomplete, or what was measured does not decide."""

    exit_code = 3
