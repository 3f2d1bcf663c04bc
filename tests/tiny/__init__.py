"""A tiny Llama with random weights, for every test that needs a real model and not a good one.

``model`` has its shape and weights, ``tokenizer`` its tokenizers, ``engine`` an engine directory for target torch, and
``checkpoint`` the Hugging Face directory that ``trtbuild`` reads.
"""
