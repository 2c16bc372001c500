"""The face of leco for programs and notebooks, above the command: `import leco` has all of it."""
