"""Where a Chameleon checkpoint's tokenizer is found: folders, a flag, or its own weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from damage import tensors
from safetensors.torch import load_file, save_file
from small import loaded, store_weights

import main
from models.codecs.vqgan import VqganConfig, json_config
from models.files.chameleon_parts import find_tokenizer

SMALL_VQ = {"base_channels": 8, "channel_multiplier": [1, 2], "num_res_blocks": 1,
            "latent_channels": 4, "embed_dim": 4, "num_embeddings": 24, "resolution": 8,
            "num_groups": 4, "attn_resolutions": None}  # fmt: skip
OLD_NAMES = {"base_channels": "ch", "channel_multiplier": "ch_mult",
             "latent_channels": "z_channels", "num_embeddings": "n_embed"}  # fmt: skip


def pixels(folder: Path, tokenizer: Path | None = None) -> torch.Tensor:
    given = None if tokenizer is None else str(tokenizer)
    return loaded(folder, "anole", tokenizer_path=given).to_image(torch.arange(16).view(1, 16))


def pack(folder: Path, names: dict[str, str] | None = None, part: str = "") -> None:
    """Move the VQGAN into the checkpoint's weights, or only its keys that start with `part`."""
    home = folder / "tokenizer"
    state = load_file(folder / "model.safetensors")
    codec = load_file(home / "vqgan.safetensors")
    inside = {f"model.vqmodel.{key}": value for key, value in codec.items() if part in key}
    save_file(state | inside, folder / "model.safetensors")
    for name in ("vqgan.yaml", "vqgan.safetensors"):
        (home / name).unlink()
    sizes = {(names or {}).get(name, name): value for name, value in SMALL_VQ.items()}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vq_config": sizes}))


PLACES = "chameleon/tokenizer", "elsewhere", "base/tokenizer", "base/chameleon/tokenizer"


@pytest.mark.parametrize("place", PLACES)
def test_places_outside_the_checkpoint(place, checkpoint, folder) -> None:
    shutil.move(folder / "tokenizer", folder.parent / place)
    flag = None if place == PLACES[0] else folder.parent / place.split("/")[0]
    assert torch.equal(pixels(folder, flag), pixels(checkpoint))
    # the VQGAN alone, as for Liquid
    (folder.parent / place / "text_tokenizer.json").rename(folder / "tokenizer.json")
    assert torch.equal(pixels(folder, flag), pixels(checkpoint))


def test_the_checkpoints_own_folder_comes_first_and_the_flag_before_it(folder) -> None:
    shutil.copytree(folder / "tokenizer", folder.parent / "chameleon" / "tokenizer")
    assert find_tokenizer(folder)[0] == folder / "tokenizer" / "text_tokenizer.json"
    given = folder.parent / "chameleon"
    assert find_tokenizer(folder, given)[1] == given / "tokenizer"
    with pytest.raises(ValueError, match=r"text_tokenizer\.json and no vqgan\.yaml .*empty"):
        find_tokenizer(folder, folder.parent / "empty")


@pytest.mark.parametrize(
    ("names", "kind"),
    [({}, "bin"), (OLD_NAMES, "sharded safetensors")],
    ids=["new names", "old names"],
)
def test_vqgan_among_the_checkpoints_own_weights(names, kind, checkpoint, folder, capsys) -> None:
    """In the files of a conversion that brings the whole VQGAN, beside tokenizer.json."""
    pack(folder, names)
    tensors(model__vqmodel__loss__scale=torch.zeros(1))(folder)
    store_weights(folder, kind)
    shutil.move(folder / "tokenizer" / "text_tokenizer.json", folder / "tokenizer.json")
    assert find_tokenizer(folder) == (folder / "tokenizer.json", None)
    assert torch.equal(pixels(folder), pixels(checkpoint))
    assert main.main(["inspect", f"--model_path={folder}"]) == 0
    said = capsys.readouterr().out
    assert "weights model.vqmodel.*: 24 codes, 8 x 8 pixels" in said
    assert f"{folder}/tokenizer.json" in said


def test_bundled_weights_that_do_not_fit_are_all_named(folder) -> None:
    pack(folder)
    bias = "model.vqmodel.quant_conv.bias"
    tensors(without=bias, model__vqmodel__extra=torch.zeros(1))(folder)
    message = rf"missing key {bias}.*unexpected key model\.vqmodel\.extra"
    with pytest.raises(ValueError, match=message):
        pixels(folder)


def test_a_checkpoint_with_the_encoder_only_names_metas_files(folder) -> None:
    pack(folder, part="encoder.")
    with pytest.raises(ValueError) as error:
        pixels(folder)
    for words in ("vqgan.yaml", "vqgan.safetensors or vqgan.ckpt", str(folder / "tokenizer"),
                  "chameleon/tokenizer", "model.vqmodel.decoder", "--tokenizer_path",
                  "facebookresearch/chameleon"):  # fmt: skip
        assert words in str(error.value)


def test_a_checkpoint_without_a_tokenizer_names_metas_file_and_the_hubs(folder) -> None:
    (folder / "tokenizer" / "text_tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"text_tokenizer\.json.*and no tokenizer\.json"):
        pixels(folder)


NEW = {
    "embed_dim": 256, "num_embeddings": 8192, "double_latent": False, "latent_channels": 256,
    "resolution": 512, "in_channels": 3, "base_channels": 128,
    "channel_multiplier": [1, 1, 2, 2, 4], "num_res_blocks": 2, "attn_resolutions": None,
    "dropout": 0.0, "attn_type": "vanilla",
}  # fmt: skip
OLD = {OLD_NAMES.get(name, name): value for name, value in NEW.items() if name != "attn_type"}
OLD |= {"double_z": OLD.pop("double_latent"), "out_ch": 3, "attn_resolutions": []}


@pytest.mark.parametrize(
    "given",
    [NEW, OLD, NEW | OLD | {"out_channels": 3}, {}],
    ids=["new names", "old names", "both", "defaults"],
)
def test_published_vq_configs(given) -> None:
    assert json_config(given, "config.json") == VqganConfig(
        128, (1, 1, 2, 2, 4), 2, 256, 256, 8192, 512
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "vq_config is None"),
        ({"double_latent": True}, "vq_config.double_latent: expected"),
        ({"attn_resolutions": [32]}, "vq_config.attn_resolutions: expected"),
        ({"channel_multiplier": 3}, "vq_config"),
        ({"n_embed": "many"}, "vq_config: n_embed"),
    ],
)
def test_vq_configs_that_cannot_be_used(given, words) -> None:
    with pytest.raises(ValueError, match=f"config.json: {words}"):
        json_config(given, "config.json")
