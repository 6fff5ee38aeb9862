"""Reads and writes src/weights/pretrained/models.json, and checks its form.

    python tests/golden/generate/pretrained/models_file.py [write]

checks the file, or writes it again, sorted and wrapped as it should be. What
its texts mean to the library, a C++ test checks: tests/weights/models_file_test.cpp.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[4] / "src/weights/pretrained/models.json"

COLUMNS = 100
# The keys of an entry in their order, and the types of their values.
KEYS = {
    "refused": str,
    "note": str,
    "parts": dict,
    "stacks": dict,
    "inner": dict,
    "latent": str,
    "indexer": str,
    "shared_indexers": bool,
    "per_layer": bool,
    "like": str,
    "path": str,
    "sizes": dict,
    "head_size": int,
    "layer_count": int,
    "stages": dict,
    "decoder_path": str,
    "decoder_sizes": dict,
    "audio_path": str,
    "audio_sizes": dict,
    "cross_path": str,
    "cross_flag": str,
    "own_configs": bool,
    "describe": list,
    "defaults": dict,
    "names": dict,
}


def wrapped(key: str, value: object) -> str:
    """Returns the JSON of an entry's value, in lines of few columns."""
    name = f"    {json.dumps(key)}: "
    text = json.dumps(value)
    if isinstance(value, str | bool | int) or len(name) + len(text) <= COLUMNS:
        return name + text
    if isinstance(value, dict):
        items = json.dumps(value)[1:-1].split(", ")
    else:
        items = [json.dumps(each) for each in value]
    lines, line = [], name + text[0]
    for i, item in enumerate(items):
        item += text[-1] if i + 1 == len(items) else ","
        if len(line) + len(item) > COLUMNS:
            lines.append(line.rstrip())
            line = " " * 6
        line += item + " "
    return "\n".join([*lines, line.rstrip()])


def as_text(models: dict) -> str:
    """Returns the text of the file: sorted, entries of several keys wrapped."""
    entries = []
    for model_type, entry in sorted(models.items()):
        entry = {key: entry[key] for key in KEYS if key in entry}
        for key in ("defaults", "names"):
            if key in entry:
                entry[key] = json.loads(json.dumps(entry[key], sort_keys=True))
        text = f"  {json.dumps(model_type)}: {json.dumps(entry)}"
        if len(entry) > 1 and len(text) > COLUMNS:
            lines = ",\n".join(wrapped(key, value) for key, value in entry.items())
            text = f"  {json.dumps(model_type)}: {{\n{lines}\n  }}"
        entries.append(text)
    return "{\n" + ",\n".join(entries) + "\n}\n"


def without_duplicates(pairs: list) -> dict:
    """Python would keep the last of several values of one name."""
    names = [name for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SystemExit(f"{FILE.name} has {', '.join(sorted(twice))} twice")
    return dict(pairs)


def read() -> dict:
    return json.loads(FILE.read_text(), object_pairs_hook=without_duplicates)


def write(models: dict) -> None:
    FILE.write_text(as_text(models))


STAGES = {"layers", "count", "first", "doubles"}
SIZES = {"size", "heads", "layers", "length", "more_layers"}
# Is a number.
MISSING = "missing_layers"


def is_name(text: object) -> bool:
    """Returns whether this can be the name of a field."""
    return isinstance(text, str) and re.fullmatch(r"\w+", text) is not None


def likes(entry: dict) -> list[str]:
    """The types that an entry names."""
    steps = [step for step in entry.get("describe", []) if isinstance(step, str)]
    named = [step.removeprefix("like: ") for step in steps if step.startswith("like: ")]
    return named + [entry[key] for key in ("like",) if key in entry]


def problems_of_likes(models: dict, model_type: str) -> list[str]:
    """Returns the mistakes in the types that an entry names, and in those of them."""
    after, seen = likes(models[model_type]), set()
    while after:
        named = after.pop()
        if "describe" not in models.get(named, {}) and "like" not in models.get(named, {}):
            return [f"is like {named}, which has no steps"]
        if named == model_type:
            return ["is like itself"]
        if named not in seen:
            seen.add(named)
            after += likes(models[named])
    return []


PARTS = {"text", "vision", "audio"}
PART_OPTIONS = {
    "inside",
    "inside_type",
    "fixed",
    "flat",
    "text_within",
    "text_defaults",
    "vision_within",
    "config_dicts",
    "vision_field",
    "older_vision_field",
    "audio_field",
    "no_default",
    "blocks",
}
LATENT = {"halves", "in rope_interleave", "interleaved", "none"}


def problems_of_parts(models: dict, entry: dict) -> list[str]:
    """Returns the mistakes in the parts of a model that consists of others."""
    parts, stacks = entry.get("parts", {}), entry.get("stacks", {})
    found = [f"has the unknown part {key!r}" for key in parts.keys() - PARTS - PART_OPTIONS]
    found += [f"has the unknown stack {key!r}" for key in stacks.keys() - {"encoder", "decoder"}]
    if parts.get("blocks", "some") not in {"some", "all"}:
        found.append(f"has blocks of an unknown kind: {parts['blocks']!r}")
    if ("parts" in entry and "text" not in parts) or ("stacks" in entry and "decoder" not in stacks):
        found.append("has no text or no decoder")
    if not set(parts.get("fixed", [])) <= PARTS & parts.keys():
        found.append(f"has fixed parts that it has not: {parts['fixed']}")
    for stack in stacks.values():
        if not {"type"} <= stack.keys() <= {"type", "field", "root", "defaults", "fixed"}:
            found.append(f"has a stack with unknown keys: {sorted(stack)}")
    named = [parts[key] for key in PARTS & parts.keys()]
    named += [stack.get("type") for stack in stacks.values()]
    if "inner" in entry:
        inner = entry["inner"]
        named.append(inner.get("type"))
        if not {"type", "field"} <= inner.keys() <= {"type", "field", "within", "fixed"}:
            found.append(f"has an inner model with unknown keys: {sorted(inner)}")
    found += [f"has the unknown type {name!r}" for name in named if name not in models]
    if entry.get("latent", "halves") not in LATENT:
        found.append(f"has an unknown pairing: {entry['latent']!r}")
    return found


def problems_of_row(entry: dict) -> list[str]:
    """Returns the mistakes in the paths, the sizes and the steps of an entry."""
    found = []
    for key in ("path", "decoder_path", "audio_path", "cross_path"):
        path = entry.get(key, "")
        numbers = 2 if "stages" in entry else 1 - (entry.get("layer_count") == 1)
        if path and (
            path.count("{}") > numbers
            or (path.count("{}") < numbers and key != "cross_path")
            or not re.fullmatch(r"(\w+|{})(\.(\w+|{}))*", path)
        ):
            found.append(f"has a {key} without a layer: {path!r}")
    if not {"layers"} <= entry.get("stages", {"layers": ""}).keys() <= STAGES:
        found.append(f"has stages with unknown keys: {sorted(entry['stages'])}")
    for key in ("sizes", "decoder_sizes", "audio_sizes"):
        for name, field in entry.get(key, {}).items():
            is_number = name == MISSING and isinstance(field, int)
            if not is_number and (name not in SIZES or not is_name(field)):
                found.append(f"has unknown {key}: {name!r}")
    if not is_name(entry.get("cross_flag", "x")):
        found.append("has a cross_flag that is no name of a field")
    for step in entry.get("describe", []):
        if not isinstance(step, str) or not re.fullmatch(r"[a-z ]+[a-z](: [^:]+)?", step):
            found.append(f"has a step that is no verb: {step!r}")
    has_path = {"path", "cross_path"} & entry.keys()
    is_described = "like" in entry or ("describe" in entry and has_path)
    if not is_described and not {"parts", "stacks", "inner", "latent"} & entry.keys():
        found.append("has neither a path and steps, nor a type that it is like, nor parts")
    return found


def problems_of_entry(entry: dict) -> list[str]:
    """Returns the mistakes in the form of an entry."""
    found = []
    for key, value in entry.items():
        if key not in KEYS:
            found.append(f"has the unknown key {key!r}")
        elif not isinstance(value, KEYS[key]):
            found.append(f"has a {key!r} that is no {KEYS[key].__name__}")
    if found:
        return found
    if "refused" in entry:
        why = entry["refused"]
        if len(entry) > 1:
            found.append("is refused, and has other keys, too")
        # It follows "is not computed: ", and may end a message.
        if not re.fullmatch(r"[a-z][^\n]* [^\n]*\w\)?", why) or "  " in why:
            found.append(f"is refused for no sentence: {why!r}")
        return found
    # A note takes the place of a comment.
    if not re.fullmatch(r"\w[^\n]* [^\n]*\.", entry.get("note", "No note.")):
        found.append("has a note that is no sentence")
    found += problems_of_row(entry)
    for name, default in entry.get("defaults", {}).items():
        is_rotary = name == "rope_parameters"
        if not is_name(name) or name == "names":
            found.append(f"has a default of no field: {name!r}")
        if not isinstance(default, dict if is_rotary else bool | int | float | str | list):
            found.append(f"has a default of the wrong type: {name!r}")
    for name, own in entry.get("names", {}).items():
        if not is_name(name) or not is_name(own):
            found.append(f"has a name of no field: {name!r}")
    return found


def check(models: dict) -> None:
    problems = [
        f"{model_type} {problem}"
        for model_type, entry in models.items()
        for problem in problems_of_entry(entry)
        or [*problems_of_parts(models, entry), *problems_of_likes(models, model_type)]
    ]
    text = FILE.read_text()
    if not text.isascii():
        problems.append(f"{FILE.name} has other letters than ASCII")
    if text != as_text(models):
        problems.append(
            f"{FILE.name} is not sorted or wrapped: python {Path(__file__).name} write"
        )
    if problems:
        raise SystemExit("\n".join(problems))


def main() -> None:
    models = read()
    if sys.argv[1:] == ["write"]:
        write(models)
    check(models)


if __name__ == "__main__":
    main()
