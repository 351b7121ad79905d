from support.quiet import silence

silence()  # before diffusers or transformers is imported
