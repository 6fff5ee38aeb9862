"""Writes the defaults in src/weights/pretrained/models.json: the fields of
attention that the configuration classes of `transformers` have by default.

`python tests/golden/generate/pretrained/defaults.py`, with the packages of
tests/golden/generate/requirements.txt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from unittest import mock

import models_file
from transformers import BarkCoarseConfig, BarkFineConfig, BarkSemanticConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).resolve().parents[4]
SOURCES = ROOT / "src/weights/pretrained"

WHISPER_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
# Names of before, which their classes still take.
OLD_NAMES = {
    "bloom": {"hidden_size": "n_embed"},
    "audioflamingo3_encoder": WHISPER_NAMES,
    "voxtral_encoder": WHISPER_NAMES,
    "voxtral_realtime_encoder": WHISPER_NAMES,
    # Fields of the code beside the files of the model.
    "nomic_bert": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
}
# Without a row in the mapping.
PARTS = {
    cls.model_type: cls
    for cls in (BarkSemanticConfig, BarkCoarseConfig, BarkFineConfig)
}
# Names in the sources that are no fields of a configuration, or have the same
# default in all models that read them.
NOT_ASKED = {"dtype", "is_encoder_decoder", "projection_dim"}
# Verbs whose words are no fields.
VERBS_OF_FILES = (
    "also at",
    "call",
    "ignore tensors",
    "layout",
    "like",
    "outside",
    "query scale",
    "rename",
    "stored angles",
    "stored frequencies",
)
# Fields of others that a family asks for.
ASKED = {"add_cross_attention"}


def asked_names(models: dict) -> set[str]:
    """The fields that the families ask for: all words in their entries, and all
    texts in their sources."""
    names = set()
    for entry in models.values():
        sizes = ("sizes", "decoder_sizes", "audio_sizes", "stages")
        asking = [field for key in sizes for field in entry.get(key, {}).values()]
        asking += [entry.get("cross_flag")]
        asking += [
            step for step in entry.get("describe", []) if not step.startswith(VERBS_OF_FILES)
        ]
        names |= set(re.findall(r"\w+", str(asking)))
    # The texts of models_file.cpp are the keys of entries; GGUF files have
    # metadata of their own.
    others = {SOURCES / "models_file.cpp", *SOURCES.glob("gguf_*.cpp")}
    for file in set(SOURCES.glob("*.cpp")) - others:
        names |= set(re.findall(r'"(\w+)"', file.read_text()))
    config = (SOURCES / "config.cpp").read_text()
    of_others = re.search(r"kFieldsOfOthers{(.*?)}", config, re.S)
    return names - set(re.findall(r'"(\w+)"', of_others.group(1))) - NOT_ASKED | ASKED


def stage_names(models: dict, entry: dict) -> set[str]:
    """The fields with a list of a value for each stage of a model."""
    while "sizes" not in entry and "like" in entry:
        entry = models[entry["like"]]
    sizes = entry.get("sizes", {})
    return {sizes["stages"], sizes["heads"]} if "stages" in sizes else set()


def rotary_of(cls: type) -> dict | None:
    """The parameters of the rotary embedding that the class itself makes."""
    as_given = {"convert_rope_params_to_dict": lambda self, **fields: fields}
    with contextlib.suppress(Exception), mock.patch.multiple(cls, **as_given):
        made = getattr(cls(), "rope_parameters", None)
        # Classes of images have their own thetas, and no scaling.
        if made and made.get("rope_type") != "axial":
            return made
    return None


def defaults_of(name: str, cls: type, asked: set[str], stages: set[str]) -> dict:
    """The defaults and the names of fields that an entry of the file has."""
    # Each stack may have a configuration of its own, of the same class.
    stack = getattr(cls, "sub_configs_defaults", {}).get("encoder")
    cls = getattr(stack, "config_class", None) or cls
    fields = {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if field.name in asked and isinstance(field.default, bool | int | float | str)
    }
    # Sizes of stages.
    fields |= {
        field.name: list(field.default)
        for field in dataclasses.fields(cls)
        if field.name in stages and isinstance(field.default, tuple | list)
    }
    theta = getattr(cls, "default_theta", None)
    if isinstance(theta, int | float) and theta != 10000.0:
        fields["rope_theta"] = float(theta)
    if rotary := rotary_of(cls):
        fields["rope_parameters"] = rotary
    names = getattr(cls, "attribute_map", {})
    own = {theirs: names[theirs] for theirs in asked & names.keys()}
    own |= OLD_NAMES.get(name, {})
    return {key: value for key, value in (("defaults", fields), ("names", own)) if value}


def check_answers(models: dict) -> None:
    """Each type is computed, or it is said why not."""
    missing = sorted(set(CONFIG_MAPPING.keys()) - set(models))
    if missing:
        raise SystemExit(f"no answer to {', '.join(missing)}")


def main() -> None:
    models = models_file.read()
    check_answers(models)
    asked = asked_names(models)
    for name, entry in models.items():
        cls = PARTS.get(name)
        if name in CONFIG_MAPPING:
            cls = CONFIG_MAPPING[name]
        # Entries of models of several parts, and latent ones, have no steps.
        if cls is None or not {"like", "describe"} & entry.keys():
            continue
        entry.pop("defaults", None)
        entry.pop("names", None)
        entry.update(defaults_of(name, cls, asked, stage_names(models, entry)))
    models_file.write(models)


if __name__ == "__main__":
    main()
