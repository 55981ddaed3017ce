"""Many runs: their design, the plan of what is to do, the engines that do it, and what the user sees meanwhile."""
