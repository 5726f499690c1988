"""Ollama's store: a manifest names the blob, a GGUF file without a suffix, that holds a model."""

from __future__ import annotations

import json
import os

from ..tensor import ExportError
from .kinds import is_gguf

LAYER = "application/vnd.ollama.image."


def is_manifest(path: str) -> bool:
    """Whether a file is a manifest: JSON with layers."""
    return _layers(path) is not None


def _layers(path: str) -> list | None:
    if not os.path.isfile(path) or os.path.getsize(path) > 1 << 20:
        return None
    with open(path, "rb") as file:
        data = file.read()
    try:
        layers = json.loads(data).get("layers") if data.startswith(b"{") else None
    except (ValueError, AttributeError, RecursionError):
        return None
    return layers if isinstance(layers, list) else None


def blob_of(path: str) -> str:
    """The file that holds the model of a manifest. Errors: ExportError."""
    digests = {}
    for layer in _layers(path) or []:
        if isinstance(layer, dict) and isinstance(layer.get("digest"), str):
            digests[str(layer.get("mediaType")).removeprefix(LAYER)] = layer["digest"]
    if "adapter" in digests:
        raise ExportError(
            f"{path}: the model is an adapter on another one, which is not supported; export the "
            "model that it is for"
        )
    if "model" not in digests:
        raise ExportError(f"{path} is a manifest that names no model ({LAYER}model)")
    name, folder = digests["model"].replace(":", "-"), os.path.dirname(os.path.abspath(path))
    while not os.path.isdir(os.path.join(folder, "blobs")):
        if folder == os.path.dirname(folder):
            raise ExportError(f"{path}: no folder above it has the folder blobs of Ollama's store")
        folder = os.path.dirname(folder)
    blob = os.path.join(folder, "blobs", os.path.basename(name))
    if not os.path.isfile(blob):
        raise ExportError(
            f"{path}: {blob}, which holds the model, is missing; ollama pull it again"
        )
    return blob


def model_in(folder: str) -> str | None:
    """The manifest or the blob that a folder without config.json means: the one tag of a model, or
    `latest`, or the one blob that is a GGUF file. None: it is no folder of Ollama's. Errors:
    ExportError, if there are several."""
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    manifests = [path for path in paths if is_manifest(path)]
    latest = [path for path in manifests if os.path.basename(path) == "latest"]
    blobs = [path for path in paths if os.path.basename(path).startswith("sha256-")]
    found = latest or manifests or [path for path in blobs if is_gguf(path)]
    if len(found) > 1:
        names = ", ".join(os.path.basename(path) for path in found[:8])
        raise ExportError(f"{folder} holds {len(found)} models: name one of {names}")
    return found[0] if found else None
