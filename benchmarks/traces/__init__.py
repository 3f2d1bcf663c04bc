"""Recorded (prompt, output) token pairs to replay drafting policies on: see ``make`` for what they are."""
