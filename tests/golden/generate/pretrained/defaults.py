"""Writes src/weights/pretrained/defaults.cpp: the fields of attention that the
configuration classes of `transformers` have by default.

`python tests/golden/generate/pretrained/defaults.py`, with the packages of
tests/golden/generate/requirements.txt.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from transformers import BarkCoarseConfig, BarkFineConfig, BarkSemanticConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).resolve().parents[4]
FAMILIES = ROOT / "src/weights/pretrained/table.cpp"
TARGET = ROOT / "src/weights/pretrained/defaults.cpp"

# The names that the families ask for; others have names of their own.
SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "max_position_embeddings",
    "head_dim",
)
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
    # Of the code beside the files of the model.
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
FIELDS = re.compile(
    r"hidden_size|num_attention_heads|num_hidden_layers|num_hidden_groups"
    r"|max_position_embeddings|num_key_value_heads|head_dim|attention_dropout"
    r"|attention_probs_dropout_prob|attn_pdrop|dropout_rate|attention_bias"
    r"|attention_out_bias|qkv_bias|use_bias|bias|use_qkv_bias|enable_bias"
    r"|sliding_window|max_window_layers|use_sliding_window|rms_norm_eps|norm_eps"
    r"|layer_norm_eps|attention_multiplier|query_pre_attn_scalar"
    r"|attn_logit_softcapping|n_embd|n_head|n_layer|n_positions|d_model"
    r"|(en|de)coder_(layers|attention_heads)|max_(source|target)_positions"
    r"|d_kv|num_heads|num_layers|num_decoder_layers|dim|n_heads|n_layers"
    r"|emb_dim|attention_heads|num_kv_heads|multi_query|rotary_dim|qk_layernorm"
    r"|use_qk_norm|scale_attn_weights|attn_layer_(period|offset)|max_seq_len"
    r"|qv_bias|key_multiplier|window_size|no_rope_layer_interval"
    r"|num_kv_shared_layers|local_attention|block_size"
    r"|cross_(num_attention_heads|num_key_value_heads|head_dim|hidden_size)"
)

HEAD = """\
// The defaults of the configuration classes of `transformers` 5.23, written by
// tests/golden/generate/pretrained/defaults.py.

#include <weights/pretrained/defaults.h>

#include <map>

namespace torch_attention::weights::pretrained {

Json default_fields(const std::string& model_type) {
  static const std::map<std::string, const char*> table{
"""
TAIL = """\
  };
  const auto found = table.find(model_type);
  return found == table.end() ? Json::object() : Json::parse(found->second);
}

} // namespace torch_attention::weights::pretrained
"""


def defaults_of(name: str, cls: type) -> dict:
    # Each stack may have a configuration of its own, of the same class.
    stack = getattr(cls, "sub_configs_defaults", {}).get("encoder")
    cls = getattr(stack, "config_class", None) or cls
    fields = {
        field.name: field.default
        for field in dataclasses.fields(cls)
        if FIELDS.fullmatch(field.name)
        and isinstance(field.default, bool | int | float)
        # What the families take where a field is absent.
        and not (field.default is False or field.default == 0.0)
    }
    theta = getattr(cls, "default_theta", None)
    if isinstance(theta, int | float) and theta != 10000.0:
        fields["rope_theta"] = float(theta)
    names = getattr(cls, "attribute_map", {})
    own = {size: names[size] for size in SIZES if size in names}
    own |= OLD_NAMES.get(name, {})
    return {**fields, **({"names": own} if own else {})}


def wrapped(text: str) -> str:
    """Returns the JSON in literals of few columns."""
    lines, line = [], ""
    for part in text.split(" "):
        if len(line) + len(part) > 66:
            lines.append(line)
            line = ""
        line += part
    return "\n".join(f'       R"({each})"' for each in [*lines, line])


def check_answers() -> None:
    """Each type is computed, or it is said why not."""
    answered = set()
    for file in ("table", "multimodal", "pairs", "latent", "unsupported"):
        text = (FAMILIES.parent / f"{file}.cpp").read_text()
        answered |= set(re.findall(r'"([\w.-]+)"', text))
    missing = sorted(set(CONFIG_MAPPING.keys()) - answered)
    if missing:
        raise SystemExit(f"no answer to {', '.join(missing)}")


def main() -> None:
    check_answers()
    names = re.findall(r'^      \{"([\w-]+)",', FAMILIES.read_text(), re.M)
    rows = []
    for name in sorted(set(names) & {*CONFIG_MAPPING.keys(), *PARTS}):
        cls = PARTS[name] if name in PARTS else CONFIG_MAPPING[name]
        fields = defaults_of(name, cls)
        text = json.dumps(fields, separators=(", ", ":"), sort_keys=True)
        rows.append(f'      {{"{name}",\n{wrapped(text)}}},\n')
    TARGET.write_text(HEAD + "".join(rows) + TAIL)


if __name__ == "__main__":
    main()
