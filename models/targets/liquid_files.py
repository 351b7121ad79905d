"""The files of a Liquid checkpoint, looked at without loading the model."""

from pathlib import Path

from models.base import TargetOptions
from models.files.chameleon_parts import find_vqgan
from models.files.folders import given_folder
from models.files.names import HUB_TOKENIZER
from models.files.weights import naming
from models.targets.chameleon_files import check_vqgan, codebook, codes, vqgan_config
from models.targets.family import Checked, Family, ImageSequence, Part
from models.targets.liquid import Liquid, read_prompts, read_words
from models.targets.liquid_network import liquid_entries, liquid_spec, published_network
from models.targets.llama_spec import llama_drafter_spec
from support.json_files import read_object


def check_text(folder: Path, options: TargetOptions) -> Checked:
    """Check that the tokenizer has the tokens around a prompt."""
    size = read_words(folder).get_vocab_size()
    return Checked(f"{folder / HUB_TOKENIZER}: {size} ids; image codes follow, from {size} on")


def check_compatible(folder: Path, options: TargetOptions) -> Checked:
    """Check that tokenizer, VQGAN and transformer fit together and an image finds room."""
    with naming(folder):
        spec = liquid_spec(read_object(folder / "config.json"))
    given = given_folder(options.tokenizer_path, "--tokenizer_path", download=False)
    vqgan = vqgan_config(folder, find_vqgan(folder, given))
    prompts = read_prompts(folder, spec, vqgan)
    grid = prompts.grid
    return Checked(
        f"text tokenizer, image tokenizer and config.json fit together; an image is "
        f"{grid.rows} x {grid.columns} tokens",
        sequence=ImageSequence(grid, prompts.shortest),
    )


LIQUID = Family(
    spec=liquid_spec,
    network=published_network,
    drafter=llama_drafter_spec,
    parts={"text tokenizer": Part(check_text), "image tokenizer": Part(check_vqgan)},
    compatible=check_compatible,
    codes=codes,
    codec=Liquid.codec,
    codebook=codebook,
    entries=liquid_entries,
)
