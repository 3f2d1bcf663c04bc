"""A tiny engine directory: a real tokenizer, template and executor around random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save_file

from tests.tiny import model
from tests.tiny.tokenizer import SPECIALS, byte_tokenizer
from trtserve import engine_dir
from trtserve.engine_dir import Manifest, TokenizerRecord
from trtserve.settings import Limits, PromptLookup, Speculative, plan_tiers

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
LIMITS = Limits(max_batch_size=4, max_seq_len=256, prefill_chunk=32)


def write_tiny_engine(
    directory: Path, limits: Limits = LIMITS, *, add_bos: bool = False, recipe: dict[str, Any] | None = None
) -> Path:
    """A byte-level tokenizer without merges, lookup with short matches and up to eight drafts.

    ``recipe``: sections of the resolved recipe that the directory then has.
    """
    tokenizer = byte_tokenizer()
    vocab_size = tokenizer.get_vocab_size()
    (directory / "tokenizer").mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer" / "tokenizer.json"))
    (directory / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    config = model.config(vocab_size=vocab_size, max_position=limits.max_seq_len)
    save_file(model.weights(config), directory / "weights.safetensors")
    if recipe is not None:
        (directory / "recipe.yaml").write_text(yaml.safe_dump({"target": "torch", **recipe}))
    speculative = Speculative(prompt_lookup=PromptLookup(ngram=2, min_match=2, max_drafts=8))
    engine_dir.write(
        directory,
        Manifest(
            name="tiny",
            target="torch",
            model=config,
            tokenizer=TokenizerRecord(
                vocab_size=vocab_size,
                bos_token_id=0,
                add_bos=add_bos,
                eos_token_ids=(1,),
                special_tokens=SPECIALS,
                chat_template=True,
            ),
            limits=limits,
            speculative=speculative,
            tiers=plan_tiers(limits, speculative),
            inputs_digest="0" * 64,
            weights_digest="1" * 64,
            tokenizer_digest="2" * 64,
            built_with={"trtlookup": "0", "python": "3"},
        ),
    )
    return directory
