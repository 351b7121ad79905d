"""`verify`: run a checkpoint and say, in ten lines, whether all is well."""
