"""Methods of other papers, for comparison."""
