"""The runtime: an engine directory in, text out, with prompt-lookup decoding."""
