"""The recipe compiler: a YAML recipe in, an engine directory out."""

__version__ = "0.1.0"
