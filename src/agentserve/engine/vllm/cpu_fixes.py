"""Repairs of vLLM's CPU build (0.32 and 0.33) that the demo models need.

Loaded by the plugin inside vLLM's processes, on the CPU platform only.
"""

from __future__ import annotations

from typing import Any

_KERNEL = "vllm.v1.sample.rejection_sampler.expand_kernel"


def repair_speculative_sampling() -> None:
    """Let sampling with speculative decoding see the requests' temperatures.

    vLLM's stand-in for the kernel that repeats one value per request for each of its draft tokens
    writes into an integer copy of the output, so the real buffer stays uninitialised and every
    temperature above 0 samples garbage.
    """
    import torch
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils

    def expand(
        output: Any,
        input_val: Any,
        cu_num_tokens: Any,
        replace_from: Any,
        replace_to: Any,
        MAX_NUM_TOKENS: Any = None,  # noqa: N803 - vLLM passes it by this name
    ) -> None:
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        replacement = torch.as_tensor(replace_to, dtype=input_val.dtype)
        values = torch.where(input_val == replace_from, replacement, input_val)
        output.copy_(values.repeat_interleave(counts))

    # The platform registers its own version from this module, before or after us.
    cpu_triton_utils._expand_kernel_impl = expand
    register_kernels({_KERNEL: expand})
