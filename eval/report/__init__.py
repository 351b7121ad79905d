"""`evaluate`: tables, plots and an HTML report from finished runs."""
