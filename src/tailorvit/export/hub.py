"""The Hugging Face hub: ``push`` puts a finished network there with its card, ``fetched`` gets one by hf:USER/NAME."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailorvit.errors import TailorError
from tailorvit.export.formats import data_name, run_facts
from tailorvit.portable import HUB
from tailorvit.texts import read_table, shown
from tailorvit.tracing import quiet

# All that is ever uploaded, and what may lie in a repository that is pushed into again.
FILES = ("README.md", "config.json", "model.safetensors", "network.json", "preprocessor_config.json")
_GIT = ".gitattributes"  # the hub's own, in every repository
_FETCHED = ("network.json", "network.safetensors", "model.safetensors")  # data alone: no code is ever fetched


def is_hub(source: str | Path) -> bool:
    """Whether a network is named by hf:USER/NAME."""
    return Path(source).as_posix().startswith(HUB)


# -- names and errors -------------------------------------------------------------------------------------------------


def _library() -> Any:
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise TailorError("The hub needs 'huggingface_hub': pip install huggingface_hub.") from None
    return huggingface_hub


def _require_name(name: str, said: str) -> str:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(name)
        if name.count("/") != 1:
            raise HFValidationError("it has no user")
    except HFValidationError:
        raise TailorError(f"'{shown(said)}' is not the name of a network on the hub, which reads USER/NAME.") from None
    return name


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors of the hub as one sentence."""
    from huggingface_hub import errors

    try:
        with quiet():
            yield
    except (TailorError, KeyboardInterrupt):
        raise
    except errors.GatedRepoError:
        raise TailorError(f"'{name}' is gated: accept its terms on the hub, and set HF_TOKEN.") from None
    except errors.RepositoryNotFoundError:
        raise TailorError(
            f"The hub has no network '{name}', or your token may not see it (HF_TOKEN, or: hf auth login)."
        ) from None
    except errors.RevisionNotFoundError:
        raise TailorError(f"'{name}' has no such revision.") from None
    except errors.HfHubHTTPError as error:
        code = error.response.status_code
        if code in (401, 403):
            raise TailorError(
                f"The hub refuses your token for '{name}' ({code}); it needs the right to write."
            ) from None
        raise TailorError(f"The hub answers {code} for '{name}': {_flat(error)}.") from None
    except errors.LocalEntryNotFoundError as error:
        raise TailorError(
            f"'{name}' is not on this machine yet, and the hub cannot be reached: {_flat(error.__cause__ or error)}."
        ) from None
    except ValueError as error:  # the card's metadata, refused by the hub
        raise TailorError(f"The hub refuses what was to be written to '{name}': {_flat(error)}.") from None
    except Exception as error:  # what the network library raises, which differs between versions
        raise TailorError(f"The hub cannot be reached: {_flat(error)}.") from None


def _flat(error: BaseException) -> str:
    return shown(" ".join(str(error).split()).rstrip(".") or type(error).__name__)[:300]


# -- load -------------------------------------------------------------------------------------------------------------


def fetched(source: str | Path) -> Path:
    """The local copy of hf:USER/NAME or hf:USER/NAME@REVISION; nothing but its weights and JSON is downloaded."""
    library = _library()
    said = Path(source).as_posix()
    name, _, revision = said.removeprefix(HUB).partition("@")
    _require_name(name, said)
    with _told(name):
        place = Path(library.snapshot_download(name, revision=revision or None, allow_patterns=list(_FETCHED)))
    if not (place / "network.json").is_file():
        raise TailorError(f"'{said}' holds no network that TailorViT wrote (no network.json).")
    return place


# -- push -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pushed:
    """What was uploaded, and who can see it."""

    name: str
    url: str
    private: bool
    files: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "files": list(self.files)}

    def lines(self) -> list[str]:
        """The lines that the command line prints."""
        who = "only you and those you let in can see it" if self.private else "everybody can see it"
        return [
            f"Pushed to {self.url} ({who}): {', '.join(self.files)}",
            f"Use it with: tailorvit predict {HUB}{self.name} photos/",
        ]


def push(
    folder: str | Path,
    name: str,
    *,
    public: bool = False,
    license: str | None = None,
    data: str | Path | None = None,
) -> Pushed:
    """Upload the network of a run as USER/NAME: the checked files of the format hf and a model card, nothing else.

    The token is the environment's (HF_TOKEN) or the one that ``hf auth login`` keeps. A new repository is private
    unless ``public``. One that holds anything but an earlier push is refused.
    """
    from tailorvit.export import export

    library = _library()
    name = _require_name(name.removeprefix(HUB), name)
    if is_hub(folder):
        raise TailorError(f"'{folder}' is on the hub already; push takes a run or network folder.")
    token = library.get_token()
    if token is None:
        raise TailorError("Pushing needs a token that may write: set HF_TOKEN, or run: hf auth login.")
    with tempfile.TemporaryDirectory() as scratch:
        place = export(folder, "hf", Path(scratch) / "hf", data=data).path
        readme = place / "README.md"
        text = card_on_hub(readme.read_text(encoding="utf-8"), Path(folder), place, name, license)
        readme.write_text(text, encoding="utf-8")
        api = library.HfApi(token=token)
        with _told(name):
            before = _earlier(api, name, public)
            if before is None:
                library.ModelCard(text).validate()  # before the repository is made, not after
                api.create_repo(name, private=not public)
            files = [library.CommitOperationAdd(path_in_repo=f, path_or_fileobj=place / f) for f in FILES]
            api.create_commit(name, files, commit_message="Push a network by TailorViT", parent_commit=before)
            info = api.model_info(name)
        return Pushed(name, f"{api.endpoint}/{name}", bool(info.private), FILES)


def _earlier(api: Any, name: str, public: bool) -> str | None:
    """The last commit of a repository that may be pushed into; None where there is none of the name."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.model_info(name)
    except RepositoryNotFoundError:
        return None
    found = {row.rfilename for row in info.siblings or ()} - {_GIT}
    foreign = sorted(found - set(FILES)) or sorted(found if "network.json" not in found else ())
    if foreign:
        raise TailorError(
            f"'{name}' holds files that no push wrote (such as '{shown(foreign[0])}'); choose another name."
        )
    if not info.private and not public:
        raise TailorError(f"'{name}' is public; push into it with --public, or choose another name.")
    return str(info.sha)


# -- the card ---------------------------------------------------------------------------------------------------------


def card_on_hub(text: str, folder: Path, place: Path, name: str, license: str | None) -> str:
    """The card of the format hf with the hub's metadata, above all the measured accuracy, and with its new name."""
    library = _library()
    card = library.ModelCard(text)
    result, info = run_facts(folder)
    known = {**read_table(place / "network.json")["facts"], **result}
    source = str((result.get("data") or info.get("data") or {}).get("source", ""))
    on_hub = _dataset(source)
    card.data.library_name = "transformers"
    card.data.license = license
    card.data.datasets = [on_hub] if on_hub else None
    accuracy = known.get("test_accuracy")
    if isinstance(accuracy, int | float):
        said = data_name(source) if source else "unnamed"
        card.data.metrics = ["accuracy"]
        card.data.model_name = name.partition("/")[2]
        card.data.eval_results = [
            library.EvalResult(
                task_type="image-classification",
                dataset_type=on_hub or "".join(c if c.isalnum() or c in "._-" else "-" for c in said),
                dataset_name=said,
                dataset_split="test",
                metric_type="accuracy",
                metric_name="test accuracy",
                metric_value=round(accuracy / 100, 6),
            )
        ]
    body, _, use = card.text.partition("\n## Use\n")
    use = use.replace('"local-dir:FOLDER"', f'"hf-hub:{name}"').replace('"FOLDER"', f'"{name}"')
    use = use.replace("timm reads this folder too", "timm reads it too")
    use = f'\n`tailorvit.load("{HUB}{name}").predict("photo.jpg")` needs `pip install tailorvit` and no more.\n{use}'
    if license:
        use = use.partition("\n## Licence\n")[0] + f"\n## Licence\n\n{license}, as stated by who pushed it.\n"
    card.text = f"{body}\n## Use\n{use}"
    return str(card)


def _dataset(source: str) -> str | None:
    """The name of a data set on the hub, where the run's images come from one."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    name = source.removeprefix("hf:").partition(":")[0]
    if not source.startswith("hf:") or Path(name).exists():  # a saved data set of this machine
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name
