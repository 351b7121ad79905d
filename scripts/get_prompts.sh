#!/usr/bin/env bash
# Downloads the prompt sets into configs/prompts: PartiPrompts (0.3 MB) and the MS-COCO 2017 validation
# captions (from an archive of 253 MB, which is deleted afterwards). Files that are already there are
# kept. Without internet, copy the two files there.
# Variable: TO, another folder (then --prompt_file names the files).
set -euo pipefail
cd "$(dirname "$0")/.."
TO=${TO:-configs/prompts}
mkdir -p "$TO"
part="$TO/download.partial"
trap 'rm -f "$part"' EXIT

fetch() { # fetch URL: download it to $part
  curl --fail --location --show-error --silent --output "$part" "$1" ||
    { echo "error: $1 could not be downloaded; copy the file to $TO by other means" >&2; exit 1; }
}

if [ ! -e "$TO/PartiPrompts.tsv" ]; then
  fetch https://raw.githubusercontent.com/google-research/parti/main/PartiPrompts.tsv
  mv "$part" "$TO/PartiPrompts.tsv"
fi
if [ ! -e "$TO/captions_val2017.json" ]; then
  fetch http://images.cocodataset.org/annotations/annotations_trainval2017.zip
  unzip -p "$part" annotations/captions_val2017.json >"$TO/captions_val2017.json.partial"
  mv "$TO/captions_val2017.json.partial" "$TO/captions_val2017.json"
fi
echo "$TO/PartiPrompts.tsv, $TO/captions_val2017.json"
