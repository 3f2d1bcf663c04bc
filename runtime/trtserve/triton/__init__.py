"""Behind Triton's Python backend: a request of tensors in, a generation of the engine out.

``interface`` is the tensors by name, ``request`` and ``response`` their meaning, ``serving`` follows generations,
``metrics`` shows them to Triton, and ``backend`` alone knows Triton's Python API.
"""
