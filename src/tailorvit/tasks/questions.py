"""Questions about images as they lie on disk: easy-vqa, VQA v2, and tables of image, question and answer."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tailorvit.errors import TailorError
from tailorvit.portable import image_files
from tailorvit.texts import read_json

EASY = "easy-vqa"
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "search": "val",
    "test": "test",
    "testing": "test",
}
TABLES = ("questions.json", "questions.csv")
LAYOUTS = (
    "questions.json or questions.csv with image, question and answer beside images/ (or in train/, val/ and test/ "
    "each), easy-vqa, or the question and annotation files of VQA v2"
)
TEN = 10  # people answered each question of VQA v2
_ARTICLES = {"a", "an", "the"}
_DIGITS = "zero one two three four five six seven eight nine ten"
_COLOURS = (
    "red green blue yellow black white gray grey brown orange pink purple teal cyan magenta beige tan gold silver "
    "maroon navy olive turquoise violet"
)
_SHAPES = (
    "circle rectangle triangle square oval ellipse star diamond hexagon pentagon octagon cube sphere cylinder cone "
    "cross heart"
)
_NUMBERS = {word: str(i) for i, word in enumerate(_DIGITS.split())}


class Question(NamedTuple):
    """One question about one image. ``scores`` says what each answer is worth: 1 for the right one."""

    image: str  # name below the data's folder
    text: str
    scores: Mapping[str, float]
    split: str  # "train", "val", "test", or empty where nothing says
    kind: str


class Found(NamedTuple):
    """What a folder holds: questions, where their images lie, and what was left out, with the reason."""

    root: Path
    questions: list[Question]
    files: dict[str, Path]
    skipped: dict[str, str]
    notes: list[str]
    several: bool  # people answered each question; an answer may be partly right


def read_questions(source: str) -> Found:
    """All questions of a folder, or of the installed package easy-vqa."""
    root = _root(source)
    reading = _Reading(root)
    pairs = sorted(p for p in root.glob("*questions*.json") if p.name not in TABLES) if root.is_dir() else []
    if pairs:
        reading.official(pairs)
    elif tables := list(_tables(root)):
        for split, table in tables:
            reading.table(split, table)
    else:
        raise TailorError(f"'{source}' holds no questions; a folder can have: {LAYOUTS}.")
    return reading.found(source)


def _root(source: str) -> Path:
    """The folder to read; that of the package easy-vqa is inside the package."""
    root = Path(source).expanduser()
    if source == EASY and not root.exists():
        spec = find_spec("easy_vqa")
        if spec is None or not spec.submodule_search_locations:
            raise TailorError("The data 'easy-vqa' are in the package of that name: pip install easy-vqa.")
        root = Path(next(iter(spec.submodule_search_locations)))
    if not root.exists():
        raise TailorError(f"There is no '{source}'; data for questions can be: {EASY}, or a folder with {LAYOUTS}.")
    if not root.is_dir():
        raise TailorError(f"'{source}' is a file; give the folder with {LAYOUTS}.")
    inside = root / "data"
    return inside if not list(_tables(root)) and list(_tables(inside)) else root


def _tables(root: Path) -> Iterator[tuple[str, Path]]:
    """Tables of questions: the folder's own, or those of its split folders."""
    for name in TABLES:
        if (root / name).is_file():
            yield "", root / name
            return
    if not root.is_dir():
        return
    for folder in sorted(p for p in root.iterdir() if p.is_dir() and p.name.lower() in SPLIT_NAMES):
        for name in TABLES:
            if (folder / name).is_file():
                yield SPLIT_NAMES[folder.name.lower()], folder / name
                break


class _Reading:
    """Rows taken one by one; what is wrong with a row is noted under its file and number."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.questions: list[Question] = []
        self.files: dict[str, Path] = {}
        self.skipped: dict[str, str] = {}
        self.notes: list[str] = []
        self.missing = Counter[str]()  # questions of images that are not there
        self.several = False

    def found(self, source: str) -> Found:
        """Everything that was read; an error where no question is left."""
        for image, count in self.missing.items():
            asked = "1 question is" if count == 1 else f"{count} questions are"
            self.skipped[image] = f"there is no such image; {asked} left out"
        if not self.questions:
            first = next(iter(self.skipped.items()), None)
            why = "no row" if first is None else f"{first[0]}: {first[1]}"
            raise TailorError(f"'{source}' has no question that can be used ({why}).")
        return Found(self.root, self.questions, self.files, self.skipped, self.notes, self.several)

    def add(self, where: str, images: _Images, row: _Row) -> None:
        """One row; ``where`` names it."""
        given = [a for a in map(answer_text, row.answers) if a]
        if not isinstance(row.text, str) or not row.text.strip():
            self.skipped[where] = "the question is empty"
        elif not given:
            self.skipped[where] = "the question has no answer"
        elif row.image is None or not str(row.image).strip():
            self.skipped[where] = "the question names no image"
        else:
            name, path = images.find(str(row.image).strip())
            if path is None:
                self.missing[name] += 1
                return
            self.files[name] = path
            self.several = self.several or len(given) > 1
            scores = soft_scores(given)
            kind = row.kind or kind_of(max(scores, key=lambda a: (scores[a], a)))
            self.questions.append(Question(name, " ".join(row.text.split()), scores, row.split, kind))

    # -- tables of image, question and answer --

    def table(self, split: str, file: Path) -> None:
        """A questions.json or questions.csv."""
        images = _Images(self.root, file.parent)
        label = file.relative_to(self.root).as_posix()
        for where, row in _csv_rows(file, label) if file.suffix == ".csv" else _json_rows(file, label):
            if isinstance(row, list) and len(row) == 3:  # as easy-vqa has them
                row = {"question": row[0], "answer": row[1], "image": row[2]}
            if not isinstance(row, Mapping):
                self.skipped[where] = "it is no row of image, question and answer"
                continue
            own = str(row.get("split") or "").strip()
            named = SPLIT_NAMES.get(own.lower(), "") if own else split
            if own and not named:
                self.skipped[where] = f"the split '{own}' is none of train, val and test"
                continue
            answers = row["answers"] if isinstance(row.get("answers"), list) else [row.get("answer")]
            self.add(where, images, _Row(row.get("image"), row.get("question"), answers, named))

    # -- VQA v2: a file of questions and one of annotations for each split --

    def official(self, files: Sequence[Path]) -> None:
        """Pairs of files; questions without annotations, as of the official test sets, are counted and left out."""
        for file in files:
            rows, subset = _listed(file, "questions"), _subset(file)
            partner = file.with_name(file.name.replace("OpenEnded_", "").replace("questions", "annotations"))
            if not partner.is_file():
                self.notes.append(f"'{file.name}' has {len(rows):,} questions and no '{partner.name}': it is left out.")
                continue
            notes = {a.get("question_id"): a for a in _listed(partner, "annotations") if isinstance(a, Mapping)}
            images = _Images(self.root, self.root, f"COCO_{subset}_")
            split = next((s for name, s in SPLIT_NAMES.items() if subset.lower().startswith(name)), "")
            for number, row in enumerate(rows, 1):
                if not isinstance(row, Mapping):
                    self.skipped[f"{file.name} row {number}"] = "it is no question"
                    continue
                note = notes.get(row.get("question_id"), {})
                given = note.get("answers")
                answers = [a.get("answer") if isinstance(a, Mapping) else a for a in given or ()]
                kind = str(note.get("answer_type") or "").replace("yes/no", "yes_no")
                self.add(
                    f"{file.name} row {number}",
                    images,
                    _Row(row.get("image_id"), row.get("question"), answers, split, kind),
                )


class _Row(NamedTuple):
    """A row as it stands in a file."""

    image: Any
    text: Any
    answers: Sequence[Any]
    split: str
    kind: str = ""


class _Images:
    """The images below a folder, found by their name, with or without its ending, or by their number."""

    def __init__(self, root: Path, folder: Path, prefix: str = "") -> None:
        self.root, self.prefix = root, prefix
        base = folder / "images" if (folder / "images").is_dir() else folder
        self.base = base.relative_to(root).as_posix()
        self._named: dict[str, Path] = {}
        stems: dict[str, list[Path]] = {}
        for path, problem in image_files(base):
            if problem is None:
                self._named[path.relative_to(base).as_posix()] = path
                stems.setdefault(path.stem, []).append(path)
        self._stems = {stem: paths[0] for stem, paths in stems.items() if len(paths) == 1}

    def find(self, image: str) -> tuple[str, Path | None]:
        """The image's name below the data's folder, and its file where there is one."""
        path = self._named.get(image.removeprefix("images/")) or self._stems.get(image)
        if path is None and image.isdigit():
            numbered = (f"{self.prefix}{int(image):012d}", f"{int(image):012d}")  # as COCO's two editions name them
            path = next((self._stems[n] for n in numbered if n in self._stems), None)
        if path is None:
            return (image if self.base == "." else f"{self.base}/{image}"), None
        return path.relative_to(self.root).as_posix(), path


# -- files ------------------------------------------------------------------------------------------------------------


def _load(file: Path) -> Any:
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise TailorError(f"Cannot read '{file}': {error}.") from None


def _listed(file: Path, key: str) -> list[Any]:
    found = _load(file)
    rows = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(rows, list):
        raise TailorError(f"'{file}' holds no list '{key}', as the files of VQA v2 do.")
    return rows


def _subset(file: Path) -> str:
    """The part of COCO that a file of VQA v2 asks about, such as train2014."""
    named = re.search(r"(train|val|test)(-dev)?(20\d\d)", file.name)
    if named is None:
        raise TailorError(f"The name of '{file}' does not say its part, such as train2014 or val2014.")
    return named[1] + named[3]


def _json_rows(file: Path, label: str) -> Iterator[tuple[str, Any]]:
    found = _load(file)
    rows = found.get("questions") if isinstance(found, Mapping) else found
    if not isinstance(rows, list):
        raise TailorError(f"'{file}' must hold a list of rows, each with image, question and answer.")
    for number, row in enumerate(rows, 1):
        yield f"{label} row {number}", row


def _csv_rows(file: Path, label: str) -> Iterator[tuple[str, Any]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.DictReader(stream)
            for column in ("image", "question", "answer"):
                if column not in (rows.fieldnames or ()):
                    raise TailorError(f"'{file}' has no column '{column}'; it needs image, question and answer.")
            for row in rows:
                yield f"{label} line {rows.line_num}", row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TailorError(f"Cannot read '{file}': {error}.") from None


# -- answers ----------------------------------------------------------------------------------------------------------


def answer_text(answer: Any) -> str:
    """An answer in lower case, without a full stop; empty where there is none."""
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    if not isinstance(answer, str | int | float):
        return ""
    return " ".join(str(answer).lower().split()).rstrip(".!?").strip()


def soft_scores(given: Sequence[str]) -> dict[str, float]:
    """What each answer is worth. With one answer it is 1; with ten it is VQA's accuracy; see docs/tasks/answer.md.

    VQA's accuracy is min(1, agreeing others / 3), averaged over all choices of nine people among the ten. With fewer
    people an answer is worth its share of the most frequent one's count.
    """
    if len(given) > 1:
        given = [_plain(a) for a in given]
    counts, people = Counter(given), len(given)
    if people < TEN:
        most = max(counts.values())
        return {a: c / most for a, c in counts.items()}
    return {a: (c * min((c - 1) / 3, 1) + (people - c) * min(c / 3, 1)) / people for a, c in counts.items()}


def _plain(answer: str) -> str:
    """Without articles and with numbers as digits, as VQA compares answers of several people."""
    words = ["0" if w == "none" else _NUMBERS.get(w, w) for w in answer.split() if w not in _ARTICLES]
    return " ".join(words) or answer


def kind_of(answer: str) -> str:
    """What is asked for, by the answer: yes_no, number, colour, shape or other."""
    if answer in ("yes", "no"):
        return "yes_no"
    if re.fullmatch(r"\d+([.,]\d+)?", answer) or answer in _NUMBERS:
        return "number"
    words = set(answer.split())
    return "colour" if words & {*_COLOURS.split()} else "shape" if words & {*_SHAPES.split()} else "other"


def most_frequent(questions: Iterable[Question], most: int) -> list[str]:
    """The answers worth most over these questions, the most frequent first."""
    worth: dict[str, float] = {}
    for question in questions:
        for answer, score in question.scores.items():
            worth[answer] = worth.get(answer, 0.0) + score
    return sorted((a for a in worth if worth[a] > 0), key=lambda a: (-worth[a], a))[:most]
