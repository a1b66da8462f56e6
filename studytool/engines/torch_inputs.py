"""The tensors and the call of a case for PyTorch's scaled_dot_product_attention: seeded, never zeros."""

from typing import Any

import torch

from studytool.engines.base import Arrays
from studytool.model import Case

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def generator_of(seed: int) -> torch.Generator:
    """Return the random stream of a seed."""
    return torch.Generator().manual_seed(seed)


def draw(shape: tuple[int, ...], dtype: str, generator: torch.Generator, distribution: str) -> torch.Tensor:
    """Return a tensor of random values in a dtype, never zeros: standard normal, or uniform in [-1, 1)."""
    if distribution == "normal":
        return torch.randn(shape, generator=generator).to(DTYPES[dtype])
    return (torch.rand(shape, generator=generator) * 2 - 1).to(DTYPES[dtype])


def inputs_of(case: Case, seed: int, distribution: str) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Return q, k, v (and a learned bias), and the keyword arguments of the call."""
    generator = generator_of(seed)
    shapes = [
        (case.b, case.h_q, case.s_q, case.d_qk),
        (case.b, case.h_kv, case.s_kv, case.d_qk),
        (case.b, case.h_kv, case.s_kv, case.d_v),
    ]
    tensors = [draw(shape, case.dtype, generator, distribution) for shape in shapes]
    if case.layout == "strided":
        tensors = [tensor.transpose(-1, -2).contiguous().transpose(-1, -2) for tensor in tensors]
    causal_flag = case.mask == "tl" and not case.window
    mask = None if causal_flag else visible_keys(case)
    if case.bias == "bool":
        extra = torch.rand((case.s_q, case.s_kv), generator=generator) < 0.9
        extra[:, 0] = True
        mask = extra if mask is None else mask & extra
    needs_grad = case.op != "sdpa_fwd"
    if case.bias == "learned":
        bias = draw((1, case.h_q, case.s_q, case.s_kv), case.dtype, generator, distribution)
        if mask is not None:
            bias = bias.masked_fill(~mask, float("-inf"))
        mask = bias
        tensors += [bias] if needs_grad else []
    if needs_grad:
        tensors = [tensor.requires_grad_() for tensor in tensors]
    return tuple(tensors), {
        "attn_mask": mask,
        "dropout_p": case.dropout_pct / 100,
        "is_causal": causal_flag,
        "scale": case.d_qk**-0.5,
        "enable_gqa": case.h_q != case.h_kv and case.layout != "broadcast",
    }


def visible_keys(case: Case) -> torch.Tensor | None:
    """Return which key each query sees, [s_q, s_kv] of bool, None where it sees all."""
    if case.mask == "none":
        return None
    last = torch.arange(case.s_q)[:, None] + (case.s_kv - case.s_q if case.mask == "br" else 0)
    keys = torch.arange(case.s_kv)[None, :]
    seen = keys <= last
    return seen & (keys > last - case.window) if case.window else seen


def float64_result(
    case: Case,
    qkv: tuple[torch.Tensor, ...],
    grad_output: torch.Tensor,
    seen: torch.Tensor | None,
    *,
    bias: torch.Tensor | None = None,
    sink: torch.Tensor | None = None,
) -> Arrays:
    """Return O and the gradients that a case's op asks for, from plain matrix products and softmax in float64.

    They are computed where the tensors are.

    `seen` (bool) and `bias` are broadcast over the scores [b, h_q, s_q, s_kv]; `sink` is one more score per head.
    """
    q, k, v = (tensor.detach().double().requires_grad_() for tensor in qkv)
    keys, values = (tensor.repeat_interleave(case.h_q // case.h_kv, dim=1) for tensor in (k, v))
    scores = q @ keys.transpose(-1, -2) * case.d_qk**-0.5
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen.to(scores.device), float("-inf"))
    if sink is not None:
        column = sink.detach().double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    out = scores.softmax(-1)[..., : case.s_kv] @ values
    found = {"O": out.detach().cpu().numpy()} if case.op != "sdpa_bwd" else {}
    if case.op != "sdpa_fwd":
        grads = torch.autograd.grad(out, (q, k, v), grad_output.detach().double())
        found |= {name: grad.cpu().numpy() for name, grad in zip(("dQ", "dK", "dV"), grads, strict=True)}
    return found
