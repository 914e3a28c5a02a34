"""Whether an answer is right: evaluators, raters, checkers and graders."""
