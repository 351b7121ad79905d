"""Captions of scenes, in varied wording.

Each names the background, and the colour and shape of every object.
"""

import numpy as np

from scenes.scene import Background, Scene, SceneObject, pick, sample_scene

_SIZE_WORDS = {"small": ("small", "little", "tiny"), "large": ("large", "big")}
# A word that is listed twice is picked twice as often.
_GROUND_WORDS = ("background", "background", "backdrop")
_RELATION_WORDS = {
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
_CENTRE_WORDS = ("in the centre", "in the middle")
_OPENINGS = ("", "", "", "a picture of ", "an image of ", "there is ")
_VOWELS = tuple("aeiou")


def caption(scene: Scene, seed: int) -> str:
    """Return a caption of at most about 30 lower-case words; the seed chooses the wording."""
    # with a number of its own, or the wording would follow the scene, drawn from the same index
    rng = np.random.default_rng((7, seed))
    ground = _background(scene.background, rng)
    objects = _objects(scene, rng)
    form = rng.integers(5)
    if form == 0:
        text = f"{ground} with {objects}"
    elif form == 1:
        text = f"on {ground}, {objects}"
    else:
        text = f"{pick(rng, _OPENINGS)}{objects} {pick(rng, ('on', 'on', 'against'))} {ground}"
    return text + ("." if rng.random() < 0.3 else "")


def scene_captions(split: str, count: int) -> list[str]:
    """Return the captions of the first scenes of a split."""
    return [caption(sample_scene(split, index), index) for index in range(count)]


def _objects(scene: Scene, rng: np.random.Generator) -> str:
    names = [_object(item, rng) for item in scene.objects]
    relation, position = scene.relation(), scene.position()
    if relation and rng.random() < 0.7:
        return f"{names[0]} {pick(rng, _RELATION_WORDS[relation])} {names[1]}"
    if position and rng.random() < 0.6:
        where = pick(rng, _CENTRE_WORDS) if position == "centre" else f"at the {position}"
        return f"{names[0]} {where}"
    if len(names) < 3:
        return " and ".join(names)
    return f"{names[0]}, {names[1]} and {names[2]}"


def _object(item: SceneObject, rng: np.random.Generator) -> str:
    size = pick(rng, _SIZE_WORDS[item.size]) if rng.random() < 0.6 else ""
    fill = "" if item.fill == "solid" else item.fill
    return _with_article(" ".join(word for word in (size, fill, item.colour, item.shape) if word))


def _background(background: Background, rng: np.random.Generator) -> str:
    words = [background.kind, background.colour]
    if rng.random() < 0.35:
        words.reverse()
    return _with_article(" ".join([*words, pick(rng, _GROUND_WORDS)]))


def _with_article(phrase: str) -> str:
    return f"an {phrase}" if phrase.startswith(_VOWELS) else f"a {phrase}"
