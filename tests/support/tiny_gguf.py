"""A tiny Llama as a GGUF file, written tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gguf import GGUFWriter, TokenType

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(path: Path, model: PreTrainedModel, tokens: list[str], *, pre: str = "default") -> Path:
    """Writes a Llama with float32 tensors; ``tokens`` are byte-level BPE, the first three ``<s> </s> <unk>``."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokens, pre)
    for name, parameter in model.named_parameters():
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        stored = _stored_name(name)
        kind = stored.split(".")[-2]
        values = parameter.float().numpy()
        writer.add_tensor(stored, _interleaved(values, heads[kind]) if kind in heads else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, tokens: list[str], pre: str) -> None:
    kinds = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")


def _stored_name(name: str) -> str:
    parts = name.split(".")
    if ".layers." not in name:
        return f"{_OUTER['.'.join(parts[:-1])]}.{parts[-1]}"
    return f"blk.{parts[2]}.{_NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"


def _interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Llama GGUF files keep the two rotary halves of a head row by row."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
