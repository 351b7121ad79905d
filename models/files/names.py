"""Names of the files that checkpoints come in."""

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
WEIGHT_INDEXES = tuple(f"{name}.index.json" for name in WEIGHT_FILES)  # of weights in shards
TEXT_TOKENIZER, HUB_TOKENIZER = "text_tokenizer.json", "tokenizer.json"  # Meta's, the hub's
VQGAN_CONFIG, VQGAN_WEIGHTS = "vqgan.yaml", ("vqgan.safetensors", "vqgan.ckpt")
BUNDLED_VQGAN = "model.vqmodel."  # prefix of a VQGAN's keys among a transformer's weights
T5_TOKENIZERS = ("tokenizer.json", "spiece.model")
