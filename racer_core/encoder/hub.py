"""Models of the Hugging Face hub: the pinned default, one download, digests that are checked.

Files are those of configuration, tokenizer and weights; no other file of a model is fetched or
read. Imports no torch.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from racer_core.encoder.base import Pin, file_digest
from racer_core.errors import ArtifactError
from racer_core.sandbox import SandboxedProcess

PICKLED: Final = "pytorch_model.bin"
SAFETENSORS: Final = "model.safetensors"
_MESSAGE_BYTES: Final = 4096
DEFAULT_ENCODER: Final = "microsoft/mdeberta-v3-base"
# Commits and files of models that are opened by their name alone.
PINS: Final[Mapping[str, Pin]] = {
    DEFAULT_ENCODER: Pin(
        revision="a0484667b22365f84929a935b5e50a51f71f159d",
        files={
            "config.json": "bcffcd343dc5efa5ef2d5a58d2b405eed108f01cc45b48d0a907b333ec41801f",
            "pytorch_model.bin": "6f89419baf0f1aaad5cab7d53901e36a8c1af8f6b4ab58b15db9af32df656ead",
            "spm.model": "13c8d666d62a7bc4ac8f040aab68e942c861f93303156cc28f5c7e885d86d6e3",
            "tokenizer_config.json": (
                "3f3978e0c036f2c2588cac34a6047cbb0af0b0dc1814254e291028529805496d"
            ),
        },
    )
}
_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = (SAFETENSORS, _INDEX, "model-*-of-*.safetensors")
_CONFIGURATION: Final = (
    "config.json",
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
# The hub's time to answer at all, and to list a model's files.
_ANSWER_S: Final = 2.0
_LIST_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model's files on this machine.

    Attributes:
        folder: Configuration and tokenizer.
        weights: Folder of the weights as safetensors, which may be another.
        pin: The commit and digests of a model of the hub; None for a local folder.
    """

    folder: Path
    weights: Path
    pin: Pin | None = None


def find_model(name: str, pin: Pin | None = None) -> LocalModel:
    """A model's files: of a folder, of the hub's cache, or downloaded into it.

    A pinned model whose files are in the cache is opened without a request.

    Args:
        name: A local folder, or a model of the hub as ``owner/model`` or ``owner/model@revision``.
        pin: The commit and digests of a model of the hub; None takes those of ``PINS``, unless the
            name has a revision, and else the hub's ``main``.

    Raises:
        ArtifactError: The model is nowhere, incomplete, or not the pinned one.
    """
    if Path(name).is_dir():
        folder, pin = Path(name), None
    else:
        pin = pin or _pin_of(name)
        folder = cached_folder(name, pin) if pin else None
        folder = folder or _downloaded(name, pin) or cached_folder(name, pin)
        if folder is None:
            raise ArtifactError(_absent(name, pin))
        pin = _checked(folder, pin)
    files = pin.files if pin else os.listdir(folder)
    if SAFETENSORS in files or _INDEX in files:
        return LocalModel(folder=folder, weights=folder, pin=pin)
    weights = folder / PICKLED
    if PICKLED not in files:
        raise ArtifactError(
            f"encoder {name!r} has neither {SAFETENSORS} nor {PICKLED} in {folder}: name a folder "
            "or a model of the hub that has one of them"
        )
    digest = pin.files[PICKLED] if pin else file_digest(weights)
    return LocalModel(folder=folder, weights=converted(weights, digest), pin=pin)


def cached_folder(name: str, pin: Pin | None = None) -> Path | None:
    """A model's folder in the hub's cache, found without a request; None if it has no weights."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    pin = pin or _pin_of(name)
    repository, revision = _commit(name, pin)
    files = list(pin.files) if pin else [SAFETENSORS, _INDEX, PICKLED]
    try:
        found = [try_to_load_from_cache(repository, each, revision=revision) for each in files]
    except HFValidationError:  # the path of a folder that is gone
        return None
    paths = [Path(each) for each in found if isinstance(each, str)]
    complete = len(paths) == len(files) if pin else bool(paths)
    return paths[0].parent if complete else None


def copy_model(name: str, folder: Path) -> None:
    """Copy a model into a folder that needs no hub, with its weights as safetensors.

    Raises:
        ArtifactError: As of :func:`find_model`; or the folder is the model's own, or cannot be
            written.
    """
    model = find_model(name)
    if folder.resolve() in (model.folder.resolve(), model.weights.resolve()):
        raise ArtifactError(f"{folder} is where the encoder goes: begin with another one")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, patterns in ((model.folder, _CONFIGURATION), (model.weights, _WEIGHTS)):
            for each in _matching(os.listdir(source), patterns):
                shutil.copyfile(source / each, folder / each)
    except OSError as exc:
        raise ArtifactError(f"encoder {name!r} cannot be copied to {folder}: {exc}") from exc


def download_command(name: str, pin: Pin | None = None) -> str:
    """The command that fills the hub's cache with a model."""
    repository, revision = _commit(name, pin or _pin_of(name))
    return f"hf download {repository} --revision {revision}"


def _pin_of(name: str) -> Pin | None:
    return PINS.get(name)  # a name with a revision is none of them


def _commit(name: str, pin: Pin | None) -> tuple[str, str]:
    """Repository and revision of a model of the hub."""
    repository, _, revision = name.partition("@")
    return repository, pin.revision if pin else revision or "main"


def _downloaded(name: str, pin: Pin | None) -> Path | None:
    """The folder of a commit in the hub's cache, with all files that are read.

    The weights come last: where they are, everything is. None if the hub is not asked, or does not
    answer.
    """
    from huggingface_hub import (
        hf_hub_download,  # pyright: ignore[reportUnknownVariableType]
    )
    from huggingface_hub.errors import (
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import validate_repo_id

    repository, revision = _commit(name, pin)
    try:
        validate_repo_id(repository)
        listed = _listed(repository, revision)
        if listed is None:
            return None
        folder = Path(hf_hub_download(repository, "config.json", revision=revision)).parent
        for each in sorted(pin.files if pin else _read(listed), key=_is_weights):
            hf_hub_download(repository, each, revision=folder.name)
    except (
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    ) as exc:
        raise ArtifactError(
            f"encoder {name!r} is neither a folder nor a model that the hub gives here: "
            f"{_reason(exc)}"
        ) from exc
    except Exception as exc:  # of the network, in many classes
        raise ArtifactError(
            f"the download of encoder {name!r} broke off ({_reason(exc)}): run the command "
            "again. Whole files are kept, and half ones are not used"
        ) from exc
    return folder


def _listed(repository: str, revision: str) -> list[str] | None:
    """Names of the repository's files; None offline, and where the hub does not answer soon."""
    import httpx2
    from huggingface_hub import constants, get_session, model_info
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        # Before the library asks for a list of clients, for its statistics, which waits as long.
        get_session().head(constants.ENDPOINT, timeout=_ANSWER_S)
        found = model_info(repository, revision=revision, timeout=_LIST_S)
    except (RepositoryNotFoundError, RevisionNotFoundError):
        raise
    except (OSError, httpx2.HTTPError):
        return None
    return [each.rfilename for each in found.siblings or ()]


def _absent(name: str, pin: Pin | None) -> str:
    from huggingface_hub import constants

    offline = "$HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub does not answer"
    return (
        f"encoder {name!r} is neither a folder nor complete in the hub's cache "
        f"({constants.HF_HUB_CACHE}), and {offline} ({constants.ENDPOINT}): name a folder, or "
        f"`char-ngrams`, which needs no download; or run `{download_command(name, pin)}` where the "
        "hub can be reached, and copy its cache"
    )


def _read(names: Iterable[str]) -> list[str]:
    """Those that are read: configuration and tokenizer, and safetensors or else pickled weights."""
    names = list(names)
    return _matching(names, _CONFIGURATION) + (
        _matching(names, _WEIGHTS) or _matching(names, (PICKLED,))
    )


def _is_weights(name: str) -> bool:
    return bool(_matching([name], (*_WEIGHTS, PICKLED)))


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    patterns = list(patterns)
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def _checked(folder: Path, pin: Pin | None) -> Pin:
    """The digests of a commit's files, compared with the pin's, or with what the hub declared."""
    digests: dict[str, str] = {}
    for name in pin.files if pin else _read(sorted(os.listdir(folder))):
        file = folder / name
        digests[name] = file_digest(file)
        if not (digests[name] == pin.files[name] if pin else _is_declared(file, digests[name])):
            raise ArtifactError(
                f"{file} has not the digest that {'is pinned' if pin else 'the hub declared'} (its "
                f"sha256 is {digests[name]}): delete {file.resolve()} and run the command again, "
                "which downloads it; another commit is `--encoder owner/model@revision`"
            )
    return Pin(revision=folder.name, files=digests)


def _is_declared(file: Path, digest: str) -> bool:
    """Whether a file's content is that of its blob, which the cache names by the hub's digest.

    Large files have a sha256, others git's digest; a cache without links has no names to compare.
    """
    blob = Path(os.readlink(file)).name if file.is_symlink() else ""
    if len(blob) == 40:
        content = file.read_bytes()
        header = f"blob {len(content)}\0".encode()
        return hashlib.sha1(header + content, usedforsecurity=False).hexdigest() == blob
    return len(blob) != 64 or blob == digest


def _reason(exc: Exception) -> str:
    """An error in one line: the hub's begin with the status, and say what it means after that."""
    lines = [line for line in str(exc).splitlines() if line]
    return " ".join(lines[:2]) or type(exc).__name__


# Weights in ``pytorch_model.bin``, converted once to safetensors by a sandboxed process.
#
# Converted weights lie in the assets folder of the hub's cache, by the digest of their source.


def converted(weights: Path, digest: str) -> Path:
    """The folder with these weights as ``model.safetensors``; converts them the first time.

    Args:
        weights: A file in torch's old format, a pickle.
        digest: Its sha256, which was compared with the expected one.

    Raises:
        ArtifactError: The file holds more than tensors or is damaged, or the cache cannot be
            written.
    """
    from huggingface_hub import cached_assets_path

    try:
        folder = cached_assets_path("racer", "safetensors", digest)
        if not (folder / SAFETENSORS).exists():
            with TemporaryDirectory(prefix="convert-", dir=folder) as scratch:
                _convert(weights, Path(scratch, SAFETENSORS)).replace(folder / SAFETENSORS)
    except (OSError, ValueError) as exc:
        raise ArtifactError(
            f"{weights} is converted once into the hub's cache, which cannot be written "
            f"({exc}): set $HF_HOME to a folder that can"
        ) from exc
    return folder


def _convert(weights: Path, target: Path) -> Path:
    with SandboxedProcess(
        "racer_core.encoder.pickled_weights_process",
        [str(weights.resolve()), str(target)],
        message_bytes=_MESSAGE_BYTES,
    ) as process:
        try:
            message = process.receive() or {"refused": "the process ended"}
        except ValueError as exc:
            message = {"refused": str(exc)}
        else:
            process.wait()
    if "refused" in message:
        raise ArtifactError(
            f"{weights} is not converted: it holds more than tensors, is damaged, or needs more "
            f"memory than there is ({message['refused']}). Delete it and download it again, or "
            f"pass a folder with {SAFETENSORS}"
        )
    target.chmod(0o644)  # the gateway may run as another user
    return target
