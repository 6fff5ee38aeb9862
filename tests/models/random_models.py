"""Random models of transformers in the folders of save_pretrained, computed by ours.

    python random_models.py LOGITS [COUNT [SEED]]

LOGITS is print_logits.cpp. Configurations, files and prompts are drawn, and what
transformers computes with eager attention in float32 is compared. What ours refuses
is counted and listed. A difference fails, and its seed, with COUNT = 1, repeats it.
"""

from __future__ import annotations

import copy
import json
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.activations import ACT2FN

GEMMAS = ["gemma", "gemma2", "gemma3_text"]
DECODERS = ["gpt2", "llama", "mistral", "qwen2", "qwen3", *GEMMAS]
COUNTED_AFTER_PADDING = ["camembert", "mpnet", "roberta", "xlm-roberta"]
ENCODERS = ["bert", "distilbert", "electra", *COUNTED_AFTER_PADDING]
WINDOWS = [2, 3, 4, 5, 8, 17, 32, 64]
LENGTHS = [24, 40, 72, 130]
# Numbers are so small that a difference in `eps` shows.
SCALES = [1.0, 1.0, 0.1, 0.02]
# The share of the largest number of an output. Larger errors have to be rounding.
TOLERANCE = 1e-5
POOLINGS = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0).values,
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
    "weightedmean": lambda x: torch.linspace(0, 2, len(x) + 1)[1:] @ x / (len(x) + 1),
    "lasttoken": lambda x: x[-1],
}
# Fields that models of other types read, by the values that are drawn.
FOREIGN = {
    (0.3, 2.0): "attention_multiplier embedding_multiplier layer_norm_eps logit_scale"
    " logits_scaling partial_rotary_factor residual_multiplier rms_norm_eps rotary_pct",
    (0, 4, 8): "attn_logit_softcapping final_logit_softcapping head_dim"
    " max_window_layers original_max_position_embeddings query_pre_attn_scalar"
    " rope_local_base_freq rope_theta sliding_window sliding_window_pattern",
    (False, True): "attention_bias is_causal is_decoder mlp_bias qkv_bias"
    " rope_interleaved scale_attn_by_inverse_layer_idx scale_attn_weights"
    " tie_word_embeddings use_bidirectional_attention use_sliding_window",
    ("relu",): "activation_function hidden_act hidden_activation",
}

Texts = list[list[int]]


@dataclass
class Call:
    """A call of print_logits."""

    kind: str
    steps: list[Texts]
    # Later steps have padding, too, which transformers does not expect.
    is_ragged: bool = False

    def shown(self, show) -> str:
        steps = [";".join(map(show, texts)) for texts in self.steps]
        return f"{self.kind}:{'|'.join(steps)}"


def rope_of(draw: random.Random, head_dim: int) -> dict:
    """Returns parameters of a rotary embedding of any type."""
    types = ["default", "linear", "dynamic", "yarn", "llama3", "longrope"]
    rope = {"rope_type": draw.choice([*types, "default", "yarn", "proportional"])}
    kind = rope["rope_type"]
    if draw.random() < 0.8:
        rope["rope_theta"] = draw.choice([10000.0, 10000, 500000.0, 77.5, 4.0])
    if draw.random() < (0.5 if kind == "proportional" else 0.04):
        rope["partial_rotary_factor"] = draw.choice([0.25, 0.5, 0.75, 1.0])
    if kind == "default":
        return rope
    if kind not in ("longrope", "proportional") or draw.random() < 0.5:
        rope["factor"] = draw.choice([1.0, 2.0, 4, 2.5, 40.0])
    if kind in ("yarn", "llama3", "longrope") and draw.random() < 0.9:
        rope["original_max_position_embeddings"] = draw.choice([8, 16, 20, 32, 64])
    if kind == "llama3":
        rope["low_freq_factor"] = draw.choice([1.0, 1, 0.5, 2.0])
        rope["high_freq_factor"] = draw.choice([4.0, 4, 2.5, 16.0])
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            rope[name] = [draw.uniform(0.8, 6) for _ in range(head_dim // 2)]
    if kind in ("yarn", "longrope") and draw.random() < 0.3:
        rope["attention_factor"] = draw.choice([0.7, 1.0, 1.5])
    if kind == "yarn":
        others = {"beta_fast": [32.0, 8, 3.0], "beta_slow": [1.0, 2, 0.5]}
        others |= {"mscale": [1.0, 0.7, 0.0], "mscale_all_dim": [1.0, 0.5, 0.0]}
        others["truncate"] = [True, False]
        for name, values in others.items():
            if draw.random() < 0.4:
                rope[name] = draw.choice(values)
        if draw.random() < 0.1:
            rope["factor"] = None
    return rope


def activation_of(draw: random.Random, usual: str) -> str:
    return draw.choice(sorted(ACT2FN)) if draw.random() < 0.4 else usual


def sizes_of(draw: random.Random) -> dict:
    heads = draw.choice([1, 2, 3, 4, 6])
    return {
        "vocab_size": draw.choice([41, 64, 97]),
        "hidden_size": heads * draw.choice([4, 6, 8, 16, 20]),
        "num_attention_heads": heads,
        "num_hidden_layers": draw.randrange(1, 5),
        "max_position_embeddings": draw.choice(LENGTHS),
    }


def gpt2_fields(draw: random.Random, _: str) -> dict:
    return sizes_of(draw) | {
        "n_inner": draw.choice([None, 24, 33]),
        "activation_function": activation_of(draw, "gelu_new"),
        "layer_norm_epsilon": draw.choice([1e-5, 1e-3, 0.1]),
        "scale_attn_weights": draw.random() < 0.7,
        "scale_attn_by_inverse_layer_idx": draw.random() < 0.4,
        "reorder_and_upcast_attn": draw.random() < 0.3,
        "tie_word_embeddings": draw.random() < 0.6,
    }


def gemma_fields(draw: random.Random, kind: str, head_dim: int) -> dict:
    """Returns the fields that Gemma 2 and 3 add."""
    fields = {
        "query_pre_attn_scalar": draw.choice([head_dim, 1, 17, 256]),
        "sliding_window": draw.choice(WINDOWS),
        "attn_logit_softcapping": draw.choice([None, 50.0, 5.0, 1.0]),
        "final_logit_softcapping": draw.choice([None, 30.0, 2.0]),
    }
    if kind == "gemma3_text":
        fields["rope_parameters"] = {
            "full_attention": rope_of(draw, head_dim),
            "sliding_attention": rope_of(draw, head_dim),
        }
        if draw.random() < 0.3:
            fields["sliding_window_pattern"] = draw.choice([1, 2, 3])
        fields["use_bidirectional_attention"] = draw.random() < 0.15
    return fields


def llama_fields(draw: random.Random, kind: str) -> dict:
    """Returns the fields of Llama, Mistral, Qwen and Gemma."""
    fields = sizes_of(draw)
    heads, layers = fields["num_attention_heads"], fields["num_hidden_layers"]
    counts = [count for count in range(1, heads + 1) if heads % count == 0]
    head_dim = fields["hidden_size"] // heads
    if kind in ("qwen3", *GEMMAS) or draw.random() < 0.4:
        head_dim = fields["head_dim"] = draw.choice([4, 6, 8, 10, 16, 32])
    act = "hidden_activation" if kind in ("gemma2", "gemma3_text") else "hidden_act"
    usual = draw.choice(["gelu_pytorch_tanh", "gelu"]) if kind in GEMMAS else "silu"
    fields |= {
        "num_key_value_heads": draw.choice(counts),
        "intermediate_size": draw.choice([24, 33, 64]),
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3, 0.1]),
        "tie_word_embeddings": draw.random() < 0.5,
        "rope_parameters": rope_of(draw, head_dim),
        act: activation_of(draw, usual),
    }
    if kind in ("llama", "qwen3", *GEMMAS):
        fields["attention_bias"] = draw.random() < 0.3
    if kind == "llama":
        fields["mlp_bias"] = draw.random() < 0.3
    if kind == "mistral":
        fields["sliding_window"] = draw.choice([None, *WINDOWS])
    if kind in ("qwen2", "qwen3"):
        fields["use_sliding_window"] = draw.random() < 0.6
        fields["sliding_window"] = draw.choice(WINDOWS)
        fields["max_window_layers"] = draw.randrange(layers + 1)
    if kind in ("gemma2", "gemma3_text"):
        fields |= gemma_fields(draw, kind, head_dim)
    mixes = kind in ("gemma2", "gemma3_text") or fields.get("use_sliding_window")
    if mixes and draw.random() < 0.4:
        types = ["full_attention", "sliding_attention"]
        fields["layer_types"] = draw.choices(types, k=layers)
    return fields


def encoder_fields(draw: random.Random, kind: str) -> dict:
    fields = sizes_of(draw) | {
        "intermediate_size": draw.choice([24, 33, 64]),
        "hidden_act": activation_of(draw, "gelu"),
        "type_vocab_size": draw.choice([1, 2, 3]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5, 1e-3, 0.1]),
        "pad_token_id": draw.choice([0, 1, 1, 5]),
        "is_decoder": draw.random() < 0.05,
    }
    if kind == "electra":
        fields["embedding_size"] = draw.choice([fields["hidden_size"], 12])
    if kind == "mpnet":
        fields["relative_attention_num_buckets"] = draw.choice([32, 8, 12, 64])
    if kind in ("mpnet", "distilbert"):
        del fields["type_vocab_size"], fields["is_decoder"]
    if kind == "distilbert":
        del fields["layer_norm_eps"]
        fields["hidden_dim"] = fields.pop("intermediate_size")
        fields["activation"] = fields.pop("hidden_act")
        fields["sinusoidal_pos_embds"] = draw.random() < 0.3
    return fields


def with_images(draw: random.Random, config):
    """Returns the configuration of a model that sees images, around this one."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 1, "image_size": 4, "patch_size": 2}
    parts = {"text_config": config}
    if draw.random() < 0.5:
        parts["tie_word_embeddings"] = True
    if config.model_type == "gemma3_text":
        parts["vision_config"] = transformers.SiglipVisionConfig(**sizes)
        return transformers.Gemma3Config(mm_tokens_per_image=4, **parts)
    parts["vision_config"] = transformers.CLIPVisionConfig(**sizes)
    return transformers.LlavaConfig(**parts)


def make_model(draw: random.Random, kind: str):
    """Returns a model with weights whose effect shows."""
    makers = {"gpt2": gpt2_fields} | dict.fromkeys(ENCODERS, encoder_fields)
    fields = makers.get(kind, llama_fields)(draw, kind)
    config = transformers.AutoConfig.for_model(kind, **fields)
    if kind in ENCODERS:
        names = ["AutoModel", "AutoModelForMaskedLM", "AutoModelForTokenClassification"]
        loader = getattr(transformers, draw.choice(names))
    else:
        loader = transformers.AutoModelForCausalLM
        if kind != "gpt2" and draw.random() < 0.15:
            config = with_images(draw, config)
            loader = transformers.AutoModelForImageTextToText
        elif draw.random() < 0.1:
            loader = transformers.AutoModel
    torch.manual_seed(draw.randrange(1 << 30))
    model = loader.from_config(config)
    gain, scale = draw.choice([0.7, 1.0, 1.5]), draw.choice(SCALES)
    for name, x in model.named_parameters():
        noise = torch.randn_like(x)
        if x.dim() < 2:
            x.add_(0.3 * noise)
        elif "embed" in name or "wte" in name or "wpe" in name:
            x.copy_(scale * noise)
        else:
            x.copy_(noise * gain / x[0].numel() ** 0.5)
    return model


def change_config(draw: random.Random, path: Path) -> str:
    """Changes the file as older ones differ, or others, and says how."""
    outer = json.loads(path.read_text())
    config = outer.get("text_config", outer)
    chance = draw.random()
    name = draw.choice(sorted(config))
    done = "unchanged"
    if chance < 0.12:
        done = f"without {name}"
        del config[name]
    elif chance < 0.16:
        done = f"{name} = null"
        config[name] = None
    elif chance < 0.35:
        values, names = draw.choice(list(FOREIGN.items()))
        name = draw.choice(names.split())
        config[name] = draw.choice(values)
        done = f"{name} = {config[name]}"
    elif chance < 0.55 and "rope_parameters" in config:
        done = "older rope"
        rope = config.pop("rope_parameters")
        if "full_attention" in rope:
            local = rope.get("sliding_attention", {})
            config["rope_local_base_freq"] = local.get("rope_theta", 10000.0)
            rope = rope["full_attention"]
        config["rope_theta"] = rope.pop("rope_theta")
        if rope["rope_type"] != "default" or draw.random() < 0.3:
            if draw.random() < 0.5:
                rope["type"] = rope.pop("rope_type")
            config["rope_scaling"] = rope
    path.write_text(json.dumps(outer, indent=2))
    return done


def write_sentence_files(draw: random.Random, folder: Path, most: int) -> dict:
    """Writes the files of sentence-transformers, and returns what they say."""

    def write(name: str, value) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))

    said = {"poolings": ["mean"], "normalize": False, "prompt": [], "most": most}
    if draw.random() < 0.5:
        said["most"] = draw.randrange(1, most + 1)
        write("tokenizer_config.json", {"model_max_length": said["most"]})
    if draw.random() < 0.2:
        return said
    limit = draw.choice([None, draw.randrange(1, most + 1)])
    said["most"] = limit or said["most"]
    write("sentence_bert_config.json", {"max_seq_length": limit})
    names = draw.sample(list(POOLINGS), draw.randrange(1, 4))
    pooling = {"pooling_mode": names if len(names) > 1 else names[0]}
    if draw.random() < 0.5:
        names.sort(key=list(POOLINGS).index)
        ends = dict.fromkeys(["max", "mean", "weightedmean"], "_tokens")
        ends["cls"] = "_token"
        pooling = {f"pooling_mode_{x}{ends.get(x, '')}": x in names for x in POOLINGS}
    write("1_Pooling/config.json", pooling)
    said["poolings"] = names
    said["normalize"] = draw.random() < 0.5
    parts = ["Transformer", "Pooling"] + ["Normalize"] * said["normalize"]
    paths = ["", "1_Pooling", "2_Normalize"]
    types = [f"sentence_transformers.models.{part}" for part in parts]
    modules = zip(paths, types, strict=False)
    write("modules.json", [{"path": path, "type": type_} for path, type_ in modules])
    if draw.random() < 0.3:
        said["prompt"] = [5, 3]
        prompts = {"default_prompt_name": "query", "prompts": {"query": "5,3,"}}
        write("config_sentence_transformers.json", prompts)
    return said


class Prompts:
    """Draws calls with texts whose lengths are around the limits of a model."""

    def __init__(self, draw: random.Random, config, most: int) -> None:
        text = json.dumps(config.to_dict())
        found = re.findall(r'"(?:original_max|sliding_window)\w*": (\d+)', text)
        self.draw = draw
        self.vocab = range(config.vocab_size)
        self.most = most
        self.marks = [*map(int, found), most, most, 1]
        self.goes_by_length = "dynamic" in text or "longrope" in text

    def length(self) -> int:
        if self.draw.random() < 0.4:
            return self.draw.randrange(1, self.most + 1)
        near = self.draw.choice(self.marks) + self.draw.randrange(-1, 3)
        return max(1, min(near, self.most))

    def texts(self, count: int, length: int) -> Texts:
        return [self.draw.choices(self.vocab, k=length) for _ in range(count)]

    def padded(self, most: int) -> Texts:
        counted = range(self.draw.randrange(2, most + 1))
        return [self.texts(1, self.length())[0] for _ in counted]

    def of_one_length(self, kind: str, most: int = 1, more: int = 0) -> Call:
        length = self.most + more if more else self.length()
        return Call(kind, [self.texts(self.draw.randrange(1, most + 1), length)])

    def decode(self, kind: str, first: Texts, widths: list[int]) -> Call:
        """Returns a call with more tokens after the first, up to the limit."""
        steps = [first]
        left = self.most - max(map(len, first))
        is_ragged = not self.goes_by_length and self.draw.random() < 0.25
        for _ in range(self.draw.randrange(1, 8)):
            width = self.draw.choice(widths)
            if width > left:
                break
            left -= width
            texts = self.texts(len(first), width)
            if is_ragged:
                texts = [text[: self.draw.randrange(1, width + 1)] for text in texts]
            steps.append(texts)
        return Call(kind, steps, is_ragged)


def calls_of(prompts: Prompts, is_encoder: bool) -> list[Call]:
    draw = prompts.draw
    calls = [prompts.of_one_length("forward") for _ in range(2)]
    calls.append(prompts.of_one_length("weights", 2))
    if draw.random() < 0.3:
        calls.append(prompts.of_one_length("forward", more=draw.randrange(1, 9)))
    if is_encoder:
        for kind in ("forward", "packed", "vectors"):
            calls.append(Call(kind, [prompts.padded(4)]))
        return calls
    calls.append(prompts.of_one_length("forward", 3))
    calls.append(prompts.of_one_length("hidden"))
    for kind in ("decode", "sequences"):
        texts = prompts.texts(draw.randrange(1, 4), prompts.length())
        calls.append(prompts.decode(kind, texts, [1]))
        calls.append(prompts.decode(kind, texts[:1], [1, 2, 5]))
        calls.append(prompts.decode(kind, prompts.padded(3), [1, 1, 1, 3]))
    return calls


def with_zeros(texts: Texts, is_left: bool) -> tuple[Tensor, Tensor]:
    """Returns ids and mask of a padded batch."""
    side = "left" if is_left else "right"
    rows = [torch.tensor(text) for text in texts]
    ids = pad_sequence(rows, batch_first=True, padding_side=side)
    masks = [torch.ones_like(row) for row in rows]
    return ids, pad_sequence(masks, batch_first=True, padding_side=side)


def with_cache(model, steps: list[Texts]) -> Tensor:
    """Returns logits after each step, (B, steps, V), as `generate` computes them."""
    cache = transformers.DynamicCache(config=model.config)
    mask = torch.zeros(len(steps[0]), 0, dtype=torch.long)
    logits = []
    for texts in steps:
        ids, new = with_zeros(texts, is_left=True)
        mask = torch.cat([mask, new], 1)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        output = model(ids, attention_mask=mask, position_ids=positions, cache=cache)
        logits.append(output.logits[:, -1])
    return torch.stack(logits, 1)


def without_cache(model, steps: list[Texts]) -> Tensor:
    """Returns what `with_cache` does, of whole texts, one by one."""
    rows = []
    for row in range(len(steps[0])):
        parts = [texts[row] for texts in steps]
        ends = torch.tensor([len(part) for part in parts]).cumsum(0) - 1
        ids = torch.tensor([sum(parts, [])])
        rows.append(model(ids, use_cache=False).logits[0, ends])
    return torch.stack(rows)


def error_of(found: Tensor, wanted: Tensor) -> float:
    """Returns the largest difference, as a share of the largest number."""
    if found.shape != wanted.shape or not found.isfinite().all():
        return float("inf")
    return ((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)).item()


@dataclass
class Reference:
    """The model of transformers, and what its sentence vectors are."""

    model: transformers.PreTrainedModel
    sentence: dict | None

    def compute(self, call: Call, model=None, decode=with_cache) -> Tensor:
        # Lengths of earlier texts change the frequencies of a dynamic embedding.
        model = copy.deepcopy(model or self.model)
        texts = call.steps[0]
        if call.kind in ("decode", "sequences"):
            return (without_cache if call.is_ragged else decode)(model, call.steps)
        if call.kind == "weights":
            output = model(torch.tensor(texts), output_attentions=True)
            return torch.stack(output.attentions)
        if call.kind == "vectors":
            return torch.stack([self.vector(model, text) for text in texts])
        if self.sentence:
            return self.tokens(model, texts)
        body = model.get_decoder() if call.kind == "hidden" else model
        return body(torch.tensor(texts), use_cache=False)[0]

    def tokens(self, model, texts: Texts) -> Tensor:
        """Returns the hidden states of all texts, one after the other."""
        ids, mask = with_zeros(texts, is_left=False)
        return model(ids, attention_mask=mask)[0][mask.bool()]

    def vector(self, model, text: list[int]) -> Tensor:
        ids = (self.sentence["prompt"] + text)[: self.sentence["most"]]
        hidden = self.tokens(model, [ids])
        row = torch.cat([POOLINGS[name](hidden) for name in self.sentence["poolings"]])
        return row / row.norm() if self.sentence["normalize"] else row

    def noise(self, call: Call, wanted: Tensor) -> float:
        """Returns the error that rounding errors of the weights make."""
        other = copy.deepcopy(self.model)
        for x in other.parameters():
            x.mul_(1 + torch.randn_like(x).sign() * 2.0**-23)
        return error_of(self.compute(call, other), wanted)


def longest_of(config) -> int:
    """Returns the largest number of tokens of a text."""
    is_after = config.model_type in COUNTED_AFTER_PADDING
    # MPNet ignores its pad_token_id.
    padding = 1 if config.model_type == "mpnet" else config.pad_token_id
    return config.max_position_embeddings - (padding + 1 if is_after else 0)


def load_reference(draw: random.Random, folder: Path) -> Reference:
    """Throws for a folder that transformers does not load, or not all of it."""
    kind = transformers.AutoConfig.from_pretrained(folder).model_type
    loaders = dict.fromkeys(ENCODERS, transformers.AutoModel)
    loaders["gemma3"] = loaders["llava"] = transformers.AutoModelForImageTextToText
    loader = loaders.get(kind, transformers.AutoModelForCausalLM)
    options = {"attn_implementation": "eager", "output_loading_info": True}
    model, info = loader.from_pretrained(folder, dtype=torch.float32, **options)
    if any("pooler" not in name for name in info["missing_keys"]):
        raise ValueError("tensors are missing")
    said = None
    if kind in ENCODERS:
        said = write_sentence_files(draw, folder, longest_of(model.config))
    return Reference(model.eval(), said)


class Tally:
    """Counts what became of models and calls, by sentences."""

    def __init__(self) -> None:
        self.seeds = defaultdict(lambda: defaultdict(list))
        self.calls = 0

    def add(self, seed: int, group: str, sentence: str) -> str:
        line = sentence.strip().split("\n")[0]
        line = re.sub(r'"/[^" ]*"', "FOLDER", line)
        line = re.sub(r"\[[^]]*\]|-?\b\d+(\.\d+)?(e[-+]?\d+)?\b", "N", line)[:300]
        self.seeds[group][line].append(seed)
        return f"{group}: {line}"

    def show(self) -> None:
        for group, sentences in self.seeds.items():
            print(f"{group}: {sum(map(len, sentences.values()))}")
            for line, seeds in sorted(sentences.items(), key=lambda x: -len(x[1])):
                print(f"  {len(seeds)} as seed {seeds[0]}: {line}")
        print(f"{self.calls} calls were compared")


def run_ours(program: str, folder: Path, calls: list[Call]) -> tuple[dict, str, int]:
    """Returns the tensors, none of a model that is refused, messages and status."""
    out = folder / "out.safetensors"
    texts = [call.shown(lambda text: ",".join(map(str, text))) for call in calls]
    command = [program, str(folder), *texts, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return load_file(out) if out.exists() else {}, done.stderr, done.returncode


def compare(seed: int, program: str, folder: Path, tally: Tally) -> str:
    draw = random.Random(seed)
    kind = draw.choice(DECODERS * 2 + ENCODERS)
    try:
        dtype = draw.choice([torch.float32, torch.bfloat16, torch.half])
        size = draw.choice(["5KB", "1MB"])
        make_model(draw, kind).to(dtype).save_pretrained(folder, max_shard_size=size)
        about = f"{kind}, {change_config(draw, folder / 'config.json')}"
        reference = load_reference(draw, folder)
    except Exception as error:
        return tally.add(seed, "not loaded by transformers", f"{kind}: {error!r}")
    config = reference.model.config.get_text_config()
    prompts = Prompts(draw, config, longest_of(config))
    known = []
    for call in calls_of(prompts, kind in ENCODERS):
        try:
            wanted = reference.compute(call)
            assert wanted.isfinite().all(), "not finite"
            known.append((call, wanted))
        except Exception as error:
            line = f"{kind}, {call.kind}: {error!r}"
            tally.add(seed, "calls that transformers refuses", line)
    outputs, messages, status = run_ours(program, folder, [call for call, _ in known])
    if status not in (0, 1):
        return tally.add(seed, "crashes", f"{about}: {status}, {messages}")
    if not outputs:
        return tally.add(seed, "refused", messages)
    largest = 0.0
    for i, (call, wanted) in enumerate(known):
        if refused := re.search(rf"^call {i}: (.*)$", messages, re.MULTILINE):
            tally.add(seed, "refused calls", f"{call.kind}: {refused[1]}")
            continue
        found = outputs["output" if i == 0 else f"output.{i}"]
        if reference.sentence and call.kind == "forward":
            found = found[with_zeros(call.steps[0], is_left=False)[1].bool()]
        error = error_of(found, wanted)
        tally.calls += 1
        largest = max(largest, error)
        if error > TOLERANCE and error > 20 * reference.noise(call, wanted):
            line = f"{about}, {call.shown(lambda text: str(len(text)))}: {error:.1e}"
            if call.kind in ("decode", "sequences"):
                whole = reference.compute(call, decode=without_cache)
                line += f", without a cache {error_of(found, whole):.1e}"
            print(f"seed {seed} differs: {line}, {json.dumps(config.to_diff_dict())}")
            tally.add(seed, "differs", line)
    return f"{about}: {len(known)} calls, {largest:.1e}"


def main(program: str, count: str = "100", seed: str = "1") -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    tally = Tally()
    for i in range(int(seed), int(seed) + int(count)):
        with tempfile.TemporaryDirectory() as folder:
            print(i, compare(i, program, Path(folder), tally), flush=True)
    tally.show()
    sys.exit(bool(tally.seeds["differs"] or tally.seeds["crashes"] or not tally.calls))


main(*sys.argv[1:])
