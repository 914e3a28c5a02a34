"""Artifact: a trained router on disk, ``manifest.json`` and ``router.safetensors``. Never pickle.

The manifest binds everything that must be equal in calibration and in serving. A mismatch stops
the start with a message that names the difference.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from racer_core import strict_json
from racer_core.aggregation.stacked import StackedVote
from racer_core.aggregation.wording import TextRule
from racer_core.calibration.patterns import PatternModel
from racer_core.encoder.base import (
    HAS_FORWARD,
    LIBRARIES,
    Encoder,
    EncoderSpec,
    Forward,
    Pin,
    file_digest,
)
from racer_core.encoder.char_ngrams import CharNgramEncoder
from racer_core.encoder.huggingface import HuggingFaceEncoder
from racer_core.encoder.hybrid import HybridEncoder
from racer_core.encoder.onnx import OnnxEncoder
from racer_core.encoder.word_vectors import WordVectorEncoder
from racer_core.errors import ArtifactError, ArtifactSchemaError, InputError
from racer_core.records.conversation import fingerprint
from racer_core.records.row import MAX_QUERY_CHARS
from racer_core.routers import registry
from racer_core.routers.base import Router
from racer_core.routers.inputs import LIBRARY, Inputs, versions
from racer_core.types import checked_pool

SCHEMA_VERSION: Final = 1
FILES: Final = ("manifest.json", "router.safetensors")  # of an artifact's folder
_PATTERN_SETTINGS: Final = ("neighbours", "prior", "temperature")
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSpec:
    """A candidate as it was when its answers were labelled."""

    name: str
    model: str | None = None  # its name, hence its revision, at its server
    parameters: Mapping[str, Any] | None = None  # how it decoded: temperature, max_tokens, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A router with all that serving needs to repeat what training did."""

    candidates: tuple[CandidateSpec, ...]
    encoder: EncoderSpec
    router: Router
    patterns: PatternModel  # correctness patterns of the training rows
    stacked: StackedVote | None  # fitted if the training rows had answers
    text_rule: TextRule | None = None  # likewise, where it is better than the shipped one
    null_threshold: float | None  # tau for abstaining, chosen on validation rows
    salt: str  # key of the fingerprints
    training_fingerprints: frozenset[bytes]
    validation_fingerprints: frozenset[bytes] = frozenset()
    sample_fingerprints: frozenset[bytes] = frozenset()  # of sampled decisions and conversations
    longest_text: int = MAX_QUERY_CHARS  # characters of a text of either
    components: NDArray[np.float32] | None = None  # (D, d), for drift; None: too few rows
    validation_copies: int | None = None  # near copies of training rows; after training alone
    digest: str = ""  # of the saved folder; empty before it is saved
    # What decides scores beside the folder, by name: contents and versions when it was loaded.
    inputs: Inputs = field(default_factory=dict[str, str])

    @property
    def pool(self) -> tuple[str, ...]:
        """The candidates' names, in the order of the router's columns."""
        return tuple(candidate.name for candidate in self.candidates)

    @property
    def scoring_digest(self) -> str:
        """The digest, and one of what a plug-in router has beside the folder, but for libraries.

        Another process with the same gives the same scores.
        """
        beside = [each for each in sorted(self.inputs.items()) if not each[0].startswith(LIBRARY)]
        if not beside:
            return self.digest
        return f"{self.digest}.{hashlib.sha256(json.dumps(beside).encode()).hexdigest()}"

    def overlap_print(self, query: str) -> bytes:
        """The fingerprint by which a query of training or tuning is found, also where it was cut.

        Training cuts all texts at one length. If it cut any, that is the length of the longest.
        """
        whole = fingerprint(self.salt, query)
        return self.either_print(whole, fingerprint(self.salt, query[: self.longest_text]))

    def either_print(self, whole: bytes, cut: bytes) -> bytes:
        """The print of the text that training cut, if it is one of training; else the other."""
        known = cut in self.training_fingerprints or cut in self.validation_fingerprints
        return cut if known else whole


def new_salt() -> str:
    """A random key for fingerprints, without which a guessed query cannot be confirmed."""
    return secrets.token_hex(_SALT_BYTES)


def salt_of(content: bytes) -> str:
    """A key that is the same for the same content, and unguessable without all of it."""
    return hashlib.sha256(content).hexdigest()[: 2 * _SALT_BYTES]


def save(artifact: Artifact, folder: Path) -> Artifact:
    """Write an artifact; the path of a local encoder is stored relative to the folder.

    Both files are written beside an earlier artifact and then replace it, so that a save that fails
    leaves the earlier one.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "candidates": [asdict(candidate) for candidate in artifact.candidates],
        **_encoder(_relative(artifact.encoder, folder)),
        "router": {"kind": artifact.router.kind, **artifact.router.settings()},
        "patterns": {name: getattr(artifact.patterns, name) for name in _PATTERN_SETTINGS},
        "null_threshold": artifact.null_threshold,
        "salt": artifact.salt,
        "longest_text": artifact.longest_text,
    }
    tensors = {
        **artifact.router.tensors(),
        "patterns": artifact.patterns.patterns.astype(np.uint8),
        "pattern_frequencies": artifact.patterns.frequencies,
        "training_fingerprints": _packed(artifact.training_fingerprints),
        "validation_fingerprints": _packed(artifact.validation_fingerprints),
    }
    if artifact.sample_fingerprints:
        tensors["sample_fingerprints"] = _packed(artifact.sample_fingerprints)
    if artifact.components is not None:
        tensors["components"] = artifact.components
    if artifact.stacked is not None:
        tensors |= {
            "stacked_skill": artifact.stacked.skill,
            "stacked_trust": artifact.stacked.trust,
        }
    if artifact.text_rule is not None:
        tensors["text_rule"] = np.array(artifact.text_rule.weights)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, manifest, tensors)
    except OSError as exc:
        raise ArtifactError(f"artifact {folder} cannot be written: {exc.strerror}") from exc
    return replace(artifact, digest=digest(folder))


def _write(folder: Path, manifest: dict[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
    new = {name: folder / f"{name}.new" for name in FILES}
    weights, text = new["router.safetensors"], new["manifest.json"]
    try:
        save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, weights)
        weights.chmod(0o644)  # the gateway may run as another user than the training
        manifest["weights_sha256"] = file_digest(weights)
        text.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for file in new.values():
            with file.open("rb") as written:
                os.fsync(written.fileno())
        for name in reversed(FILES):  # the manifest last, since it names the digest of the weights
            new[name].replace(folder / name)
    finally:
        for file in new.values():
            file.unlink(missing_ok=True)


def _packed(prints: frozenset[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(sorted(prints)), np.uint8).reshape(-1, 16)


def _unpacked(prints: NDArray[np.uint8]) -> frozenset[bytes]:
    return frozenset(row.tobytes() for row in prints)


def load(folder: str | Path, pool: Sequence[str] | None = None) -> Artifact:
    """Read an artifact.

    Args:
        folder: Where ``manifest.json`` and ``router.safetensors`` are.
        pool: The configured candidates in order; None accepts the artifact's pool.

    Raises:
        ArtifactError: Missing, damaged, of another schema version, or for another pool.
    """
    folder = Path(folder)
    try:
        manifest = strict_json.load_object((folder / "manifest.json").read_bytes())
        tensors = load_file(_weights(folder))
        weights = file_digest(_weights(folder))
    except (OSError, InputError, SafetensorError) as exc:
        raise ArtifactError(f"artifact {folder} cannot be read: {exc}") from exc
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ArtifactSchemaError(
            f"artifact {folder} has schema version {version!r}, this program reads "
            f"{SCHEMA_VERSION}: train it again with `racer train`"
        )
    if manifest.get("weights_sha256") != weights:
        raise ArtifactError(
            f"artifact {folder}: router.safetensors is not the file that manifest.json was "
            "written for; train it again with `racer train`"
        )
    try:
        artifact = _build(manifest, tensors, folder)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, InputError) as exc:
        raise ArtifactError(f"artifact {folder} is damaged: {exc!r}") from exc
    if pool is not None and tuple(pool) != artifact.pool:
        raise ArtifactError(
            f"artifact {folder} was trained for the pool {list(artifact.pool)}, "
            f"the configuration has {list(pool)}: same candidates in the same order are needed"
        )
    return artifact


def open_encoder(spec: EncoderSpec) -> Encoder:
    """Open the encoder exactly as the artifact specifies it.

    Raises:
        ArtifactError: It differs now; the message names the difference.
    """
    if spec.kind == "char-ngrams":
        encoder: Encoder = CharNgramEncoder()
    elif spec.kind == "word-vectors":
        encoder = WordVectorEncoder(spec.name, max_tokens=spec.max_tokens)
    elif spec.kind == "onnx":
        encoder = OnnxEncoder(spec.name, pooling=spec.pooling)
    elif spec.kind == "huggingface":
        encoder = HuggingFaceEncoder(
            spec.name,
            pooling=spec.pooling,
            max_tokens=spec.max_tokens,
            backend=spec.backend,
            dtype=spec.dtype,
            forward=cast(Forward, spec.forward),
            pin=spec.pin,
        )
    else:
        raise ArtifactError(f"unknown encoder kind {spec.kind!r}")
    if spec.lexical and spec.kind != "char-ngrams":
        encoder = HybridEncoder(encoder)
    wanted, found = spec.identity(), encoder.spec.identity()
    if differences := [key for key in wanted if wanted[key] != found[key]]:
        changes = ", ".join(f"{key} {wanted[key]!r} became {found[key]!r}" for key in differences)
        raise ArtifactError(
            f"the encoder is not the one that the router was trained with: {changes}"
        )
    return encoder


def _build(
    manifest: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], folder: Path
) -> Artifact:
    candidates = tuple(CandidateSpec(**each) for each in manifest["candidates"])
    pool = checked_pool([candidate.name for candidate in candidates])
    router = registry.load(tensors, cast("dict[str, Any]", manifest["router"]), pool)
    if router.columns != len(pool):
        raise InputError(f"the router has {router.columns} columns for {len(pool)} candidates")
    if not isinstance(manifest["patterns"]["neighbours"], int):
        raise InputError("the neighbours of the patterns must be a whole number")
    patterns = PatternModel(
        patterns=tensors["patterns"].astype(bool),
        frequencies=tensors["pattern_frequencies"],
        **{name: manifest["patterns"][name] for name in _PATTERN_SETTINGS},
    )
    if patterns.patterns.shape[1] != len(pool):
        raise InputError(f"the training patterns do not have {len(pool)} candidates")
    tau, salt = manifest["null_threshold"], manifest["salt"]
    if tau is not None and not (isinstance(tau, int | float) and 0.0 <= tau <= 1.0):
        raise InputError(f"null_threshold is {tau!r}")
    if not isinstance(salt, str) or not 1 <= len(salt.encode()) <= 64:
        raise InputError("the salt must be 1 to 64 bytes of text")
    longest = manifest["longest_text"]
    if not (isinstance(longest, int) and longest > 0):
        raise InputError(f"longest_text is {longest!r}")
    encoder = _absolute(_encoder_spec(manifest), folder)
    _, inputs = registry.inputs_of(router)
    return Artifact(
        candidates=candidates,
        encoder=encoder,
        router=router,
        inputs={**inputs, **versions(LIBRARIES.get(encoder.kind, ()))},
        patterns=patterns,
        stacked=StackedVote(pool, tensors["stacked_skill"], tensors["stacked_trust"])
        if "stacked_skill" in tensors
        else None,
        text_rule=TextRule.of(tensors["text_rule"].tolist()) if "text_rule" in tensors else None,
        null_threshold=tau,
        salt=salt,
        training_fingerprints=_unpacked(tensors["training_fingerprints"]),
        validation_fingerprints=_unpacked(tensors["validation_fingerprints"]),
        sample_fingerprints=_unpacked(tensors["sample_fingerprints"])
        if "sample_fingerprints" in tensors
        else frozenset(),
        longest_text=longest,
        components=_components(tensors),
        digest=digest(folder),
    )


def _components(tensors: Mapping[str, NDArray[Any]]) -> NDArray[np.float32] | None:
    components = tensors.get("components")
    if components is None:
        return None
    if components.ndim != 2 or not components.size or not np.isfinite(components).all():
        raise InputError("the components must be a finite matrix (D, d)")
    return components.astype(np.float32)


def _encoder(spec: EncoderSpec) -> dict[str, Any]:
    """The manifest's fields of an encoder; the pin is one of its own."""
    pin = {} if spec.pin is None else {"encoder_pin": asdict(spec.pin)}
    return {"encoder": {"name": spec.name, **spec.identity()}, **pin}


def _encoder_spec(manifest: Mapping[str, Any]) -> EncoderSpec:
    pin = manifest.get("encoder_pin")
    if pin is not None and not (
        isinstance(pin["revision"], str) and isinstance(pin["files"], dict)
    ):
        raise InputError("the encoder_pin must have a revision and files")
    encoder = manifest["encoder"]
    absent: dict[str, Any] = {} if encoder["kind"] in HAS_FORWARD else {"forward": None}
    return EncoderSpec(**encoder, **absent, pin=None if pin is None else Pin(**pin))


def _relative(spec: EncoderSpec, folder: Path) -> EncoderSpec:
    path = Path(spec.name)
    if spec.kind == "char-ngrams" or not path.is_dir():
        return spec
    relative = Path(os.path.relpath(path.resolve(), folder.resolve()))
    return replace(spec, name=f"./{relative.as_posix()}")


def _absolute(spec: EncoderSpec, folder: Path) -> EncoderSpec:
    local = spec.name.startswith("./")
    return replace(spec, name=str((folder / spec.name).resolve())) if local else spec


def _weights(folder: Path) -> Path:
    return folder / "router.safetensors"


def digest(folder: Path) -> str:
    """The manifest's digest; the manifest holds the digest of the weights."""
    return file_digest(folder / "manifest.json")
