"""Profile → Design → Draw: the mathematics, with numpy and scipy only."""
