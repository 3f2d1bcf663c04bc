"""A request's sampling parameters in TensorRT-LLM's terms, and what of them it is not asked for.

What is refused is refused at the door, with the parameter's name: a request is served as asked or not at all. Sampling
itself is TensorRT-LLM's. Greedy text does not depend on drafts, since a draft is accepted only where it equals the
target's own token; seeded text may, because TensorRT-LLM does not promise a random number per position.
"""

from __future__ import annotations

from typing import Any

from trtserve.engine.protocol import GenerationRequest, RequestError
from trtserve.engine.sequence import Sequence
from trtserve.engine.tensorrt_llm.versions import Generation
from trtserve.sampling import SamplingState

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def check(request: GenerationRequest, generation: Generation) -> None:
    """Raise RequestError for what this target does not do."""
    params = request.params
    for name in _PENALTIES:
        if getattr(params, name) != type(params).model_fields[name].default:
            raise RequestError(
                f"{name} is not offered on target tensorrt_llm: TensorRT-LLM does not promise to apply penalties to "
                f"the positions of drafts; allowed: {type(params).model_fields[name].default}",
                name,
            )
    if params.min_tokens and params.stop_token_ids:
        raise RequestError(
            "min_tokens with stop_token_ids is not offered on target tensorrt_llm, which holds back only its own end "
            "token; allowed: one of the two",
            "min_tokens",
        )
    if generation == "engine" and params.logprobs is not None:
        raise RequestError("logprobs is not offered on target tensorrt_llm 1.2; allowed: null", "logprobs")
    if generation == "engine" and request.scope.adapter:
        raise RequestError("adapters are not offered on target tensorrt_llm 1.2; allowed: none", "model")


def choice(state: SamplingState, seed: int) -> dict[str, Any]:
    """How one token is chosen: the arguments that both generations' sampling settings share."""
    params = state.params
    if params.greedy:
        return {"top_k": 1}
    chosen: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p, "seed": seed}
    if params.top_k:
        chosen["top_k"] = params.top_k
    if params.min_p:
        chosen["min_p"] = params.min_p
    return chosen


def embedding_bias(state: SamplingState, vocab_size: int) -> Any:
    """The bias of every token as a float32 tensor ``[vocab_size]``; None without a bias."""
    if not len(state.bias_tokens):
        return None
    import torch

    bias = torch.zeros(vocab_size, dtype=torch.float32)
    bias[torch.from_numpy(state.bias_tokens).long()] = torch.from_numpy(state.bias_values)
    return bias


def llm_sampling(sampling_params: Any, sequence: Sequence, vocab_size: int) -> Any:
    """``tensorrt_llm.SamplingParams`` for a sequence. Text, stop strings and the last word on endings stay here."""
    params, state = sequence.params, sequence.sampling
    ends = sorted(sequence.end_tokens)
    # A stop token of TensorRT-LLM's knows no min_tokens; then the other end tokens are left to this side.
    stops = [] if params.min_tokens else [*ends[1:], *params.stop_token_ids]
    return sampling_params(
        max_tokens=sequence.budget,
        end_id=ends[0] if ends else -1,
        pad_id=ends[0] if ends else 0,
        stop_token_ids=stops or None,
        # Otherwise the token that ended the output would be cut from it.
        include_stop_str_in_output=True,
        min_tokens=params.min_tokens or None,
        embedding_bias=embedding_bias(state, vocab_size),
        logprobs=None if params.logprobs is None else max(params.logprobs, 1),
        detokenize=False,
        **choice(state, state.seed),
    )
