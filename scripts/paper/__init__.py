"""The paper's table of one model, and its ablations: `run.sh` and `ablation.sh`."""
