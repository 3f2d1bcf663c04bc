"""Draft acceptance as CUDA: one kernel source for TensorRT plugins, for direct launch and for the host."""
