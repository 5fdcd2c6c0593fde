"""Answers as text tables, for the command line, the demo and the pages.

`studies` has a study's searches, trials and runs; `comparisons` its optimizers beside each other; `analyses`
importance, scale, sensitivity and Pareto fronts; `across` what all studies together say; `catalog` what a service
offers. Each has the rows and words of its tables too, which pages and exports share.
"""
