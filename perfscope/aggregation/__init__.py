"""What is printed of very many ranks: quantiles, groups and outliers; the rows themselves go to files."""
