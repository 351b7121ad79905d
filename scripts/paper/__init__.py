"""The paper's table of one model: `run.sh`, and what it needs."""
