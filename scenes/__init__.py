"""The tiny model's world: scenes, their captions and their pictures."""
