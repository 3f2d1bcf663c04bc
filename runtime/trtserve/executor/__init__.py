"""What computes the model: the step contract (``base``), and an executor for each target that has one."""
