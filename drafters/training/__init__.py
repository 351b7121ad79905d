"""Training of drafters for any target: token shards in, drafters out."""
