#!/usr/bin/env bash
# The main job, shown: a long real text read with dense and with sparse attention. `make run` calls it.
# What it makes or fetches stays in .cache/ and models/, so that a second run only measures again.
set -euo pipefail
cd "$(dirname "$0")/.."
fovea=${FOVEA:-build/release/apps/cli/fovea}
mkdir -p .cache/demo 2>/dev/null && [ -w .cache/demo ] || {
  echo "demo: cannot write into $PWD/.cache: run it in a checkout of your own" >&2
  exit 2
}

text() {  # text KIND BYTES: path of a text of that kind, made once
  local path=.cache/demo/$1.txt
  [ -s "$path" ] || python3 scripts/long_text.py --kind "$1" --bytes "$2" -o "$path"
  echo "$path"
}

echo "== 1. A fact hidden in 32K tokens of this machine's own text (models/needle_7m, no network needed)"
echo "   dense looks at everything; the others at 5 % of the block pairs, chosen in their own ways"
mixed=$(text mixed 2000000)
"$fovea" needle -m models/needle_7m -f "$mixed" --length 32K --density 0.05 \
  --attention dense,centroid,rescue,witness --documents 4 --max-seconds 120 -o .cache/demo/needle.json

echo
echo "== 2. SmolLM2-135M-Instruct on a long real text: time to first token and next tokens, dense and sparse"
status=0
model=$(python3 scripts/get_model.py smollm2 --folder models 2>.cache/demo/get_model.log) || status=$?
if [ "$status" -eq 3 ]; then
  echo "demo: left out, because the model cannot be fetched: $(tail -n 1 .cache/demo/get_model.log)"
  exit 0
elif [ "$status" -ne 0 ]; then
  cat .cache/demo/get_model.log >&2
  exit "$status"
fi
prose=$(text prose 1500000)
"$fovea" bench -m "$model" -f "$prose" --lengths 1K,2K,4K,8K --attention dense,rescue,witness \
  --repetitions 2 -o .cache/demo/bench.json

echo
echo "== 3. The same model asked in plain English for a fact hidden in 3K tokens: dense, and two selectors at 15 %"
echo "   The question's two blocks are read densely: without that both selectors lose most needles of this model."
journal=.cache/demo/needle_smollm2.jsonl
rm -f "$journal"
"$fovea" eval -m "$model" -f "$prose" --generate --tasks single --length 3K --block-size 32 -n 16 \
  --attention centroid,witness --densities 15 --dense-tail 2 --journal "$journal" -o .cache/demo/needle_smollm2.json
python3 - "$journal" <<'PYTHON'
import json, sys
found = {}
for line in open(sys.argv[1]):
    record = json.loads(line)
    if "attention" in record and record["scores"][0] == 1:
        found.setdefault(record["attention"].split(",")[0], set()).add(record["prompt"])
dense, centroid, witness = (found.get(name, set()) for name in ("dense", "centroid", "witness"))
case = (dense & witness) - centroid
print(f"Found by dense and witness and lost by centroid: {len(case)} of the {len(dense)} that dense finds;",
      f"the other way round: {len((dense & centroid) - witness)}." if case else "no such case on this text.")
PYTHON
echo "(On another text it was 2 of 6, the best of several settings tried: benchmarks/results/quality_smollm2_needle_3k_2_cores.json."
echo "So few prompts show a case, not a difference; docs/quality.md has those.)"
echo
echo "Results as JSON: .cache/demo/needle.json, .cache/demo/bench.json, .cache/demo/needle_smollm2.json"
