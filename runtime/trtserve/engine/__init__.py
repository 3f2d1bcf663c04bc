"""The engine protocol, and the engines: the local scheduler over an executor, and TensorRT-LLM's."""
