"""A Qwen3-shaped decoder as plain functions over a dict of tensors, named as in published checkpoints."""

import dataclasses
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

Parameters = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Config:
    model_dim: int = 384
    num_layers: int = 8
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 128
    mlp_dim: int = 1152
    vocab_size: int = 4096
    rope_theta: float = 5e6
    norm_eps: float = 1e-6
    context_length: int = 131072
    thought_layers: int = 5  # after which training asks for the first of two hops; inference knows nothing of it


def init_parameters(config: Config, device: str, seed: int) -> Parameters:
    """Float32 parameters; the matrices that write to the residual stream begin at zero."""
    generator = torch.Generator().manual_seed(seed)
    dim, q_dim = config.model_dim, config.num_heads * config.head_dim
    kv_dim = config.num_kv_heads * config.head_dim

    def matrix(rows: int, cols: int) -> torch.Tensor:
        return (torch.rand(rows, cols, generator=generator) * 2 - 1) * (0.75 / math.sqrt(cols))

    tensors = {"model.embed_tokens": torch.randn(config.vocab_size, dim, generator=generator) * 0.02,
               "model.norm": torch.ones(dim)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm": torch.ones(dim),
            prefix + "self_attn.q_proj": matrix(q_dim, dim),
            prefix + "self_attn.k_proj": matrix(kv_dim, dim),
            prefix + "self_attn.v_proj": matrix(kv_dim, dim),
            prefix + "self_attn.q_norm": torch.full((config.head_dim,), 1.2),
            prefix + "self_attn.k_norm": torch.full((config.head_dim,), 1.2),
            prefix + "self_attn.o_proj": torch.zeros(dim, q_dim),
            prefix + "post_attention_layernorm": torch.ones(dim),
            prefix + "mlp.gate_proj": matrix(config.mlp_dim, dim),
            prefix + "mlp.up_proj": matrix(config.mlp_dim, dim),
            prefix + "mlp.down_proj": torch.zeros(dim, config.mlp_dim),
        }
    return {name + ".weight": t.to(device).requires_grad_() for name, t in tensors.items()}


def rope_tables(config: Config, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [context_length, head_dim / 2]."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.arange(config.context_length, dtype=torch.float64)[:, None] / config.rope_theta ** half
    return torch.cos(angles).float().to(device), torch.sin(angles).float().to(device)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE on x [tokens, heads, head_dim] with a table row for each token."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def before_attention(x, norm, wq, wk, wv, q_norm, k_norm, cos, sin, eps):
    """Residual stream [tokens, model_dim] to q, k and v [tokens, heads, head_dim]."""
    h = rms_norm(x, norm, eps)
    q, k, v = (F.linear(h, w.to(h.dtype)).view(len(h), -1, len(q_norm)) for w in (wq, wk, wv))
    return rotate(rms_norm(q, q_norm, eps), cos, sin), rotate(rms_norm(k, k_norm, eps), cos, sin), v


def after_attention(x, attended, wo, norm, w_gate, w_up, w_down, eps):
    """Adds attention's output and the mlp's to the residual stream."""
    x = x + F.linear(attended, wo.to(x.dtype))
    h = rms_norm(x, norm, eps)
    hidden = F.silu(F.linear(h, w_gate.to(h.dtype))) * F.linear(h, w_up.to(h.dtype))
    return x + F.linear(hidden, w_down.to(x.dtype))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention over [batch, heads, length, head_dim]; cuDNN's kernel is the fastest on an H200."""
    if not q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    from torch.nn.attention import SDPBackend, sdpa_kernel
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Decoder:
    """The forward pass; its parts between attentions are compiled on a GPU."""

    def __init__(self, config: Config, parameters: Parameters, is_compiled: bool, dtype: torch.dtype):
        self.config, self.parameters, self.dtype = config, parameters, dtype
        compile_part = torch.compile if is_compiled else (lambda part: part)
        self.before_attention = compile_part(before_attention)
        self.after_attention = compile_part(after_attention)

    def _weights(self, layer: int, names: str) -> list[torch.Tensor]:
        return [self.parameters[f"model.layers.{layer}.{name}.weight"] for name in names.split()]

    def hidden(self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [batch, length] and a RoPE row for each token to the residual stream after thought_layers and after all."""
        batch, length = ids.shape
        eps = self.config.norm_eps
        x = F.embedding(ids.reshape(-1), self.parameters["model.embed_tokens.weight"]).to(self.dtype)
        for layer in range(self.config.num_layers):
            weights = self._weights(layer, "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj "
                                           "self_attn.q_norm self_attn.k_norm")
            qkv = self.before_attention(x, *weights, cos, sin, eps)
            attended = attention(*(t.view(batch, length, -1, self.config.head_dim).transpose(1, 2) for t in qkv))
            attended = attended.transpose(1, 2).reshape(batch * length, -1)
            weights = self._weights(layer, "self_attn.o_proj post_attention_layernorm mlp.gate_proj mlp.up_proj "
                                           "mlp.down_proj")
            x = self.after_attention(x, attended, *weights, eps)
            if layer + 1 == self.config.thought_layers:
                middle = x
        return middle, x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        h = rms_norm(hidden, self.parameters["model.norm.weight"], self.config.norm_eps)
        return F.linear(h, self.parameters["model.embed_tokens.weight"].to(h.dtype)).float()


class Muon:
    """Momentum with orthogonalised updates (Jordan et al. 2024: Newton-Schulz, five steps).

    Matrices of one shape go through together.
    """

    def __init__(self, matrices: list[torch.Tensor], learning_rate: float, momentum: float = 0.95):
        self.learning_rate, self.momentum = learning_rate, momentum
        self.groups: dict[torch.Size, list[torch.Tensor]] = {}
        for matrix in matrices:
            self.groups.setdefault(matrix.shape, []).append(matrix)
        self.averages = {shape: torch.zeros(len(group), *shape, device=group[0].device)
                         for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update at `factor` of the learning rate; clears the gradients."""
        for (rows, cols), group in self.groups.items():
            gradients = torch.stack([matrix.grad for matrix in group])
            average = self.averages[group[0].shape]
            average.lerp_(gradients, 1 - self.momentum)
            update = torch.lerp(gradients, average, self.momentum).bfloat16()
            if rows > cols:
                update = update.transpose(1, 2)
            update = update / (update.float().flatten(1).norm(dim=1)[:, None, None] + 1e-7).bfloat16()
            for _ in range(5):
                gram = update @ update.transpose(1, 2)
                update = 3.4445 * update + (2.0315 * gram @ gram - 4.7750 * gram) @ update
            if rows > cols:
                update = update.transpose(1, 2)
            rate = self.learning_rate * factor * max(1.0, rows / cols) ** 0.5
            torch._foreach_add_(group, list(update.float().unbind()), alpha=-rate)
            for matrix in group:
                matrix.grad = None


def save_checkpoint(folder: pathlib.Path, config: Config, parameters: Parameters) -> None:
    """Writes config.json, tokenizer_config.json and model.safetensors in bf16, as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().to(torch.bfloat16).cpu().contiguous() for name, t in parameters.items()}
    part = folder / "model.safetensors.part"  # who copies the file while training goes on gets a whole one
    save_file(tensors, part, metadata={"format": "pt"})
    part.replace(folder / "model.safetensors")
    fields = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": config.model_dim,
        "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim,
        "intermediate_size": config.mlp_dim, "vocab_size": config.vocab_size, "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rms_norm_eps": config.norm_eps, "hidden_act": "silu", "tie_word_embeddings": True,
        "attention_bias": False, "attention_dropout": 0.0, "use_sliding_window": False, "sliding_window": None,
        "max_position_embeddings": config.context_length, "bos_token_id": 0, "eos_token_id": 0,
        "torch_dtype": "bfloat16", "initializer_range": 0.02}
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    begin = "<|endoftext|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": begin, "add_bos_token": True,
         "model_max_length": config.context_length, "clean_up_tokenization_spaces": False}, indent=1) + "\n")
