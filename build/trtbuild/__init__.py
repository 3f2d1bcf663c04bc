"""The recipe compiler: a YAML recipe in, an engine directory out."""
