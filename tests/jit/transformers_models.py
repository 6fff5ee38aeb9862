"""Models of transformers."""

import importlib.util

import torch
from model_case import Case, trace


def has_transformers():
    return importlib.util.find_spec("transformers") is not None


def transformers(size):
    import transformers as tf

    ids = torch.randint(0, 64, (size.batch, size.tokens))
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    common = {"vocab_size": 64, "use_cache": False, "return_dict": False}
    bert = {
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": 2 * size.width,
        **common,
    }
    bert["attn_implementation"] = "eager"
    gemma2 = tf.Gemma2Model(
        tf.Gemma2Config(
            num_key_value_heads=size.heads // 2,
            head_dim=size.width // size.heads,
            query_pre_attn_scalar=size.width // size.heads,
            attn_logit_softcapping=2.0,
            **bert,
        )
    )
    yield Case(
        "gemma2-eager",
        trace(gemma2.eval(), ids),
        {"ids": ids},
        size.layers,
        "attention with a softcap and a mask",
    )
    for kind in ("eager", "sdpa"):
        common["attn_implementation"] = bert["attn_implementation"] = kind
        gpt2 = tf.GPT2Model(
            tf.GPT2Config(
                n_embd=size.width,
                n_layer=size.layers,
                n_head=size.heads,
                n_positions=size.tokens + 2,
                **common,
            )
        )
        llama = tf.LlamaModel(
            tf.LlamaConfig(num_key_value_heads=size.heads // 2, **bert)
        )
        encoder = tf.BertModel(
            tf.BertConfig(max_position_embeddings=size.tokens + 2, **bert)
        )
        sdpa = "scaled_dot_product_attention, with a mask"
        causal = "attention with a bias" if kind == "eager" else sdpa
        plain = (
            "attention"
            if kind == "eager"
            else "scaled_dot_product_attention"
        )
        for name, model, inputs, what in (
            ("gpt2", gpt2, {"ids": ids}, causal),
            ("llama", llama, {"ids": ids}, causal),
            ("bert", encoder, {"ids": ids}, plain),
            (
                "bert-mask",
                encoder,
                {"a_ids": ids, "b_mask": mask},
                "attention with a bias" if kind == "eager" else sdpa,
            ),
        ):
            yield Case(
                f"{name}-{kind}",
                trace(model.eval(), *inputs.values()),
                inputs,
                size.layers,
                what,
            )
