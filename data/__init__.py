"""Files that ship with the package (prompts, drafter, profiles, results). No code."""
