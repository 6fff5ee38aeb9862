"""The models that models.py compares, and the programs that run them."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models_formats import head_dim, heads_of_keys, write_gguf, write_onnx

Rows = list[list[int]]


class ModelsError(Exception):
    """A failure that is reported in one line."""


# --- Models ----------------------------------------------------------------


def gpt2_config(is_tiny: bool) -> Any:
    from transformers import GPT2Config

    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 500}
    dropout = {name: 0.0 for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop")}
    return GPT2Config(**(sizes if is_tiny else {}), **dropout)


def llama_config(is_tiny: bool) -> Any:
    """The sizes of Qwen2.5-0.5B."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=500 if is_tiny else 151936,
        hidden_size=128 if is_tiny else 896,
        intermediate_size=256 if is_tiny else 4864,
        num_hidden_layers=2 if is_tiny else 24,
        num_attention_heads=2 if is_tiny else 14,
        num_key_value_heads=1 if is_tiny else 2,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
    )


CONFIGS = {"gpt2": gpt2_config, "llama": llama_config}


def write_tokenizer(size: int, folder: pathlib.Path) -> None:
    """Token n is the word "tn": CTranslate2 wants words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"t{i}": i for i in range(size)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")),
        unk_token="t0",
        bos_token="t0",
        eos_token="t0",
    ).save_pretrained(folder)


def write_whole(path: pathlib.Path, write: Callable[[pathlib.Path], None]) -> None:
    """Writes a file or folder, unless it is there: what ends early is no file."""
    if not path.exists():
        partial = path.with_name(f"partial-{path.name}")
        write(partial)
        partial.rename(path)


def make_folder(name: str, is_tiny: bool, root: pathlib.Path) -> pathlib.Path:
    """Writes a model with random weights, unless it is there."""
    from transformers import AutoModelForCausalLM

    folder = root / (name + "-tiny" * is_tiny)
    if (folder / "tokenizer.json").exists():
        return folder
    torch.manual_seed(1)
    config = CONFIGS[name](is_tiny)
    # No token ends a text.
    config.eos_token_id = None
    config.bos_token_id = None
    model = AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Layers weigh more than the embedding, or a text that the same
            # embedding ends repeats its last token.
            if parameter.dim() == 2 and "emb" not in key and "wte" not in key:
                parameter.mul_(3)
    model.save_pretrained(folder)
    write_tokenizer(config.vocab_size, folder)
    return folder


def load(folder: pathlib.Path, dtype: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()


def weights_read(config: Any) -> int:
    """Returns the number of weights that a token needs, all but positions."""
    model = load_empty(config)
    positions = 0
    if config.model_type == "gpt2":
        positions = config.n_positions * config.n_embd
    return sum(p.numel() for p in model.parameters()) - positions


def load_empty(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


# --- Candidates ------------------------------------------------------------


@dataclass
class Text:
    """The text that a candidate made of prompts, and its times."""

    prompt_seconds: float
    # of a step, which adds a token to each sequence
    step_seconds: float
    # none if the program does not tell
    tokens: Rows | None


class Ours:
    """The program gpt of examples/gpt, which loads the model once."""

    name = "ours"

    def __init__(
        self, program: str, folder: pathlib.Path, dtype: str, threads: int
    ) -> None:
        self.process = subprocess.Popen(
            [program, "measure", str(folder), "--dtype", dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise ModelsError("gpt measure ended")
        return json.loads(line)

    def generate(self, prompts: Rows, new: int) -> Text:
        answer = self.ask({"prompts": prompts, "new": new})
        step = answer["text_seconds"] / max(1, new - 1)
        return Text(answer["prompt_seconds"], step, answer["tokens"])

    def train(self, rows: Rows) -> tuple[float, float]:
        answer = self.ask({"train": rows})
        return answer["seconds"], answer["loss"]

    def close(self) -> None:
        self.process.communicate()


class Eager:
    """transformers with SDPA, by the loop that its `generate` runs."""

    name = "transformers"

    def __init__(self, model: Any) -> None:
        self.model = model

    def prompt(self, ids: Tensor, new: int) -> tuple[Tensor, Any]:
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        return self.logits(ids, cache), cache

    def logits(self, ids: Tensor, cache: Any) -> Tensor:
        return self.model(
            ids, past_key_values=cache, use_cache=True, logits_to_keep=1
        ).logits

    def step(self, ids: Tensor, cache: Any) -> Tensor:
        return self.logits(ids, cache)

    def generate(self, prompts: Rows, new: int) -> Text:
        with torch.no_grad():
            tokens = []
            start = time.perf_counter()
            logits, cache = self.prompt(torch.tensor(prompts), new)
            tokens.append(logits[:, -1].argmax(-1, keepdim=True))
            middle = time.perf_counter()
            for _ in range(new - 1):
                logits = self.step(tokens[-1], cache)
                tokens.append(logits[:, -1].argmax(-1, keepdim=True))
            end = time.perf_counter()
        step = (end - middle) / max(1, new - 1)
        return Text(middle - start, step, torch.cat(tokens, 1).tolist())

    def close(self) -> None:
        pass


class Compiled(Eager):
    """transformers by torch.compile: prompt, and steps with a static cache."""

    name = "transformers, compiled"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.compiled = torch.compile(self.logits, dynamic=False)
        self.first = torch.compile(
            lambda ids: self.model(ids, use_cache=True, logits_to_keep=1),
            dynamic=False,
        )

    def prompt(self, ids: Tensor, new: int) -> tuple[Tensor, Any]:
        from transformers import StaticCache

        result = self.first(ids)
        cache = StaticCache(self.model.config, max_cache_len=ids.size(1) + new)
        for i, layer in enumerate(result.past_key_values.layers):
            cache.update(layer.keys, layer.values, i)
        return result.logits, cache

    def step(self, ids: Tensor, cache: Any) -> Tensor:
        return self.compiled(ids, cache)


class CTranslate2:
    name = "CTranslate2"

    def __init__(self, folder: pathlib.Path, threads: int) -> None:
        import ctranslate2

        converted = folder / "ctranslate2"
        converter = ctranslate2.converters.TransformersConverter
        write_whole(
            converted, lambda to: converter(str(folder)).convert(str(to), force=True)
        )
        self.generator = ctranslate2.Generator(
            str(converted),
            compute_type="float32",
            inter_threads=1,
            intra_threads=threads,
        )

    def run(self, prompts: Rows, new: int) -> tuple[float, Rows]:
        words = [[f"t{token}" for token in row] for row in prompts]
        start = time.perf_counter()
        results = self.generator.generate_batch(
            words,
            max_length=new,
            min_length=new,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        seconds = time.perf_counter() - start
        return seconds, [result.sequences_ids[0] for result in results]

    def generate(self, prompts: Rows, new: int) -> Text:
        prompt_seconds, _ = self.run(prompts, 1)
        seconds, tokens = self.run(prompts, new)
        step = (seconds - prompt_seconds) / max(1, new - 1)
        return Text(prompt_seconds, step, tokens)

    def close(self) -> None:
        self.generator.unload_model()


class OnnxRuntime:
    """Its operator GroupQueryAttention, with caches that are written in place."""

    name = "ONNX Runtime"

    def __init__(self, model: Any, folder: pathlib.Path, threads: int) -> None:
        import onnxruntime

        self.runtime = onnxruntime
        self.config = model.config
        path = folder / "model.onnx"
        if not path.exists():
            write_onnx(model, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def generate(self, prompts: Rows, new: int) -> Text:
        batch, length = len(prompts), len(prompts[0])
        shape = (batch, heads_of_keys(self.config), length + new, head_dim(self.config))
        of_numpy = self.runtime.OrtValue.ortvalue_from_numpy
        binding = self.session.io_binding()
        start = time.perf_counter()
        binding.bind_output("logits")
        for i in range(self.config.num_hidden_layers):
            for kind in ("key", "value"):
                value = of_numpy(torch.zeros(shape).numpy())
                binding.bind_ortvalue_input(f"past.{i}.{kind}", value)
                binding.bind_ortvalue_output(f"present.{i}.{kind}", value)

        def step(ids: Tensor, total: int) -> Tensor:
            positions = torch.arange(total - ids.size(1), total)
            last = torch.full((batch,), total - 1, dtype=torch.int32)
            count = torch.tensor(total, dtype=torch.int32)
            binding.bind_cpu_input("ids", ids.numpy())
            binding.bind_cpu_input("positions", positions.numpy())
            binding.bind_cpu_input("last", last.numpy())
            binding.bind_cpu_input("total", count.numpy())
            self.session.run_with_iobinding(binding)
            logits = torch.from_numpy(binding.get_outputs()[0].numpy())
            return logits[:, -1].argmax(-1, keepdim=True)

        tokens = [step(torch.tensor(prompts), length)]
        middle = time.perf_counter()
        for i in range(1, new):
            tokens.append(step(tokens[-1], length + i))
        seconds = (time.perf_counter() - middle) / max(1, new - 1)
        return Text(middle - start, seconds, torch.cat(tokens, 1).tolist())

    def close(self) -> None:
        pass


class LlamaCpp:
    """llama-batched-bench, which draws its tokens and does not tell them."""

    name = "llama.cpp"

    def __init__(
        self,
        program: str,
        model: Any,
        folder: pathlib.Path,
        dtype: str,
        threads: int,
    ) -> None:
        path = folder / f"{dtype}.gguf"
        write_whole(path, lambda to: write_gguf(model, to, dtype))
        cache = {"float32": "f32", "bfloat16": "bf16"}[dtype]
        self.command = [program, "-m", str(path), "-ctk", cache, "-ctv", cache]
        self.command += ["-t", str(threads), "-tb", str(threads)]
        self.command += ["--output-format", "jsonl"]

    def generate(self, prompts: Rows, new: int) -> Text:
        batch, length = len(prompts), len(prompts[0])
        sizes = {"-npp": length, "-ntg": new, "-npl": batch}
        # A sequence's part of the context is a multiple of 256.
        sizes["-c"] = batch * -(-(length + new) // 256) * 256
        arguments = [str(x) for pair in sizes.items() for x in pair]
        # At times its end, which comes soon with a tiny model, swallows the row.
        for _ in range(10):
            run = subprocess.run(
                self.command + arguments, capture_output=True, text=True
            )
            rows = [x for x in run.stdout.splitlines() if x.startswith("{")]
            if rows:
                row = json.loads(rows[0])
                return Text(row["t_pp"], row["t_tg"] / new, None)
            if run.returncode != 0:
                break
        raise ModelsError(f"llama.cpp: {run.stderr[-500:]}")

    def close(self) -> None:
        pass


class PythonTraining:
    """Steps of AdamW in transformers, with autocast for bfloat16."""

    def __init__(self, model: Any, dtype: str, is_compiled: bool) -> None:
        self.name = "transformers" + ", compiled" * is_compiled
        self.model = model.train()
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
        ]
        # Its fastest on the CPU.
        self.optimizer = torch.optim.AdamW(
            groups, lr=1e-4, betas=(0.9, 0.95), fused=True
        )
        self.dtype = dtype
        self.loss = self.loss_of
        if is_compiled:
            self.loss = torch.compile(self.loss_of, dynamic=False)

    def loss_of(self, ids: Tensor) -> Tensor:
        with torch.autocast(
            "cpu", torch.bfloat16, enabled=self.dtype == "bfloat16"
        ):
            logits = self.model(ids[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), ids[:, 1:].flatten()
        )

    def train(self, rows: Rows) -> tuple[float, float]:
        ids = torch.tensor(rows)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.loss(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return time.perf_counter() - start, loss.item()

    def close(self) -> None:
        pass


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
