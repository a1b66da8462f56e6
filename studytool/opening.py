"""What a step begins with: the study as declared, a job of it, and whether its hold-out fits the table."""

from studytool import freeze, lines, studyfile
from studytool.attempts import Job, table_in_force
from studytool.errors import CannotSayError
from studytool.layout import StudyPlace
from studytool.model import Split, Study


def open_study(place: StudyPlace) -> Study:
    """Return the study declared at a place; messages name its file relative to the root."""
    return studyfile.read(place.study_yaml, place.shown(place.study_yaml))


def job_of(study: Study, place: StudyPlace, dtype: str, split: Split) -> Job:
    """Return a job of a frozen study; FrozenError where what is frozen is not what study.yaml makes."""
    return Job(study, place, freeze.verify(study, place), dtype, split)


def check_entries(job: Job) -> None:
    """Raise where a complete hold-out was timed with other entries than the table has now: it says nothing of them."""
    found = job.attempts() if job.split is Split.HOLDOUT else []
    if not found or found[-1].missing:
        return
    data, _ = table_in_force(job.place, job.split)
    entries = lines.entries_digest(lines.read_table(data, str(job.place.table)), job.study.row, job.dtype)
    if found[-1].files[0].session.entries != entries:
        raise CannotSayError(
            f"{job.dtype} holdout attempt {found[-1].number} was timed with other entries than the table has now;"
            " time it again with --split holdout --attempt new --reason ..."
        )
