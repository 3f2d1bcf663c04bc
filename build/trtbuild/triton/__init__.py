"""``trtbuild triton``: a Triton model repository from an engine directory."""
