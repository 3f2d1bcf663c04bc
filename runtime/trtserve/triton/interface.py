"""The tensors of the Triton model, by name.

Names, types and shapes of the first block are those of the model that TensorRT-LLM ships for its LLM API
(``triton_backend/all_models/llmapi/tensorrt_llm/config.pbtxt``), so that its clients work unchanged. The second block
is this project's own. ``trtbuild triton`` writes both into ``config.pbtxt``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

TensorType = Literal["STRING", "BOOL", "INT32", "INT64", "UINT64", "FP32"]

#: Text comes from one string; the engine batches requests, so Triton's own batching stays off.
MAX_BATCH_SIZE = 0
#: Where the model's version folder keeps the engine directory.
ENGINE_NAME = "engine"
#: How a sampling field of a request is named.
SAMPLING_PREFIX = "sampling_param_"


class TensorSpec(NamedTuple):
    """One input or output. ``size`` is its one dimension, -1 for any."""

    name: str
    type: TensorType
    size: int
    about: str


TEXT_INPUT = TensorSpec("text_input", "STRING", -1, "the prompt, one string")

#: All optional.
TENSORRT_LLM_INPUTS = (
    TensorSpec("streaming", "BOOL", 1, "text in pieces; needs the decoupled transaction policy"),
    TensorSpec("sampling_param_best_of", "INT32", 1, "1 is all there is"),
    TensorSpec("sampling_param_temperature", "FP32", 1, "0 is greedy"),
    TensorSpec("sampling_param_top_k", "INT32", 1, "keep the k most likely tokens; 0 keeps all"),
    TensorSpec("sampling_param_top_p", "FP32", 1, "keep the smallest set of this probability; 0 is greedy"),
    TensorSpec("sampling_param_frequency_penalty", "FP32", 1, "per occurrence in the output"),
    TensorSpec("sampling_param_presence_penalty", "FP32", 1, "once per token already in the output"),
    TensorSpec("sampling_param_max_tokens", "INT32", 1, "output tokens"),
    TensorSpec("sampling_param_stop", "STRING", -1, "strings that end the text, and are left out of it"),
    TensorSpec("sampling_param_seed", "UINT64", 1, "the same seed gives the same text"),
    TensorSpec("sampling_param_exclude_input_from_output", "BOOL", 1, "false puts the prompt before the text"),
    TensorSpec("sampling_param_return_perf_metrics", "BOOL", 1, "times and draft totals as outputs"),
    TensorSpec("return_finish_reason", "BOOL", 1, "finish_reason as an output"),
    TensorSpec("return_stop_reason", "BOOL", 1, "stop_reason as an output"),
    TensorSpec("return_cumulative_logprob", "BOOL", 1, "cumulative_logprob as an output"),
    TensorSpec("stop", "BOOL", 1, "cancel the running requests of this request id"),
)
OWN_INPUTS = (
    TensorSpec("sampling_param_min_p", "FP32", 1, "drop tokens below this share of the most likely one's"),
    TensorSpec("sampling_param_repetition_penalty", "FP32", 1, "for tokens of prompt and output; 1 is off"),
    TensorSpec("sampling_param_min_tokens", "INT32", 1, "output tokens before an end or stop token"),
    TensorSpec("sampling_param_stop_token_ids", "INT32", -1, "tokens that end the text"),
    TensorSpec("sampling_param_ignore_eos", "BOOL", 1, "go on after the end token"),
    TensorSpec("sampling_param_include_stop_str_in_output", "BOOL", 1, "keep the stop string"),
    TensorSpec("prediction", "STRING", 1, "text that the output is expected to repeat in part"),
    TensorSpec("prompt_lookup", "BOOL", 1, "false: no copies for this request, and none from it"),
    TensorSpec("accumulate_text", "BOOL", 1, "each piece of a stream holds all text so far"),
    TensorSpec("return_lookup_stats", "BOOL", 1, "token counts and draft statistics by source as outputs"),
)
INPUTS = (TEXT_INPUT, *TENSORRT_LLM_INPUTS, *OWN_INPUTS)

TENSORRT_LLM_OUTPUTS = (
    TensorSpec("text_output", "STRING", -1, "the text, or its next piece"),
    TensorSpec("finish_reason", "STRING", -1, "stop or length"),
    TensorSpec("stop_reason", "STRING", -1, "the stop string or token; empty when there was none"),
    TensorSpec("cumulative_logprob", "FP32", -1, "log-probability of all output tokens together"),
    TensorSpec("kv_cache_hit_rate", "FP32", -1, "share of prompt tokens that were not prefilled again"),
    TensorSpec("arrival_time_ns", "INT64", 1, "times on the server's steady clock"),
    TensorSpec("first_scheduled_time_ns", "INT64", 1, "when the request got its slot"),
    TensorSpec("first_token_time_ns", "INT64", 1, "when its first token was out"),
    TensorSpec("last_token_time_ns", "INT64", 1, "when its last token was out"),
    TensorSpec("acceptance_rate", "FP32", 1, "drafts accepted over drafts proposed; 0 without drafts"),
    TensorSpec("total_accepted_draft_tokens", "INT32", 1, "drafts accepted"),
    TensorSpec("total_draft_tokens", "INT32", 1, "drafts proposed"),
)
OWN_OUTPUTS = (
    TensorSpec("prompt_tokens", "INT32", 1, "tokens of the prompt"),
    TensorSpec("cached_tokens", "INT32", 1, "those not prefilled again"),
    TensorSpec("completion_tokens", "INT32", 1, "tokens of the output"),
    TensorSpec("rounds", "INT32", 1, "verify forwards the request took part in"),
    TensorSpec("rounds_skipped", "INT32", 1, "rounds in which the miss backoff held a copy back"),
    TensorSpec("draft_window", "INT32", 1, "the window after the last round"),
    TensorSpec("draft_sources", "STRING", -1, "history, prediction, shared, model: names for the next two"),
    TensorSpec("draft_tokens", "INT32", -1, "drafts proposed by each source"),
    TensorSpec("accepted_tokens", "INT32", -1, "drafts accepted of each source"),
)
OUTPUTS = (*TENSORRT_LLM_OUTPUTS, *OWN_OUTPUTS)
